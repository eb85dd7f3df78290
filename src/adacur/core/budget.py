"""How much a search may spend."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass

from adacur.core.errors import BudgetError

__all__ = ["Budget", "check_k", "even_split", "is_whole"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A hard wall: at most `calls` scorer calls (B_CE) in `rounds` rounds (N_R), within `deadline` seconds."""

    calls: int
    rounds: int = 5
    deadline: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("calls", self.calls), ("rounds", self.rounds)):
            if not is_whole(value):
                raise BudgetError(f"{name} is a whole number; got {value!r}.")
        if self.calls < 1:
            raise BudgetError(f"A budget needs at least one call; got calls={self.calls}.")
        if self.rounds < 1:
            raise BudgetError(f"A budget needs at least one round; got rounds={self.rounds}.")
        if self.rounds > self.calls:
            raise BudgetError(
                f"Each round scores at least one item, so rounds must not exceed the budget; "
                f"got rounds={self.rounds}, budget={self.calls}. Raise the budget or lower rounds."
            )
        if self.deadline is not None and not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise BudgetError(f"A deadline is a positive number of seconds, or None; got {self.deadline}.")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Calls per round (k_s): they differ by at most one, larger first, and sum to `calls`."""
        return even_split(self.calls, self.rounds)

    def check_k(self, k: int) -> None:
        """Refuse a k that the budget cannot fill with exact scores."""
        check_k(k)
        if k > self.calls:
            raise BudgetError(
                f"Only scored items are returned, so k must not exceed the budget; "
                f"got k={k}, budget={self.calls}. Raise the budget or lower k."
            )


def check_k(k: int) -> None:
    """Refuse a k that counts nothing."""
    if not is_whole(k) or k < 1:
        raise BudgetError(f"k counts the items to return: a whole number of at least 1; got {k!r}.")


def even_split(total: int, parts: int) -> tuple[int, ...]:
    """`total` in `parts` whole numbers that differ by at most one, larger first."""
    small, larger = divmod(total, parts)
    return tuple(small + (part < larger) for part in range(parts))


def is_whole(value: object) -> bool:
    """Whether a value can count: numpy's integers can, 2.0 cannot."""
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
