"""Budgets of tokens and money: what a query may spend beside its calls, what it has spent, and what a call may hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import BoolArray, IntArray
from adacur.core.budget import Budget
from adacur.core.errors import BudgetError
from adacur.core.money import Money, Price
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Item, Query
from adacur.scorers.prices import count_tokens, price_of, units_of, units_per_pair

if TYPE_CHECKING:
    from adacur.search.adaptive import LockStep
    from adacur.search.methods import Plan

# Items whose tokens tell how many calls a budget pays for.
_PRICED_BEFOREHAND = 32
# A budget that pays for none of this many items is refused, or ends the search.
_MOST_REFUSED = 64


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
        """The limits of a budget, in the units of the scorer's price."""
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
        """Whether there is a limit, and not only a price to count."""
        return self.tokens is not None or self.units is not None

    @property
    def counts_requests(self) -> bool:
        """Whether money is limited and the price depends on which pairs share a call."""
        return self.units is not None and self.price is not None and self.price.unit == "searches"

    def settings(self) -> dict[str, Any]:
        """The limits that a result should name."""
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
        """About how many calls of a query the limits pay for: by a sample of items, and by the shortest of these."""
        positions = np.linspace(0, len(items) - 1, min(_PRICED_BEFOREHAND, len(items)))
        some = items.at(np.unique(positions.astype(int)).tolist())
        shortest = some[int(np.argmin(self.count(query, some)))]
        return Purse(self).expected_calls(query, some, n), Purse(self).expected_calls(query, [shortest], n)


