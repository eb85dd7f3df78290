"""What every place that anchor scores come from promises: in memory, from a build, from a saved table."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import UnknownName
from adacur.protocols import AnchorScores
from adacur.records import Item, Query
from adacur.scorers.known import MatrixScorer
from adacur.seeds import item_keys
from adacur.store import AnchorTable, build_scores, save_table

ITEMS = [Item(f"i{position}", f"text of {position}", {"even": position % 2 == 0}) for position in range(41)]
ANCHORS = [Query(f"a{position}", f"anchor {position}") for position in range(5)]
SCORES = np.random.default_rng(0).normal(size=(5, 41)).astype(np.float32)


@pytest.fixture(params=["memory", "built", "saved", "saved twice", "built at once"])
def anchors(request, tmp_path) -> AnchorScores:
    table = AnchorTable.from_arrays(items=ITEMS, anchor_queries=ANCHORS, scores=SCORES)
    scorer = MatrixScorer(ANCHORS, ITEMS, SCORES)
    match request.param:
        case "memory":
            return table
        case "built":
            return build_scores(ITEMS, ANCHORS, scorer=scorer, path=tmp_path / "index", block_items=7)
        case "built at once":
            return build_scores(ITEMS, ANCHORS, scorer=scorer, path=tmp_path / "index")
        case "saved":
            return save_table(table, tmp_path / "index")
        case _:
            return save_table(save_table(table, tmp_path / "index"), tmp_path / "again")


def test_scores_are_item_major_contiguous_and_exact(anchors) -> None:
    assert anchors.matrix.shape == (41, 5)
    assert anchors.matrix.dtype == np.float32
    assert anchors.matrix.flags.c_contiguous
    assert anchors.matrix.tobytes() == np.ascontiguousarray(SCORES.T).tobytes()


def test_anchor_queries_keep_their_order(anchors) -> None:
    assert list(anchors.anchor_queries) == ANCHORS


def test_row_numbers_are_positions_of_items(anchors) -> None:
    items = anchors.items
    assert len(items) == len(items.ids) == 41
    assert list(items.ids) == [item.id for item in ITEMS]
    assert items.keys.tolist() == item_keys(items.ids).tolist()
    for position in (0, 17, 40):
        (item,) = items.at([position])
        assert item == ITEMS[position]
        assert item.metadata == ITEMS[position].metadata
        assert items.positions([item.id]).tolist() == [position]


def test_look_ups_keep_order_and_repeats(anchors) -> None:
    wanted = np.array([9, 3, 9, 40, 0])
    found = anchors.items.at(wanted)
    assert found == [ITEMS[position] for position in wanted]
    assert anchors.items.positions(item.id for item in found).tolist() == wanted.tolist()
    assert anchors.items.at([]) == []
    assert anchors.items.positions([]).tolist() == []


def test_unknown_ids_and_positions_are_refused(anchors) -> None:
    with pytest.raises(UnknownName, match="'i41'"):
        anchors.items.positions(["i0", "i41"])
    with pytest.raises(IndexError):
        anchors.items.at([41])
