"""What happens to an answer after the last round: each step of a plan's `finish` takes an answer and returns one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.model.acquire import best_positions
from adacur.records import Item, Query
from adacur.results import Hits, Trace
from adacur.search.fusion import LISTED, fused
from adacur.search.relevance import Relevance, above_floors, verdict_on


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a search has found for one query, best first.

    - `positions`, `scores`, `rounds`: the items, their exact scores, and the rounds in which they were scored;
    - `listed`, `listed_scores`: what the first stage found, best first;
    - `items_at`, `keys_of`: the items at some positions, and their random keys, which break ties;
    - `fused`, `relevance`, `verdict`: what some steps add.
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
    fused: FloatArray | None = None
    relevance: FloatArray | None = None
    verdict: str | None = None

    def at(self, places: Any) -> Answer:
        """The answer with these places of it alone, in this order."""
        more = (None if one is None else one[places] for one in (self.fused, self.relevance))
        of_fused, of_relevance = more
        return replace(
            self,
            positions=self.positions[places],
            scores=self.scores[places],
            # What was not scored is in no round.
            rounds=self.rounds[places] if len(self.rounds) else self.rounds,
            fused=of_fused,
            relevance=of_relevance,
        )

    def hits(self, trace: Trace) -> Hits:
        """The answer as users see it."""
        items = tuple(self.items_at(self.positions.tolist()))
        return Hits(
            query=self.query,
            ids=tuple(item.id for item in items),
            scores=self.scores,
            rounds=tuple(self.rounds.tolist()),
            items=items,
            trace=trace,
            fused=self.fused,
            relevance=self.relevance,
            verdict=self.verdict,
        )


class Finish(Protocol):
    """One step. `listed`: how many of the first stage's items it needs to see."""

    @property
    def listed(self) -> int: ...

    def __call__(self, answer: Answer) -> Answer: ...

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Where items are passages and k counts documents: the best passage of each. `numbers` are the items' documents."""

    numbers: IntArray
    listed = 0

    def __call__(self, answer: Answer) -> Answer:
        # Sorted best first, so the first of each document is its best.
        _, firsts = np.unique(self.numbers[answer.positions], return_index=True)
        return answer.at(np.sort(firsts))

    def settings(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Fuse:
    """Ordered by exact scores and the first stage's together: the scorer is one witness, not the truth."""

    weight: float
    listed = LISTED

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
class FirstStageAlone:
    """What no scorer ranks comes as the first stage has it, with its scores, and in no round."""

    listed = 0

    def __call__(self, answer: Answer) -> Answer:
        nothing = np.empty(0, dtype=np.intp)
        return replace(answer, positions=answer.listed, scores=answer.listed_scores, rounds=nothing)

    def settings(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Top:
    """The first k."""

    listed = 0

    def __call__(self, answer: Answer) -> Answer:
        return answer.at(slice(answer.k))

    def settings(self) -> Mapping[str, Any]:
        return {}


@dataclass(frozen=True, slots=True)
class Floors:
    """What scores mean, where the index knows it; without the hits below the floors, and with a verdict on the rest."""

    relevance: Relevance | None = None
    min_relevance: float | None = None
    min_score: float | None = None
    listed = 0

    def __call__(self, answer: Answer) -> Answer:
        relevance = None if self.relevance is None else self.relevance.of(answer.scores)
        kept = above_floors(answer.scores, relevance, min_relevance=self.min_relevance, min_score=self.min_score)
        left = replace(answer, relevance=relevance).at(kept)
        return replace(left, verdict=verdict_on(left.scores, self.relevance))

    def settings(self) -> Mapping[str, Any]:
        source = self.relevance.source if self.relevance else None
        return {"relevance": source, "min_relevance": self.min_relevance, "min_score": self.min_score}
