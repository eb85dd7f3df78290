"""What anchor queries promise of searches for all items above a line."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.first_stages import Dense
from adacur.first_stages.encoders import EncoderCard
from adacur.replay import certificates
from adacur.replay.certificates import calibrated, find_costs, is_below, needed, strongest
from adacur.results import Hits
from adacur.scorers import FunctionScorer, Metered
from adacur.search.finding import LineStop, plan_find
from adacur.search.finish import Answer, Finish
from adacur.search.rounds import search
from adacur.store.probes import DriftWarning
from tests.conftest import World, make_world


@functools.cache
def world_of(n_anchors: int = 80) -> tuple[World, AnchorIndex]:
    """Queries of one kind, so that what is learned of some holds for others."""
    world = make_world(n_items=240, n_anchors=n_anchors, n_test=60, rank=5, noise=0.8)
    return world, AnchorIndex(world.index, scorer=Metered(world.scorer))


def recalls(world: World, found: list[Hits], above: float) -> np.ndarray:
    """Of the queries that have any, the shares of items above the line that were found."""
    totals = np.count_nonzero(world.test_scores >= above, axis=1)
    counts = np.array([len(hits) for hits in found])
    return counts[totals > 0] / totals[totals > 0]


def test_a_mean_that_is_not_below_is_rarely_said_to_be() -> None:
    random = np.random.default_rng(0)
    for draw in (
        lambda n: random.random(n) < 0.1,
        lambda n: np.where(random.random(n) < 0.4, 0.25, 0.0),
        lambda n: 0.2 * random.random(n),
        lambda n: np.where(random.random(n) < 0.02, 1.0, 0.0816),
    ):
        errors = [is_below(draw(100).astype(float), 0.0999, doubt=0.1) for _ in range(800)]
        assert np.mean(errors) <= 0.12


def test_a_mean_that_is_far_below_is_found_to_be() -> None:
    random = np.random.default_rng(0)
    assert np.mean([is_below(0.1 * random.random(100), 0.1, doubt=0.1) for _ in range(50)]) > 0.9


def test_fewer_misses_never_fail_a_test_and_their_order_does_not_matter() -> None:
    random = np.random.default_rng(0)
    for _ in range(300):
        misses = random.random(40) * (random.random(40) < 0.3)
        fewer = misses * random.random(40)
        share, doubt = random.uniform(0.05, 0.4), random.choice([0.05, 0.1, 0.3])
        passes = is_below(misses, share, doubt=doubt)
        assert not passes or is_below(fewer, share, doubt=doubt)
        assert passes == is_below(misses[::-1], share, doubt=doubt)


def test_a_promise_is_kept_to_as_many_new_queries_though_the_cheapest_of_many_limits_was_chosen() -> None:
    """Each query has some items, found in an order that depends on the query: later limits miss more of them."""
    random, broken = np.random.default_rng(0), 0
    limits = np.linspace(-5, 2, 60)[:, None, None]
    for _ in range(200):
        found_at = random.logistic(size=(200, 3)) + 1.5 * random.normal(size=(200, 1))
        misses = (found_at < limits).mean(axis=2)
        seen, new = misses[:, :100], misses[:, 100:]
        chosen = sum(is_below(row, 0.1, doubt=0.1) for row in seen) - 1
        broken += new[chosen].mean() > 0.1
    assert broken <= 20


@pytest.mark.parametrize(("share", "expected"), [(0.0, False), (1.0, True), (-0.5, False)])
def test_shares_at_the_ends_take_no_bet(share, expected) -> None:
    assert is_below(np.zeros(50), share, doubt=0.1) is expected


def test_higher_recalls_and_more_confidence_take_more_anchor_queries() -> None:
    assert needed(0.8, 0.9) < needed(0.9, 0.9) < needed(0.95, 0.9) < needed(0.95, 0.99)
    assert 20 <= needed(0.9, 0.9) <= 40
    assert strongest(np.zeros(needed(0.9, 0.9)), doubt=0.1) == 0.9
    assert strongest(np.ones(30), doubt=0.1) == 0.0


def test_a_calibrated_search_finds_what_it_promises_for_fewer_calls_than_there_are_items() -> None:
    world, index = world_of()
    before = index.scorer.calls
    found = index.find(world.test, above=4.0, recall=0.8)
    assert {hits.certificate.basis for hits in found} <= {"anchors", "none"}
    promised = Counter(hits.certificate.basis for hits in found)["anchors"]
    assert promised > 50
    certificate = next(hits.certificate for hits in found if hits.certificate.is_promise)
    assert (certificate.recall, certificate.confidence) == (0.8, 0.9)
    assert 40 < certificate.n <= 80
    assert recalls(world, found, 4.0).mean() >= 0.8
    assert np.mean([hits.trace.calls for hits in found]) < 120
    assert index.scorer.calls - before == sum(hits.trace.calls for hits in found)


def test_more_recall_costs_more_calls() -> None:
    world, index = world_of()
    calls = [
        sum(hits.trace.calls for hits in index.find(world.test, above=4.0, recall=one)) for one in (0.5, 0.7, 0.85)
    ]
    assert calls[0] < calls[1] < calls[2]


def test_an_anchor_query_is_searched_for_as_if_its_scores_were_unknown() -> None:
    world, index = world_of()
    plan = plan_find(index, above=4.0, recall=0.8)
    stop = plan.stop
    assert isinstance(stop, LineStop)
    calibration = calibrated(index, replace(plan, stop=None), above=4.0, recall=0.8, confidence=0.9)
    assert stop.worth == calibration.limit
    calls = np.mean([hits.trace.calls for hits in index.find(world.test, above=4.0, recall=0.8)])
    # Were they known, far fewer calls would seem to be enough.
    assert calibration.calls == pytest.approx(calls, rel=0.25)


@pytest.mark.parametrize("options", [{"above": 4.0, "recall": 0.5}, {"above": 4.0, "recall": 0.85}, {"above": 0.0}])
def test_replays_that_end_early_choose_what_whole_ones_would(options, monkeypatch) -> None:
    calibrations = []
    for ends in (certificates._ENDS, (0,)):
        monkeypatch.setattr(certificates, "_ENDS", ends)
        world, _ = world_of()
        index = AnchorIndex(world.index, scorer=world.scorer)
        plan = plan_find(index, **options, budget=200)
        calibrations.append(calibrated(index, plan, **{"recall": 0.9, "confidence": 0.9, **options}))
    early, whole = calibrations
    assert (early.limit, early.recall, early.n, early.calls) == (whole.limit, whole.recall, whole.n, whole.calls)


def test_with_too_few_anchor_queries_the_strongest_promise_that_can_be_kept_is_made() -> None:
    world, index = world_of(n_anchors=25)
    found = index.find(world.test, above=4.0, recall=0.95, budget=239)
    certificate = next(hits.certificate for hits in found if hits.certificate.is_promise)
    assert certificate.basis == "anchors"
    assert 0 < certificate.recall < 0.95
    assert str(needed(0.95, 0.9)) in str(certificate)
    assert recalls(world, found, 4.0).mean() >= certificate.recall
    # As far as the model says, and no budget is spent for a promise that it cannot buy.
    assert np.mean([hits.trace.calls for hits in found]) < 200


def test_a_budget_that_is_too_small_for_the_promise_is_spent_and_promises_less() -> None:
    world, index = world_of()
    found = index.find(world.test, above=0.0, recall=0.9, budget=60)
    certificate = next(hits.certificate for hits in found if hits.certificate.is_promise)
    assert {hits.trace.calls for hits in found} == {60}
    assert 0 < certificate.recall < 0.9
    assert len(certificate.reasons) == 1
    assert recalls(world, found, 0.0).mean() >= certificate.recall


@dataclass(frozen=True)
class EndedBy(Finish):
    """Says that something ended the search."""

    why: str

    def __call__(self, answer: Answer) -> Answer:
        return replace(answer, trace=replace(answer.trace, stopped=self.why))


@pytest.mark.parametrize(("why", "basis"), [("settled", "anchors"), ("deadline", "none"), ("a new limit", "none")])
def test_only_a_search_that_ended_as_anchor_queries_do_is_promised_anything(why: str, basis: str) -> None:
    world, index = world_of()
    plan = plan_find(index, above=0.0, recall=0.9)
    *others, certify = plan.finish
    (hits,) = search(replace(plan, finish=(*others, EndedBy(why), certify)), world.test[:1], k=1)
    assert hits.certificate is not None
    assert hits.certificate.basis == basis
    assert (f"ended by its {why} before" in str(hits.certificate)) == (basis == "none")


@pytest.mark.parametrize("recall", [0.99, 0.9999, 1 - 1e-12])
def test_a_recall_that_no_anchor_queries_can_promise_is_answered_soon(recall) -> None:
    world, index = world_of(n_anchors=25)
    assert index.find(world.test[0], above=4.0, recall=recall, budget=100).certificate.recall < recall
    assert needed(recall, 0.9) > 200


@pytest.mark.parametrize("above", [1000.0, 1e300])
def test_a_line_that_no_anchor_query_reaches_promises_nothing(above) -> None:
    world, index = world_of()
    hits = index.find(world.test[0], above=above)
    assert (len(hits), hits.certificate.basis) == (0, "none")


def test_where_every_item_is_above_the_line_no_budget_below_all_items_is_enough() -> None:
    world, index = world_of()
    assert 0.65 <= index.find(world.test[0], above=-1000.0, recall=0.9, budget=180).certificate.recall <= 0.75
    full = index.find(world.test[0], above=-1000.0, recall=0.9, budget=239)
    assert full.certificate.basis == "anchors"
    assert len(full) >= 216


def test_a_query_with_more_items_above_the_line_than_any_anchor_query_is_promised_nothing() -> None:
    world, _ = world_of()
    raised = world.test_scores.copy()
    raised[0] += 50.0
    scorer = replace(world, test_scores=raised).scorer
    other = AnchorIndex(world.index, scorer=scorer)
    one, two = other.find(world.test[:2], above=4.0, recall=0.8, budget=200)
    assert one.certificate.basis == "none"
    assert two.certificate.basis == "anchors"


class Clustered:
    """Anchor queries that point one way, and one query, "far", that points the other way."""

    dimension = 4
    card = EncoderCard(kind="clustered", dimension=4)

    def __init__(self) -> None:
        self.vectors = np.random.default_rng(0).normal(size=(40, 4)) * 0.3 + np.eye(4)[0]

    def encode_queries(self, texts):
        return np.array([-np.eye(4)[0] if text == "far" else self.vectors[int(text.split()[-1])] for text in texts])


def test_a_query_that_is_far_from_all_anchor_queries_is_promised_nothing() -> None:
    encoder, item_vectors = Clustered(), np.random.default_rng(1).normal(size=(200, 4))
    items = [Item(f"i{at}", f"item {at}") for at in range(200)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query(f"a{at}", f"anchor {at}") for at in range(40)],
        scores=encoder.vectors @ item_vectors.T,
        scorer=FunctionScorer(lambda pairs: [item_vectors[int(item.split()[-1]), 0] for _, item in pairs]),
        first={"dense": Dense.from_embeddings([item.id for item in items], item_vectors, encoder=encoder)},
    )
    near, far = index.find(["near 3", "far"], above=1.0, recall=0.7, budget=150)
    assert near.certificate.basis == "anchors"
    assert far.certificate.basis == "none"


def test_what_a_filter_leaves_is_what_is_calibrated() -> None:
    world, index = world_of()
    allowed = [item.id for item in world.items[::2]]
    whole = calibrated(index, plan_find(index, above=4.0, recall=0.8), above=4.0, recall=0.8, confidence=0.9)
    plan = plan_find(index, above=4.0, recall=0.8, filter=allowed)
    half = calibrated(index, plan, above=4.0, recall=0.8, confidence=0.9, filter_=allowed)
    assert half.calls < whole.calls
    assert half.n < whole.n


def test_after_an_edit_the_promise_rests_on_the_anchor_queries_that_there_are(tmp_path) -> None:
    world = make_world(n_items=120, n_anchors=60, n_test=3, rank=4, noise=0.5)
    known = {**scores_of(world.anchors, world.anchor_scores), **scores_of(world.test, world.test_scores)}

    def scorer(pairs):
        return [known[query][int(item.split()[-1])] for query, item in pairs]

    index = adacur.build(world.items, world.anchors[:40], scorer=scorer, path=tmp_path / "i", progress=False)
    before = index.find(world.test[0], above=2.0, recall=0.7)
    files = {file: file.read_bytes() for file in (tmp_path / "i").rglob("*") if file.is_file()}
    with index.edit(progress=False) as edit:
        edit.add_anchors(world.anchors[40:])
    after = index.find(world.test[0], above=2.0, recall=0.7)
    assert before.certificate.basis == after.certificate.basis == "anchors"
    assert before.certificate.n <= 40 < after.certificate.n
    # A folder may come from a stranger: no promise is ever read from one, and none is written.
    assert not any("certif" in file.name for file in (*files, *(tmp_path / "i").rglob("*")))


def test_a_scorer_that_was_not_compared_with_the_index_is_promised_nothing(tmp_path) -> None:
    world = make_world(n_items=120, n_anchors=60, n_test=3, rank=4, noise=0.5)
    known = {**scores_of(world.anchors, world.anchor_scores), **scores_of(world.test, world.test_scores)}

    def scorer(pairs, factor=1.0):
        return [factor * known[query][int(item.split()[-1])] for query, item in pairs]

    def nearly(pairs):
        return scorer(pairs, factor=1.01)

    adacur.build(world.items, world.anchors, scorer=scorer, path=tmp_path / "i", progress=False).close()
    options = {"above": 2.0, "recall": 0.7}
    with adacur.load(tmp_path / "i", scorer=scorer) as index:
        assert index.find(world.test[0], **options).certificate.basis == "anchors"
    with adacur.load(tmp_path / "i", scorer=scorer, check=False) as index:
        unchecked = index.find(world.test[0], **options).certificate
    with pytest.warns(DriftWarning), adacur.load(tmp_path / "i", scorer=nearly) as index:
        drifted = index.find(world.test[0], **options).certificate
    assert (unchecked.basis, drifted.basis) == ("none", "none")
    assert unchecked.reasons != drifted.reasons


def scores_of(queries: list[Query], scores: np.ndarray) -> dict[str, np.ndarray]:
    return {query.text: row for query, row in zip(queries, scores, strict=True)}


def test_what_recalls_cost_is_told_without_a_call() -> None:
    world, index = world_of()
    calls = index.scorer.calls
    costs = find_costs(index, above=4.0, recalls=(0.5, 0.7, 0.99))
    assert index.scorer.calls == calls
    assert 0 < costs[0.5].calls < costs[0.7].calls
    assert costs[0.99].recall < 0.99
    assert costs[0.99].reasons
    found = index.find(world.test, above=4.0, recall=0.7)
    assert np.mean([hits.trace.calls for hits in found]) == pytest.approx(costs[0.7].calls, rel=0.25)
