"""The scorers of a server: each is one object for all indexes, counted, and shared by requests that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adacur.core.arrays import FloatArray
from adacur.core.errors import ScorerFailed
from adacur.core.protocols import AsyncScorer, Scorer
from adacur.core.records import Pair
from adacur.scorers.shared_batches import queue_for, shares_calls
from adacur.serving.metrics import Metrics

__all__ = ["ServedScorer", "ServedScorers"]


class _Counted:
    """A scorer whose calls are counted, plain or awaited."""

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        self.scorer = scorer
        self.card = scorer.card
        self._metrics = metrics

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
        name, started = self.card.name, time.perf_counter()
        self._metrics.scorer_calls.labels(name).inc()
        self._metrics.scorer_pairs.labels(name).observe(n_pairs)
        try:
            yield
        except Exception:
            self._metrics.scorer_failures.labels(name).inc()
            raise
        except SystemExit as error:
            # A scorer may try to end the process; the server goes on.
            self._metrics.scorer_failures.labels(name).inc()
            raise ScorerFailed(f"Scorer {name!r} tried to end the process: exit({error.code!r}).") from error
        finally:
            self._metrics.scorer_seconds.labels(name).observe(time.perf_counter() - started)


class ServedScorer:
    """A scorer as a server's searches await it.

    A scorer that runs side by side by itself, such as a service, is called by all requests at once. Calls of others
    follow one another in a queue, where requests that wait share a call if the scorer `shares_calls`.
    """

    def __init__(self, scorer: Scorer, *, metrics: Metrics) -> None:
        self.card = scorer.card
        self._counted = _Counted(scorer, metrics)
        is_alone = not _runs_side_by_side(scorer)
        self._queue = queue_for(self._counted, shared=shares_calls(scorer)) if is_alone else self._counted
        self._waiting = metrics.pairs_waiting.labels(scorer.card.name)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return self._queue.score(pairs)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        self._waiting.inc(len(pairs))
        try:
            return await self._queue.ascore(pairs)
        finally:
            self._waiting.dec(len(pairs))


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

    def __init__(self, *, metrics: Metrics) -> None:
        self._metrics = metrics
        self._served: dict[int, ServedScorer] = {}
        self._lock = threading.Lock()

    def of(self, scorer: Scorer) -> ServedScorer:
        """The served scorer of this one."""
        with self._lock:
            # A served scorer keeps its scorer alive, so that no other object can have its id.
            if id(scorer) not in self._served:
                self._served[id(scorer)] = ServedScorer(scorer, metrics=self._metrics)
            return self._served[id(scorer)]
