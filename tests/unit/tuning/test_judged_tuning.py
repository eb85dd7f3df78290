from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex, First, Gaussian, Item, Query
from adacur.core.errors import EmptyInput, InputError
from adacur.evaluation import judged_quality
from adacur.first_stages import Matrix, as_hits
from adacur.scorers import FunctionScorer, MatrixScorer
from adacur.tuning import calls_to_tune_fuse, tune_fuse

N_ITEMS = 300


def world(*, scorer_error: float, first_error: float, n_anchors: int = 60, n_new: int = 30, seed: int = 0):
    """One item is right for each query; scorer and first stage see it through errors of their own."""
    rng = np.random.default_rng(seed)
    n = n_anchors + n_new
    truth = np.zeros((n, N_ITEMS))
    right = rng.integers(N_ITEMS, size=n)
    truth[np.arange(n), right] = 4.0
    scores = truth + scorer_error * rng.normal(size=truth.shape)
    first = truth + first_error * rng.normal(size=truth.shape)
    items = [Item(f"i{position}", f"item {position}") for position in range(N_ITEMS)]
    queries = [Query(f"q{position}", f"question {position}") for position in range(n)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:n_anchors],
        scores=scores[:n_anchors],
        scorer=MatrixScorer(queries[n_anchors:], items, scores[n_anchors:]) if n_new else None,
        first={"dense": Matrix(queries=queries, items=items, scores=first)},
    )
    qrels = {query.id: {items[place].id: 1} for query, place in zip(queries, right, strict=True)}
    return index, queries, qrels


def test_two_views_with_errors_of_their_own_are_better_together() -> None:
    index, queries, qrels = world(scorer_error=1.5, first_error=1.5)
    tuning = tune_fuse(index, queries, qrels, budget=100)
    assert tuning.chosen.fuse > 0
    assert tuning.chosen.quality > tuning.tried[0].quality + 0.05
    assert tuning.tried[0].fuse == 0
    assert tuning.n_queries == 90
    assert f"fuse={tuning.chosen.fuse:g}" in tuning.verdict


def test_a_scorer_that_is_always_right_is_left_alone() -> None:
    index, queries, qrels = world(scorer_error=0.1, first_error=1.5)
    tuning = tune_fuse(index, queries, qrels, budget=150, stops=[])
    assert (tuning.chosen.fuse, tuning.chosen.pool) == (0, None)
    assert tuning.verdict.startswith("Leave the order to the scorer")


def test_anchor_queries_cost_no_call_and_new_ones_a_budget_each() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    assert calls_to_tune_fuse(index, queries, budget=70) == 30 * 70
    assert tune_fuse(index, queries, qrels, budget=70).calls == 30 * 70
    without_scorer, anchors, judgements = world(scorer_error=1.0, first_error=1.0, n_new=0)
    assert tune_fuse(without_scorer, anchors, judgements, budget=70).calls == 0


def test_anchor_queries_are_known_by_their_texts_and_judged_by_the_ids_given() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0, n_new=0)
    renamed = [Query(f"judged {query.id}", query.text) for query in queries]
    judgements = {f"judged {id_}": grades for id_, grades in qrels.items()}
    dense = index.first_stage("dense")

    class ByText:
        def search(self, asked, k):
            known = {query.text: query for query in queries}
            return as_hits(asked, dense.search([known[query.text] for query in asked], k), index.items.ids)

    same = AnchorIndex.from_arrays(
        items=index.items.at(range(N_ITEMS)), anchor_queries=queries, scores=index.matrix.T, first={"dense": ByText()}
    )
    assert tune_fuse(same, renamed, judgements).tried == tune_fuse(index, queries, qrels).tried


def test_what_is_promised_is_what_searches_give() -> None:
    index, queries, qrels = world(scorer_error=1.5, first_error=1.5, n_anchors=40, n_new=60)
    tuning = tune_fuse(index, queries[40:], qrels, budget=100, weights=[1.0], pools=[], stops=[0.3, 0.6])
    for tried in tuning.tried:
        hits = index.search(
            queries[40:], 10, budget=100, method=Gaussian(stop_when=tried.stop_when), first=First(fuse=tried.fuse)
        )
        assert np.mean([own.trace.calls for own in hits]) == tried.calls
        assert judged_quality(hits, qrels)["nDCG@10"].mean() == pytest.approx(tried.quality)


def test_few_judged_queries_and_no_first_stage_are_refused() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    with pytest.raises(EmptyInput, match="at least 20"):
        tune_fuse(index, queries[:19], qrels)
    with pytest.raises(EmptyInput, match="something relevant"):
        tune_fuse(index, queries, {query.id: {"i0": 0} for query in queries})
    bare = AnchorIndex.from_arrays(
        items=index.items.at(range(N_ITEMS)), anchor_queries=index.anchor_queries, scores=index.matrix.T
    )
    with pytest.raises(InputError, match="has none"):
        tune_fuse(bare, list(index.anchor_queries), qrels)


def test_an_index_without_anchor_queries_is_refused_before_any_call() -> None:
    class Counted:
        calls = 0

        def __call__(self, pairs):
            self.calls += len(pairs)
            return [0.0 for _ in pairs]

    scorer = Counted()
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    items = index.items.at(range(N_ITEMS))
    bare = AnchorIndex.from_items(items, scorer=FunctionScorer(scorer), first={"dense": index.first_stage("dense")})
    with pytest.raises(InputError, match="anchor queries"):
        tune_fuse(bare, queries, qrels)
    assert scorer.calls == 0


def test_quality_is_that_of_the_k_hits_and_the_difference_has_its_interval() -> None:
    index, queries, qrels = world(scorer_error=1.5, first_error=1.5, n_new=0)
    tuning = tune_fuse(index, queries, qrels, k=5, budget=60)
    assert tuning.measure == "nDCG@5"
    best = tuning.chosen
    assert best.fuse > 0
    assert "95 %" in tuning.verdict
    assert f"{best.difference - 1.96 * best.error:+.3f}" in tuning.verdict
    assert f"{best.difference + 1.96 * best.error:+.3f}" in tuning.verdict
