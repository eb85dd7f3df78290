"""The bill: what was paid, counted where it is paid, and the walls that it never passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import ScorerError
from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers.prices import count_tokens, pairs_per_unit
from adacur.scorers.wrapping import Wrapping
from adacur.units import duration


class WallReached(ScorerError):
    """The next pair would pass a wall; `scored` are those of the same call that did not."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What a match has done so far.

    - `rows`, `rows_done`, `pairs`: rows of the left table, and pairs found;
    - `calls`, `tokens`, `cost`: paid now; `known` are pairs whose score an earlier run had paid for;
    - `expected_calls`, `expected_cost`, `expected_pairs`: at the end, if the rows to come are like those before;
    - `seconds`: since the start; `stopped`: the wall that ended it, "calls" or "cost".
    """

    rows: int
    rows_done: int = 0
    pairs: int = 0
    calls: int = 0
    known: int = 0
    tokens: int = 0
    cost: Money | None = None
    seconds: float = 0.0
    stopped: str | None = None

    @property
    def expected_calls(self) -> int:
        return round(self._at_the_end(self.calls))

    @property
    def expected_pairs(self) -> int:
        return round(self._at_the_end(self.pairs))

    @property
    def expected_cost(self) -> Money | None:
        if self.cost is None or not self.rows_done:
            return None
        return Money(round(self.cost.amount * self.rows / self.rows_done, 6), self.cost.currency)

    def _at_the_end(self, n: int) -> float:
        return n * self.rows / self.rows_done if self.rows_done else 0.0

    def __str__(self) -> str:
        """One line."""
        parts = [f"{self.rows_done:,} of {self.rows:,} rows", f"{self.pairs:,} pairs", f"{self.calls:,} calls"]
        parts += [f"{self.tokens:,} tokens"] * bool(self.tokens) + [f"{self.cost}"] * (self.cost is not None)
        parts += [f"{self.known:,} scores were paid for before"] * bool(self.known)
        if 0 < self.rows_done < self.rows:
            money = f", {self.expected_cost}" if self.expected_cost else ""
            parts.append(f"expected at the end: {self.expected_calls:,} calls{money}, {self.expected_pairs:,} pairs")
        return f"{'; '.join(parts)}; {duration(self.seconds)}"


Progress = Callable[[Bill], None]


class Till(Wrapping):
    """A scorer that counts what is paid, and scores no pair beyond `most_calls` or `most_cost`."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        most_calls: int | None = None,
        most_cost: Money | None = None,
        price: Price | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scorer = scorer
        self._most_calls, self._price, self._clock = most_calls, price, clock
        self._most_units = None if most_cost is None or price is None else price.affords(most_cost)
        self._units = 0
        self.calls, self.tokens, self.seconds = 0, 0, 0.0
        self.over: str | None = None

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        tokens = count_tokens(self.scorer, pairs) if self._price is not None else None
        n, units = self._affordable(len(pairs), tokens)
        scores: FloatArray = np.empty(0)
        if n:
            started = self._clock()
            scores = self.scorer.score(pairs[:n])
            self.seconds += self._clock() - started
            self.calls, self._units = self.calls + n, self._units + units
            self.tokens += 0 if tokens is None else int(tokens[:n].sum())
        if n < len(pairs):
            wall = WallReached(f"The {self.over} of this match are spent.")
            wall.scored = dict(zip(pairs, [float(score) for score in scores], strict=False))
            raise wall
        return scores

    @property
    def cost(self) -> Money | None:
        """What was paid; None where no price is known."""
        return None if self._price is None else self._price.cost(self._units)

    def _affordable(self, n: int, tokens: Any) -> tuple[int, int]:
        """How many of the next n pairs can be paid, and their units."""
        if self._most_calls is not None and n > self._most_calls - self.calls:
            n, self.over = self._most_calls - self.calls, "calls"
        while n and self._price is not None:
            by_pair = None if self._price.unit == "tokens" else pairs_per_unit(self._price, self.scorer)
            units = int(tokens[:n].sum()) if by_pair is None else -(-n // by_pair)
            if self._most_units is None or self._units + units <= self._most_units:
                return n, units
            n, self.over = n - 1, "cost"
        return n, 0

    def on_bill(self, bill: Bill, **now: Any) -> Bill:
        """The bill with what was paid since."""
        return replace(bill, calls=self.calls, tokens=self.tokens, cost=self.cost, stopped=self.over, **now)
