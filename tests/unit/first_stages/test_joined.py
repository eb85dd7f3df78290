"""Several first stages as one."""

from __future__ import annotations

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.errors import InputError, UnknownName
from adacur.first_stages import Joined, Matrix, Placed, placed
from adacur.records import ItemList

ITEMS = [Item(f"i{position}", f"item {position}") for position in range(6)]
QUERY = Query("q", "a question")
ONE = Matrix(queries=[QUERY], items=ITEMS, scores=np.array([[9.0, 8, 7, 6, 5, 4]]))
OTHER = Matrix(queries=[QUERY], items=ITEMS, scores=np.array([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6]]))


def length(pairs):
    return [float(len(text) + int(text[-1]) % 3) for _, text in pairs]


@pytest.fixture
def index() -> AnchorIndex:
    scores = np.random.default_rng(0).normal(size=(4, len(ITEMS)))
    anchors = [Query(f"a{position}", f"anchor {position}") for position in range(4)]
    first = {"one": ONE, "other": OTHER}
    return AnchorIndex.from_arrays(items=ITEMS, anchor_queries=anchors, scores=scores, scorer=length, first=first)


def test_scores_are_sums_of_reciprocal_ranks() -> None:
    items = ItemList(ITEMS)
    some = Matrix(queries=[QUERY], items=ITEMS[:3], scores=np.array([[3.0, 2, 1]]))
    positions, scores = Joined([placed(OTHER, items), placed(some, items)]).search([QUERY], 6)[0]
    expected = {5: 1 / 11, 4: 1 / 12, 3: 1 / 13, 2: 1 / 14 + 1 / 13, 1: 1 / 15 + 1 / 12, 0: 1 / 16 + 1 / 11}
    assert dict(zip(positions.tolist(), scores, strict=True)) == pytest.approx(expected)
    assert (np.diff(scores) <= 0).all()
    assert set(positions[:3].tolist()) == {0, 1, 2}


def test_an_index_joins_its_first_stages_by_name_in_any_order(index) -> None:
    assert index.first_stages == ("one", "other", "one+other", "random")
    one, same = (index.search(QUERY, 2, budget=3, method="rerank", first=name) for name in ("one+other", "other+one"))
    assert one.ids == same.ids
    assert one.trace.settings["first"] == same.trace.settings["first"] == "one+other"
    fused = index.search(QUERY, 3, budget=6, method="rerank", first="one+other", fuse=1.0)
    assert fused.fused is not None


def test_all_start_from_the_best_of_each(index) -> None:
    found = index.search(QUERY, 2, budget=2, method="rerank", first="one+other")
    assert set(found.ids) == {"i0", "i5"}


@pytest.mark.parametrize("name", ["one+third", "one+one", "one+", "+"])
def test_a_name_that_joins_what_is_not_there_is_refused(index, name: str) -> None:
    with pytest.raises(UnknownName):
        index.search(QUERY, 1, budget=2, first=name)


def test_what_is_joined_is_not_built(tmp_path) -> None:
    with pytest.raises(UnknownName):
        adacur.build(ITEMS, 2, scorer=length, path=tmp_path / "x", first="bm25+dense", progress=False)


def test_two_stages_of_the_same_items_are_needed() -> None:
    with pytest.raises(InputError):
        Joined([placed(ONE, ItemList(ITEMS))])
    with pytest.raises(InputError):
        Joined([placed(ONE, ItemList(ITEMS)), placed(OTHER, ItemList(ITEMS))])


def test_a_leader_answers_alone_and_the_lists_of_all_are_known() -> None:
    items = ItemList(ITEMS)
    one, other = placed(ONE, items), placed(OTHER, items)
    led = Joined([one, other], leader=other)
    answers, lists = led.search_parts([QUERY], 2)
    assert led.name == other.name
    assert answers[0].positions.tolist() == other.search([QUERY], 2)[0].positions.tolist()
    assert [some.tolist() for some in lists[0]] == [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    joined = Joined([one, other])
    some_lead = Joined([one, other, Placed(ONE, items, name="third")], leader=placed(joined, items))
    answered, expected = (stage.search([QUERY], 3)[0] for stage in (some_lead, joined))
    assert answered.positions.tolist() == expected.positions.tolist()
    assert answered.scores.tolist() == expected.scores.tolist()
