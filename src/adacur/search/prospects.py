"""The items that may still be scored for a query, and which of them are the most promising."""

from __future__ import annotations

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.protocols import Acquisition

__all__ = ["RANKS_THAT_COUNT", "Prospects"]

# Beyond this rank the first stage does not influence what is scored next.
RANKS_THAT_COUNT = 1000
# A tenfold rank counts one step less, the first ten being much alike.
_ALIKE = 10
# Predictions in float32 that differ by less, relative to their height, differ by how they were rounded.
_ROUNDING = 1e-6
_RISE = np.log((_ALIKE + RANKS_THAT_COUNT) / (_ALIKE + np.arange(RANKS_THAT_COUNT)))


class Prospects:
    """The unscored items of one query. `candidates` are the first stage's positions, best first.

    This is the one place that reads predictions of all items: a row of them per query, in memory or on a device.
    Where item vectors live elsewhere, `best` is what to ask there: the n best unscored by prediction.
    """

    def __init__(self, allowed: BoolArray, *, keys: KeyArray, candidates: IntArray, first_weight: float = 0.0) -> None:
        self._unscored = allowed.copy()
        self._keys = keys
        self._candidates = candidates
        self._first_weight = first_weight

    @property
    def n_left(self) -> int:
        """How many may still be scored."""
        return int(np.count_nonzero(self._unscored))

    def limit(self, positions: IntArray) -> None:
        """Let nothing but these be scored."""
        self._unscored = np.zeros_like(self._unscored)
        self._unscored[positions] = True

    def mark_scored(self, positions: IntArray) -> None:
        """Leave these out from now on."""
        self._unscored[positions] = False

    def next_of_first_stage(self, n: int) -> IntArray:
        """The first stage's best n that may still be scored."""
        return self._candidates[self._unscored[self._candidates]][:n]

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: FloatArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """At most n unscored positions as `acquisition` chooses them, and the raised predictions they were chosen by.

        Without predictions, `acquisition` must not look at any.
        """
        unscored = self._unscored
        if len(without):
            unscored = unscored.copy()
            unscored[without] = False
        else:
            # An acquisition must not be able to have an item scored twice.
            unscored = unscored.view()
            unscored.flags.writeable = False
        raised = np.empty(0) if predicted is None else self._raised(predicted)
        positions = acquisition.choose(raised, unscored=unscored, n=n, keys=self._keys, stream=stream)
        return positions, raised if predicted is None else raised[positions]

    def keys_at(self, positions: IntArray) -> KeyArray:
        """The random keys of these items, which break ties."""
        return self._keys[positions]

    def _raised(self, predicted: FloatArray) -> FloatArray:
        """Predictions, higher by the logarithm of the first stage's rank, in units of their standard deviation."""
        known = self._candidates[:RANKS_THAT_COUNT]
        if not self._first_weight or not len(known):
            return predicted
        values = predicted[known]
        with np.errstate(over="ignore", invalid="ignore"):
            height = abs(float(values[0]))
            spread = float(predicted.std(dtype=np.float64))
        if spread <= _ROUNDING * height:
            # Predictions that are all alike say nothing: the first stage alone leads.
            spread = max(1.0, height)
        unit = self._first_weight * spread
        if not np.isfinite(unit):
            return predicted
        raised = predicted.copy()
        raised[known] = values + (unit * _RISE[: len(known)]).astype(predicted.dtype)
        return raised
