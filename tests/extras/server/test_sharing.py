"""How many pairs of each search go into the next call."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from adacur.extras.server.sharing import Sharing


@dataclass
class Waiting:
    """A search of one query with some pairs to score."""

    n_waiting: int
    seconds_left: float = math.inf
    has_answer: bool = True
    n_queries: int = 1

    @property
    def pairs(self) -> range:
        return range(self.n_waiting)

    @property
    def least(self) -> int:
        return 0 if self.has_answer or math.isinf(self.seconds_left) else self.n_queries


def paced(seconds_per_pair: float, **options) -> Sharing:
    sharing = Sharing(**options)
    sharing.pace.note(100, 100 * seconds_per_pair)
    return sharing


def test_all_that_waits_is_scored_where_nothing_limits_it() -> None:
    assert Sharing().shares([Waiting(5), Waiting(7000)]) == [5, 7000]
    assert Sharing().shares([]) == []


def test_a_full_call_is_shared_so_that_the_small_get_all_and_the_large_equal_parts() -> None:
    sharing = Sharing(pairs=100)
    assert sharing.shares([Waiting(2000), *[Waiting(20)] * 3, Waiting(50)]) == [20, 20, 20, 20, 20]
    assert sharing.shares([Waiting(2000), Waiting(10), Waiting(500)]) == [45, 10, 45]
    # In a crowd the first take part, and the others in the next calls.
    assert sharing.shares([Waiting(20)] * 300) == [1] * 100 + [0] * 200


def test_a_call_takes_about_its_seconds_however_slow_the_scorer() -> None:
    big = [Waiting(4000)]
    assert paced(0.001, pairs=4096, seconds=0.5).shares(big) == [500]
    assert paced(1.0, pairs=4096, seconds=0.5).shares(big) == [1]
    assert paced(1e-6, pairs=1000, seconds=0.5).shares(big) == [1000]
    assert Sharing(pairs=4096, seconds=0.5).shares(big) == [256]


def lined(call: float, pair: float, **options) -> Sharing:
    """A scorer that has been seen to take so many seconds for a call, and so many more for each pair."""
    sharing = Sharing(**options)
    for n in (10, 30):
        sharing.pace.note(n, call + pair * n)
    return sharing


def test_at_least_half_of_a_call_is_spent_on_its_pairs() -> None:
    assert lined(2.0, 0.125, seconds=0.5).shares([Waiting(4000)]) == [16]


def test_what_a_call_takes_is_told_from_what_its_pairs_take() -> None:
    # Eight of ten seconds: five for the call, 30 pairs of a tenth of a second.
    assert lined(5.0, 0.1).shares([Waiting(500, seconds_left=10)]) == [30]
    # Another call is not worth while.
    assert lined(5.0, 0.1).shares([Waiting(500, seconds_left=6)]) == [None]


def test_calls_of_about_one_size_promise_no_pairs_for_nothing() -> None:
    sharing = Sharing()
    for n, seconds in ((10, 1.0), (11, 0.9), (10, 1.1)):
        sharing.pace.note(n, seconds)
    (share,) = sharing.shares([Waiting(100_000, seconds_left=10)])
    assert 80 <= share <= 4 * 80


def test_only_the_last_calls_tell_the_pace() -> None:
    sharing = Sharing(seconds=1.0)
    sharing.pace.note(10, 100.0)
    for _ in range(8):
        sharing.pace.note(10, 0.01)
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


def test_searches_in_a_hurry_share_what_their_deadlines_afford() -> None:
    # Twenty pairs can be scored in time: once nobody got any, because the others' pairs would have taken longer.
    assert paced(1).shares([Waiting(50, seconds_left=25) for _ in range(4)]) == [5, 5, 5, 5]
    # Two can: those that stand first take them.
    assert paced(1).shares([Waiting(50, seconds_left=2.6) for _ in range(4)]) == [1, 1, 0, 0]


def test_who_has_no_answer_yet_comes_first() -> None:
    searches = [Waiting(50, seconds_left=2.6), *(Waiting(50, seconds_left=2.6, has_answer=False) for _ in range(3))]
    assert paced(1).shares(searches) == [0, 1, 1, 0]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("has_answer", "share"), [(True, None), (False, 1)])
def test_a_deadline_that_affords_no_pair_ends_a_search_that_has_an_answer(has_answer, share, apart) -> None:
    sharing = paced(1, apart=apart)
    assert sharing.shares([Waiting(10, seconds_left=1.2, has_answer=has_answer)]) == [share]
    assert sharing.shares([Waiting(10, seconds_left=-1, has_answer=has_answer)]) == [share]
    assert sharing.shares([Waiting(10, seconds_left=20, has_answer=has_answer)]) == [10]


def test_the_last_moments_of_a_search_make_no_tiny_calls_for_those_who_have_much_longer() -> None:
    # Two seconds for the call alone: beside two seconds of pairs it is worth while.
    assert lined(2.0, 0.1).shares([Waiting(50, seconds_left=5.5), Waiting(500)]) == [12, 12]
    assert lined(2.0, 0.1).shares([Waiting(50, seconds_left=4.5), Waiting(500)]) == [None, 500]
    # Those who are in the same hurry lose nothing.
    assert lined(2.0, 0.1).shares([Waiting(50, seconds_left=4.5), Waiting(50, seconds_left=5.0)]) == [8, 8]


def test_calls_that_are_not_shared_take_turns_and_leave_the_others_their_part() -> None:
    # 80 seconds for four calls: the first takes a fourth of it.
    waiting = [Waiting(50, seconds_left=100) for _ in range(4)]
    assert paced(1, apart=True).shares(waiting) == [20, 0, 0, 0]
    assert paced(1, apart=True).shares(waiting[:1], n_others=3) == [20]
    # Without a deadline, in company without one, a round is a call.
    assert paced(1, apart=True).shares([Waiting(5000), Waiting(5000)]) == [5000, 0]
    assert Sharing(apart=True).shares([Waiting(5000), Waiting(5000)]) == [5000, 0]
    # A call costs two seconds anyway: twenty pairs double that.
    late = [Waiting(50, seconds_left=10), Waiting(50, seconds_left=10)]
    assert lined(2.0, 0.1, apart=True).shares([*late, *late]) == [20, 0, 0, 0]
