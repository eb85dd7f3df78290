from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from adacur.errors import DamagedIndex, InputError, UnknownName
from adacur.records import Item, Query
from adacur.seeds import item_keys
from adacur.store import AnchorTable, IndexFolder, save_table
from adacur.store.database import metadata_as_json, metadata_of
from adacur.store.items import StoredItems


@pytest.fixture
def stored(known, tmp_path) -> StoredItems:
    return known.build(tmp_path / "index").items


def test_items_come_back_with_text_and_metadata_in_the_order_asked(stored, known) -> None:
    wanted = np.array([52, 0, 7, 7, 31])
    assert stored.at(wanted) == [known.items[position] for position in wanted]
    assert stored.at([3])[0].metadata == {"n": 3}
    assert stored.at([]) == []


def test_ids_positions_and_keys_agree(stored, known) -> None:
    ids = [item.id for item in known.items]
    assert stored.ids == tuple(ids)
    assert len(stored) == 53
    assert stored.positions(["i9", "i0", "i52"]).tolist() == [9, 0, 52]
    assert stored.positions([]).dtype == np.intp
    assert stored.keys.tolist() == item_keys(ids).tolist()


def test_more_positions_than_sqlite_binds_at_once_are_found(tmp_path) -> None:
    items = [Item(f"i{position}", "t") for position in range(3000)]
    table = AnchorTable.from_arrays(items=items, anchor_queries=["a"], scores=np.zeros((1, 3000)))
    stored = save_table(table, tmp_path / "index").items
    order = np.random.default_rng(0).permutation(3000)
    assert [item.id for item in stored.at(order)] == [f"i{position}" for position in order]
    assert stored.positions(f"i{position}" for position in order).tolist() == order.tolist()


def test_unknown_ids_and_positions_are_named(stored) -> None:
    with pytest.raises(UnknownName):
        stored.positions(["i1", "nobody"])
    with pytest.raises(IndexError):
        stored.at([0, 53])


def test_many_threads_read_at_once(stored, known) -> None:
    def read(seed: int) -> bool:
        wanted = np.random.default_rng(seed).integers(0, 53, size=20)
        return stored.at(wanted) == [known.items[position] for position in wanted] and len(stored.ids) == 53

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(200)))


@pytest.mark.parametrize("text", ["naïve café 日本 🎈", "a\x00b", "quote ' \" ; --", " \n\t leading"])
def test_texts_and_ids_of_every_kind_survive(tmp_path, text) -> None:
    items = [Item(text, text + "!", {"deep": {text: [1, None, text]}})]
    table = AnchorTable.from_arrays(items=items, anchor_queries=[Query("a", text)], scores=np.zeros((1, 1)))
    folder = save_table(table, tmp_path / "with ?#% é")
    assert folder.items.at([0]) == items
    assert folder.items.positions([text]).tolist() == [0]
    assert folder.anchor_queries == (Query("a", text),)


def test_a_database_that_is_none_is_damage(known, tmp_path) -> None:
    known.build(tmp_path / "index")
    (tmp_path / "index" / "parts/built/items.sqlite").write_bytes(b"not a database" * 500)
    with pytest.raises(DamagedIndex):
        IndexFolder.open(tmp_path / "index")
    (tmp_path / "index" / "parts/built/items.sqlite").unlink()
    with pytest.raises(DamagedIndex):
        IndexFolder.open(tmp_path / "index")


@pytest.mark.parametrize("id_", ["\ud800", 5, 10**30, ("a",), None])
def test_what_cannot_be_an_id_is_an_unknown_one(stored, id_) -> None:
    with pytest.raises(UnknownName):
        stored.positions([id_])


def test_metadata_that_json_has_not_are_stored_as_null_or_refused_by_name() -> None:
    assert metadata_as_json(Item("a", "x", {"m": [float("nan")], "n": "NaN"})) == '{"m": [null], "n": "NaN"}'
    deep: list = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InputError):
        metadata_as_json(Item("a", "x", {"m": deep}))
    assert metadata_of(json.dumps({"m": [[n] for n in range(200)]}))
