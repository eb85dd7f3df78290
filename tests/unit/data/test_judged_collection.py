from __future__ import annotations

import gzip
import shutil

import pytest

from adacur.data import DataWarning, JudgedCollection, read_beir, read_items, read_qrels
from adacur.errors import DuplicateId, EmptyInput, FileFormatError, InputError
from adacur.records import Item, Query


@pytest.mark.filterwarnings("ignore::adacur.data.DataWarning")
def test_a_beir_folder_gives_items_queries_and_the_judgements_of_a_split(beir_folder) -> None:
    collection = read_beir(beir_folder)
    assert collection.name == "beir"
    assert [item.id for item in collection.items] == ["d1", "d2", "d3", "d4"]
    assert collection.items[1].text == "Rust. Iron rusts in damp air, and faster near the sea."
    assert collection.qrels == {"q1": {"d1": 2, "d2": 0}, "q2": {"d3": 1}}
    assert [query.id for query in collection.judged] == ["q1", "q2"]
    assert [query.id for query in read_beir(beir_folder, split="train").judged] == ["q3", "q4"]


@pytest.mark.filterwarnings("ignore::adacur.data.DataWarning")
def test_files_of_a_beir_folder_may_be_gzipped(beir_folder, tmp_path) -> None:
    shutil.copytree(beir_folder, tmp_path / "beir")
    for name in ("corpus.jsonl", "queries.jsonl"):
        (tmp_path / "beir" / f"{name}.gz").write_bytes(gzip.compress((beir_folder / name).read_bytes()))
        (tmp_path / "beir" / name).unlink()
    assert read_beir(tmp_path / "beir").items == read_beir(beir_folder).items


@pytest.mark.filterwarnings("ignore::adacur.data.DataWarning")
def test_a_split_that_is_not_there_is_named_with_those_that_are(beir_folder, tmp_path) -> None:
    with pytest.raises(FileFormatError, match=r"qrels/dev\.tsv.*qrels/test\.tsv.*qrels/train\.tsv"):
        read_beir(beir_folder, split="dev")
    (tmp_path / "qrels.tsv").write_text("q\td\t1\n")
    assert read_qrels(tmp_path) == {"q": {"d": 1}}
    with pytest.raises(FileFormatError, match=r"found qrels\.tsv"):
        read_qrels(tmp_path, split="test")
    with pytest.raises(FileFormatError):
        read_beir(tmp_path / "absent")


def test_items_without_a_word_are_left_out_and_named_by_every_reader(beir_folder) -> None:
    with pytest.warns(DataWarning, match=r"1 item without text was left out: d5\.$"):
        assert len(list(read_items(beir_folder))) == 4
    with pytest.warns(DataWarning, match="d5"):
        assert len(read_beir(beir_folder, split="test").items) == 4


def test_a_collection_without_sense_is_refused() -> None:
    items, queries = [Item("i", "an item")], [Query("q", "a query")]
    with pytest.raises(EmptyInput, match="'empty'"):
        JudgedCollection("empty", [], queries, {})
    with pytest.raises(DuplicateId, match="'q'"):
        JudgedCollection("twice", items, [*queries, *queries], {"q": {"i": 1}})
    with pytest.raises(InputError, match="the 1 judged"):
        JudgedCollection("strangers", items, queries, {"other": {"i": 1}})
