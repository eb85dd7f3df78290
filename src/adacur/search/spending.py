"""Budgets of tokens and money: what a query may spend beside its calls, and what it has spent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.arrays import BoolArray, IntArray
from adacur.core.budget import Budget
from adacur.core.errors import BudgetError
from adacur.core.money import Money, Price
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Item, Query
from adacur.scorers.prices import count_tokens, price_of, units_of, units_per_pair

# Items whose tokens tell how many calls a budget pays for.
PRICED_BEFOREHAND = 32
# Items that a budget may be too small for before it is refused, or the search ends.
MOST_REFUSED = 64


@dataclass(frozen=True, slots=True, eq=False)
class Spending:
    """The most tokens and the most of a price's units that a query may take; None for no limit."""

    scorer: Scorer
    tokens: int | None = None
    cost: Money | None = None
    price: Price | None = None
    units: int | None = None

    @classmethod
    def of(cls, budget: Budget, scorer: Scorer) -> Spending:
        """What a budget says of tokens and money."""
        price = budget.price if isinstance(budget.price, Price) else price_of(scorer)
        if budget.cost is not None and price is None:
            raise BudgetError(
                f"A budget of {budget.cost} needs the price of the scorer, and none is known of {scorer.card.name!r}. "
                "Give it: Budget(cost=…, price='0.05 USD / 1M tokens'), or --price."
            )
        cost = budget.cost_in(price)
        units = price.affords(cost) if price is not None and cost is not None else None
        if units == 0:
            raise BudgetError(f"A budget of {cost} cannot pay one call: the price is {price}. Raise the cost.")
        return cls(scorer, budget.tokens, cost, price, units)

    @property
    def is_limited(self) -> bool:
        """Whether there is a limit, beside a price that is only counted."""
        return self.tokens is not None or self.units is not None

    @property
    def counts_requests(self) -> bool:
        """Whether money is limited and the price depends on which pairs a call has together."""
        return self.units is not None and self.price is not None and self.price.unit == "searches"

    def settings(self) -> dict[str, Any]:
        """What a result should name."""
        named = {"tokens": self.tokens, "cost": self.cost, "price": self.price}
        return {name: value if name == "tokens" else str(value) for name, value in named.items() if value is not None}

    def count(self, query: Query, items: Sequence[Item]) -> IntArray:
        """The tokens of each pair."""
        return count_tokens(self.scorer, [(query, item) for item in items])

    def charge(self, query: Query, items: Sequence[Item], tokens: IntArray) -> int:
        """The units that one call with these pairs is charged."""
        if self.price is None:
            return 0
        return units_of(self.price, self.scorer, [(query, item) for item in items], tokens)

    def usual_calls(self, query: Query, items: Items, n: int) -> tuple[int, int]:
        """About how many calls of a query the limits pay for, by a few items from all over, and by the shortest."""
        some = items.at(
            np.unique(np.linspace(0, len(items) - 1, min(PRICED_BEFOREHAND, len(items))).astype(int)).tolist()
        )
        shortest = some[int(np.argmin(self.count(query, some)))]
        return Purse(self).expected_calls(query, some, n), Purse(self).expected_calls(query, [shortest], n)


