from __future__ import annotations

import shutil

import pytest

from adacur.data import describe, fetch, mondo, names, read_beir, wikivital
from adacur.errors import FileFormatError, UnknownName
from adacur.records import Query


def test_every_asset_names_its_licence_origin_size_and_checksums() -> None:
    assert len(names()) == 7
    for name in names():
        asset = describe(name)
        assert asset.name == name
        assert asset.kind in ("model", "collection")
        assert asset.licence
        assert asset.origin
        assert asset.size > 1e6
        assert all(len(sha256) == 64 for _, sha256 in asset.files.values())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName):
        describe("bert")
    with pytest.raises(UnknownName):
        fetch("bert")


def test_wikivital_has_ten_thousand_articles_in_the_order_of_their_titles() -> None:
    items = wikivital()
    assert len(items) == 10_033
    assert [item.id for item in items] == [f"w{row}" for row in range(10_033)]
    titles = [item.metadata["title"] for item in items]
    assert titles == sorted(titles)
    assert items[0].text.startswith("0. 0 is a number representing an empty quantity.")
    assert set(items[0].metadata) == {"title", "description", "topic"}


def test_mondo_has_diseases_and_their_synonyms() -> None:
    collection = mondo()
    assert (len(collection.items), len(collection.queries), len(collection.qrels)) == (27_990, 60_025, 60_025)
    first = collection.items[0]
    assert first.text.startswith("disease. A disease is a disposition to undergo")
    assert (first.id, first.metadata) == ("MONDO:0000001", {"title": "disease"})
    assert collection.queries[0] == Query("MONDO:0000001#0", "condition")
    assert collection.qrels["MONDO:0000001#0"] == {"MONDO:0000001": 1}
    title_of = {item.id: item.metadata["title"].casefold() for item in collection.items}
    assert all(query.text.casefold() != title_of[query.id.split("#")[0]] for query in collection.queries)


def test_mondo_equals_the_collection_that_was_scored(shared_folder) -> None:
    ours, scored = mondo(), read_beir(shared_folder / "data" / "mondo")
    assert (ours.queries, ours.qrels) == (scored.queries, scored.qrels)
    assert [(item.id, item.metadata) for item in ours.items] == [(item.id, item.metadata) for item in scored.items]


def test_a_damaged_copy_of_mondo_says_what_to_remove(tmp_path) -> None:
    copy = shutil.copytree(fetch("mondo"), tmp_path / "mondo")
    (name,) = describe("mondo").files
    content = bytearray((copy / name).read_bytes())
    content[1000:2000] = bytes(1000)
    (copy / name).write_bytes(content)
    with pytest.raises(FileFormatError):
        mondo(cache=tmp_path)
