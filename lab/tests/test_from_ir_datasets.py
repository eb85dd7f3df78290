"""With real ir_datasets objects over files written here: nothing is downloaded."""

from __future__ import annotations

from typing import NamedTuple

import ir_datasets
import pytest
from ir_datasets.formats import BaseDocs, TrecQrels, TsvQueries
from ir_datasets.util import LocalDownload

from adacur.data import DataWarning
from adacur.errors import FetchError, InputError, UnknownName
from adacur.records import Item, Query
from adacur_lab.ir_datasets_collections import from_ir_datasets


class TitledDoc(NamedTuple):
    doc_id: str
    title: str
    text: str

    def default_text(self) -> str:
        return f"{self.title} {self.text}"


class TitledDocs(BaseDocs):
    def docs_iter(self):
        yield TitledDoc("d1", "Lamp", "Oil burns in it.")
        yield TitledDoc("d2", "", "A wick without a title.")
        yield TitledDoc("d3", "", " ")

    def docs_cls(self):
        return TitledDoc

    def docs_lang(self):
        return "en"


@pytest.fixture
def registered(tmp_path):
    """Registers datasets under names of their own, and takes them out again."""
    (tmp_path / "docs.tsv").write_text("d1\tA lamp burns oil.\nd2\tA candle burns wax.\n")
    (tmp_path / "queries.tsv").write_text("q1\twhat burns oil?\nq2\twhat burns wax?\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 2\nq1 1 d1 1\nq2 0 d2 1\n")
    names = []

    def register(name: str, dataset) -> str:
        ir_datasets.registry.register(name, dataset)
        names.append(name)
        return name

    yield tmp_path, register
    for name in names:
        del ir_datasets.registry._registered[name]


def test_a_dataset_gives_items_queries_and_judgements(registered) -> None:
    folder, register = registered
    files = {"docs_tsv": "docs.tsv", "queries_tsv": "queries.tsv", "qrels_trec": "qrels.txt"}
    dataset = ir_datasets.create_dataset(**{name: str(folder / file) for name, file in files.items()})
    collection = from_ir_datasets(register("adacur-lamps", dataset))
    assert collection.name == "adacur-lamps"
    assert collection.items == [Item("d1", "A lamp burns oil."), Item("d2", "A candle burns wax.")]
    assert collection.queries == [Query("q1", "what burns oil?"), Query("q2", "what burns wax?")]
    assert collection.qrels == {"q1": {"d1": 2}, "q2": {"d2": 1}}


def test_titles_are_joined_as_in_beir_folders_and_wordless_items_left_out(registered) -> None:
    folder, register = registered
    dataset = ir_datasets.Dataset(
        TitledDocs(),
        TsvQueries(LocalDownload(str(folder / "queries.tsv"))),
        TrecQrels(LocalDownload(str(folder / "qrels.txt")), {}),
    )
    with pytest.warns(DataWarning, match="1 item.*d3"):
        collection = from_ir_datasets(register("adacur-titled", dataset))
    assert collection.items == [
        Item("d1", "Lamp. Oil burns in it.", {"title": "Lamp"}),
        Item("d2", "A wick without a title.", {"title": ""}),
    ]


def test_a_dataset_without_judgements_is_refused(registered) -> None:
    folder, register = registered
    dataset = ir_datasets.create_dataset(docs_tsv=str(folder / "docs.tsv"))
    with pytest.raises(InputError, match="qrels"):
        from_ir_datasets(register("adacur-docs", dataset))


def test_an_unknown_dataset_is_named_with_a_near_one() -> None:
    with pytest.raises(UnknownName, match=r"'beir/scifcat/test'.*'beir/scifact/test'"):
        from_ir_datasets("beir/scifcat/test")


def test_files_that_cannot_be_had_are_an_error_of_fetching(registered) -> None:
    folder, register = registered
    files = {"docs_tsv": "gone.tsv", "queries_tsv": "queries.tsv", "qrels_trec": "qrels.txt"}
    dataset = ir_datasets.create_dataset(**{name: str(folder / file) for name, file in files.items()})
    with pytest.raises(FetchError, match=r"ir_datasets.*'adacur-gone'"):
        from_ir_datasets(register("adacur-gone", dataset))
