"""A Cholesky factor that grows as rounds add scored items."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from adacur.core.arrays import FloatArray


@dataclass(slots=True, eq=False)
class GrowingCholesky:
    """The inverse factor L⁻¹ of a covariance L Lᵀ that grows by blocks, and the targets to solve for; float64.

    Rounds only append to the scored items, so nothing is factored twice. The inverse is stored rather than L: it grows
    by products alone, and numpy has no triangular solver. A block of b rows beside m costs O(m² b), so all rounds
    together cost about what one factorisation does.
    """

    inverse: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    targets: FloatArray = field(default_factory=lambda: np.empty(0))

    def append(self, across: FloatArray, among: FloatArray, targets: FloatArray) -> FloatArray:
        """Add rows, and return (L Lᵀ)⁻¹ · all targets.

        `across` is their covariance with the rows so far (b × m), `among` that with each other (b × b).
        """
        size, new = len(self.inverse), len(among)
        beside = across @ self.inverse.T
        corner = np.linalg.inv(np.linalg.cholesky(among - beside @ beside.T))
        grown = np.zeros((size + new, size + new))
        grown[:size, :size] = self.inverse
        grown[size:, :size] = -corner @ (beside @ self.inverse)
        # inv leaves dust above the diagonal.
        grown[size:, size:] = np.tril(corner)
        self.inverse = grown
        self.targets = np.concatenate([self.targets, targets])
        return np.asarray(grown.T @ (grown @ self.targets))

    def precisions(self) -> FloatArray:
        """The diagonal of (L Lᵀ)⁻¹: one over the variance of each row that the others leave unexplained."""
        return np.asarray(np.square(self.inverse).sum(axis=0))
