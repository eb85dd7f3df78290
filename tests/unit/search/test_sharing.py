"""How many pairs of each search go into the next call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from adacur.search.sharing import Sharing


@dataclass
class Waiting:
    """A search of one query with some pairs to score."""

    n_waiting: int
    seconds_left: float = math.inf
    has_answer: bool = True
    n_queries: int = 1

    @property
    def least(self) -> int:
        return 0 if self.has_answer or math.isinf(self.seconds_left) else self.n_queries


def paced(seconds_per_pair: float, **options) -> Sharing:
    sharing = Sharing(**options)
    sharing.note(100, 100 * seconds_per_pair)
    return sharing


def test_all_that_waits_is_scored_where_nothing_limits_it() -> None:
    assert Sharing().shares([Waiting(5), Waiting(7000)]) == [5, 7000]
    assert Sharing().shares([]) == []


def test_a_full_call_is_shared_so_that_the_small_get_all_and_the_large_equal_parts() -> None:
    sharing = Sharing(pairs=100)
    assert sharing.shares([Waiting(2000), *[Waiting(20)] * 3, Waiting(50)]) == [20, 20, 20, 20, 20]
    assert sharing.shares([Waiting(2000), Waiting(10), Waiting(500)]) == [45, 10, 45]
    # Everybody takes part, in a crowd too.
    assert sharing.shares([Waiting(20)] * 300) == [1] * 300


def test_a_call_takes_about_its_seconds_on_a_slow_scorer_and_never_less_than_a_small_one() -> None:
    big = [Waiting(4000)]
    assert paced(0.001, pairs=4096, seconds=0.5).shares(big) == [500]
    assert paced(1.0, pairs=4096, seconds=0.5).shares(big) == [64]
    assert paced(1e-6, pairs=1000, seconds=0.5).shares(big) == [1000]
    assert Sharing(pairs=4096, seconds=0.5).shares(big) == [256]


def test_only_the_last_calls_tell_the_pace() -> None:
    sharing = Sharing(seconds=1.0)
    sharing.note(10, 100.0)
    for _ in range(8):
        sharing.note(10, 0.01)
    assert sharing.shares([Waiting(900)]) == [900]


def test_the_first_call_beside_a_deadline_is_one_pair_each() -> None:
    assert Sharing().shares([Waiting(50, seconds_left=60, has_answer=False), Waiting(1000)]) == [1, 1]


def test_a_deadline_that_affords_the_call_limits_nobody() -> None:
    assert paced(0.001).shares([Waiting(10, seconds_left=2), Waiting(1000)]) == [10, 1000]


def test_a_deadline_limits_the_call_that_it_waits_for() -> None:
    # 100 seconds, of which four fifths are planned.
    assert paced(1).shares([Waiting(1000, seconds_left=100)]) == [80]
    shares = paced(1).shares([Waiting(10, seconds_left=100), Waiting(1000)])
    assert shares == [10, 70]


@pytest.mark.parametrize(("has_answer", "share"), [(True, 0), (False, 1)])
def test_a_deadline_too_near_for_a_small_call_of_others_ends_a_search_that_has_an_answer(has_answer, share) -> None:
    hurried = Waiting(10, seconds_left=20, has_answer=has_answer)
    assert paced(1).shares([hurried, Waiting(1000)]) == [share, 1000]
    # Alone, or beside little, it takes what it affords.
    assert paced(1).shares([hurried]) == [10]
    assert paced(1).shares([hurried, Waiting(5)]) == [10, 5]
    assert paced(1).shares([Waiting(10, seconds_left=-1, has_answer=has_answer)]) == [share]
