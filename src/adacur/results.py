"""What a search found, and what it did on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.money import Money
from adacur.protocols import Items
from adacur.records import Item, Query


@dataclass(frozen=True, slots=True)
class Hit:
    """One result. `rank` counts from 1; `round` is the round that scored it, 0 where there are no rounds.

    `fused` is what it was ranked by, where that was not the score alone. `relevance` is between 0 and 1: by judgements
    the chance to be judged relevant, else the share of anchor queries whose best item scores lower.
    """

    id: str
    score: float
    rank: int
    round: int = 0
    item: Item | None = None
    fused: float | None = None
    relevance: float | None = None

    @property
    def document(self) -> str:
        """The document whose best passage this is; the id of the item where it belongs to none."""
        return self.id if self.item is None else self.item.document


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round of a search. `predicted` holds what the approximation said of `positions` before they were scored;
    like all predictions here, None where some lie beyond the range of floats.

    `expected_recall` is the share of the true top k, or of all items above a line, that is expected to be found by
    now, where `effort` or `find` asked. `is_audit`: its items were drawn at random, to tell what is missing.
    `items` are those at `positions`, where these are no positions of an index but numbers that the search gave to what
    it met in a vector engine.
    """

    number: int
    positions: IntArray
    exact: FloatArray
    predicted: FloatArray | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    all_predicted: FloatArray | None = None
    expected_recall: float | None = None
    items: tuple[Item, ...] = ()
    is_audit: bool = False

    def scored_items(self, items: Items) -> Sequence[Item]:
        """The items that it scored, of which `items` are those of the index."""
        return self.items or items.at(self.positions.tolist())


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Everything a search did, round by round. `stopped` is "budget", "exhausted" (nothing left), "deadline",
    "settled" (`effort`), "tokens" or "cost" (what is left of these pays for no more), "engine" (a vector engine
    stopped answering) or "error" (of hits that an error carries). `tokens` and `cost` were spent, where the budget
    counts them.

    `approximate_scores` (Ŝ for every item, after the last round) is present on request only. Where queries
    share a scorer call, its seconds are shared out by the number of pairs; in an awaited search they count the wait.
    """

    rounds: tuple[Round, ...] = ()
    stopped: str = "budget"
    settings: Mapping[str, Any] = field(default_factory=dict)
    approximate_scores: FloatArray | None = None
    tokens: int | None = None
    cost: Money | None = None

    @property
    def calls(self) -> int:
        """Scorer calls spent on this query."""
        return sum(len(round_.positions) for round_ in self.rounds)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds per step, summed over the rounds."""
        total: dict[str, float] = {}
        for round_ in self.rounds:
            for step, seconds in round_.seconds.items():
                total[step] = total.get(step, 0.0) + seconds
        return total


Basis = Literal["every item", "anchors", "audit", "none"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is promised of the hits of `find`: at least this `recall` of all items that score `above` or higher.

    - `basis`: "every item" was scored; an "audit" of `n` random calls, which holds for this query; `n` "anchors", other
      queries on which the stop was calibrated, which holds on average over queries like them; or "none", where `recall`
      is what the model expects and nothing is promised;
    - `confidence`: the chance that the promise is kept, over draws of the random calls or of the anchor queries;
    - `reasons`: why the promise is less than was asked for, and what would strengthen it.
    """

    above: float
    basis: Basis
    recall: float
    calls: int
    confidence: float | None = None
    n: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def is_promise(self) -> bool:
        """Whether it promises anything; else it is an estimate."""
        return self.basis != "none"

    def __str__(self) -> str:
        """The certificate as a paragraph."""
        # Rounded down: a promise must not grow in words.
        share, sure = (f"{math.floor(1000 * one + 1e-9) / 10:g}%" for one in (self.recall, self.confidence or 0))
        line = f"{self.above:g}"
        said = {
            "every item": f"Every item was scored: these are all that score {line} or higher.",
            "audit": f"At least {share} of the items that score {line} or higher are found, for this query, with "
            f"confidence {sure}: by an audit of {self.n:,} random calls.",
            "anchors": f"At least {share} of the items that score {line} or higher are found, on average over queries "
            f"that have any and are like the {self.n:,} anchor queries that this was calibrated on, with confidence "
            f"{sure}.",
            "none": f"Nothing is promised. The model expects that {share} of the items that score {line} or higher are "
            "found."
            if self.recall
            else "Nothing is promised, and too little is known to estimate what is missing.",
        }[self.basis]
        return " ".join([said, *self.reasons, f"Calls: {self.calls:,}."])


@dataclass(frozen=True, slots=True, eq=False)
class Hits(Sequence[Hit]):
    """Results of one query, best first. Iterates over `Hit`s; `ids`, `scores`, `rounds` and `fused` are columns.

    `scores` are the scorer's; of method "first", which calls none, the first stage's: then there are no rounds. Where
    `fuse` blended the first stage in, the hits are ordered by `fused`.
    `verdict` is "answered", "doubtful" or "nothing found", of the hits that `min_relevance` and `min_score` leave; it
    and `relevance` are None where nothing tells what scores mean. `certificate` says what `find` promises of them.
    """

    query: Query
    ids: tuple[str, ...]
    scores: FloatArray
    rounds: tuple[int, ...] = ()
    items: tuple[Item, ...] = ()
    trace: Trace = field(default_factory=Trace)
    fused: FloatArray | None = None
    relevance: FloatArray | None = None
    verdict: str | None = None
    certificate: Certificate | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Hit]:
        return (self._hit(index) for index in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._hit(i) for i in range(*index.indices(len(self)))]
        return self._hit(range(len(self))[index])

    def __repr__(self) -> str:
        best = f", best {self.ids[0]!r} {float(self.scores[0]):.3f}" if self.ids else ""
        if self.ids and self.fused is not None:
            best += f" (fused {float(self.fused[0]):.3f})"
        return f"Hits({self.query.text!r}: {len(self)} hits{best}, {self.trace.calls} calls)"

    def _hit(self, index: int) -> Hit:
        return Hit(
            id=self.ids[index],
            score=float(np.asarray(self.scores)[index]),
            rank=index + 1,
            round=self.rounds[index] if self.rounds else 0,
            item=self.items[index] if self.items else None,
            fused=None if self.fused is None else float(self.fused[index]),
            relevance=None if self.relevance is None else float(self.relevance[index]),
        )
