"""What a scorer costs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from adacur.arrays import FloatArray, IntArray
from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Item, Pair, Query
from adacur.scorers.calling import ascore, score_grid
from adacur.scorers.prices import count_tokens, price_of, units_of
from adacur.scorers.wrapping import Wrapping


class Metered(Wrapping):
    """A scorer that counts: `calls` are pairs answered, `seconds` the time they took, summed over threads.

    With a `price`, such as "0.05 USD / 1M tokens", or `tokens_of`, a function from pairs to their numbers of tokens,
    `tokens` and `cost` are counted too; budgets and estimates then go by these.
    """

    def __init__(
        self,
        scorer: Scorer,
        *,
        price: Price | str | None = None,
        tokens_of: Callable[[Sequence[Pair]], IntArray | Sequence[int]] | None = None,
    ) -> None:
        self.scorer = scorer
        self.calls = self.tokens = self.units = 0
        self.seconds = 0.0
        self.price = price_of(scorer) if price is None else Price.of(price)
        self._counts_tokens = price is not None or tokens_of is not None
        if tokens_of is not None:
            self.tokens_of = tokens_of
        self._lock = threading.Lock()

    @property
    def cost(self) -> Money | None:
        """What the calls so far cost; None without a price."""
        return self.price.cost(self.units) if self.price is not None and self._counts_tokens else None

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs), pairs):
            return self.scorer.score(pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        with self._counting(len(queries) * len(items), list(product(queries, items)) if self._counts_tokens else ()):
            return score_grid(self.scorer, queries, items)

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        with self._counting(len(pairs), pairs):
            return await ascore(self.scorer, pairs)

    @contextmanager
    def _counting(self, calls: int, pairs: Sequence[Pair]) -> Iterator[None]:
        tokens, units = tokens_and_units(self, pairs) if self._counts_tokens else (0, 0)
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        with self._lock:
            self.calls += calls
            self.tokens += tokens
            self.units += units
            self.seconds += seconds


def tokens_and_units(scorer: Scorer, pairs: Sequence[Pair]) -> tuple[int, int]:
    """The tokens of the pairs of a call, and the units of its price that it is charged; none without a price."""
    # Pairs by position are read together; one by one, each is a look-up of its own.
    pairs = list(pairs)
    counts, price = count_tokens(scorer, pairs), price_of(scorer)
    if price is None:
        return int(counts.sum()), 0
    of_query: dict[str, list[int]] = {}
    for at, (query, _) in enumerate(pairs):
        of_query.setdefault(query.text, []).append(at)
    units = (units_of(price, scorer, counts[some]) for some in of_query.values())
    return int(counts.sum()), sum(units)
