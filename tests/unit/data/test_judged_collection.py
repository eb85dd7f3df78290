from __future__ import annotations

import pytest

from adacur.data import JudgedCollection, read_beir, read_qrels
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
def test_a_split_that_is_not_there_is_named_with_those_that_are(beir_folder, tmp_path) -> None:
    with pytest.raises(FileFormatError):
        read_beir(beir_folder, split="dev")
    (tmp_path / "qrels.tsv").write_text("q\td\t1\n")
    assert read_qrels(tmp_path) == {"q": {"d": 1}}
    with pytest.raises(FileFormatError):
        read_qrels(tmp_path, split="test")
    with pytest.raises(FileFormatError):
        read_beir(tmp_path / "absent")


def test_a_collection_without_sense_is_refused() -> None:
    items, queries = [Item("i", "an item")], [Query("q", "a query")]
    with pytest.raises(EmptyInput):
        JudgedCollection("empty", [], queries, {})
    with pytest.raises(DuplicateId):
        JudgedCollection("twice", items, [*queries, *queries], {"q": {"i": 1}})
    with pytest.raises(InputError):
        JudgedCollection("strangers", items, queries, {"other": {"i": 1}})
