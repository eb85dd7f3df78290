"""What a query may spend: calls, tokens, money, time. A search asks its purse what it can afford, and pays."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, IntArray
from adacur.budget import Budget
from adacur.errors import BudgetError
from adacur.money import Money, Price
from adacur.protocols import Items, Scorer
from adacur.records import Pair, Query
from adacur.scorers.metered import count_tokens, pairs_per_unit, price_of

# Items whose tokens tell how many calls a budget pays for.
PRICED_BEFOREHAND = 32
# Of the time left, what the next call may take.
SHARE_OF_TIME_LEFT = 0.8
_CALLS_THAT_COUNT = 8
# A few calls of about one size, and the noise of a busy machine, look like a scorer that takes nothing for a pair.
_LEAST_FOR_PAIRS = 0.25


class Pace:
    """How fast a scorer is, by the straight line through its last calls: seconds for a call, and more for each pair."""

    call = pair = 0.0

    def __init__(self) -> None:
        self._calls: deque[tuple[int, float]] = deque(maxlen=_CALLS_THAT_COUNT)

    @property
    def is_known(self) -> bool:
        """Whether any pair has been scored."""
        return self.pair > 0

    def note(self, n_pairs: int, seconds: float) -> None:
        """A call of this many pairs took these seconds."""
        if not n_pairs:
            return
        self._calls.append((n_pairs, seconds))
        total, taken = (sum(column) for column in zip(*self._calls, strict=True))
        mean, each = total / len(self._calls), max(taken / total, 1e-9)
        spread = sum((n - mean) ** 2 for n, _ in self._calls)
        slope = sum((n - mean) * seconds for n, seconds in self._calls) / spread if spread else each
        self.pair = min(each, max(slope, _LEAST_FOR_PAIRS * each))
        self.call = (each - self.pair) * mean

    def pairs_in(self, seconds: float) -> float:
        """How many pairs a call of this length holds."""
        return (seconds - self.call) / self.pair


@dataclass(frozen=True, slots=True, eq=False)
class Limit:
    """What is counted of a query, in whole units: tokens, money.

    - `name`: that of a field of `Trace`, and of what ended a search;
    - `most`: the wall; None where it is only counted;
    - `pairs`: how many pairs of one call a unit pays for; None where every token takes a unit;
    - `shown`: makes of units what a trace shows;
    - `text`: the wall as an error names it.
    """

    name: str
    most: int | None
    pairs: int | None = None
    shown: Callable[[int], Any] = int
    text: str = ""

    def charge(self, n: int, tokens: int) -> int:
        """The units of one call with n pairs of so many tokens together."""
        return tokens if self.pairs is None else -(-n // self.pairs)

    def each(self, tokens: IntArray) -> float:
        """The units of a pair like these where calls are large."""
        return float(tokens.mean()) if self.pairs is None else 1 / self.pairs

    @property
    def by_call(self) -> bool:
        """Whether it is a wall of which a pair takes more or less, by the other pairs of its call."""
        return self.most is not None and self.pairs is not None and self.pairs > 1


def priced(budget: Budget, scorer: Scorer) -> tuple[Money | None, Price | None]:
    """The cost of a budget in the currency of its price, and the price: given, or the scorer's own."""
    price = budget.price if isinstance(budget.price, Price) else price_of(scorer)
    if budget.cost is not None and price is None:
        raise BudgetError(
            f"A budget of {budget.cost} needs the price of the scorer, and none is known of {scorer.card.name!r}. "
            "Give it: Budget(cost=…, price='0.05 USD / 1M tokens'), or --price."
        )
    cost = budget.cost_in(price)
    if price is not None and cost is not None and not price.affords(cost):
        raise BudgetError(f"A budget of {cost} cannot pay one call: the price is {price}. Raise the cost.")
    return cost, price


@dataclass(frozen=True, slots=True, eq=False)
class Limits:
    """What each query of a search may spend, and the seconds that all have together.

    - `scorer`: tells the tokens of pairs; None where only calls are limited;
    - `counted`: what is counted besides calls; `named`: the same, as the settings of a search name it;
    - `audit`: how many of the calls are drawn at random from what is left at the end;
    - `clock`: tells the time that deadlines mean.
    """

    calls: int
    deadline: float | None = None
    scorer: Scorer | None = None
    counted: tuple[Limit, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    audit: int = 0
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, budget: Budget, scorer: Scorer | None) -> Limits:
        """The limits of a budget, 0 calls where it names none; without a scorer, of calls and time alone.

        To count something else, add a `Limit` here; CONTRIBUTING.md lists the rest.
        """
        if scorer is None:
            return cls(budget.calls or 0, budget.deadline)
        cost, price = priced(budget, scorer)
        counted = [Limit("tokens", budget.tokens, text=f"{budget.tokens} tokens")]
        if price is not None:
            pairs = None if price.unit == "tokens" else pairs_per_unit(price, scorer)
            units = None if cost is None else price.affords(cost)
            counted.append(Limit("cost", units, pairs, price.cost, f"{cost} (at {price})"))
        texts = {name: None if one is None else str(one) for name, one in (("cost", cost), ("price", price))}
        named = {name: one for name, one in ({"tokens": budget.tokens} | texts).items() if one is not None}
        return cls(budget.calls or 0, budget.deadline, scorer, tuple(counted), named)

    @property
    def may_refuse(self) -> bool:
        """Whether a pair may be refused that the calls allow."""
        return any(one.most is not None for one in self.counted)

    @property
    def by_call(self) -> bool:
        """Whether what a pair costs depends on the other pairs of its call."""
        return any(one.by_call for one in self.counted)

    def of_query(self) -> Purse:
        """The purse of one query."""
        return Purse(self)

    def tokens_of(self, pairs: Sequence[Pair]) -> IntArray:
        """The tokens of each pair."""
        assert self.scorer is not None
        return count_tokens(self.scorer, pairs)

    def until(self, started: float, *, share: float = 1.0) -> float:
        """When, by the clock, this share of the time left is over; infinite without a deadline."""
        now = self.clock()
        return math.inf if self.deadline is None else now + (started + self.deadline - now) * share

    def default_budget(self, query: Query, items: Items, n: int) -> tuple[int, int]:
        """About how many calls of a query the limits pay for: by a sample of items, and by the shortest of these."""
        positions = np.linspace(0, len(items) - 1, min(PRICED_BEFOREHAND, len(items)))
        some = [(query, item) for item in items.at(np.unique(positions.astype(int)).tolist())]
        shortest = some[int(np.argmin(self.tokens_of(some)))]
        return self.of_query().expected_calls(some, n), self.of_query().expected_calls([shortest], n)

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        audit = {"audit": self.audit} if self.audit else {}
        return {"budget": self.calls, "deadline": self.deadline, **audit, **self.named}


