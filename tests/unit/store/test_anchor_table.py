from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import DuplicateId, EmptyInput, NonFiniteScore, ScoreCountError
from adacur.records import Item, Query
from adacur.store import AnchorTable

ITEMS = [Item("x", "one"), Item("y", "two"), Item("z", "three")]
ANCHORS = [Query("a", "first"), Query("b", "second")]


def table(scores, items=ITEMS, anchors=ANCHORS) -> AnchorTable:
    return AnchorTable.from_arrays(items=items, anchor_queries=anchors, scores=scores)


def test_scores_are_kept_item_major_so_that_an_item_is_one_row() -> None:
    made = table(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert made.matrix.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert made.matrix.flags.c_contiguous
    assert made.items.ids == ("x", "y", "z")
    assert made.anchor_queries == tuple(ANCHORS)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("float16", "float32"), ("float32", "float32"), ("float64", "float64"), ("int32", "float64")],
)
def test_half_precision_is_widened_and_nothing_else_is_changed(given, kept) -> None:
    assert table(np.ones((2, 3), dtype=given)).matrix.dtype == kept


def test_plain_texts_serve_as_anchor_queries() -> None:
    made = table(np.ones((2, 3)), anchors=["first", "second"])
    assert [query.text for query in made.anchor_queries] == ["first", "second"]


def test_items_by_anchors_instead_of_anchors_by_items_is_refused() -> None:
    with pytest.raises(ScoreCountError):
        table(np.ones((3, 2)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_is_refused_and_named(value) -> None:
    scores = np.ones((2, 3))
    scores[1, 2] = value
    with pytest.raises(NonFiniteScore):
        table(scores)


def test_repeated_ids_are_refused_and_named() -> None:
    with pytest.raises(DuplicateId):
        table(np.ones((2, 2)), items=[ITEMS[0], ITEMS[0]])
    with pytest.raises(DuplicateId):
        table(np.ones((2, 3)), anchors=[ANCHORS[0], ANCHORS[0]])


def test_no_items_and_no_anchors_are_refused() -> None:
    with pytest.raises(EmptyInput):
        table(np.ones((2, 0)), items=[])
    with pytest.raises(EmptyInput):
        table(np.ones((0, 3)), anchors=[])
