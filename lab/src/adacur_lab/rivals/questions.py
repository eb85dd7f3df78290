"""A question that rivals search: what the first stage ranks best, and exact scores, paid for call by call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import BudgetError
from adacur.records import Query
from adacur.results import Hits

__all__ = ["Question", "Rival", "round_sizes"]


@dataclass(slots=True, eq=False)
class Question:
    """One query with every exact score known; a rival sees only those that it pays for.

    `ranked` are the first stage's positions, best first, `first_scores` its scores of these, `vector` is the dual
    encoder's. `calls` holds what was scored so far, in order.
    """

    query: Query
    exact: FloatArray
    ranked: IntArray
    first_scores: FloatArray
    vector: FloatArray
    budget: int
    calls: dict[int, float] = field(default_factory=dict)

    @property
    def left(self) -> int:
        """Calls that may still be made."""
        return self.budget - len(self.calls)

    def score(self, positions: Sequence[int]) -> list[float]:
        """The exact scores of items that were not scored before."""
        positions = [int(position) for position in positions]
        if len(set(positions)) < len(positions) or not self.calls.keys().isdisjoint(positions):
            raise BudgetError(f"Query {self.query.id!r}: an item must be scored once; got some of {positions} again.")
        if len(positions) > self.left:
            raise BudgetError(
                f"Query {self.query.id!r}: of {self.budget} calls {self.left} must be enough; got {len(positions)}."
            )
        scores = [float(score) for score in self.exact[positions]]
        self.calls.update(zip(positions, scores, strict=True))
        return scores

    def unscored(self, n: int) -> list[int]:
        """The first stage's best n items that were not scored yet."""
        return [int(position) for position in self.ranked if int(position) not in self.calls][:n]

    def hits(self, ids: Sequence[str], k: int) -> Hits:
        """The best k of what was scored."""
        best = sorted(self.calls.items(), key=lambda call: -call[1])[:k]
        return Hits(
            query=self.query,
            ids=tuple(ids[position] for position, _ in best),
            scores=np.array([score for _, score in best], dtype=np.float32),
        )


class Rival(Protocol):
    """A way to spend the calls of questions."""

    def search(self, questions: Sequence[Question]) -> None:
        """Score items of each question until its budget is spent, or nothing is left to score."""
        ...


def round_sizes(budget: int, rounds: int) -> list[int]:
    """The calls of each round, alike, larger first."""
    small, larger = divmod(budget, rounds)
    return [size for number in range(rounds) if (size := small + (number < larger))]
