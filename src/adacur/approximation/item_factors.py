"""The features of all items, by which the Gaussian says how alike their scores are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray, IntArray

__all__ = ["ItemFactors"]

_ROWS_PER_BLOCK = 4096


class ItemFactors:
    """A matrix of features, a row per item, as `parts` side by side; each part has a `centre` that is taken off.

    Only two things are ever asked of it: the rows of a few items, and the product of all rows with a vector.
    """

    def __init__(self, parts: Sequence[FloatArray], centres: Sequence[FloatArray]) -> None:
        self._parts = tuple(parts)
        self._centres = tuple(centres)

    @property
    def n_items(self) -> int:
        """Items, and rows."""
        return len(self._parts[0])

    @property
    def n_features(self) -> int:
        """Features of an item, all parts together."""
        return sum(part.shape[1] for part in self._parts)

    def rows(self, positions: IntArray) -> FloatArray:
        """The features of these items, float64."""
        return np.hstack(
            [
                part[positions].astype(np.float64) - centre
                for part, centre in zip(self._parts, self._centres, strict=True)
            ]
        )

    def product(self, weights: FloatArray) -> FloatArray:
        """Every item's features · weights, in the precision of the parts."""
        total: FloatArray | None = None
        for part, centre, own in self._split(weights):
            values = part @ own.astype(part.dtype) - part.dtype.type(centre @ own)
            total = values if total is None else total + values
        assert total is not None
        return total

    def precise_product(self, weights: FloatArray) -> FloatArray:
        """The same in float64, whatever the parts are stored in."""
        total = np.zeros(self.n_items)
        for part, centre, own in self._split(weights):
            for start in range(0, len(part), _ROWS_PER_BLOCK):
                block = part[start : start + _ROWS_PER_BLOCK].astype(np.float64)
                total[start : start + len(block)] += (block - centre) @ own
        return total

    def _split(self, weights: FloatArray) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
        ends = np.cumsum([part.shape[1] for part in self._parts])[:-1]
        return list(zip(self._parts, self._centres, np.split(weights, ends), strict=True))