class Purse:
    """What one query has spent: tokens and money, where these are counted. Pairs are paid in the order of `afford`.

    `n_refused`: how many pairs it could not pay.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._counted = limits.counted
        # By the limit's name, in its units.
        self._spent = {limit.name: 0 for limit in self._counted}
        self._n_pairs = 0
        self._refused: str | None = None
        self._cheapest: int | None = None
        # The tokens of the pairs that can be paid next.
        self._waiting: IntArray = np.empty(0, np.intp)
        self.n_refused = 0

    @property
    def counts_pairs(self) -> bool:
        """Whether it looks at pairs; else no item is read for it."""
        return bool(self._counted)

    def afford(self, pairs: Sequence[Pair]) -> BoolArray:
        """Which of these pairs one call can score, the first ones first; one too dear is skipped, for a cheaper one."""
        tokens, pays = self._limits.tokens_of(pairs), np.ones(len(pairs), np.bool_)
        lefts, n_paid, paid = self._lefts(), 0, 0
        for at, n in enumerate(tokens.tolist() if lefts else ()):
            short = next((limit.name for limit, left in lefts if limit.charge(n_paid + 1, paid + n) > left), None)
            if short is None:
                n_paid, paid = n_paid + 1, paid + n
            else:
                self._refused, pays[at] = short, False
        self.n_refused += int(np.count_nonzero(~pays))
        self._cheapest = min([*tokens.tolist(), *([] if self._cheapest is None else [self._cheapest])], default=None)
        self._waiting = tokens[pays]
        return pays

    def pay(self, n: int) -> None:
        """Charge a call with the next n of the pairs that it affords."""
        for limit in self._counted:
            self._spent[limit.name] += limit.charge(n, int(self._waiting[:n].sum()))
        self._n_pairs += n
        self._waiting = self._waiting[n:]

    def rounds(self, sizes: Sequence[int]) -> list[int]:
        """The calls of each round: where that is at least one request, no more rounds than can be paid."""
        most = min((one.most for one in self._counted if one.by_call and one.most is not None), default=len(sizes))
        if len(sizes) <= most:
            return list(sizes)
        # Small early rounds must not use up the money of later ones.
        return [*sizes[: most - 1], sum(sizes[most - 1 :])]

    def expected_calls(self, pairs: Sequence[Pair], n: int) -> int:
        """About how many calls it can pay for, up to n, if pairs are like these."""
        tokens = self._limits.tokens_of(pairs)
        return self._calls_of({limit.name: limit.each(tokens) for limit in self._counted}, n)

    def more_calls(self, n: int) -> int:
        """How many more calls it can pay for, up to n, if pairs are like those before, or like the cheapest seen.

        All n if that gives none but a token or unit is left for each: they may be cheaper.
        """
        if not self._limits.may_refuse:
            return n if self._counted else 0
        each = {name: spent / max(1, self._n_pairs) for name, spent in self._spent.items()}
        cheapest = {name: min(mean, self._cheapest or 1) for name, mean in each.items()}
        expected = self._calls_of(each, n) or self._calls_of(cheapest, n)
        return expected or (n if all(left >= n for _, left in self._lefts()) else 0)

    @property
    def over(self) -> str | None:
        """What ends a search with calls left: the limit that refused a pair, or else the nearest one."""
        limited = [(self._spent[limit.name] / limit.most, limit.name) for limit in self._counted if limit.most]
        return self._refused or max(limited, key=lambda one: one[0], default=(0.0, None))[1]

    @property
    def spent(self) -> Mapping[str, Any]:
        """What a trace says of it."""
        return {limit.name: limit.shown(self._spent[limit.name]) for limit in self._counted}

    def _calls_of(self, each: Mapping[str, float], n: int) -> int:
        return min([n, *(int(left / each[limit.name]) for limit, left in self._lefts() if each[limit.name])])

    def _lefts(self) -> list[tuple[Limit, int]]:
        """What is left of each limit, in its units."""
        return [(limit, limit.most - self._spent[limit.name]) for limit in self._counted if limit.most is not None]

    def too_small(self, query: Query) -> BudgetError:
        """The error of a budget that pays for no call."""
        named = [limit.text for limit in self._counted if limit.most is not None]
        return BudgetError(
            f"A budget of {' and '.join(named)} cannot pay one call: the cheapest of the items tried takes "
            f"{self._cheapest} tokens with query {query.id!r}. Raise it, or shorten the items: passages=, "
            "max_item_tokens=."
        )
