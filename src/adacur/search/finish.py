"""What happens to an answer after the last round: each step of a plan's `finish` takes an answer and returns one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.errors import InputError
from adacur.model.acquire import best_positions
from adacur.protocols import Ranking
from adacur.records import Item, Query
from adacur.results import Certificate, Hits, Trace
from adacur.search.relevance import FEWEST_ANCHORS, NOTHING_FOUND, Relevance

# Both scales are made of the best of each, however many are scored: further down, a first stage's scores are noise.
LISTED = 100
# Of the largest score: what differs by less differs by rounding.
_EQUAL = 1e-12
# The first stages that know words alone, and their weight in the order beside a reranker (docs/design/witness.md).
_WORDS, _BESIDE_WORDS = ("bm25", "words"), 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a search has found for one query, best first.

    - `positions`, `scores`, `rounds`: the items, their exact scores, and the rounds in which they were scored;
    - `listed`, `listed_scores`: what the first stage found, best first;
    - `items_at`, `keys_of`: the items at some positions, and their random keys, which break ties;
    - `trace`: how it went; `n_left` items have no score, and the search `goes_on` or has ended;
    - `fused`, `relevance`, `verdict`, `certificate`: what some steps add.
    """

    query: Query
    k: int
    positions: IntArray
    scores: FloatArray
    rounds: IntArray
    listed: IntArray
    listed_scores: FloatArray
    items_at: Callable[[Sequence[int]], Sequence[Item]]
    keys_of: Callable[[IntArray], KeyArray]
    trace: Trace
    n_left: int
    goes_on: bool
    fused: FloatArray | None = None
    relevance: FloatArray | None = None
    verdict: str | None = None
    certificate: Certificate | None = None

    def at(self, places: Any) -> Answer:
        """The answer with these places of it alone, in this order."""
        of_fused, of_relevance = (None if one is None else one[places] for one in (self.fused, self.relevance))
        return replace(
            self,
            positions=self.positions[places],
            scores=self.scores[places],
            # What was not scored is in no round.
            rounds=self.rounds[places] if len(self.rounds) else self.rounds,
            fused=of_fused,
            relevance=of_relevance,
        )

    def hits(self) -> Hits:
        """The answer as users see it."""
        items = tuple(self.items_at(self.positions.tolist()))
        return Hits(
            query=self.query,
            ids=tuple(item.id for item in items),
            scores=self.scores,
            rounds=tuple(self.rounds.tolist()),
            items=items,
            trace=self.trace,
            fused=self.fused,
            relevance=self.relevance,
            verdict=self.verdict,
            certificate=self.certificate,
        )


class Finish(Protocol):
    """One step: before `Top` it sees all that was scored, after it the best k. It runs after each round that is shown.

    `listed`: how many of the first stage's items it needs to see. A step that drops items needs `LISTED`, or method
    "first" may have too few left.
    """

    listed: ClassVar[int] = 0

    def __call__(self, answer: Answer) -> Answer: ...

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        return {}


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Finish):
    """Where items are passages and k counts documents: the best passage of each. `numbers` are the items' documents."""

    numbers: IntArray

    def __call__(self, answer: Answer) -> Answer:
        # Sorted best first, so the first of each document is its best.
        _, firsts = np.unique(self.numbers[answer.positions], return_index=True)
        return answer.at(np.sort(firsts))


@dataclass(frozen=True, slots=True)
class Fuse(Finish):
    """Ordered by exact scores and the first stage's together: the scorer is one witness, not the truth."""

    listed: ClassVar[int] = LISTED
    weight: float

    def __call__(self, answer: Answer) -> Answer:
        values = fused(
            answer.scores,
            answer.positions,
            weight=self.weight,
            listed=answer.listed,
            listed_scores=answer.listed_scores,
        )
        order = best_positions(values, len(values), keys=answer.keys_of(answer.positions))
        return replace(answer, fused=values).at(order)

    def settings(self) -> Mapping[str, Any]:
        return {"fuse": self.weight}


@dataclass(frozen=True, slots=True)
class FirstStageAlone(Finish):
    """What no scorer ranks comes as the first stage has it, with its scores, and in no round."""

    def __call__(self, answer: Answer) -> Answer:
        nothing = np.empty(0, dtype=np.intp)
        return replace(answer, positions=answer.listed, scores=answer.listed_scores, rounds=nothing)


