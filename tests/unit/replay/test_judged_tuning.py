"""What judgements choose, and what they say of the relevance of hits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacur import AnchorIndex, Item, Query, tune
from adacur.errors import EmptyInput, InputError
from adacur.first_stages import Matrix
from adacur.replay import judged_quality, judged_queries
from adacur.replay.judged_tuning import calibration_error
from adacur.replay.tune_index import store, verdict
from adacur.scorers import MatrixScorer
from adacur.search.planning import plan_search
from adacur.search.tuned import as_stored, read_tunings

N_ITEMS = 150


def world(*, scorer_error: float, first_error: float, n_anchors: int = 36, n_new: int = 24, seed: int = 0, **others):
    """One item is right for each query; scorer and first stages see it through errors of their own."""
    rng = np.random.default_rng(seed)
    n = n_anchors + n_new
    truth = np.zeros((n, N_ITEMS))
    right = rng.integers(N_ITEMS, size=n)
    truth[np.arange(n), right] = 4.0
    scores = truth + scorer_error * rng.normal(size=truth.shape)
    items = [Item(f"i{position}", f"item {position}") for position in range(N_ITEMS)]
    queries = [Query(f"q{position}", f"question {position}") for position in range(n)]
    errors = {"dense": first_error, **others}
    blurred = {name: truth + error * rng.normal(size=truth.shape) for name, error in errors.items()}
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:n_anchors],
        scores=scores[:n_anchors],
        scorer=MatrixScorer(queries[n_anchors:], items, scores[n_anchors:]) if n_new else None,
        first={name: Matrix(queries=queries, items=items, scores=seen) for name, seen in blurred.items()},
    )
    qrels = {query.id: {items[place].id: 1} for query, place in zip(queries, right, strict=True)}
    return index, queries, qrels


def test_two_views_with_errors_of_their_own_are_better_together() -> None:
    index, queries, qrels = world(scorer_error=1.5, first_error=1.5)
    tuning = tune(index, budget=50, queries=queries, qrels=qrels, quick=True)
    judged = tuning.judged
    assert (judged.measure, judged.n_queries, judged.largest) == ("nDCG@10", 60, 50)
    assert judged.fuse > 0
    assert judged.gain.value > 0.05
    assert judged.chosen.value - judged.plain.value == pytest.approx(judged.gain.value)
    assert judged.gain.low < judged.gain.value < judged.gain.high
    assert tuning.recall_of("gaussian").recall > 0
    assert f"fuse {judged.fuse:g}" in verdict(tuning)


def test_a_scorer_that_is_always_right_is_left_alone_and_few_calls_are_enough() -> None:
    index, _, qrels = world(scorer_error=0.05, first_error=0.5, n_new=0)
    tuning = tune(index, budget=80, qrels=qrels, quick=True)
    assert tuning.judged.fuse == 0
    assert (tuning.budget, tuning.judged.largest) == (20, 80)
    assert "the scorer's order" in verdict(tuning)


@pytest.mark.parametrize(("scorer_error", "first_error", "says"), [(6.0, 0.5, "no scorer"), (0.05, 3.0, "")])
def test_what_calls_are_worth_is_measured_against_all_first_stages_joined(scorer_error, first_error, says) -> None:
    index, queries, qrels = world(scorer_error=scorer_error, first_error=first_error, n_new=0, bm25=first_error)
    judged = (tuning := tune(index, budget=60, qrels=qrels, quick=True)).judged
    assert judged.alone_first == "bm25+dense"
    hits = index.search(queries, 10, method="first", first="bm25+dense")
    assert judged.alone.value == pytest.approx(judged_quality(hits, qrels)["nDCG@10"].mean())
    assert judged.worth.value == pytest.approx(judged.chosen.value - judged.alone.value)
    assert (judged.worth.low > 0) == (not says)
    assert ("no scorer" in verdict(tuning)) == bool(says)


def test_searches_use_what_judgements_chose_and_say_so_and_arguments_win() -> None:
    index, _, qrels = world(scorer_error=1.5, first_error=1.5, n_new=0, bm25=1.5)
    tuning = tune(index, budget=80, qrels=qrels, quick=True)
    assert tuning.first == "bm25+dense"
    tuning = replace(tuning, budget=40, judged=replace(tuning.judged, fuse=0.75))
    index.snapshot.tunings = (tuning,)
    index._scorer = MatrixScorer(index.anchor_queries, index.items.ids, index.matrix.T)

    def planned(k: int = 10, **options):
        return plan_search(index, k, **options).settings()

    said = planned()
    assert (said["budget"], said["first"], said["fuse"]) == (40, "bm25+dense", 0.75)
    # What is the default start anyway is not called tuned.
    assert said["tuned"] == ("budget", "fuse")
    # Up to the largest budget that was tried, and twice that.
    assert planned(budget=60)["fuse"] == planned(budget=149)["fuse"] == 0.75
    assert planned(budget=60)["tuned"] == ("fuse",)
    assert planned(budget=19)["tuned"] == ()
    assert planned(fuse=0)["fuse"] == 0
    assert planned(fuse=2.0)["tuned"] == ("budget",)
    other = planned(first="dense")
    assert (other["fuse"], other["tuned"]) == (0, ("budget",))
    assert planned(first="dense+bm25")["fuse"] == 0.75
    index.snapshot.tunings = (replace(tuning, first="dense"),)
    assert (planned()["first"], planned()["tuned"]) == ("dense", ("budget", "first", "fuse"))
    index.snapshot.tunings = (tuning,)
    reranked = planned(method="rerank")
    assert (reranked["fuse"], reranked["budget"]) == (0.75, 40)
    for method in ("adacur", "exact"):
        assert planned(method=method)["fuse"] == 0
    assert planned(k=21)["tuned"] == ()
    assert planned(k=4)["tuned"] == ()


def test_what_is_promised_is_what_searches_give() -> None:
    index, queries, qrels = world(scorer_error=1.5, first_error=1.5, n_anchors=30, n_new=30)
    plain = index.search(queries[30:], 10, budget=50)
    tuning = tune(index, budget=50, queries=queries[30:], qrels=qrels, quick=True)
    assert judged_quality(plain, qrels)["nDCG@10"].mean() == pytest.approx(tuning.judged.plain.value)
    assert tuning.judged.calls > 0
    hits = index.search(queries[30:], 10, method="rerank")
    assert judged_quality(hits, qrels)["nDCG@10"].mean() == pytest.approx(tuning.judged.rerank.value)


def test_anchor_queries_cost_no_call_and_the_cost_of_others_is_known_beforehand() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    judged = judged_queries(index, qrels, queries)
    most = judged.most_calls(index, k=10, budget=40)
    assert 24 * 40 < most < 24 * 40 * 5
    assert 0 < tune(index, budget=40, queries=queries, qrels=qrels, quick=True).judged.calls <= most
    without_scorer, _, judgements = world(scorer_error=1.0, first_error=1.0, n_new=0)
    assert judged_queries(without_scorer, judgements).most_calls(without_scorer, k=10, budget=40) == 0
    assert tune(without_scorer, budget=40, qrels=judgements, quick=True).judged.calls == 0


def test_anchor_queries_are_known_by_their_texts_and_judged_by_the_ids_given() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0, n_new=0)
    renamed = [Query(f"judged {query.id}", query.text) for query in queries]
    judgements = {f"judged {id_}": grades for id_, grades in qrels.items()}
    judged = judged_queries(index, judgements, renamed)
    assert len(judged.queries) == 36
    assert judged.most_calls(index, k=10, budget=40) == 0


def test_one_choice_by_judgements_is_kept_for_each_k(tmp_path) -> None:
    index, _, qrels = world(scorer_error=1.5, first_error=1.5, n_new=0)
    first = tune(index, budget=40, qrels=qrels, quick=True)
    plain = replace(first, judged=None, budget=60)
    index.snapshot.tunings = (first, plain)
    last = replace(first, budget=30)
    store(index, last)
    assert index.tunings == (last, plain)
    (tmp_path / "tuned.json").write_text(as_stored([last, plain], anchor_queries=index.anchor_queries))
    assert read_tunings(tmp_path, anchor_queries=index.anchor_queries) == (last, plain)


def test_judgements_that_cannot_choose_are_refused() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    everything = {f"i{position}": 1 for position in range(N_ITEMS)}
    for given, asked in (
        ({f"x{id_}": grades for id_, grades in qrels.items()}, None),
        (qrels, [Query("z", "another question")]),
        (qrels, queries[:19]),
        ({query.id: {"i0": 0} for query in queries}, queries),
        ({query.id: everything for query in queries}, queries),
        ({query.id: {"nowhere": 1} for query in queries}, queries),
    ):
        with pytest.raises(EmptyInput):
            tune(index, queries=asked, qrels=given)
    with pytest.raises(InputError):
        tune(index, queries=queries)
    some = {id_: {**grades, "nowhere": 1} for id_, grades in qrels.items()} | {"q1": {"nowhere": 1}}
    judged = judged_queries(index, some)
    assert (judged.unknown_items, judged.left_out, len(judged.queries)) == (36, 1, 35)


def test_an_index_without_first_stage_or_anchor_queries_is_refused() -> None:
    index, queries, qrels = world(scorer_error=1.0, first_error=1.0)
    items = index.items.at(range(N_ITEMS))
    bare = AnchorIndex.from_arrays(items=items, anchor_queries=index.anchor_queries, scores=index.matrix.T)
    with pytest.raises(InputError):
        tune(bare, qrels=qrels)
    calls = []
    first = {"dense": index.first_stage("dense")}
    empty = AnchorIndex.from_items(items, scorer=lambda pairs: calls.append(pairs), first=first)
    with pytest.raises(InputError):
        tune(empty, queries=queries, qrels=qrels)
    assert not calls


@pytest.mark.parametrize(("stored", "spent"), [(30, 30), (10**9, 100)])
def test_a_folder_may_lower_what_a_search_costs_and_never_raise_it(stored, spent) -> None:
    index, _, qrels = world(scorer_error=1.5, first_error=1.5)
    tuning = tune(index, budget=40, qrels=qrels, quick=True)
    index.snapshot.tunings = (replace(tuning, budget=stored, judged=replace(tuning.judged, largest=stored)),)
    assert plan_search(index, 10).purse.calls == spent


# Anchor queries and items, and new queries.
N_SEEN = N_NEW = 120


def doubtful_world(seed: int = 0):
    """Of each query one item is relevant; the scorer sees it through noise, a third of them not at all."""
    rng = np.random.default_rng(seed)
    n = N_SEEN + N_NEW
    right = rng.integers(N_SEEN, size=n)
    scores = rng.normal(size=(n, N_SEEN))
    scores[np.arange(n), right] += np.where(rng.random(n) < 0.33, 0.0, 4.0)
    items = [Item(f"i{at}", f"item {at}") for at in range(N_SEEN)]
    queries = [Query(f"q{at}", f"question {at}") for at in range(n)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:N_SEEN],
        scores=scores[:N_SEEN],
        scorer=MatrixScorer(queries[N_SEEN:], items, scores[N_SEEN:]),
        first={"words": Matrix(queries=queries, items=items, scores=scores + 0.3 * rng.normal(size=scores.shape))},
    )
    return index, queries[N_SEEN:], {query.id: {f"i{right[at]}": 1} for at, query in enumerate(queries)}


def test_judgements_make_relevance_the_chance_to_be_relevant_on_queries_that_did_not_fit_it() -> None:
    index, new, qrels = doubtful_world()
    tune(index, k=5, budget=40, qrels=qrels, quick=True)
    relevance = index.snapshot.relevance()
    assert relevance.source == "judgements"
    assert relevance.calibration.queries == N_SEEN
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
