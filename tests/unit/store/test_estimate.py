from __future__ import annotations

import pytest

from adacur.errors import EmptyInput, InputError, ScorerFailed
from adacur.records import Item, Query
from adacur.scorers.function import FunctionScorer
from adacur.store import estimate
from adacur.store.estimate import Pace, time_scorer


def test_costs_grow_with_the_anchors_and_use_the_pace_measured(known) -> None:
    cost = estimate(known.items, known.anchors, scorer=known.scorer, n_items=1000, n_anchors=50)
    assert (cost.n_items, cost.n_anchors, cost.pairs, cost.bytes) == (1000, 50, 50_000, 200_000)
    assert cost.seconds == pytest.approx(50_000 / cost.pairs_per_second)
    assert "50,000" in cost.summary()
    halved = estimate(known.items, known.anchors, scorer=known.scorer, n_items=1000, n_anchors=50, dtype="float16")
    assert halved.bytes == 100_000


def test_every_call_that_the_estimate_costs_is_counted(known) -> None:
    scorer = known.metered
    cost = estimate(known.items, known.anchors, scorer=scorer, n_items=1000, n_anchors=50)
    assert cost.calls_used == scorer.calls > 0


def test_a_slow_scorer_is_not_asked_for_long(clock) -> None:
    calls = []

    def slow(pairs):
        calls.extend(pairs)
        clock.sleep(0.01 * len(pairs))
        return [0.0] * len(pairs)

    items = [Item(f"i{position}", "text") for position in range(1000)]
    anchors = [Query(f"a{position}", "text") for position in range(50)]
    timing = time_scorer(items, anchors, scorer=FunctionScorer(slow), seconds=0.1)
    assert timing.calls_used == len(calls)
    # Grids double, so that the last one is at most as long as all before it and once the limit.
    assert timing.calls_used <= 2 * (0.1 / 0.01) + 2
    assert timing.mean == pytest.approx(100)


def test_loading_the_model_is_not_taken_for_scoring(clock) -> None:
    loaded = []

    def score(pairs):
        if not loaded:
            clock.sleep(0.3)
            loaded.append(True)
        return [0.0] * len(pairs)

    items = [Item(f"i{position}", "text") for position in range(8)]
    timing = time_scorer(items, [Query("a", "text")], scorer=FunctionScorer(score), seconds=0.4)
    assert timing.mean > 100 / 0.3


@pytest.mark.parametrize("most_calls", [2, 3, 7, 100])
def test_no_more_calls_are_made_than_allowed(known, most_calls) -> None:
    scorer = known.metered
    estimate(known.items, known.anchors, scorer=scorer, n_items=1000, n_anchors=50, most_calls=most_calls)
    assert 0 < scorer.calls <= most_calls


def test_fewer_calls_than_timing_takes_are_refused_before_the_first(known) -> None:
    scorer = known.metered
    with pytest.raises(InputError):
        estimate(known.items, known.anchors, scorer=scorer, n_items=1000, n_anchors=50, most_calls=1)
    assert scorer.calls == 0


def test_an_empty_sample_and_a_failing_scorer_are_told(known) -> None:
    with pytest.raises(EmptyInput):
        estimate([], known.anchors, scorer=known.scorer, n_items=5, n_anchors=7)
    with pytest.raises(ScorerFailed):
        estimate(known.items, known.anchors, scorer=Broken(known.scorer.card), n_items=5, n_anchors=7)


class Broken:
    def __init__(self, card) -> None:
        self.card = card

    def score(self, pairs):
        raise OSError("no model")


def test_the_range_holds_what_was_timed_and_narrows_with_more_of_it() -> None:
    one, many = Pace.of([(10, 1.0)]), Pace.of([(10, 1.0), (10, 1.05), (10, 0.95), (10, 1.0)])
    assert one.slowest < many.slowest < 10 < many.fastest < one.fastest
    uneven = Pace.of([(10, 1.0), (10, 5.0), (10, 1.0)])
    assert (uneven.slowest, uneven.fastest) == (2.0, 10.0)
    assert uneven.mean == pytest.approx(30 / 7)


def test_slow_moments_of_the_machine_widen_the_range(clock) -> None:
    asked = []

    def score(pairs):
        asked.append(len(pairs))
        # Every third call of the same size is four times as slow.
        clock.sleep(0.004 * len(pairs) * (4 if asked.count(len(pairs)) % 3 == 2 else 1))
        return [0.0] * len(pairs)

    items = [Item(f"i{position}", "text") for position in range(1000)]
    scorer = FunctionScorer(score)
    cost = estimate(items, [Query("a", "text")], scorer=scorer, n_items=1000, n_anchors=1, most_calls=800)
    assert cost.low < cost.seconds < cost.high
    assert cost.high > 2 * cost.low


def test_encoding_is_part_of_the_time(known, clock) -> None:
    def encode(texts):
        clock.sleep(0.01 * len(texts))
        return texts

    options = {"scorer": known.scorer, "n_items": 1000}
    none, some = (estimate(known.items, known.anchors, encode=[encode], n_anchors=n, **options) for n in (0, 50))
    assert none.seconds == none.encoding_seconds == pytest.approx(10)
    assert some.encoding_seconds == pytest.approx(10.5)
    twice = estimate(known.items, known.anchors, encode=[encode, encode], n_anchors=0, **options)
    assert twice.encoding_seconds == pytest.approx(20)