@dataclass(slots=True, eq=False)
class Purse:
    """The tokens and units that one query has spent. `ran_out` names the limit that refused a pair, if any did."""

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

        An item that cannot be paid is skipped, since a cheaper one may follow.
        """
        spending, counts = self.spending, self.spending.count(query, items)
        if not spending.is_limited or not len(items):
            return np.ones(len(items), np.bool_), counts
        pays = np.zeros(len(items), np.bool_)
        by_token = spending.units is not None and spending.price is not None and spending.price.unit == "tokens"
        tokens, units = self._lefts
        limits = [("tokens", tokens), ("cost", units if by_token else None)]
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
        """Keep as many of the first items as one call can pay for, where the price is not per token."""

        def charge(n: int) -> int:
            some = chosen[:n]
            return self.spending.charge(query, [items[at] for at in some], counts[some])

        chosen = np.flatnonzero(pays)
        low, high = 0, len(chosen)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if charge(middle) <= units else (low, middle - 1)
        # The charge need not grow evenly with n: it depends on how a service's requests are filled.
        while low and charge(low) > units:
            low -= 1
        if low < len(chosen):
            self.ran_out = "cost"
            pays[chosen[low:]] = False

    def can_pay(self, query: Query, items: Sequence[Item], tokens: IntArray) -> bool:
        """Whether one call with exactly these pairs can be paid."""
        _, units = self._lefts
        if units is not None and self.spending.charge(query, items, tokens) > units:
            self.ran_out = "cost"
            return False
        return True

    def pay(self, query: Query, items: Sequence[Item], tokens: IntArray) -> None:
        """Charge a call with these pairs."""
        self.tokens += int(tokens.sum())
        self.units += self.spending.charge(query, items, tokens)
        self.n_pairs += len(items)

    def expected_calls(self, query: Query, items: Sequence[Item], n: int) -> int:
        """About how many calls the limits pay for, up to n, if pairs are like those with these items."""
        counts, price, scorer = self.spending.count(query, items), self.spending.price, self.spending.scorer
        units = 0.0 if price is None else units_per_pair(price, scorer, [(query, item) for item in items], counts)
        return self._calls_of(float(counts.mean()), units, n)

    def calls_left(self, n: int) -> int:
        """About how many more calls can be paid, up to n, if they are like those before, or like the cheapest seen.

        All n if that gives none but a token or unit is left for each: they may be cheaper.
        """
        n_pairs, cheapest = max(1, self.n_pairs), self.cheapest or 1
        tokens, units = self.tokens / n_pairs, self.units / n_pairs
        expected = self._calls_of(tokens, units, n) or self._calls_of(cheapest, min(units, cheapest), n)
        if expected or not self.spending.is_limited:
            return expected
        return n if all(left is None or left >= n for left in self._lefts) else 0

    @property
    def ending(self) -> str:
        """The limit that ends the search: the one that refused a pair, or else the nearer one."""
        limits = (self.tokens, self.spending.tokens), (self.units, self.spending.units)
        tokens, cost = (0.0 if limit is None else spent / limit for spent, limit in limits)
        return self.ran_out or ("tokens" if tokens >= cost else "cost")

    def _calls_of(self, tokens: float, units: float, n: int) -> int:
        shares = zip(self._lefts, (tokens, units), strict=True)
        return min([n, *(int(left / each) for left, each in shares if left is not None and each)])

    @property
    def _lefts(self) -> tuple[int | None, int | None]:
        """The tokens and the units that are left; None without a limit."""
        tokens, units = self.spending.tokens, self.spending.units
        return None if tokens is None else tokens - self.tokens, None if units is None else units - self.units

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


# A query's place among those that move together, and the rank of an item in its batch.
Waiting = tuple[int, int]


class Payments:
    """Decides which pairs of searches that move together are paid, before each call.

    `refuses`: a query that can pay for nothing is an error; else it ends without hits.
    """

    def __init__(self, plan: Plan, steps: LockStep, *, refuses: bool) -> None:
        self._plan = plan
        self._steps = steps
        self._refuses = refuses
        # Of each query's batch: the items, and the tokens of the pairs.
        self._priced: dict[int, tuple[list[Item], IntArray]] = {}
        self._purses = [search.purse for search in steps.searches if search.purse is not None]
        for search, purse in zip(steps.searches, self._purses, strict=True):
            few = search.prospects.candidates[:_PRICED_BEFOREHAND]
            # An engine's items have not been fetched yet.
            if len(few) and plan.engine is None:
                items = steps.items_at(few.tolist())
                search.expect_calls(max(1, purse.expected_calls(search.query, items, plan.calls)))

    def affordable(self, at: int, batch: IntArray) -> IntArray:
        """The part of a query's next batch that it can pay, as one call; the search ends if there is none."""
        search, purse = self._steps.searches[at], self._purses[at]
        if not len(batch):
            return batch
        while True:
            items = self._steps.items_at(batch.tolist())
            pays, tokens = purse.affordable(search.query, items)
            self._priced[at] = [item for item, paid in zip(items, pays, strict=True) if paid], tokens[pays]
            batch = batch if pays.all() else search.drop(batch[~pays])
            # Cheaper items may follow. A budget that pays for nothing must be refused before anything is paid.
            others = self._plan.engine is None and purse.n_refused < _MOST_REFUSED and search.prospects.n_left
            if len(batch) or not others:
                break
            batch = search.ask(search.predicted, seconds=search.seconds)
        if not len(batch):
            if self._refuses and not search.rounds:
                raise purse.too_small(search.query)
            search.stop(purse.ending)
        return batch

    def unpaid(self, waiting: Sequence[Waiting]) -> set[int]:
        """The queries that cannot pay their share of a call with these pairs alone; they end here."""
        spending = self._plan.spending
        if spending is None or not spending.counts_requests:
            return set()
        ended = set()
        for at, (items, tokens) in self._of_queries(waiting).items():
            search = self._steps.searches[at]
            if not self._purses[at].can_pay(search.query, items, tokens):
                search.stop("cost")
                ended.add(at)
        return ended

    def pay(self, waiting: Sequence[Waiting]) -> None:
        """Charge a call with these pairs."""
        for at, (items, tokens) in self._of_queries(waiting).items():
            self._purses[at].pay(self._steps.searches[at].query, items, tokens)

    def _of_queries(self, waiting: Sequence[Waiting]) -> dict[int, tuple[list[Item], IntArray]]:
        """The items and tokens of these pairs, by query."""
        ranks: dict[int, list[int]] = {}
        for query, rank in waiting:
            ranks.setdefault(query, []).append(rank)
        priced = self._priced
        return {at: ([priced[at][0][rank] for rank in some], priced[at][1][some]) for at, some in ranks.items()}