@dataclass(slots=True, eq=False)
class Purse:
    """What one query has spent of its tokens and units. `ran_out` names the limit that refused a pair, if any did."""

    spending: Spending
    tokens: int = 0
    units: int = 0
    n_pairs: int = 0
    ran_out: str | None = None
    cheapest: int | None = None
    n_refused: int = 0

    @property
    def cost(self) -> Money | None:
        """The money spent."""
        return None if self.spending.price is None else self.spending.price.cost(self.units)

    def affordable(self, query: Query, items: Sequence[Item]) -> tuple[BoolArray, IntArray]:
        """Which of these items can be scored by one call, the first ones first, and the tokens of all.

        One that cannot be paid is passed over: a cheaper one behind it may be.
        """
        spending, counts = self.spending, self.spending.count(query, items)
        if not spending.is_limited or not len(items):
            return np.ones(len(items), np.bool_), counts
        pays = np.zeros(len(items), np.bool_)
        by_token = spending.units is not None and spending.price is not None and spending.price.unit == "tokens"
        left = self._left("tokens", spending.tokens)
        units = self._left("units", spending.units)
        limits = [("tokens", left)] + ([("cost", units)] if by_token else [])
        most = {name: limit for name, limit in limits if limit is not None}
        for at, n in enumerate(counts.tolist()):
            short = next((name for name, limit in most.items() if n > limit), None)
            if short is not None:
                self.ran_out = short
                continue
            pays[at] = True
            most = {name: limit - n for name, limit in most.items()}
        if units is not None and not by_token:
            self._pay_at_once(query, items, counts, pays, units)
        self.n_refused += int(np.count_nonzero(~pays))
        self.cheapest = int(counts.min()) if self.cheapest is None else min(self.cheapest, int(counts.min()))
        return pays, counts

    def _pay_at_once(self, query: Query, items: Sequence[Item], counts: IntArray, pays: BoolArray, units: int) -> None:
        """Leave as many of the first items as one call can pay whose price is not by the token."""

        def charge(n: int) -> int:
            some = chosen[:n]
            return self.spending.charge(query, [items[at] for at in some], counts[some])

        chosen = np.flatnonzero(pays)
        low, high = 0, len(chosen)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if charge(middle) <= units else (low, middle - 1)
        # How a service's requests are filled need not grow evenly.
        while low and charge(low) > units:
            low -= 1
        if low < len(chosen):
            self.ran_out = "cost"
            pays[chosen[low:]] = False

    def can_pay(self, query: Query, items: Sequence[Item], tokens: IntArray) -> bool:
        """Whether one call with exactly these pairs can be paid."""
        units = self._left("units", self.spending.units)
        if units is not None and self.spending.charge(query, items, tokens) > units:
            self.ran_out = "cost"
            return False
        return True

    def pay(self, query: Query, items: Sequence[Item], tokens: IntArray) -> None:
        """A call was made with these pairs."""
        self.tokens += int(tokens.sum())
        self.units += self.spending.charge(query, items, tokens)
        self.n_pairs += len(items)

    def expected_calls(self, query: Query, items: Sequence[Item], n: int) -> int:
        """About how many calls the limits pay for, up to n, where pairs are like those with these items."""
        spending, pairs = self.spending, [(query, item) for item in items]
        counts, price = count_tokens(spending.scorer, pairs), spending.price
        units = 0.0 if price is None else units_per_pair(price, spending.scorer, pairs, counts)
        return self._calls_of(float(counts.mean()), units, n)

    def calls_left(self, n: int) -> int:
        """About how many more calls can be paid, up to n, where they are like those before, or like the cheapest seen.

        All n where less is left than those took, but perhaps enough for all: each takes a token at least.
        """
        n_pairs, cheapest = max(1, self.n_pairs), self.cheapest or 1
        tokens, units = self.tokens / n_pairs, self.units / n_pairs
        lefts = (self._left("tokens", self.spending.tokens), self._left("units", self.spending.units))
        return (
            self._calls_of(tokens, units, n)
            or self._calls_of(cheapest, min(units, cheapest), n)
            or (n if self.spending.is_limited and all(left is None or left >= n for left in lefts) else 0)
        )

    @property
    def ending(self) -> str:
        """Which limit ends the search: the one that refused a pair, or else the one that is nearer."""
        by_tokens = _share(self.tokens, self.spending.tokens)
        return self.ran_out or ("tokens" if by_tokens >= _share(self.units, self.spending.units) else "cost")

    def _calls_of(self, tokens: float, units: float, n: int) -> int:
        shares = (
            (self._left("tokens", self.spending.tokens), tokens),
            (self._left("units", self.spending.units), units),
        )
        return min([n, *(int(left / each) for left, each in shares if left is not None and each)])

    def _left(self, name: str, limit: int | None) -> int | None:
        return None if limit is None else limit - int(getattr(self, name))

    def too_small(self, query: Query) -> BudgetError:
        """The error of a budget that pays for no call."""
        spending = self.spending
        limits = [f"{spending.tokens} tokens"] * (spending.tokens is not None)
        limits += [f"{spending.cost} (at {spending.price})"] * (spending.cost is not None)
        return BudgetError(
            f"A budget of {' and '.join(limits)} cannot pay one call: the cheapest of the items tried takes "
            f"{self.cheapest} tokens with query {query.id!r}. Raise it, or shorten the items: passages=, "
            "max_item_tokens=."
        )


def _share(spent: int, limit: int | None) -> float:
    return 0.0 if limit is None else spent / limit
