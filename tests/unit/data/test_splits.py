from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacur.data import split_queries
from adacur.errors import EmptyInput, InputError
from adacur.records import Query


def some(n: int, *, start: int = 0) -> list[Query]:
    return [Query(f"q{place}", f"question {place}") for place in range(start, start + n)]


def ids(part) -> set[str]:
    return {query.id for query in part}


def texts(part) -> set[str]:
    return {" ".join(query.text.lower().split()) for query in part}


def test_parts_have_the_sizes_asked_for_and_test_is_the_rest() -> None:
    split = split_queries(some(100), anchors=30, held_out=10)
    assert list(map(len, (split.anchors, split.held_out, split.test))) == [30, 10, 60]
    split = split_queries(some(100), anchors=30, held_out=10, test=20)
    assert list(map(len, (split.anchors, split.held_out, split.test))) == [30, 10, 20]
    assert len(split_queries(some(100), anchors=30, test=0).test) == 0


def test_the_order_of_the_queries_does_not_matter_and_the_seed_does() -> None:
    queries = some(100)
    shuffled = random.Random(0).sample(queries, 100)
    assert split_queries(queries, anchors=30, seed=4) == split_queries(shuffled, anchors=30, seed=4)
    assert split_queries(queries, anchors=30, seed=4) != split_queries(queries, anchors=30, seed=5)


def test_a_split_stays_the_same_from_version_to_version() -> None:
    split = split_queries(some(20), anchors=4, test=3)
    assert [query.id for query in split.anchors] == ["q7", "q1", "q5", "q14"]
    assert [query.id for query in split.test] == ["q8", "q16", "q19"]


def test_added_queries_move_others_over_no_more_than_the_borders() -> None:
    before = split_queries(some(1000), anchors=200, test=200)
    after = split_queries(some(1020), anchors=200, test=200)
    assert len(ids(before.anchors) - ids(after.anchors)) <= 20
    assert len(ids(before.test) - ids(after.test)) <= 20
    # The queries between the two keep an anchor of yesterday from being a test of today.
    assert not ids(before.anchors) & ids(after.test)
    assert not ids(before.test) & ids(after.anchors)


@given(
    words=st.lists(st.sampled_from(["red", "Red ", "blue", "green", "BLUE", "dark  red", "dark red"]), max_size=40),
    anchors=st.integers(0, 3),
    held_out=st.integers(0, 4),
    test=st.none() | st.integers(0, 4),
)
def test_equal_texts_are_never_in_two_parts_nor_twice_among_the_anchors(words, anchors, held_out, test) -> None:
    queries = [Query(f"q{place}", text) for place, text in enumerate(words)]
    try:
        split = split_queries(queries, anchors=anchors, held_out=held_out, test=test)
    except InputError:
        return
    assert len(texts(split.anchors)) == len(split.anchors) == anchors
    assert len(split.held_out) == held_out
    assert test is None or len(split.test) == test
    assert not texts(split.anchors) & texts(split.held_out)
    assert not texts(split.anchors) & texts(split.test)
    assert not texts(split.held_out) & texts(split.test)
    ids = [query.id for query in (*split.anchors, *split.held_out, *split.test)]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= {query.id for query in queries}


def test_too_many_are_refused_with_the_numbers_there_are() -> None:
    queries = [*some(5), Query("again", "QUESTION 0")]
    with pytest.raises(InputError):
        split_queries(queries, anchors=6)
    with pytest.raises(InputError):
        split_queries(queries, anchors=2, held_out=2, test=3)
    with pytest.raises(InputError):
        split_queries(queries, anchors=-1)
    with pytest.raises(EmptyInput):
        split_queries([Query("blank", " ")], anchors=0)
