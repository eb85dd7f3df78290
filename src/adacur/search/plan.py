"""A search with all its choices made: how it splits the budget, where it starts, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from adacur.core.arrays import KeyArray
from adacur.core.errors import BudgetError, InputError
from adacur.core.protocols import Acquisition, AnchorScores, Approximator, Items, Scorer
from adacur.core.records import Item
from adacur.first_stages import AnyStage, Placed
from adacur.search.fusion import Fusion

__all__ = ["Filter", "First", "KeepPredictions", "Plan", "stage_name"]

Filter = Callable[[Item], bool] | Collection[str]
KeepPredictions = Literal[False, "last", "all"]


@dataclass(frozen=True, slots=True)
class First:
    """The first stage of a search, and what it is used for.

    - `stage`: the name of a first stage of the index, a first stage object, or None for the index's default;
    - `pool`: search only its best N items;
    - `fuse`: its weight in the final order (0.5 is a good first try). One standard deviation among its best 100
      counts as much as an exact score that is e^fuse times as rare. Hits are then ordered by `fused`.
    """

    stage: str | AnyStage | None = None
    pool: int | None = None
    fuse: float | None = None

    def __post_init__(self) -> None:
        if self.pool is not None and self.pool < 1:
            raise BudgetError(f"A pool must hold at least one item; got pool={self.pool}.")
        if self.fuse is not None and not 0 <= self.fuse < float("inf"):
            raise InputError(f"fuse must be a weight from 0 (none) up; got {self.fuse}.")


def _at_once(affordable: int) -> tuple[int, ...]:
    return (affordable,)


@dataclass(frozen=True, slots=True)
class Plan:
    """One search method with all its choices made. Every method is a plan, and one loop runs them all.

    `batch_sizes(n)` gives the calls of each round when n calls can be afforded. The first round takes the best of
    `first`, or a uniform sample; later rounds take what `acquisition` chooses from the predictions, which
    `first_weight` raises for what the first stage ranks high. `fuse` orders what was scored. `tuned_for` names the k
    and the budget that the settings were tuned for. `stop_when` is the expected recall of a query's top k that ends
    its search before the budget does. `keys` are the items' random keys, where they need not be made from the ids.
    """

    method: str
    items: Items
    scorer: Scorer
    calls: int
    batch_sizes: Callable[[int], tuple[int, ...]] = _at_once
    first: Placed | None = None
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
    fuse: Fusion | None = None
    tuned_for: tuple[int, int] | None = None
    stop_when: float | None = None
    keep_predictions: KeepPredictions = False
    keys: KeyArray | None = None

    def __post_init__(self) -> None:
        if self.pool is not None and self.first is None:
            raise BudgetError("A pool is the first stage's best items, so it needs a first stage; give first=….")
        if self.fuse is not None and self.first is None:
            raise InputError("fuse blends the first stage's scores into the final order; give first=….")
        if self.stop_when is not None and self.first is None:
            # From a random start, expected recalls of .93 turned out .44: what is missing resembles nothing seen.
            raise InputError(
                "stop_when can be trusted only where a search starts from a first stage's best items, and this one "
                "starts at random. Give first=…, such as 'dense' or 'bm25' where the index has it."
            )

    def settings(self) -> dict[str, Any]:
        """The choices that a result should name."""
        return {
            "method": self.method,
            "budget": self.calls,
            # Of a budget beyond all items no more than these can be spent, in as many rounds at most.
            "batch_sizes": self.batch_sizes(min(self.calls, len(self.items))),
            "first": stage_name(self.first),
            "anchors": len(self.anchors.anchor_queries) if self.anchors else 0,
            "approximator": repr(self.approximator) if self.approximator else None,
            "acquisition": repr(self.acquisition) if self.acquisition else None,
            "first_share": self.first_share,
            "first_weight": self.first_weight,
            "fuse": self.fuse.weight if self.fuse else None,
            "tuned_for": self.tuned_for,
            "stop_when": self.stop_when,
            "pool": self.pool,
            "filtered": self.filter is not None,
            "deadline": self.deadline,
            "seed": self.seed,
            "scorer": self.scorer.card.name,
        }


def stage_name(first: Placed | None) -> str | None:
    """What a first stage is called in traces and tunings."""
    return None if first is None else first.name
