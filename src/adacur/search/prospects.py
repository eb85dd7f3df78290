"""What may still be scored for each query, and what is predicted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.protocols import Acquisition, Approximation, Predictions

__all__ = ["RANKS_THAT_COUNT", "Chosen", "LocalProspects", "Prospects", "Request"]

# Beyond this rank the first stage has no say in what is scored next.
RANKS_THAT_COUNT = 1000
# A tenfold rank counts one step less, the first ten being much alike.
_ALIKE = 10
# Predictions in float32 that differ by less, relative to their height, differ by how they were rounded.
_ROUNDING = 1e-6
_RISE = np.log((_ALIKE + RANKS_THAT_COUNT) / (_ALIKE + np.arange(RANKS_THAT_COUNT)))


def _nothing() -> IntArray:
    return np.empty(0, dtype=np.intp)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """`n` unscored items of the query at this place in the batch, as `acquisition` chooses them.

    None of `without` is among them. Predictions are raised for `known`, the first stage's positions, best first.
    """

    query: int
    n: int
    acquisition: Acquisition
    stream: int
    without: IntArray = field(default_factory=_nothing)
    known: IntArray = field(default_factory=_nothing)


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Positions, best first, and the predictions that they were chosen by, raised where they were."""

    positions: IntArray
    raised: FloatArray


class Prospects(Protocol):
    """The items of a batch of queries: which are left to be scored, and predictions of all."""

    def n_left(self, query: int) -> int:
        """How many may still be scored."""
        ...

    def are_left(self, query: int, positions: IntArray) -> BoolArray:
        """Which of these may still be scored."""
        ...

    def limit(self, positions: Sequence[IntArray]) -> None:
        """Let nothing but these be scored, per query."""
        ...

    def mark_scored(self, positions: Sequence[IntArray]) -> None:
        """Leave these out from now on, per query."""
        ...

    def keys_at(self, positions: IntArray) -> KeyArray:
        """The random keys of these items."""
        ...

    def predict(self) -> None:
        """Predict anew, from what the approximation has been told."""
        ...

    def choose(self, requests: Sequence[Request]) -> list[Chosen]:
        """What is requested, of what is left; fewer where there are fewer that can be told apart."""
        ...

    def predicted_at(self, positions: Sequence[IntArray]) -> list[FloatArray]:
        """Predictions of these, per query."""
        ...

    def all_predicted(self, query: int) -> FloatArray:
        """Predictions of every item, by position."""
        ...

    def predict_precisely(self) -> FloatArray:
        """Predicted scores of every item, from all that the approximation has been told, float64."""
        ...


class LocalProspects:
    """Prospects in arrays of this process. `first_weight` is the first stage's say beside predictions."""

    def __init__(
        self,
        allowed: Sequence[BoolArray],
        *,
        keys: KeyArray,
        approximation: Approximation | None = None,
        first_weight: float = 0.0,
    ) -> None:
        self._unscored = [mask.copy() for mask in allowed]
        self._keys = keys
        self._approximation = approximation
        self._first_weight = first_weight
        self._predicted: Predictions | None = None

    def n_left(self, query: int) -> int:
        """How many may still be scored."""
        return int(np.count_nonzero(self._unscored[query]))

    def are_left(self, query: int, positions: IntArray) -> BoolArray:
        """Which of these may still be scored."""
        return self._unscored[query][positions]

    def limit(self, positions: Sequence[IntArray]) -> None:
        """Let nothing but these be scored, per query."""
        for query, own in enumerate(positions):
            self._unscored[query] = np.zeros_like(self._unscored[query])
            self._unscored[query][own] = True

    def mark_scored(self, positions: Sequence[IntArray]) -> None:
        """Leave these out from now on, per query."""
        for unscored, own in zip(self._unscored, positions, strict=True):
            unscored[own] = False

    def keys_at(self, positions: IntArray) -> KeyArray:
        """The random keys of these items."""
        return self._keys[positions]

    def predict(self) -> None:
        """Predict anew, from what the approximation has been told."""
        assert self._approximation is not None
        self._predicted = self._approximation.predict()

    def choose(self, requests: Sequence[Request]) -> list[Chosen]:
        """What is requested, of what is left."""
        return [self._choose(request) for request in requests]

    def _choose(self, request: Request) -> Chosen:
        unscored = self._unscored[request.query]
        if len(request.without):
            unscored = unscored.copy()
            unscored[request.without] = False
        else:
            # Whoever chooses must not be able to have an item scored twice.
            unscored = unscored.view()
            unscored.flags.writeable = False
        raised = np.empty(0) if self._predicted is None else self._raised(self._predicted[request.query], request.known)
        positions = request.acquisition.choose(
            raised, unscored=unscored, n=request.n, keys=self._keys, stream=request.stream
        )
        return Chosen(positions, raised if self._predicted is None else raised[positions])

    def predicted_at(self, positions: Sequence[IntArray]) -> list[FloatArray]:
        """Predictions of these, per query."""
        assert self._predicted is not None
        return [self._predicted[query][own] for query, own in enumerate(positions)]

    def all_predicted(self, query: int) -> FloatArray:
        """Predictions of every item, by position."""
        assert self._predicted is not None
        predicted: FloatArray = self._predicted[query].copy()
        return predicted

    def predict_precisely(self) -> FloatArray:
        """Predicted scores of every item, from all that the approximation has been told."""
        assert self._approximation is not None
        return self._approximation.predict_precisely()

    def _raised(self, predicted: FloatArray, known: IntArray) -> FloatArray:
        """Predictions, higher by the logarithm of the first stage's rank, in units of their own spread."""
        known = known[:RANKS_THAT_COUNT]
        if not self._first_weight or not len(known):
            return predicted
        values = predicted[known]
        with np.errstate(over="ignore", invalid="ignore"):
            height = float(values[0])
            spread = float(predicted.std(dtype=np.float64))
        if spread <= _ROUNDING * abs(height):
            # Predictions that are all alike say nothing: the first stage alone leads.
            spread = max(1.0, abs(height))
        unit = self._first_weight * spread
        if not np.isfinite(unit):
            return predicted
        raised = predicted.copy()
        raised[known] = values + (unit * _RISE[: len(known)]).astype(predicted.dtype)
        return raised
