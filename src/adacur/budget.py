"""How much a search may spend."""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass, field
from decimal import Decimal

from adacur.errors import BudgetError, InputError
from adacur.money import Money, Price, decimal_of

# The calls of a query where nobody says how many.
USUAL_CALLS = 100
_PART = re.compile(r"(?P<count>\d[\d_]{,29})\s*(?P<unit>calls?|tokens?|)", re.IGNORECASE)
_COST = re.compile(r"[-+]?[\d.]\S*(\s+[A-Za-z]{3})?")


@dataclass(frozen=True, slots=True)
class Budget:
    """A hard wall: whichever of its limits comes first ends a search, and none is exceeded but the deadline, by one
    scorer call at most (docs/concepts.md says what it promises).

    - `calls`: scorer calls for a query (B_CE). It may be left out where tokens or cost are limited;
    - `deadline`: seconds for the whole search, shared by its queries and, on a server, by searches with one scorer;
    - `tokens`: tokens of query and item, over all calls for a query, as `adacur.scorers.count_tokens` counts them
      beforehand;
    - `cost`: money for a query, such as "0.02 USD"; a number is in the currency of the price;
    - `price`: what the scorer costs, such as "0.05 USD / 1M tokens"; by default that of `Metered(scorer, price=…)`.
    """

    calls: int | None = None
    deadline: float | None = None
    tokens: int | None = field(default=None, kw_only=True)
    cost: Money | Decimal | str | float | None = field(default=None, kw_only=True)
    price: Price | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.calls is None and self.tokens is None and self.cost is None:
            raise BudgetError("A budget must limit calls, tokens or cost; got none of these.")
        if self.calls is not None and (not is_whole(self.calls) or self.calls < 1):
            raise BudgetError(f"A budget must be a whole number of at least one call; got calls={self.calls!r}.")
        if self.deadline is not None and not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise BudgetError(f"A deadline must be a positive number of seconds, or None; got {self.deadline}.")
        if self.tokens is not None and (not is_whole(self.tokens) or self.tokens < 1):
            raise BudgetError(f"tokens must be a whole number of at least 1, or None; got tokens={self.tokens!r}.")
        if self.price is not None:
            object.__setattr__(self, "price", Price.of(self.price))
        if self.cost is not None:
            object.__setattr__(self, "cost", _as_cost(self.cost))
            self.cost_in(self.price)

    @classmethod
    def of(cls, budget: Budget | int | str) -> Budget:
        """A budget from a number of calls, or from a text such as "100 calls, 20000 tokens, 0.02 USD"."""
        if isinstance(budget, Budget):
            return budget
        if not isinstance(budget, str):
            return cls(budget)
        limits: dict[str, int | str] = {}
        for part in filter(None, (one.strip() for one in budget.split(","))):
            found = _PART.fullmatch(part)
            name = "cost" if found is None else "tokens" if found["unit"].lower().startswith("token") else "calls"
            if name == "cost" and not _COST.fullmatch(part):
                raise BudgetError(
                    "A budget is calls, tokens and money with commas between, such as '100 calls, 20000 tokens, 0.02 "
                    f"USD'; got {part!r}."
                )
            if name in limits:
                raise BudgetError(f"A budget must give each limit once; got {name} twice in {budget!r}.")
            limits[name] = part if found is None else int(found["count"])
        return cls(**limits)  # type: ignore[arg-type]

    @property
    def is_counted(self) -> bool:
        """Whether tokens or money are counted beside calls."""
        return self.tokens is not None or self.cost is not None or self.price is not None

    def cost_in(self, price: Price | str | None) -> Money | None:
        """The cost in the currency of this price; an error where they differ."""
        if not isinstance(price, Price) or self.cost is None:
            return self.cost if isinstance(self.cost, Money) else None
        cost = self.cost if isinstance(self.cost, Money) else Money(Decimal(str(self.cost)), price.currency)
        price.check_currency(cost)
        return cost


def _as_cost(cost: object) -> Money | Decimal:
    """Money, or an amount whose currency the price will say."""
    rule = f"cost must be an amount above 0, with a currency or without: '0.02 USD' or 0.02; got {cost!r}."
    if isinstance(cost, str) and " " in cost.strip():
        cost = Money.of(cost)
    amount = cost.amount if isinstance(cost, Money) else decimal_of(cost, rule)
    if amount <= 0 or isinstance(cost, bool):
        raise BudgetError(rule)
    return cost if isinstance(cost, Money) else amount


def check_k(k: int, budget: int | None = None) -> None:
    """Refuse a k that counts nothing, or that the calls of a budget cannot fill with exact scores."""
    if not is_whole(k) or k < 1:
        raise BudgetError(f"k must be a whole number of at least 1, the items to return; got {k!r}.")
    if budget is not None and k > budget:
        raise BudgetError(
            f"Only scored items are returned, so k must not exceed the budget; got k={k}, budget={budget}. Raise the "
            "budget or lower k."
        )


def at_least(least: int, **counts: object) -> None:
    """Refuse options that are not whole numbers of at least `least`; None stands for no number."""
    for name, count in counts.items():
        if count is not None and not (is_whole(count) and count >= least):  # type: ignore[operator]
            raise InputError(f"{name} must be a whole number of at least {least}; got {count!r}.")


def is_whole(value: object) -> bool:
    """Whether a value can count: numpy's integers can, 2.0 cannot."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
