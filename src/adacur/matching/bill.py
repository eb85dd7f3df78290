"""The bill: what was paid, counted where it is paid, and the walls that it never passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import ScorerError
from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers.metered import Metered, tokens_and_units
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


class Till(Metered):
    """A scorer that counts what is paid, and scores no pair beyond `most_calls` or `most_cost`."""

    def __init__(
        self,
        scorer: Scorer,
        *,
        most_calls: int | None = None,
        most_cost: Money | None = None,
        price: Price | None = None,
    ) -> None:
        super().__init__(scorer, price=price)
        self._most_calls = most_calls
        self._most_units = None if most_cost is None or price is None else price.affords(most_cost)
        self.over: str | None = None

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        n = self._affordable(pairs)
        scores: FloatArray = super().score(pairs[:n]) if n else np.empty(0)
        if n < len(pairs):
            wall = WallReached(f"The {self.over} of this match are spent.")
            wall.scored = dict(zip(pairs, [float(score) for score in scores], strict=False))
            raise wall
        return scores

    def _affordable(self, pairs: Sequence[Pair]) -> int:
        """How many of the next pairs can be paid, the first ones first."""
        n = len(pairs)
        if self._most_calls is not None and n > self._most_calls - self.calls:
            n, self.over = self._most_calls - self.calls, "calls"
        while n and self._most_units is not None:
            if self.units + tokens_and_units(self, pairs[:n])[1] <= self._most_units:
                break
            n, self.over = n - 1, "cost"
        return n

    def on_bill(self, bill: Bill, **now: Any) -> Bill:
        """The bill with what was paid since."""
        return replace(bill, calls=self.calls, tokens=self.tokens, cost=self.cost, stopped=self.over, **now)
