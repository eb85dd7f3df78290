"""What a scorer costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from adacur.core.arrays import FloatArray
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.scorers.calling import ascore, score_grid
from adacur.scorers.shared_batches import shares_calls


class Metered:
    """A scorer that counts: `calls` are pairs answered, `seconds` the time they took, summed over threads."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.calls = 0
        self.seconds = 0.0
        self._lock = threading.Lock()

    @property
    def card(self) -> ScorerCard:
        return self.scorer.card

    @property
    def shares_calls(self) -> bool:
        """Whether callers may share a call."""
        return shares_calls(self.scorer)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs)):
            return self.scorer.score(pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        with self._counting(len(queries) * len(items)):
            return score_grid(self.scorer, queries, items)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs)):
            return await ascore(self.scorer, pairs)

    def reset(self) -> None:
        """Count from zero again."""
        with self._lock:
            self.calls, self.seconds = 0, 0.0

    def close(self) -> None:
        """Close the scorer, if it can be closed."""
        if callable(close := getattr(self.scorer, "close", None)):
            close()

    @contextmanager
    def _counting(self, calls: int) -> Iterator[None]:
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        with self._lock:
            self.calls += calls
            self.seconds += seconds
