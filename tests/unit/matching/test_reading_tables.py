"""Tables from anywhere: the same rows, whatever holds them; what cannot be read is refused before anything is paid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from adacur.data import DataWarning
from adacur.errors import DuplicateId, EmptyInput, InputError
from adacur.matching.tables import Table
from adacur.records import Item

ROWS = [
    {"id": "a", "title": "steel kettle", "brand": "Ember", "price": 12.5},
    {"id": "b", "title": "lamp", "brand": None, "price": None},
]
EXPECTED = [Item("a", "steel kettle Ember"), Item("b", "lamp")]


def sources(folder: Path) -> dict[str, Any]:
    lines, table = folder / "rows.jsonl", folder / "rows.csv"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table.write_text("id,title,brand,price\na,steel kettle,Ember,12.5\nb,lamp,,\n")
    frames = {"pandas": pd.DataFrame(ROWS), "polars": pl.DataFrame(ROWS), "arrow": pa.Table.from_pylist(ROWS)}
    return {"list": ROWS, "lazy": pl.LazyFrame(ROWS), "once": iter(ROWS), "jsonl": lines, "csv": table, **frames}


@pytest.mark.parametrize("kind", ["list", "lazy", "once", "jsonl", "csv", "pandas", "polars", "arrow"])
def test_rows_are_the_same_whatever_holds_them(tmp_path: Path, kind: str) -> None:
    table = Table(sources(tmp_path)[kind], "{title} {brand}")
    assert table.count() == 2
    assert list(table) == EXPECTED
    assert list(table) == EXPECTED, "a table is read anew each time"


def test_without_a_template_all_columns_but_the_id_are_the_text() -> None:
    assert [row.text for row in Table(ROWS)] == ["steel kettle. Ember. 12.5", "lamp"]


def test_rows_without_an_id_are_numbered() -> None:
    assert [row.id for row in Table([{"title": "x"}, {"title": "y"}])] == ["0", "1"]
    assert [row.id for row in Table(["x", "y"])] == ["0", "1"]


@pytest.mark.parametrize("options", [{"text": "{titel}"}, {"id_": "sku"}])
@pytest.mark.parametrize("kind", ["list", "jsonl", "csv", "pandas"])
def test_a_missing_column_is_refused(tmp_path: Path, kind: str, options: dict[str, str]) -> None:
    with pytest.raises(InputError):
        Table(sources(tmp_path)[kind], **options).count()


@pytest.mark.parametrize(
    "template", ["", "no columns", "{}", "{title", "{title.__class__}", "{title!r}", "{price:.2f}"]
)
def test_a_template_names_columns_and_nothing_else(template: str) -> None:
    with pytest.raises(InputError):
        Table(ROWS, template).count()


def test_ids_that_are_not_unique_are_refused() -> None:
    with pytest.raises(DuplicateId):
        Table([{"id": 1, "title": "x"}, {"id": "1", "title": "y"}]).count()


def test_rows_without_a_word_are_left_out_and_listed() -> None:
    table = Table([*ROWS, {"id": "c", "title": " ", "brand": None}], "{title}")
    with pytest.warns(DataWarning):
        assert table.count() == 2
    assert table.empty == ["c"]
    assert [row.id for row in table] == ["a", "b"]


@pytest.mark.parametrize("source", [[], [{"id": "a", "title": ""}]])
def test_a_table_without_a_text_is_refused(source: list[Any]) -> None:
    with pytest.raises(EmptyInput):
        Table(source, "{title}").count()


@pytest.mark.parametrize("source", [3, {"id": "a"}, [1, 2]])
def test_what_is_no_table_is_refused(source: Any) -> None:
    with pytest.raises(InputError):
        Table(source).count()
