"""What a search method is: how it splits the budget, where it starts, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from adacur.core.errors import BudgetError
from adacur.core.protocols import Acquisition, AnchorScores, Approximator, Items, Retriever, Scorer
from adacur.core.records import Item

__all__ = ["Filter", "Plan"]

Filter = Callable[[Item], bool] | Collection[str]


@dataclass(frozen=True, slots=True)
class Plan:
    """One search method with all its choices made. Every method is a plan, and one loop runs them all.

    `batch_sizes(n)` says how many items each round scores when n calls can be afforded. The first round takes
    the best of `first`, or a uniform sample; later rounds take what `acquisition` chooses from the predictions, which
    `first_weight` raises for what the first stage ranks high.
    """

    method: str
    items: Items
    scorer: Scorer
    calls: int
    batch_sizes: Callable[[int], tuple[int, ...]]
    first: Retriever | None = None
    anchors: AnchorScores | None = None
    approximator: Approximator | None = None
    acquisition: Acquisition | None = None
    deadline: float | None = None
    pool: int | None = None
    filter: Filter | None = None
    seed: int = 0
    same_first_for_all: bool = False
    first_share: float = 0.0
    first_weight: float = 0.0
    approximate_scores: bool = False
    keep_predictions: bool = False

    def __post_init__(self) -> None:
        if self.pool is not None and self.pool < 1:
            raise BudgetError(f"A pool holds at least one item; got pool={self.pool}.")
        if self.pool is not None and self.first is None:
            raise BudgetError("A pool is the first stage's best items, so it needs a first stage; give first=….")
        if not 0 <= self.first_share <= 1:
            raise BudgetError(f"first_share is the first stage's share of each later round; got {self.first_share}.")
        if not 0 <= self.first_weight < float("inf"):
            raise BudgetError(f"first_weight is the first stage's weight beside predictions; got {self.first_weight}.")

    def settings(self) -> dict[str, Any]:
        """The choices that a result should name."""
        return {
            "method": self.method,
            "budget": self.calls,
            "batch_sizes": self.batch_sizes(self.calls),
            "first": getattr(self.first, "name", type(self.first).__name__) if self.first else None,
            "anchors": len(self.anchors.anchor_queries) if self.anchors else 0,
            "approximator": repr(self.approximator) if self.approximator else None,
            "acquisition": repr(self.acquisition) if self.acquisition else None,
            "first_share": self.first_share,
            "first_weight": self.first_weight,
            "pool": self.pool,
            "filtered": self.filter is not None,
            "deadline": self.deadline,
            "seed": self.seed,
            "scorer": self.scorer.card.name,
        }
