"""Searches on a device score what searches on numpy score; torch's "cpu" is a device like any other."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from adacur import BM25, AnchorIndex, Budget, Dense, Gaussian, Item, Query
from adacur.extras.kernels.graph_top_n import RecordedChoices
from adacur.model import Features, GaussianModel
from adacur.model.device_posterior import _Batch
from adacur.scorers import MatrixScorer
from adacur.search import plan_search
from adacur.search.device_search import BatchOnDevice
from adacur.search.rounds import RunningSearch
from tests.stopping import Stopping

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(11)
N_ITEMS, N_ANCHORS, N_QUERIES, WIDTH = 300, 25, 9, 12
WORDS = ("river", "stone", "moss", "capital", "bridge", "harvest", "lantern", "violin")
ITEMS = [Item(f"i{at}", " ".join(RNG.choice(WORDS, size=5)) + f" {at}", {"parity": at % 2}) for at in range(N_ITEMS)]
ANCHORS = [Query(f"a{at}", " ".join(RNG.choice(WORDS, size=2))) for at in range(N_ANCHORS)]
QUERIES = [Query(f"q{at}", " ".join(RNG.choice(WORDS, size=2))) for at in range(N_QUERIES)]
HIDDEN = RNG.normal(size=(N_ITEMS, WIDTH))
OF_QUERIES = {query.id: RNG.normal(size=WIDTH) for query in (*ANCHORS, *QUERIES)}


def scores_of(queries: list[Query]) -> np.ndarray:
    clean = np.stack([OF_QUERIES[query.id] for query in queries]) @ HIDDEN.T
    return clean + 0.5 * np.random.default_rng(3).normal(size=clean.shape)


class Known:
    """An encoder that knows some of what the scorer sees."""

    dimension = 6

    def __init__(self) -> None:
        from adacur.first_stages import EncoderCard

        self.card = EncoderCard(kind="known", dimension=6, weights="v1")
        self._of = {query.text: OF_QUERIES[query.id][:6] for query in (*ANCHORS, *QUERIES)}

    def encode_queries(self, texts: Any) -> np.ndarray:
        return np.array([self._of[text] for text in texts], dtype=np.float32)

    encode_items = encode_queries


def index_of(*, n_anchors: int = N_ANCHORS, device: str | None = None, bm25: bool = False, twins: bool = False) -> Any:
    hidden = HIDDEN[:, :6].astype(np.float32)
    if twins:
        hidden = np.repeat(hidden[::2], 2, axis=0)
    scores = scores_of(ANCHORS)[:n_anchors]
    if twins:
        scores = np.repeat(scores[:, ::2], 2, axis=1)
    given: dict[str, Any] = {"dense": Dense.from_embeddings([item.id for item in ITEMS], hidden, encoder=Known())}
    if bm25:
        given["bm25"] = BM25.build(ITEMS)
    exact = MatrixScorer(queries=QUERIES, items=ITEMS, scores=scores_of(QUERIES))
    if n_anchors:
        table = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=ANCHORS[:n_anchors], scores=scores, scorer=exact)
    else:
        table = AnchorIndex.from_items(ITEMS, scorer=exact, first=given)
    return AnchorIndex(table.anchors, scorer=exact, first=given, device=device)


def rounds_of(hits: Any) -> list[set[int]]:
    return [set(one.positions.tolist()) for one in hits.trace.rounds]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": Gaussian(rounds=7)},
        {"method": Stopping(stop_when=0.8)},
        {"method": Gaussian(keep_predictions="last")},
        {"filter": {"parity": 1}},
        {"filter": [item.id for item in ITEMS[:45]]},
        {"first": "dense", "fuse": 0.5},
        {"budget": 1000},
    ],
    ids=str,
)
@pytest.mark.parametrize("n_anchors", [0, 1, N_ANCHORS])
def test_the_same_items_are_scored_as_on_numpy(n_anchors: int, options: dict[str, Any]) -> None:
    options = {"budget": 40} | options
    here, there = index_of(n_anchors=n_anchors), index_of(n_anchors=n_anchors, device="cpu")
    for one, other in zip(here.search(QUERIES, 5, **options), there.search(QUERIES, 5, **options), strict=True):
        assert rounds_of(one) == rounds_of(other)
        assert (one.ids, one.trace.stopped) == (other.ids, other.trace.stopped)
        predicted = [(a.predicted, b.predicted) for a, b in zip(one.trace.rounds, other.trace.rounds, strict=True)]
        for ours, theirs in predicted[1:]:
            np.testing.assert_allclose(np.sort(ours), np.sort(theirs), rtol=1e-3, atol=1e-3)


class Charging:
    """Every other item takes 400 tokens, the rest 10."""

    def __init__(self, scorer: Any) -> None:
        self.scorer, self.card = scorer, scorer.card

    def tokens_of(self, pairs: Any) -> np.ndarray:
        return np.array([400 if item.metadata["parity"] else 10 for _, item in pairs])

    def score(self, pairs: Any) -> np.ndarray:
        return self.scorer.score(pairs)


def test_items_that_cannot_be_paid_are_not_found_again() -> None:
    here, there = (index_of(device=device, bm25=True).with_scorer(Charging) for device in (None, "cpu"))
    for tokens in (1000, 2000):
        budget = Budget(200, tokens=tokens)
        for one, other in zip(
            here.search(QUERIES, 5, budget=budget), there.search(QUERIES, 5, budget=budget), strict=True
        ):
            assert rounds_of(one) == rounds_of(other)


def test_several_first_stages_and_items_that_are_alike_are_no_exception() -> None:
    for options in ({"bm25": True}, {"twins": True}):
        here, there = index_of(**options), index_of(device="cpu", **options)
        for query in QUERIES:
            one, other = (index.search(query, 5, budget=40) for index in (here, there))
            assert rounds_of(one) == rounds_of(other)


def test_an_answer_is_the_same_alone_and_with_others() -> None:
    there = index_of(device="cpu")
    together = there.search(QUERIES, 5, budget=40)
    for query, hits in zip(QUERIES, together, strict=True):
        assert rounds_of(there.search(query, 5, budget=40)) == rounds_of(hits)


def test_searches_that_time_out_at_different_places_hold_their_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    there = index_of(device="cpu")
    hits = there.search(QUERIES, 5, budget=Budget(40, deadline=1e-9))
    assert all(0 < one.trace.calls <= 40 and one.trace.stopped == "deadline" for one in hits)


def test_items_are_chosen_on_the_device_where_that_is_enough() -> None:
    there = index_of(device="cpu")
    joined = RunningSearch(plan_search(there, 5, budget=40), QUERIES, 5)
    assert isinstance(joined.batch, BatchOnDevice)
    joined = RunningSearch(plan_search(there, 5, budget=40, method=Gaussian(keep_predictions="last")), QUERIES, 5)
    assert not isinstance(joined.batch, BatchOnDevice)


def test_a_device_that_runs_out_of_memory_goes_on_with_fewer_queries(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = [rounds_of(hits) for hits in index_of(device="cpu").search(QUERIES, 5, budget=40)]
    original, rows = _Batch._predicted, Features.rows

    def too_many(self: Any, solved: Any) -> Any:
        if len(solved.weights) > 2:
            raise torch.OutOfMemoryError("no memory")
        return original(self, solved)

    def too_many_rows(self: Any, at: Any) -> Any:
        if at.ndim == 2 and len(at) > 3:
            raise torch.OutOfMemoryError("no memory")
        return rows(self, at)

    monkeypatch.setattr(_Batch, "_predicted", too_many)
    monkeypatch.setattr(Features, "rows", too_many_rows)
    with caplog.at_level(logging.WARNING):
        assert [rounds_of(hits) for hits in index_of(device="cpu").search(QUERIES, 5, budget=40)] == expected
    assert "ran out of memory" in caplog.text


def test_an_index_larger_than_the_device_stays_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_room(self: Any, device: str) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(Features, "on", no_room)
    with caplog.at_level(logging.WARNING):
        hits = index_of(device="cpu").search(QUERIES[0], 5, budget=40)
    assert rounds_of(hits) == rounds_of(index_of().search(QUERIES[0], 5, budget=40))
    assert "too little memory" in caplog.text


def test_a_model_on_a_device_predicts_as_on_numpy() -> None:
    index = index_of()
    vectors = index.snapshot.item_vectors()
    options = {"embeddings": vectors.all_rows(), "embed_queries": vectors.embed_queries}
    both = [GaussianModel(**options, device=device).begin(index.anchors, QUERIES) for device in (None, "cpu")]
    positions = [np.array([at, at + 7, at + 50]) for at in range(N_QUERIES)]
    # Queries may have any number of scores.
    positions[2], positions[4] = positions[2][:1], positions[4][:0]
    scores = [scores_of(QUERIES)[at][some] for at, some in enumerate(positions)]
    for approximation in both:
        approximation.tell(positions, scores)
        approximation.tell([some + 100 for some in positions], scores)
    np.testing.assert_allclose(both[0].predict(), both[1].predict(), rtol=1e-4, atol=1e-4)


def test_a_batch_and_a_lone_query_score_the_same_items() -> None:
    # The posteriors of a batch are solved in torch, those of a lone query by numpy.
    index = index_of(device="cpu")
    together = index.search(QUERIES, 5, budget=40)
    for query, hits in zip(QUERIES, together, strict=True):
        assert rounds_of(index.search(query, 5, budget=40)) == rounds_of(hits)
        assert index.search(query, 5, budget=40, method=Stopping(stop_when=0.8)).trace.stopped in ("settled", "budget")


@pytest.mark.parametrize("options", [{}, {"bm25": True}, {"n_anchors": 0}, {"twins": True}], ids=str)
@pytest.mark.parametrize("method", [Gaussian(), Gaussian(rounds=7)], ids=str)
def test_a_recorded_choice_is_the_same_choice(options: Any, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[Any] = []

    def capture(run: Any) -> Any:
        recorded.append(run)
        return run

    plain = index_of(device="cpu", **options)
    monkeypatch.setattr("adacur.extras.kernels.graph_top_n.RecordedChoices", lambda: RecordedChoices(capture=capture))
    index = index_of(device="cpu", **options)
    for query in QUERIES:
        one, other = (each.search(query, 5, budget=140, method=method) for each in (plain, index))
        assert rounds_of(one) == rounds_of(other)
        assert one.ids == other.ids
        for ours, theirs in zip(one.trace.rounds[1:], other.trace.rounds[1:], strict=True):
            np.testing.assert_allclose(np.sort(ours.predicted), np.sort(theirs.predicted), rtol=1e-3, atol=1e-3)
    # As many as there are shapes, not searches.
    assert 1 <= len(recorded) <= 4


def test_a_choice_that_cannot_be_recorded_is_made_without(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(run: Any) -> Any:
        raise RuntimeError("no graphs here")

    monkeypatch.setattr("adacur.extras.kernels.graph_top_n.RecordedChoices", lambda: RecordedChoices(capture=refuse))
    with caplog.at_level(logging.WARNING):
        hits = index_of(device="cpu").search(QUERIES[0], 5, budget=40)
    assert rounds_of(hits) == rounds_of(index_of(device="cpu").search(QUERIES[0], 5, budget=40))
    assert "no graphs here" in caplog.text
