"""How much a search may spend."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from adacur.core.errors import BudgetError


@dataclass(frozen=True, slots=True)
class Budget:
    """A hard wall: at most `calls` scorer calls (B_CE) for a query, within `deadline` seconds for the whole search."""

    calls: int
    deadline: float | None = None

    def __post_init__(self) -> None:
        if not is_whole(self.calls) or self.calls < 1:
            raise BudgetError(f"A budget must be a whole number of at least one call; got calls={self.calls!r}.")
        if self.deadline is not None and not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise BudgetError(f"A deadline must be a positive number of seconds, or None; got {self.deadline}.")


def check_k(k: int, budget: int | None = None) -> None:
    """Refuse a k that counts nothing, or that the calls of a budget cannot fill with exact scores."""
    if not is_whole(k) or k < 1:
        raise BudgetError(f"k must be a whole number of at least 1, the items to return; got {k!r}.")
    if budget is not None and k > budget:
        raise BudgetError(
            f"Only scored items are returned, so k must not exceed the budget; got k={k}, budget={budget}. Raise the "
            "budget or lower k."
        )


def is_whole(value: object) -> bool:
    """Whether a value can count: numpy's integers can, 2.0 cannot."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
