"""A search with all its choices made."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

from adacur.arrays import IntArray
from adacur.errors import InputError
from adacur.model.rank_slopes import ITEMS_OF_A_TERM, RANKS_THAT_COUNT
from adacur.protocols import Acquisition, AnchorScores, Approximation, Approximator, Items, Ranking, Scorer
from adacur.records import Query
from adacur.search.finish import Finish, Top
from adacur.search.spending import Limits
from adacur.search.stopping import Stop, StopRule

# Limits of what queries that move together hold in memory: covariances of scored items, and the first stages' ranks.
_SQUARES_AT_ONCE = 25_000_000
_RANKS_AT_ONCE = 5_000_000
# Of each query some megabytes: what its words add to items.
_WORDS_AT_ONCE = 2_500_000
_MOST_TOGETHER = 200_000

KeepPredictions = Literal[False, "last", "all"]


class Start(Protocol):
    """Where a search starts: the first stages of an index, one or several joined."""

    @property
    def name(self) -> str: ...

    @property
    def n_stages(self) -> int:
        """How many stages it joins."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What scores are predicted from, and by what; `keeps` says which predictions of all items a trace has."""

    anchors: AnchorScores
    approximator: Approximator
    keeps: KeepPredictions = False

    @property
    def takes_ranks(self) -> bool:
        """Whether predictions start from the first stage's ranks."""
        return getattr(self.approximator, "slopes", None) is not None

    def begin(
        self,
        queries: Sequence[Query],
        lists: Sequence[Sequence[IntArray]],
        terms: Sequence[Sequence[Ranking]] = (),
        **features: Any,
    ) -> Approximation:
        """A fresh approximation; `lists` are, per query, what each first stage found, `terms` what each word adds."""
        listed = {"ranks": lists, "terms": terms} if self.takes_ranks else {}
        return self.approximator.begin(self.anchors, queries, **listed, **features)


class Place(Protocol):
    """Where the items are that may be scored: in memory, or where an extra keeps them.

    `by_position`: whether positions are those of the plan's items, and all are known beforehand.
    """

    by_position: ClassVar[bool]

    def together(self, plan: Plan) -> int:
        """How many queries may move together, by the memory that they take."""
        return plan.together

    def begin(self, plan: Plan, k: int, queries: Sequence[Query]) -> Any:
        """A `QueryBatch` of these queries: asks the first stage, and calls no scorer."""
        ...

    def gave_up(self, error: Exception) -> str | None:
        """Why later queries of a search have no answer after this error; None if it must be raised."""
        return None

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        ...


def at_once(affordable: int) -> tuple[int, ...]:
    """All calls in one round."""
    return (affordable,)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every method makes a plan, and one loop runs them all.

    - `purse`: what a query may spend;
    - `candidates`: where the items are;
    - `sizes(n)`: the calls of each round when n can be afforded. The first round takes the best of `first`, or a
      uniform sample; later rounds take what `acquisition` chooses from the predictions of `model`;
    - `stop`: when a query has done enough before that;
    - `finish`: what happens to an answer after the last round;
    - `notes`: what else a result should name, such as what the settings were tuned for.
    """

    method: str
    items: Items
    scorer: Scorer
    purse: Limits
    candidates: Place
    sizes: Callable[[int], tuple[int, ...]] = at_once
    first: Start | None = None
    model: Model | None = None
    acquisition: Acquisition | None = None
    stop: StopRule | None = None
    seed: int = 0
    finish: tuple[Finish, ...] = (Top(),)
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.stop, Stop) and self.first is None:
            # From a random start, expected recalls of .93 turned out .44: what is missing resembles nothing seen.
            raise InputError(
                "effort can be trusted only where a search starts from a first stage's best items, and this one starts "
                "at random. Give first=…, such as 'dense' or 'bm25' where the index has it."
            )

    @property
    def uses_ranks(self) -> bool:
        """Whether predictions start from the first stage's ranks."""
        return self.first is not None and self.model is not None and self.model.takes_ranks

    @property
    def together(self) -> int:
        """How many queries may move together, by what their covariances and ranks take in memory."""
        n_items = len(self.items)
        limits = [_MOST_TOGETHER]
        if self.model is not None:
            limits.append(_SQUARES_AT_ONCE // max(1, min(self.purse.calls, n_items)) ** 2)
        if self.first is not None and self.uses_ranks:
            limits.append(_RANKS_AT_ONCE // (self.first.n_stages * min(RANKS_THAT_COUNT, n_items)))
            if getattr(self.first, "knows_words", False):
                limits.append(_WORDS_AT_ONCE // min(ITEMS_OF_A_TERM, n_items))
        return min(limits)

    @property
    def keeps(self) -> KeepPredictions:
        """Which predictions of all items the trace has."""
        return self.model.keeps if self.model else False

    @property
    def listed(self) -> int:
        """How many of the first stage's items `finish` needs to see."""
        return max((step.listed for step in self.finish), default=0)

    def settings(self) -> dict[str, Any]:
        """The choices that a result should name."""
        model = self.model
        return {
            "method": self.method,
            # A budget beyond all items is spent on them alone, in at most as many rounds.
            "batch_sizes": self.sizes(min(self.purse.calls, len(self.items))),
            "first": self.first.name if self.first else None,
            "anchors": len(model.anchors.anchor_queries) if model else 0,
            "approximator": repr(model.approximator) if model else None,
            "acquisition": repr(self.acquisition) if self.acquisition else None,
            "effort": None,
            "fuse": 0.0,
            **self.purse.settings(),
            **self.candidates.settings(),
            **(self.stop.settings() if self.stop else {}),
            **{name: value for step in self.finish for name, value in step.settings().items()},
            **self.notes,
            "seed": self.seed,
            "scorer": self.scorer.card.name,
        }
