"""Which items may still be scored for a query, and which of them are the most promising."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adacur.approximation import Uniform
from adacur.approximation.rank_slopes import RANKS_THAT_COUNT, RISE
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.protocols import Acquisition
from adacur.core.records import Item
from adacur.search.methods import Plan

# Predictions in float32 that differ by less, relative to their height, differ by how they were rounded.
ROUNDING = 1e-6

# After this many scores of a query, a first stage's weight of 1 is halved; larger weights fade sooner, smaller later.
SCORES_THAT_TELL = 300
# BLAS starts threads for longer vectors, which cost more than they save.
_AT_A_TIME = 8192


class Prospects(Protocol):
    """The items that may still be scored for one query, and which of them are the most promising.

    The one place that asks about all items: arrays in memory, a device, or an engine that holds their rows.
    `candidates` are the first stage's positions, best first; `predicted` is what the approximation predicts.
    """

    candidates: IntArray

    @property
    def n_left(self) -> int:
        """How many items may still be scored."""
        ...

    def from_first(self, n: int) -> IntArray:
        """The first stage's best n that may still be scored, best first."""
        ...

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: Any
    ) -> tuple[IntArray, FloatArray]:
        """At most n positions as `acquisition` chooses them, and the raised predictions they were chosen by."""
        ...

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """At most n positions, regardless of predictions."""
        ...

    def predictions(self, predicted: Any, positions: IntArray) -> FloatArray:
        """The predictions for these positions, before the first stage raises them."""
        ...

    def scored(self, positions: IntArray) -> None:
        """These were scored, and must not be again."""
        ...

    def keys(self, positions: IntArray) -> KeyArray:
        """The random keys of these items, which break ties."""
        ...

    def items(self, positions: IntArray) -> tuple[Item, ...]:
        """These items, where positions mean nothing outside of this search; else none."""
        return ()


def raised_by(
    ranks: IntArray, values: FloatArray, *, deviation: float, first_weight: float, n_scored: int
) -> FloatArray | None:
    """What a first stage adds to the predictions `values` of the items that it ranks; None for nothing.

    The logarithm of the rank, in units of the predictions' standard deviation, fading as the query is scored.
    """
    if not first_weight or not len(values):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        height = abs(float(values[0]))
    if deviation <= ROUNDING * height:
        # Equal predictions say nothing: the first stage alone decides.
        deviation = max(1.0, height)
    unit = deviation / (1 / first_weight + n_scored / SCORES_THAT_TELL)
    return np.asarray(unit * RISE[ranks]) if np.isfinite(unit) else None


@dataclass(slots=True, eq=False)
class MemoryProspects(Prospects):
    """Prospects over a row of predictions in memory.

    `unscored` marks the items that may still be scored. `first_weight` is the weight of the first stage beside the
    predictions; it fades with `n_scored`.
    """

    unscored: BoolArray
    item_keys: KeyArray
    candidates: IntArray
    first_weight: float
    n_scored: int = 0

    @property
    def n_left(self) -> int:
        return int(self.unscored.sum())

    def confine(self, pool: IntArray) -> None:
        """Only these may be scored."""
        self.unscored[:] = False
        self.unscored[pool] = True

    def from_first(self, n: int) -> IntArray:
        return self.candidates[self.unscored[self.candidates]][:n]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        raised = self._raised(predicted)
        positions = acquisition.choose(
            raised, unscored=self._left_without(without), n=n, keys=self.item_keys, stream=stream
        )
        return positions, raised[positions]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        unscored = self._left_without(without)
        return Uniform().choose(np.empty(0), unscored=unscored, n=n, keys=self.item_keys, stream=stream)

    def predictions(self, predicted: FloatArray, positions: IntArray) -> FloatArray:
        return np.asarray(predicted[positions])

    def scored(self, positions: IntArray) -> None:
        self.unscored[positions] = False
        self.n_scored += len(positions)

    def keys(self, positions: IntArray) -> KeyArray:
        return self.item_keys[positions]

    def _left_without(self, without: IntArray) -> BoolArray:
        if len(without):
            unscored = self.unscored.copy()
            unscored[without] = False
        else:
            # An acquisition must not be able to have an item scored twice.
            unscored = self.unscored.view()
            unscored.flags.writeable = False
        return unscored

    def _raised(self, predicted: FloatArray) -> FloatArray:
        known = self.candidates[:RANKS_THAT_COUNT]
        if not self.first_weight or not len(known):
            return predicted
        values = predicted[known]
        with np.errstate(over="ignore", invalid="ignore"):
            deviation = _deviation(predicted)
        rise = raised_by(
            np.arange(len(known)),
            values,
            deviation=deviation,
            first_weight=self.first_weight,
            n_scored=self.n_scored,
        )
        if rise is None:
            return predicted
        raised = predicted.copy()
        raised[known] = values + rise.astype(predicted.dtype)
        return raised


def _deviation(values: FloatArray) -> float:
    """The standard deviation, in float64; a block at a time, so that no second copy of all values is made."""
    mean, squares = values.mean(dtype=np.float64), 0.0
    for start in range(0, len(values), _AT_A_TIME):
        block = values[start : start + _AT_A_TIME] - mean
        squares += float(block @ block)
    return math.sqrt(squares / len(values)) if len(values) else 0.0


def memory_prospects(plan: Plan, candidates: Sequence[IntArray], allowed: BoolArray) -> list[MemoryProspects]:
    """The prospects of several queries; only the `allowed` items may be scored."""
    return [MemoryProspects(allowed.copy(), keys_of(plan), some, plan.first_weight) for some in candidates]


def keys_of(plan: Plan) -> KeyArray:
    """The random keys of a plan's items."""
    return plan.items.keys if plan.keys is None else plan.keys
