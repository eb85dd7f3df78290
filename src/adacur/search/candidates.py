"""Which items may still be scored for a query, and which of them are the most promising."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.model import Uniform
from adacur.protocols import Acquisition
from adacur.records import Item

NONE: IntArray = np.empty(0, dtype=np.intp)


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
        """At most n positions as `acquisition` chooses them, and the predictions they were chosen by."""
        ...

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """At most n positions, regardless of predictions."""
        ...

    def predictions(self, predicted: Any, positions: IntArray) -> FloatArray:
        """The predictions for these positions."""
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


@dataclass(slots=True, eq=False)
class CandidatesInMemory(Candidates):
    """Candidates over a row of predictions in memory; only the `allowed` items, shared by all queries, are scored."""

    found: IntArray
    allowed: BoolArray
    n_allowed: int
    item_keys: KeyArray
    _scored: IntArray = field(default_factory=NONE.copy)

    @property
    def n_left(self) -> int:
        return self.n_allowed - len(self._scored)

    def from_first(self, n: int) -> IntArray:
        return self.found[~np.isin(self.found, self._scored)][:n]

    def best(self, n: int, *, acquisition: Acquisition, stream: int, predicted: Any) -> tuple[IntArray, FloatArray]:
        positions = acquisition.choose(predicted, unscored=self._unscored(), n=n, keys=self.item_keys, stream=stream)
        return positions, predicted[positions]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        left = self._unscored()
        left[without] = False
        return Uniform().choose(np.empty(0), unscored=left, n=n, keys=self.item_keys, stream=stream)

    def predictions(self, predicted: Any, positions: IntArray) -> FloatArray:
        return np.asarray(predicted[positions])

    def scored(self, positions: IntArray) -> None:
        self._scored = np.concatenate([self._scored, positions])

    def keys(self, positions: IntArray) -> KeyArray:
        return self.item_keys[positions]

    def _unscored(self) -> BoolArray:
        """A copy each time: an acquisition must not be able to have one scored twice."""
        left = self.allowed.copy()
        left[self._scored] = False
        return left
