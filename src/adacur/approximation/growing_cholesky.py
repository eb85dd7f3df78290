"""A Cholesky factor that grows: rounds only append to the scored items, so nothing is factored twice."""

from __future__ import annotations

import numpy as np

from adacur.core.arrays import FloatArray

__all__ = ["GrowingCholesky"]


class GrowingCholesky:
    """L⁻¹ of a covariance L Lᵀ that grows by blocks; float64.

    The inverse factor is kept rather than L: it grows by products alone, and numpy has no triangular solver. A block
    of b rows beside m costs O(m² b), so all rounds together cost about what one factorisation does.
    """

    def __init__(self) -> None:
        self._inverse: FloatArray = np.empty((0, 0))

    def __len__(self) -> int:
        return len(self._inverse)

    def append(self, across: FloatArray, own: FloatArray) -> None:
        """Add rows: `across` is their covariance with the rows so far (b × m), `own` that among them (b × b)."""
        size, new = len(self._inverse), len(own)
        if not new:
            return
        beside = across @ self._inverse.T
        corner = np.linalg.inv(np.linalg.cholesky(own - beside @ beside.T))
        grown = np.zeros((size + new, size + new))
        grown[:size, :size] = self._inverse
        grown[size:, :size] = -corner @ (beside @ self._inverse)
        # inv leaves dust above the diagonal.
        grown[size:, size:] = np.tril(corner)
        self._inverse = grown

    def precisions(self) -> FloatArray:
        """The diagonal of (L Lᵀ)⁻¹: one over the variance of each row that the others leave unexplained."""
        return np.asarray(np.square(self._inverse).sum(axis=0))

    def solve(self, targets: FloatArray) -> FloatArray:
        """(L Lᵀ)⁻¹ · targets."""
        return self._inverse.T @ (self._inverse @ targets)
