"""Which items may still be scored for a query, and which of them are the most promising."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.model import Uniform
from adacur.model.acquire import ROUNDING, SCORES_THAT_TELL
from adacur.model.rank_slopes import RANKS_THAT_COUNT, RISE
from adacur.protocols import Acquisition
from adacur.records import Item

# BLAS starts threads for longer vectors, which cost more than they save.
_AT_A_TIME = 8192


class Candidates(Protocol):
    """The items that may still be scored for one query, and which of them are the most promising.

    The one place that asks about all items: arrays in memory, a device, or an engine that holds their rows.
    `found` are the first stage's positions, best first; `predicted` is what the approximation predicts.
    """

    found: IntArray

    @property
    def n_left(self) -> int:
        """How many items may still be scored."""
        ...

    def from_first(self, n: int) -> IntArray:
        """The first stage's best n that may still be scored, best first."""
        ...

    def best(self, n: int, *, acquisition: Acquisition, stream: int, predicted: Any) -> tuple[IntArray, FloatArray]:
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
class CandidatesInMemory(Candidates):
    """Candidates over a row of predictions in memory.

    `unscored` marks the items that may still be scored. `first_weight` is the weight of the first stage beside the
    predictions; it fades with `n_scored`.
    """

    unscored: BoolArray
    item_keys: KeyArray
    found: IntArray
    first_weight: float
    n_scored: int = 0

    @property
    def n_left(self) -> int:
        return int(self.unscored.sum())

    def confine(self, n: int, *, stream: int) -> None:
        """Only the first stage's best n may be scored, and a uniform sample where it found fewer."""
        best = self.found[:n]
        if len(best) < n:
            best = np.concatenate([best, self.at_random(n - len(best), stream=stream, without=best)])
        self.unscored[:] = False
        self.unscored[best] = True

    def from_first(self, n: int) -> IntArray:
        return self.found[self.unscored[self.found]][:n]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, predicted: FloatArray
    ) -> tuple[IntArray, FloatArray]:
        raised = self._raised(predicted)
        positions = acquisition.choose(raised, unscored=self._read_only(), n=n, keys=self.item_keys, stream=stream)
        return positions, raised[positions]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        unscored = self.unscored.copy()
        unscored[without] = False
        return Uniform().choose(np.empty(0), unscored=unscored, n=n, keys=self.item_keys, stream=stream)

    def predictions(self, predicted: FloatArray, positions: IntArray) -> FloatArray:
        return np.asarray(predicted[positions])

    def scored(self, positions: IntArray) -> None:
        self.unscored[positions] = False
        self.n_scored += len(positions)

    def keys(self, positions: IntArray) -> KeyArray:
        return self.item_keys[positions]

    def _read_only(self) -> BoolArray:
        """The unscored items: an acquisition must not be able to have one scored twice."""
        unscored = self.unscored.view()
        unscored.flags.writeable = False
        return unscored

    def _raised(self, predicted: FloatArray) -> FloatArray:
        known = self.found[:RANKS_THAT_COUNT]
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
