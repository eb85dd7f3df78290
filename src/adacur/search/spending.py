"""What a query may spend: calls, tokens, money, time. A search asks its purse what it can afford, and pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from adacur.arrays import BoolArray, IntArray
from adacur.budget import Budget
from adacur.errors import BudgetError
from adacur.money import Money, Price
from adacur.protocols import Items, Scorer
from adacur.records import Item, Query
from adacur.scorers.prices import count_tokens, pairs_per_unit, price_of, units_of, units_per_pair

if TYPE_CHECKING:
    from adacur.search.asktell import QueryBatch

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

    def charge(self, tokens: IntArray) -> int:
        """The units that one call with pairs of so many tokens is charged."""
        return 0 if self.price is None else units_of(self.price, self.scorer, tokens)

    def default_budget(self, query: Query, items: Items, n: int) -> tuple[int, int]:
        """About how many calls of a query the limits pay for: by a sample of items, and by the shortest of these."""
        positions = np.linspace(0, len(items) - 1, min(_PRICED_BEFOREHAND, len(items)))
        some = items.at(np.unique(positions.astype(int)).tolist())
        shortest = some[int(np.argmin(self.count(query, some)))]
        return Payments(self).expected_calls(query, some, n), Payments(self).expected_calls(query, [shortest], n)


class Purse(Protocol):
    """What one query may spend beside its calls, and has spent.

    A purse that does not `see_pairs` affords whatever the calls allow, and `Wallets` does not ask it.
    """

    @property
    def sees_pairs(self) -> bool: ...

    def rounds(self, sizes: Sequence[int]) -> list[int]:
        """The calls of each round, as it can pay for rounds."""
        ...

    def calls_left(self, n: int) -> int:
        """How many calls beyond the planned ones can be paid, up to n."""
        ...

    def over(self, *, some_left: bool) -> str | None:
        """The limit that ended a search with calls left, and perhaps with items left."""
        ...

    @property
    def spent(self) -> Mapping[str, Any]:
        """What a trace says of it."""
        ...


class CallsAlone:
    """The purse where only calls are limited."""

    sees_pairs = False

    @property
    def spent(self) -> Mapping[str, Any]:
        return {}

    def rounds(self, sizes: Sequence[int]) -> list[int]:
        return list(sizes)

    def calls_left(self, n: int) -> int:
        return 0

    def over(self, *, some_left: bool) -> str | None:
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """The most calls of a query, the seconds of the whole search, and the tokens and money of a query."""

    calls: int
    deadline: float | None = None
    spending: Spending | None = None

    def of_query(self) -> Purse:
        """The purse of one query."""
        return CallsAlone() if self.spending is None else Payments(self.spending)

    @property
    def may_refuse(self) -> bool:
        """Whether a pair may be refused that the calls allow."""
        return self.spending is not None and self.spending.is_limited

    @property
    def by_call(self) -> bool:
        """Whether what a pair costs depends on the other pairs of its call."""
        return self.spending is not None and self.spending.counts_requests

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        named = {"budget": self.calls, "deadline": self.deadline}
        return named if self.spending is None else {**named, **self.spending.settings()}


@dataclass(slots=True, eq=False)
class Payments:
    """The tokens and units that one query has spent. `ran_out` names the limit that refused a pair, if any did."""

    sees_pairs: ClassVar[bool] = True

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
        price = None if spending.units is None else spending.price
        by_token = price is not None and price.unit == "tokens"
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
        if price is not None and units is not None and not by_token:
            beyond = np.flatnonzero(pays)[units * pairs_per_unit(price, spending.scorer) :]
            if len(beyond):
                self.ran_out = "cost"
                pays[beyond] = False
        self.n_refused += int(np.count_nonzero(~pays))
        self.cheapest = int(counts.min()) if self.cheapest is None else min(self.cheapest, int(counts.min()))
        return pays, counts

    def can_pay(self, tokens: IntArray) -> bool:
        """Whether one call with exactly these pairs can be paid."""
        _, units = self._lefts
        if units is not None and self.spending.charge(tokens) > units:
            self.ran_out = "cost"
            return False
        return True

    def pay(self, tokens: IntArray) -> None:
        """Charge a call with pairs of so many tokens."""
        self.tokens += int(tokens.sum())
        self.units += self.spending.charge(tokens)
        self.n_pairs += len(tokens)

    def expected_calls(self, query: Query, items: Sequence[Item], n: int) -> int:
        """About how many calls the limits pay for, up to n, if pairs are like those with these items."""
        counts, price, scorer = self.spending.count(query, items), self.spending.price, self.spending.scorer
        units = 0.0 if price is None else units_per_pair(price, scorer, counts)
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

    def rounds(self, sizes: Sequence[int]) -> list[int]:
        """The calls of each round: where a round is at least one request, no more rounds than can be paid."""
        most = self.spending.units if self.spending.counts_requests else None
        if most is None or len(sizes) <= most:
            return list(sizes)
        # Small early rounds must not use up the money of later ones.
        return [*sizes[: most - 1], sum(sizes[most - 1 :])]

    def over(self, *, some_left: bool) -> str | None:
        """The limit that ended a search with calls left."""
        return self.ending if self.ran_out or some_left else None

    @property
    def ending(self) -> str:
        """The limit that ends the search: the one that refused a pair, or else the nearer one."""
        limits = (self.tokens, self.spending.tokens), (self.units, self.spending.units)
        tokens, cost = (0.0 if limit is None else spent / limit for spent, limit in limits)
        return self.ran_out or ("tokens" if tokens >= cost else "cost")

    @property
    def spent(self) -> Mapping[str, Any]:
        """What a trace says of it."""
        return {"tokens": self.tokens, "cost": self.cost}

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


class Wallets:
    """The purses of queries that move together: which pairs are paid, before each call.

    - `refuses`: a query that can pay for nothing is an error; else it ends without hits;
    - `knows_items`: the items are known before they are asked for, so that some tell what calls will cost.
    """

    def __init__(self, batch: QueryBatch, *, refuses: bool, knows_items: bool) -> None:
        self._batch = batch
        self._refuses = refuses
        self._knows_items = knows_items
        # Of each query's next pairs: the items, and their tokens.
        self._items: dict[int, list[Item]] = {}
        self._tokens: dict[int, IntArray] = {}
        self._purses = [search.purse for search in batch.searches if isinstance(search.purse, Payments)]
        for search, purse in zip(batch.searches, self._purses, strict=True):
            few = search.candidates.found[:_PRICED_BEFOREHAND]
            if len(few) and knows_items:
                items = batch.items_at(few.tolist())
                search.expect_calls(max(1, purse.expected_calls(search.query, items, search.n_planned)))

    def afforded(self, at: int, batch: IntArray) -> IntArray:
        """The part of a query's next items that it can pay, as one call; the search ends if there is none."""
        search, purse = self._batch.searches[at], self._purses[at]
        if not len(batch):
            return batch
        while True:
            items = self._batch.items_at(batch.tolist())
            pays, tokens = purse.affordable(search.query, items)
            self._items[at], self._tokens[at] = (
                [item for item, paid in zip(items, pays, strict=True) if paid],
                tokens[pays],
            )
            batch = batch if pays.all() else search.drop(batch[~pays])
            # Cheaper items may follow. A budget that pays for nothing must be refused before anything is paid.
            others = self._knows_items and purse.n_refused < _MOST_REFUSED and search.candidates.n_left
            if len(batch) or not others:
                break
            batch = search.ask(search.predicted, seconds=search.seconds)
        if not len(batch):
            if self._refuses and not search.rounds:
                raise purse.too_small(search.query)
            search.stop(purse.ending)
        return batch

    def item(self, at: int, rank: int) -> Item:
        """The item of this rank among a query's next pairs, which was read to price it."""
        return self._items[at][rank]

    def unpaid(self, waiting: Sequence[Waiting]) -> set[int]:
        """The queries that cannot pay their share of a call with these pairs alone; they end here."""
        ended = set()
        for at, tokens in self._of_queries(waiting).items():
            if not self._purses[at].can_pay(tokens):
                self._batch.searches[at].stop("cost")
                ended.add(at)
        return ended

    def pay(self, waiting: Sequence[Waiting]) -> None:
        """Charge a call with these pairs."""
        for at, tokens in self._of_queries(waiting).items():
            self._purses[at].pay(tokens)

    def _of_queries(self, waiting: Sequence[Waiting]) -> dict[int, IntArray]:
        """The tokens of these pairs, by query."""
        ranks: dict[int, list[int]] = {}
        for query, rank in waiting:
            ranks.setdefault(query, []).append(rank)
        return {at: self._tokens[at][some] for at, some in ranks.items()}
