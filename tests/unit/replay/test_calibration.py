from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex, Item, Query, tune
from adacur.first_stages import Matrix
from adacur.replay.judged_tuning import calibration_error
from adacur.scorers import MatrixScorer

N_ITEMS, N_ANCHORS, N_NEW = 120, 120, 120


def world(seed: int = 0):
    """Of each query one item is relevant; the scorer sees it through noise, a third of them not at all."""
    rng = np.random.default_rng(seed)
    n = N_ANCHORS + N_NEW
    right = rng.integers(N_ITEMS, size=n)
    scores = rng.normal(size=(n, N_ITEMS))
    scores[np.arange(n), right] += np.where(rng.random(n) < 0.33, 0.0, 4.0)
    items = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]
    queries = [Query(f"q{at}", f"question {at}") for at in range(n)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:N_ANCHORS],
        scores=scores[:N_ANCHORS],
        scorer=MatrixScorer(queries[N_ANCHORS:], items, scores[N_ANCHORS:]),
        first={"words": Matrix(queries=queries, items=items, scores=scores + 0.3 * rng.normal(size=scores.shape))},
    )
    return index, queries[N_ANCHORS:], {query.id: {f"i{right[at]}": 1} for at, query in enumerate(queries)}


def test_judgements_make_relevance_the_chance_to_be_relevant_on_queries_that_did_not_fit_it() -> None:
    index, new, qrels = world()
    tune(index, k=5, budget=40, qrels=qrels, quick=True)
    relevance = index.snapshot.relevance()
    assert relevance.source == "judgements"
    assert relevance.calibration.queries == N_ANCHORS
    hits = index.search(new, 5, budget=40)
    stated = np.array([own.relevance for own in hits])
    came = np.array([[qrels[own.query.id].get(id_, 0) > 0 for id_ in own.ids] for own in hits])
    assert calibration_error(stated.ravel(), came.ravel()) < 0.06
    assert relevance.calibration.error < 0.06
    assert stated[:, 0].mean() == pytest.approx(came[:, 0].mean(), abs=0.12)
    # A verdict is wrong about as rarely as it promises, one in ten, on questions that have their answer.
    found = [own.verdict for own in hits if own.verdict == "nothing found"]
    assert len(found) <= 0.2 * len(hits)
    assert any(own.verdict == "answered" for own in hits)


def test_the_calibration_error_is_what_bins_are_off_by() -> None:
    assert calibration_error(np.array([0.05, 0.05, 0.95, 0.95]), np.array([False, False, True, True])) == pytest.approx(
        0.05
    )
    assert calibration_error(np.array([0.9, 0.9]), np.array([False, False])) == pytest.approx(0.9)
    assert calibration_error(np.array([0.55, 0.55]), np.array([False, True])) == pytest.approx(0.05)
