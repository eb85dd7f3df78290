"""The scorers of a server: one object per scorer for all indexes, with its calls counted, and checked for drift.

Searches share calls in the loop of their scorer (`adacur.extras.server.shared_loop`), which comes before the counter;
documents to rerank wait for their turn.
"""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.extras.server.failures import Refusal
from adacur.extras.server.indexes import Served
from adacur.extras.server.metrics import Metrics
from adacur.extras.server.server_settings import ServerSettings
from adacur.money import Price
from adacur.protocols import AsyncScorer, Items, PositionScorer, Scorer
from adacur.records import Item, Pair, Query, as_query
from adacur.scorers.cached import past_cache
from adacur.scorers.calling import ascore
from adacur.scorers.metered import price_of
from adacur.scorers.wrapping import can_batch_callers, runs_side_by_side
from adacur.scores import PairsAt, failure_of, score_pairs
from adacur.spelling import did_you_mean
from adacur.store import Drift, drift_now

# Scorer calls of a check.
_PAIRS = 8


class Counted:
    """A scorer whose calls are counted, and made one at a time: a model may not be thread-safe."""

    def __init__(self, scorer: Scorer, metrics: Metrics, price: Price | None) -> None:
        self.scorer = scorer
        self.price = price_of(scorer) if price is None else price
        self.card = scorer.card
        self.can_batch_callers = can_batch_callers(scorer)
        self._metrics = metrics
        self._turn = threading.RLock()
        if hasattr(scorer, "score_at"):
            self.score_at = self._score_at

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._turn, self._counting(pairs):
            return self.scorer.score(pairs)

    async def in_turn(self, pairs: Sequence[Pair]) -> FloatArray:
        """One finite score per pair, in order; of a caller who is gone when its turn comes, nothing is scored."""
        gone = threading.Event()

        def score() -> FloatArray:
            with self._turn:
                return np.empty(0) if gone.is_set() else score_pairs(self, pairs)

        try:
            return await asyncio.to_thread(score)
        finally:
            gone.set()

    def _score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        with self._turn, self._counting(PairsAt(items, queries, query_of, positions)):
            return cast(PositionScorer, self.scorer).score_at(items, queries, query_of, positions)

    @contextmanager
    def _counting(self, pairs: Sequence[Pair], *, awaited: bool = False) -> Iterator[None]:
        name = self.card.name
        started = time.perf_counter()
        self._metrics.scorer_calls.labels(name).inc()
        self._metrics.scorer_pairs.labels(name).observe(len(pairs))
        try:
            yield
        except BaseException as error:
            if awaited and _is_cancelled(error):
                raise
            self._metrics.scorer_failures.labels(name).inc()
            if isinstance(error, Exception):
                raise
            # An exit or interrupt would end the server, and others would leave a request without an answer.
            raise failure_of(self, error) from error
        finally:
            self._metrics.scorer_seconds.labels(name).observe(time.perf_counter() - started)


class _CountedAtOnce(Counted):
    """A counted scorer that handles concurrent calls itself, such as a service."""

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(pairs, awaited=True):
            return await cast(AsyncScorer, self.scorer).ascore(pairs)

    async def in_turn(self, pairs: Sequence[Pair]) -> FloatArray:
        """The same, checked."""
        return await ascore(self, pairs)


class ServedScorers:
    """One counted scorer per scorer, shared by all indexes that have it."""

    def __init__(self, *, metrics: Metrics, price: Price | None = None) -> None:
        self._metrics, self._price = metrics, price
        self._served: dict[int, Counted] = {}
        self._lock = threading.Lock()

    def of(self, scorer: Scorer) -> Counted:
        """The counted form of this scorer."""
        with self._lock:
            # A counted scorer keeps its scorer alive, so that no other object can have its id.
            if id(scorer) not in self._served:
                kind = _CountedAtOnce if runs_side_by_side(scorer) else Counted
                self._served[id(scorer)] = kind(scorer, self._metrics, self._price)
            return self._served[id(scorer)]


def _is_cancelled(error: BaseException) -> bool:
    """Whether the caller cancelled this task, rather than the scorer itself."""
    task = asyncio.current_task()
    is_asked_to = task is not None and task.cancelling() > 0
    return isinstance(error, GeneratorExit) or (isinstance(error, asyncio.CancelledError) and is_asked_to)


