from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur import AnchorIndex, Item, Query, tune
from adacur.errors import DamagedIndex, InputError
from adacur.first_stages import Matrix
from adacur.scorers import MatrixScorer
from adacur.search.stopping import EffortPoint, EffortRule, new_in_top_k, stop_features
from adacur.search.tuned import TUNED, as_stored, read_tunings

N_ITEMS, N_ANCHORS, N_NEW, K, BUDGET = 400, 60, 30, 5, 80


def world() -> tuple[AnchorIndex, list[Query], np.ndarray]:
    """Scores of low rank, so that predictions find nearly everything soon; the first stage is a blurred view."""
    rng = np.random.default_rng(5)
    n = N_ANCHORS + N_NEW
    scores = rng.normal(size=(n, 5)) @ rng.normal(size=(5, N_ITEMS)) + 0.05 * rng.normal(size=(n, N_ITEMS))
    items = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]
    queries = [Query(f"q{at}", f"question {at}") for at in range(n)]
    first = Matrix(queries=queries, items=items, scores=scores + 1.5 * rng.normal(size=scores.shape))
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:N_ANCHORS],
        scores=scores[:N_ANCHORS],
        scorer=MatrixScorer(queries[N_ANCHORS:], items, scores[N_ANCHORS:]),
        first={"words": first},
    )
    return index, queries[N_ANCHORS:], scores[N_ANCHORS:]


@pytest.fixture(scope="module")
def tuned() -> tuple[AnchorIndex, list[Query], np.ndarray]:
    index, queries, scores = world()
    tune(index, k=K, budget=BUDGET)
    return index, queries, scores


def recall(hits, scores) -> float:
    pairs = zip(hits, scores, strict=True)
    return float(np.mean([np.count_nonzero(own.scores >= np.sort(row)[-K]) / K for own, row in pairs]))


def test_auto_spends_less_where_little_is_left_to_find(tuned) -> None:
    index, queries, scores = tuned
    whole = index.search(queries, K, budget=BUDGET)
    auto = index.search(queries, K, budget=BUDGET, effort="auto")
    calls = [hits.trace.calls for hits in auto]
    assert np.mean(calls) < 0.7 * BUDGET
    assert K <= min(calls) <= max(calls) <= BUDGET
    assert recall(auto, scores) > recall(whole, scores) - 0.03
    assert {hits.trace.stopped for hits in auto} <= {"settled", "budget"}
    assert auto[0].trace.settings["effort"]["calls"] < BUDGET


def test_less_recall_asked_for_costs_fewer_calls(tuned) -> None:
    index, queries, _ = tuned
    curve = index.tunings[0].effort.curve
    assert [one.calls for one in curve] == sorted(one.calls for one in curve)
    assert [one.recall for one in curve] == sorted(one.recall for one in curve)
    least = index.search(queries, K, budget=BUDGET, effort=round(curve[0].recall, 3) - 0.01)
    most = index.search(queries, K, budget=BUDGET, effort=curve[-1].recall - 1e-9)
    assert np.mean([hits.trace.calls for hits in least]) < np.mean([hits.trace.calls for hits in most])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"effort": 1.5}, "between 0 and 1"),
        ({"effort": "much"}, "'auto'"),
        ({"effort": True}, "'auto'"),
        ({"effort": "auto", "method": "rerank"}, "gaussian"),
        ({"effort": "auto", "budget": 10}, "tune"),
    ],
)
def test_what_cannot_be_done_is_refused(tuned, options, says) -> None:
    index, queries, _ = tuned
    with pytest.raises(InputError):
        index.search(queries[0], K, **{"budget": BUDGET, **options})


def test_more_recall_than_the_budget_brings_is_refused_with_what_it_brings() -> None:
    rule = EffortRule((0.0,) * 6, (EffortPoint(0.1, 20, 0.9, 0.89), EffortPoint(0.01, 60, 0.97, 0.96)), whole=0.972)
    assert rule.point(0.9).calls == 20
    # One standard error below, the cheaper would lose too much.
    assert rule.point("auto").calls == 60
    with pytest.raises(InputError):
        rule.point(0.98)


def test_the_signs_of_a_search_are_what_its_last_rounds_brought() -> None:
    rounds = [np.array([1.0, 2.0, 3.0]), np.array([2.5, 0.0]), np.array([-1.0])]
    assert new_in_top_k(rounds, k=3) == [3, 1, 0]
    told = stop_features([0.9], new_in_top_k(rounds, k=3), k=3, spent=0.5)
    assert told == pytest.approx([1, np.log(9), 0, 1 / 3, 1, np.log(0.5)])
    assert stop_features([0.9], [3], k=3, spent=0.5)[2:5].tolist() == [1, 1, 1]


def test_it_is_stored_with_the_tuning_and_read_again(tuned, tmp_path: Path) -> None:
    index, *_ = tuned
    (tmp_path / TUNED).write_text(as_stored(index.tunings, anchor_queries=index.anchor_queries))
    assert read_tunings(tmp_path, anchor_queries=index.anchor_queries)[0].effort == index.tunings[0].effort
    (tmp_path / TUNED).write_text((tmp_path / TUNED).read_text().replace('"whole": ', '"whole": -'))
    with pytest.raises(DamagedIndex):
        read_tunings(tmp_path, anchor_queries=index.anchor_queries)