@dataclass(frozen=True, slots=True)
class Top(Finish):
    """The first k."""

    def __call__(self, answer: Answer) -> Answer:
        return answer.at(slice(answer.k))


@dataclass(frozen=True, slots=True)
class Floors(Finish):
    """What scores mean, where the index knows it; without the hits below the floors, and with a verdict on the rest."""

    relevance: Relevance | None = None
    min_relevance: float | None = None
    min_score: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("min_relevance", self.min_relevance), ("min_score", self.min_score)):
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if value is not None and not (is_number and np.isfinite(value)):
                raise InputError(f"{name} must be a number; got {value!r}.")
        if self.min_relevance is None:
            return
        if not 0 <= self.min_relevance <= 1:
            raise InputError(
                f"min_relevance must be between 0 and 1; got {self.min_relevance}. For raw scores, use min_score."
            )
        if self.relevance is None:
            raise InputError(
                f"min_relevance needs to know what scores mean, and this index does not: that takes {FEWEST_ANCHORS} "
                "anchor queries that every item was scored against, and for a large index `adacur tune`. Use min_score "
                "instead."
            )

    def __call__(self, answer: Answer) -> Answer:
        scale, kept = self.relevance, np.ones(len(answer.scores), np.bool_)
        relevance = None if scale is None else scale.of(answer.scores)
        if self.min_score is not None:
            kept &= answer.scores >= self.min_score
        if self.min_relevance is not None and relevance is not None:
            kept &= relevance >= self.min_relevance
        left = replace(answer, relevance=relevance).at(kept)
        if scale is not None:
            return replace(left, verdict=scale.verdict(left.scores))
        return left if len(left.scores) else replace(left, verdict=NOTHING_FOUND)

    def settings(self) -> Mapping[str, Any]:
        source = self.relevance.source if self.relevance else None
        return {"relevance": source, "min_relevance": self.min_relevance, "min_score": self.min_score}


def weight_beside(first: str) -> float:
    """The weight of a first stage in the order beside a scorer that is one witness."""
    return _BESIDE_WORDS if first in _WORDS else 1.0


def check_fuse(fuse: float | None) -> None:
    """Refuse what cannot be a weight."""
    if fuse is not None and not 0 <= fuse < float("inf"):
        raise InputError(f"fuse must be a weight from 0 (the scorer's own order) up; got {fuse}.")


def fused(
    exact: FloatArray, positions: IntArray, *, weight: float, listed: IntArray, listed_scores: FloatArray
) -> FloatArray:
    """The values to order scored positions by, given the first stage's list for the query, best first.

    An exact score, and `weight` × the first stage's, each in standard deviations from the mean of its best 100. What is
    not among the first stage's best 100 counts as their lowest.
    """
    best = -np.sort(-exact)[:LISTED]
    listed, of_listed = listed[:LISTED], listed_scores[:LISTED]
    standing = dict(zip(listed.tolist(), _standard(of_listed, of_listed).tolist(), strict=True))
    lowest = min(standing.values(), default=0.0)
    by_first = np.array([standing.get(position, lowest) for position in positions.tolist()])
    return np.asarray(_standard(exact, best) + weight * by_first)


def listed_by(answer: Ranking, *, allowed: BoolArray) -> tuple[IntArray, FloatArray]:
    """The allowed positions of a first stage's answer, and their scores."""
    is_allowed = allowed[answer.positions]
    scores = np.asarray(answer.scores, dtype=np.float64)[is_allowed]
    if not np.isfinite(scores[:LISTED]).all():
        raise InputError("The first stage's scores are needed here, and these hold NaN or infinity.")
    return answer.positions[is_allowed], scores


def _standard(values: FloatArray, among: FloatArray) -> FloatArray:
    """Values in standard deviations from the mean of some; 0 where these are equal."""
    # Squares of scores like 1e200 would be infinite.
    unit = float(np.abs(among).max(initial=0.0)) or 1.0
    values, among = np.asarray(values, dtype=np.float64) / unit, np.asarray(among, dtype=np.float64) / unit
    deviation = float(among.std()) if len(among) else 0.0
    return np.asarray((values - among.mean()) / deviation) if deviation > _EQUAL else np.zeros(len(values))
