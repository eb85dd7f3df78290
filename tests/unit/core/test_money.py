"""Budgets of tokens and money, and prices: what they mean, and what is refused."""

from __future__ import annotations

from decimal import Decimal

import pytest

from adacur import Budget
from adacur.errors import BudgetError
from adacur.money import Money, Price


@pytest.mark.parametrize(
    ("text", "amount", "per", "unit"),
    [
        ("0.05 USD / 1M tokens", "0.05", 1_000_000, "tokens"),
        ("0.05 usd per million tokens", "0.05", 1_000_000, "tokens"),
        ("2 USD / 1000 searches", "2", 1000, "searches"),
        ("2 USD / 1k searches", "2", 1000, "searches"),
        ("2 USD / 1,000 searches", "2", 1000, "searches"),
        ("0.001 EUR / call", "0.001", 1, "calls"),
    ],
)
def test_a_price_is_read_as_people_write_it(text: str, amount: str, per: int, unit: str) -> None:
    price = Price.of(text)

    assert (price.amount, price.per, price.unit) == (Decimal(amount), per, unit)
    assert Price.of(str(price)) == price


NO_PRICES = ["5", "cheap", "0.05 USD", "0.05 / 1M tokens", "0 USD / call", "-1 USD / call", "1..2 USD / call"]


@pytest.mark.parametrize("text", NO_PRICES)
def test_what_is_not_a_price_is_refused(text: str) -> None:
    with pytest.raises(BudgetError):
        Price.of(text)


def test_money_is_exact() -> None:
    price = Price.of("0.1 USD / 3 calls")

    assert price.affords(Money.of("0.3 USD")) == 9
    assert price.affords(Money.of("0.29999999 USD")) == 8
    assert str(Price.of("0.05 USD / 1M tokens").cost(123_457)) == "0.00617285 USD"


@pytest.mark.parametrize("amount", ["1e400", "1e30", "1e999999999", "1e-400", "1e-999999999", "9" * 5000])
def test_amounts_that_nobody_has_are_refused_and_not_computed_with(amount: str) -> None:
    for cost in (f"{amount} USD", amount):
        with pytest.raises(BudgetError, match="20 digits before the point"):
            Budget(cost=cost, price="0.05 USD / 1M tokens")
    with pytest.raises(BudgetError):
        Price.of(f"1 USD / {'9' * 5000} calls")
    with pytest.raises(BudgetError):
        Budget.of("9" * 5000)


def test_what_money_pays_for_is_never_rounded_upwards() -> None:
    # A decimal of the usual 28 digits would call it 3.
    almost = Money.of(f"2.{'9' * 40} USD")

    assert Price.of("1 USD / call").affords(almost) == 2
    assert (
        Price.of("0.00000001 USD / call").affords(Money.of("99999999999999999999 USD")) == 99999999999999999999 * 10**8
    )


def test_a_budget_is_read_from_a_text() -> None:
    assert Budget.of("100") == Budget.of(100) == Budget(100)
    assert Budget.of("100 calls, 20_000 tokens, 0.02 USD") == Budget(100, tokens=20_000, cost="0.02 USD")
    assert Budget.of("0.02 USD").cost == Money(Decimal("0.02"), "USD")
    assert Budget(cost=0.02).cost == Decimal("0.02")


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"deadline": 3.0},
        {"tokens": 0},
        {"tokens": 2.5},
        {"cost": 0},
        {"cost": -1},
        {"cost": "free"},
        {"cost": float("nan")},
        {"cost": "0.02 dollars"},
        {"cost": True},
        {"calls": 5, "price": "cheap"},
    ],
)
def test_a_budget_that_limits_nothing_or_less_is_refused(wrong: dict) -> None:
    with pytest.raises(BudgetError):
        Budget(**wrong)


def test_a_limit_given_twice_is_refused() -> None:
    with pytest.raises(BudgetError, match="calls twice"):
        Budget.of("100, 50 calls")


def test_currencies_are_never_mixed() -> None:
    with pytest.raises(BudgetError, match=r"0\.02 EUR.*0\.05 USD"):
        Budget(cost="0.02 EUR", price="0.05 USD / 1M tokens")
    # A number is in the currency of the price.
    assert Budget(cost=0.02, price="2 EUR / 1000 searches").cost_in(Price.of("2 EUR / 1000 searches")) == Money.of(
        "0.02 EUR"
    )
