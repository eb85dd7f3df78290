"""Money and prices: exact decimals with a currency, which are never mixed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from adacur.errors import BudgetError

UNITS = ("calls", "tokens", "searches")
_SCALES = {"": 1, "k": 1_000, "thousand": 1_000, "m": 1_000_000, "million": 1_000_000}
_CURRENCY = re.compile(r"[A-Z]{3}")
_PRICE = re.compile(
    r"\s*(?P<amount>[\d.]+)\s*(?P<currency>[A-Za-z]{3})\s*(?:/|per)\s*(?P<count>[\d,_]*)\s*"
    r"(?P<scale>thousand|million|k|m|)\s*(?P<unit>call|token|search)(?:e?s)?\s*",
    re.IGNORECASE,
)
# Digits before and behind the point of an amount: one of a billion digits would take as many to be computed with.
_MOST_DIGITS, _MOST_DECIMALS = 20, 100
_HOW_TO_PRICE = "Write it as '0.05 USD / 1M tokens', '2 USD / 1000 searches' or '0.001 EUR / call'."


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in a currency, such as Money.of("0.02 USD")."""

    amount: Decimal
    currency: str

    def __post_init__(self) -> None:
        if not _CURRENCY.fullmatch(self.currency):
            raise BudgetError(f"A currency is three capital letters, such as USD; got {self.currency!r}.")

    @classmethod
    def of(cls, text: str) -> Money:
        """From an amount and a currency, in this order."""
        amount, _, currency = text.strip().partition(" ")
        return cls(decimal_of(amount, f"money is an amount and a currency, such as '0.02 USD'; got {text!r}"), currency)

    def __str__(self) -> str:
        return f"{self.amount.normalize():f} {self.currency}"


@dataclass(frozen=True, slots=True)
class Price:
    """What `per` units cost. Units are calls (pairs), tokens of pairs, or searches.

    A search is Cohere's unit: up to 100 pairs of a query in one request.
    """

    amount: Decimal
    currency: str
    per: int
    unit: str

    def __post_init__(self) -> None:
        _ = Money(self.amount, self.currency)
        if self.amount <= 0 or self.per < 1 or self.unit not in UNITS:
            raise BudgetError(f"A price must be above 0, for one or more {', '.join(UNITS)}; got {self}.")

    @classmethod
    def of(cls, price: Price | str) -> Price:
        """From a text such as "0.05 USD / 1M tokens"; a price as it is."""
        if isinstance(price, Price):
            return price
        found = _PRICE.fullmatch(price) if isinstance(price, str) else None
        if found is None:
            raise BudgetError(f"{price!r} is not a price. {_HOW_TO_PRICE}")
        count = re.sub(r"\D", "", found["count"]) or "1"
        if len(count) > _MOST_DIGITS:
            raise BudgetError(f"A price must be for a count of at most {_MOST_DIGITS} digits; got {len(count)} digits.")
        unit = {"call": "calls", "token": "tokens", "search": "searches"}[found["unit"].lower()]
        amount = decimal_of(found["amount"], f"{price!r} is not a price. {_HOW_TO_PRICE}")
        return cls(amount, found["currency"].upper(), int(count) * _SCALES[found["scale"].lower()], unit)

    def cost(self, units: int) -> Money:
        """What this number of units costs."""
        return Money(self.amount * units / self.per, self.currency)

    def affords(self, money: Money) -> int:
        """The most units that an amount pays for."""
        self.check_currency(money)
        # Decimals are rounded to the digits of their context, perhaps upwards.
        return Fraction(money.amount) * self.per // Fraction(self.amount)

    def check_currency(self, money: Money) -> None:
        """Refuse another currency: nothing is converted."""
        if money.currency != self.currency:
            raise BudgetError(
                f"A budget and its price must be in one currency; got {money} and a price of {self}. Give both in "
                f"{self.currency}, or another price=."
            )

    def __str__(self) -> str:
        many = f"{self.per:,} " if self.per > 1 else ""
        unit = self.unit if self.per > 1 else {"searches": "search"}.get(self.unit, self.unit[:-1])
        return f"{Money(self.amount, self.currency)} / {many}{unit}"


def decimal_of(value: object, rule: str) -> Decimal:
    """A finite number as a decimal, of a float the shortest that reads the same; else an error that gives the rule."""
    rule = rule if rule.endswith(".") else f"{rule}."
    try:
        number = Decimal(str(value))
    except (InvalidOperation, ValueError):
        raise BudgetError(rule) from None
    if not number.is_finite():
        raise BudgetError(rule)
    if number.adjusted() >= _MOST_DIGITS or int(number.as_tuple().exponent) < -_MOST_DECIMALS:
        raise BudgetError(f"{rule} It may have {_MOST_DIGITS} digits before the point and {_MOST_DECIMALS} behind it.")
    return number
