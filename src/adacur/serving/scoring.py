"""The scorers of a server: each is one object for all indexes, counted, and shared by whoever waits."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adacur.core.arrays import FloatArray
from adacur.core.errors import ScorerFailed
from adacur.core.protocols import AsyncScorer, Scorer, ScorerCard
from adacur.core.records import Pair
from adacur.scorers.shared_batches import queue_for, shares_calls
from adacur.serving.metrics import Metrics

__all__ = ["ServedScorer", "ServedScorers"]


class _Counted:
    """A scorer whose calls are counted, plain or awaited."""

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        self.scorer = scorer
        self.card: ScorerCard = scorer.card
        self._calls = metrics.scorer_calls.labels(self.card.name)
        self._pairs = metrics.scorer_pairs.labels(self.card.name)
        self._seconds = metrics.scorer_seconds.labels(self.card.name)
        self._failures = metrics.scorer_failures.labels(self.card.name)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs)):
            return self.scorer.score(pairs)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order, of a scorer that can be awaited."""
        assert isinstance(self.scorer, AsyncScorer)
        with self._counting(len(pairs)):
            return await self.scorer.ascore(pairs)

    @contextmanager
    def _counting(self, n_pairs: int) -> Iterator[None]:
        started = time.perf_counter()
        self._calls.inc()
        self._pairs.observe(n_pairs)
        try:
            yield
        except Exception:
            self._failures.inc()
            raise
        except SystemExit as error:
            # A scorer may not want to go on; the server does.
            self._failures.inc()
            raise ScorerFailed(f"Scorer {self.card.name!r} wanted to end the process: exit({error.code!r}).") from error
        finally:
            self._seconds.observe(time.perf_counter() - started)


class ServedScorer:
    """A scorer as a server's searches await it.

    With `shared` those who wait at the same time share a call; by default that is so for models in this process, and
    with other scorers each has calls of its own, one after another. If it is false, each call has a thread of its own.
    A scorer that runs side by side by itself, such as a service, is asked by everybody at once whatever it is.
    """

    def __init__(self, scorer: Scorer, *, metrics: Metrics, shared: bool | None) -> None:
        self._scorer = scorer
        self._counted = _Counted(scorer, metrics)
        self._runs_side_by_side = _runs_side_by_side(scorer)
        asked_at_once = self._runs_side_by_side or shared is False
        self._queue = None if asked_at_once else queue_for(self._counted, shared=shared or shares_calls(scorer))
        self._waiting = metrics.pairs_waiting.labels(scorer.card.name)

    @property
    def card(self) -> ScorerCard:
        return self._scorer.card

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return self._counted.score(pairs) if self._queue is None else self._queue.score(pairs)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        with self._in_line(len(pairs)):
            if self._queue is not None:
                return await self._queue.ascore(pairs)
            if self._runs_side_by_side:
                return await self._counted.ascore(pairs)
            return await asyncio.to_thread(self._counted.score, pairs)

    @contextmanager
    def _in_line(self, n_pairs: int) -> Iterator[None]:
        self._waiting.inc(n_pairs)
        try:
            yield
        finally:
            self._waiting.dec(n_pairs)


def _runs_side_by_side(scorer: Scorer) -> bool:
    """Whether calls of this scorer, or of the one that it is wrapped around, are made at once when awaited at once."""
    inner = scorer
    while isinstance(wrapped := getattr(inner, "scorer", None), Scorer):
        inner = wrapped
    # A plain function can be awaited too, but then its callers share a queue.
    awaited = isinstance(scorer, AsyncScorer) and isinstance(inner, AsyncScorer)
    return awaited and bool(getattr(inner, "is_async", True))


class ServedScorers:
    """One served scorer per scorer: indexes that have the same one share its calls too."""

    def __init__(self, *, metrics: Metrics, shared: bool | None) -> None:
        self._metrics = metrics
        self._shared = shared
        self._served: dict[int, ServedScorer] = {}
        self._lock = threading.Lock()

    def of(self, scorer: Scorer) -> ServedScorer:
        """The served scorer of this one."""
        # A served scorer keeps its scorer alive, so that no other object can have its id.
        with self._lock:
            if id(scorer) not in self._served:
                self._served[id(scorer)] = ServedScorer(scorer, metrics=self._metrics, shared=self._shared)
            return self._served[id(scorer)]
