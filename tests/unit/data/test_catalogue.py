from __future__ import annotations

import hashlib

import pytest

from adacur.core.errors import UnknownName
from adacur.data import describe, fetch, names, read_items, wikivital


def test_every_asset_names_its_licence_origin_size_and_checksums() -> None:
    assert len(names()) == 5
    for name in names():
        asset = describe(name)
        assert asset.name == name
        assert asset.kind in ("model", "collection")
        assert asset.licence
        assert asset.origin
        assert asset.size > 1e6
        assert all(len(sha256) == 64 for _, sha256 in asset.files.values())


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'bert'\. Known: ms-marco-MiniLM-L-12-v2, bge-small-en-v1\.5"):
        describe("bert")
    with pytest.raises(UnknownName):
        fetch("bert")


def test_a_fetched_asset_holds_the_files_of_the_catalogue() -> None:
    folder = fetch("wikivital")
    for name, (size, sha256) in describe("wikivital").files.items():
        content = (folder / name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (size, sha256)


def test_wikivital_has_ten_thousand_articles_in_the_order_of_their_titles() -> None:
    items = wikivital()
    assert len(items) == 10_033
    assert [item.id for item in items] == [f"w{row}" for row in range(10_033)]
    titles = [item.metadata["title"] for item in items]
    assert titles == sorted(titles)
    assert items[0].text.startswith("0. 0 is a number representing an empty quantity.")
    assert set(items[0].metadata) == {"title", "description", "topic"}


def test_wikivital_equals_the_collection_that_was_scored(shared_folder) -> None:
    assert wikivital() == list(read_items(shared_folder / "data" / "wikivital"))
