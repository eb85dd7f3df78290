"""The scorers of a server: each is one object for all indexes, and counted.

Searches share calls in the loop of their scorer (`adacur.search.stepping`), documents to rerank in its queue
(`adacur.scorers.calling.ascore`); both come before the counter.
"""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import ScorerFailed
from adacur.core.money import Price
from adacur.core.protocols import AsyncScorer, Items, PositionScorer, Scorer
from adacur.core.records import Pair, Query
from adacur.core.scores import PairsAt
from adacur.scorers.cached import past_cache
from adacur.scorers.metered import tokens_and_units
from adacur.scorers.prices import price_of
from adacur.scorers.wrapping import shares_calls
from adacur.serving.metrics import Metrics


class _Counted:
    """A scorer whose calls are counted, and made one after another: a model may not be safe in two threads."""

    def __init__(self, scorer: Scorer, metrics: Metrics, price: Price | None = None) -> None:
        self.scorer = scorer
        self.price = price_of(scorer) if price is None else price
        self.card = scorer.card
        self.shares_calls = shares_calls(scorer)
        self._metrics = metrics
        self._turn = threading.RLock()
        if hasattr(scorer, "score_at"):
            self.score_at = self._score_at

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._turn, self._counting(pairs):
            return self.scorer.score(pairs)

    def _score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        with self._turn, self._counting(PairsAt(items, queries, query_of, positions)):
            return cast(PositionScorer, self.scorer).score_at(items, queries, query_of, positions)

    @contextmanager
    def _counting(self, pairs: Sequence[Pair]) -> Iterator[None]:
        name = self.card.name
        # Where nothing is paid, items that need not be read for their score are not read to count them.
        tokens, units = (0, 0) if isinstance(pairs, PairsAt) and self.price is None else tokens_and_units(self, pairs)
        self._metrics.scorer_tokens.labels(name).inc(tokens)
        if self.price is not None:
            self._metrics.scorer_cost.labels(name, self.price.currency).inc(float(self.price.cost(units).amount))
        started = time.perf_counter()
        self._metrics.scorer_calls.labels(name).inc()
        self._metrics.scorer_pairs.labels(name).observe(len(pairs))
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


class _CountedAtOnce(_Counted):
    """One that runs calls side by side by itself, such as a service: all requests call it at once."""

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        assert isinstance(self.scorer, AsyncScorer)
        with self._counting(pairs):
            return await self.scorer.ascore(pairs)


class ServedScorers:
    """One counted scorer per scorer: indexes that have the same one share its calls too."""

    def __init__(self, *, metrics: Metrics, price: Price | None = None) -> None:
        self._metrics = metrics
        self._price = price
        self._served: dict[int, Scorer] = {}
        self._lock = threading.Lock()

    def of(self, scorer: Scorer) -> Scorer:
        """The counted form of this scorer."""
        with self._lock:
            # A counted scorer keeps its scorer alive, so that no other object can have its id.
            if id(scorer) not in self._served:
                kind = _CountedAtOnce if _runs_side_by_side(scorer) else _Counted
                self._served[id(scorer)] = kind(scorer, self._metrics, self._price)
            return self._served[id(scorer)]


def uncached(scorer: Scorer) -> Scorer:
    """A counted scorer without its cache, in the same turns: old scores do not say who answers today."""
    if not isinstance(scorer, _Counted):
        return scorer
    other = copy.copy(scorer)
    other.scorer = past_cache(scorer.scorer)
    return other


def _runs_side_by_side(scorer: Scorer) -> bool:
    """Whether calls of this scorer, or of the one that it is wrapped around, are made at once when awaited at once."""
    inner = scorer
    while isinstance(wrapped := getattr(inner, "scorer", None), Scorer):
        inner = wrapped
    # A plain function can be awaited too, but then its callers share a queue.
    awaited = isinstance(scorer, AsyncScorer) and isinstance(inner, AsyncScorer)
    return awaited and bool(getattr(inner, "is_async", True))
