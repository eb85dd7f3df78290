"""The bill: what a match would cost, what was paid, counted where it is paid, and the walls that it never passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import ScorerError
from adacur.money import Money, Price
from adacur.protocols import Scorer
from adacur.records import Pair, Query
from adacur.scorers.metered import Metered, count_tokens, counts_exactly, tokens_and_units, units_per_pair
from adacur.search import AnchorIndex
from adacur.store.estimate import time_scorer
from adacur.units import duration

# Calls of a row, as measured on tables of products at a recall of .9 (docs/match.md).
_USUAL_CALLS = 4
_TIMED = 64
# Models in this process, which cost time alone: only they are timed.
_TIMED_BACKENDS = ("onnx", "torch", "sentence-transformers")


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
        return self.calls * self.rows // max(1, self.rows_done)

    @property
    def expected_pairs(self) -> int:
        return self.pairs * self.rows // max(1, self.rows_done)

    @property
    def expected_cost(self) -> Money | None:
        return self.cost and Money(round(self.cost.amount * self.rows / max(1, self.rows_done), 6), self.cost.currency)

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
            wall.scored = dict(zip(pairs, scores.tolist(), strict=False))
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


@dataclass(frozen=True, slots=True)
class MatchEstimate:
    """The calls of a match: `expected`, between one a row and `most`. Tokens, money and seconds are for `expected`.

    Tokens are an upper bound where the scorer can't count them (`tokens_are_bound`). `cost` is None without a price;
    `seconds` None where the scorer was not timed, since its calls may be charged.
    """

    rows: int
    right_rows: int
    expected: int
    most: int
    tokens: int
    tokens_are_bound: bool
    cost: Money | None = None
    most_cost: Money | None = None
    seconds: float | None = None

    def summary(self) -> str:
        """One sentence."""
        money = f"{self.cost}, {self.most_cost} at most" if self.cost else "cost unknown: give a price"
        time = f"about {duration(self.seconds)}" if self.seconds is not None else "time unknown: nothing was called"
        bound = "at most" if self.tokens_are_bound else "about"
        audit = ", and the audit" if self.expected > _USUAL_CALLS * self.rows else ""
        return (
            f"{self.rows:,} × {self.right_rows:,} rows: about {self.expected:,} calls ({_USUAL_CALLS} a row, as tables "
            f"of products take{audit}), {self.most:,} at most; {bound} {self.tokens:,} tokens for "
            f"{self.expected:,} calls; {money}; {time}."
        )


def forecast(
    index: AnchorIndex,
    some: Sequence[Query],
    scorer: Scorer,
    *,
    rows: int,
    audited: int,
    most: int,
    price: Price | None,
) -> MatchEstimate:
    """The estimate, given a few rows of the left table.

    `audited` are the calls of an audit, `most` those that the limits allow.
    """
    stage = index.snapshot.stage(None)
    answers = [] if stage is None else stage.search(some, 1)
    best = [positions[:1].tolist() or [0] for positions, _ in answers] or [[0]] * len(some)
    pairs = [(query, index.items.at(at)[0]) for query, at in zip(some, best, strict=False)]
    counts, expected = count_tokens(scorer, pairs), min(most, rows * _USUAL_CALLS + audited)
    charged: dict[str, Any] = {}
    if price is not None:
        each = units_per_pair(price, scorer, counts)
        charged = {"cost": price.cost(round(each * expected)), "most_cost": price.cost(round(each * most))}
    if scorer.card.backend in _TIMED_BACKENDS:
        items, queries = [item for _, item in pairs], [query for query, _ in pairs]
        charged["seconds"] = expected / time_scorer(items, queries, scorer=scorer, most_calls=_TIMED).mean
    tokens = round(float(counts.mean()) * expected)
    return MatchEstimate(rows, len(index), expected, most, tokens, not counts_exactly(scorer), **charged)