def uncached(scorer: Scorer) -> Scorer:
    """A counted scorer without its cache, with the same lock: cached scores do not show whether it has changed."""
    if not isinstance(scorer, Counted):
        return scorer
    other = copy.copy(scorer)
    other.scorer = past_cache(scorer.scorer)
    return other


def by_model(served: Mapping[str, Served], model: str | None) -> Served:
    """The index of this name, or of this scorer; the first if none is named."""
    if model is None:
        return next(iter(served.values()))
    by_name = {one.scorer_name: one for one in reversed(list(served.values()))} | dict(served)
    if model not in by_name:
        near = did_you_mean(model, by_name)
        names = ", ".join(sorted(by_name, key=lambda name: name not in served))
        raise Refusal(404, "unknown_model", f"There is no index or scorer of this name.{near} Served: {names}.")
    return by_name[model]


async def reranked(served: Served, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a body of `rerank_request`, as Jina's clients read it: best first, equal ones as they came."""
    texts = [one if isinstance(one, str) else one["text"] for one in body["documents"]]
    query = as_query(body["query"])
    pairs: list[Pair] = [(query, Item(f"document-{at}", text)) for at, text in enumerate(texts)]
    # Opening a model takes a while.
    scorer = await asyncio.to_thread(lambda: served.index.scorer)
    scores = (await cast(Counted, scorer).in_turn(pairs)).astype(np.float64)
    # Clients expect the logistic function; written so that exp of a large number cannot overflow.
    shown = scores if body["raw_scores"] else np.exp(-np.logaddexp(0, -scores))
    results = [
        {"index": at, "relevance_score": float(shown[at])}
        | ({"document": {"text": texts[at]}} if body["return_documents"] else {})
        for at in np.argsort(-scores, kind="stable")[: body["top_n"]].tolist()
    ]
    return {"model": served.scorer_name, "results": results, "usage": {"scored_pairs": len(texts)}}


class ScorerWatch:
    """Compares the scorer of each index with a few of the stored scores, periodically.

    Each check is counted in `metrics` and logged as one line. `sleep` waits between checks.
    """

    def __init__(
        self,
        served: Mapping[str, Served],
        *,
        settings: ServerSettings,
        metrics: Metrics,
        log: Any,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._served, self._settings, self._metrics, self._log, self._sleep = served, settings, metrics, log, sleep
        self._changed: set[str] = set()

    async def run(self) -> None:
        """Check all scorers that can change, until cancelled."""
        while self._settings.probe_seconds:
            await self._sleep(self._settings.probe_seconds)
            for one in self._served.values():
                # A failure has been counted and logged, and may be temporary.
                with suppress(Exception):
                    if await asyncio.to_thread(_can_change, one):
                        await self.check(one)

    async def check(self, one: Served) -> Drift:
        """How far the scorer has drifted from the index, for 8 scorer calls."""
        try:
            # In a thread, since the scorer may have to be opened first.
            drift = await asyncio.to_thread(lambda: drift_now(one.index.anchors, uncached(one.index.scorer), n=_PAIRS))
        except Exception as error:
            self._metrics.scorer_probes.labels(one.name, "failed").inc()
            self._log.error("scorer not probed", index=one.name, exc_info=error)
            raise
        outcome = "same" if drift.same else "near" if drift.allowed else "changed"
        self._metrics.scorer_probes.labels(one.name, outcome).inc()
        self._metrics.scorer_drift.labels(one.name).set(drift.rms_over_std)
        write = self._log.info if drift.allowed else self._log.error
        write("scorer probed", index=one.name, outcome=outcome, drift=drift.summary())
        (self._changed.discard if drift.allowed else self._changed.add)(one.name)
        return drift

    def refuse_if_changed(self, one: Served) -> None:
        """Refuse a search whose scorer has changed, where the settings ask for it."""
        if self._settings.refuse_drift and one.name in self._changed:
            message = (
                "The scorer of this index has changed since the index was built. Searches are refused until the "
                "scorer is restored or the index is rebuilt."
            )
            raise Refusal(503, "scorer_changed", message)


def _can_change(one: Served) -> bool:
    """Whether the scorer has no known weights, as a service has none."""
    return bool(one.index.anchor_queries) and one.index.scorer.card.weights is None
