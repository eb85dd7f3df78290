"""Minimum-norm least squares that grows: rows are appended, nothing is solved twice.

With M the rows seen so far and c their targets, `solution` is pinv(M) · c. Two regimes:

- While every new row brings a new direction, the solution passes through every target. Old coordinates stay
  as they are, and a batch of m rows costs O(m · k · rank).
- Once a row lies in the span of the earlier ones (more rows than columns, or equal rows), targets compete.
  The triangular factor of M in the basis is then kept and updated with each batch, O(m · rank²).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.linalg.lapack import dtpqrt

from adacur.core.arrays import FloatArray

__all__ = ["GrowingLeastSquares"]


class GrowingLeastSquares:
    """pinv(M) · c for a matrix M that grows by rows; float64 throughout."""

    def __init__(self, n_columns: int) -> None:
        self.n_columns = n_columns
        self.rank = 0
        self.n_rows = 0
        self.solution: FloatArray = np.zeros(n_columns)
        self._basis: FloatArray = np.empty((n_columns, 0), order="F")
        self._rows: list[FloatArray] = []
        self._targets: list[FloatArray] = []
        self._largest_norm = 0.0
        # Upper triangle of [T g; 0 residual]: absent while the solution still passes through every target.
        self._factor: FloatArray | None = None

    def append(self, rows: FloatArray, targets: FloatArray) -> None:
        """Add rows (m × columns) and their targets (m)."""
        if not len(rows):
            return
        rows = np.asarray(rows, dtype=np.float64)
        targets = np.asarray(targets, dtype=np.float64)
        self.n_rows += len(rows)
        self._largest_norm = max(self._largest_norm, float(np.linalg.norm(rows, axis=1).max()))
        directions = self._new_directions(rows)
        along_old = rows @ self._basis
        along_new = rows @ directions
        self._basis = np.hstack([self._basis, directions])
        self.rank = self._basis.shape[1]
        if self._factor is None and directions.shape[1] == len(rows):
            missing = targets - rows @ self.solution
            self.solution = self.solution + directions @ np.linalg.solve(along_new, missing)
            self._rows.append(rows)
            self._targets.append(targets)
            return
        if self._factor is None:
            # The first row that brings nothing new: from here on the whole system is kept as a triangle.
            rows = np.vstack([*self._rows, rows])
            targets = np.concatenate([*self._targets, targets])
            self._rows, self._targets = [], []
            block = np.hstack([rows @ self._basis, targets[:, None]])
            self._factor = _square(qr(block, mode="r", check_finite=False)[0])
        else:
            block = np.hstack([along_old, along_new, targets[:, None]])
            self._factor = _update(_widen(self._factor, self.rank + 1), block)
        triangle, image = self._factor[:-1, :-1], self._factor[:-1, -1]
        self.solution = self._basis @ solve_triangular(triangle, image, check_finite=False)

    def _new_directions(self, rows: FloatArray) -> FloatArray:
        """Orthonormal directions that the rows add to the basis; none where what is left is rounding."""
        room = self.n_columns - self.rank
        if room == 0:
            return np.empty((self.n_columns, 0))
        left = self._off_basis(self._off_basis(rows.T))
        # Pivoting puts the rows that add most first, so the rank can be read off the diagonal.
        directions, triangle, _ = qr(left, mode="economic", pivoting=True, check_finite=False)
        rounding = max(self.n_rows, self.n_columns) * np.finfo(np.float64).eps * self._largest_norm
        rank = min(room, int(np.count_nonzero(np.abs(np.diag(triangle)) > rounding)))
        # What survives a near-dependence is mostly rounding along the basis: clean and normalise it again.
        cleaned: Any = qr(self._off_basis(directions[:, :rank]), mode="economic", check_finite=False)[0]
        return np.asarray(cleaned)

    def _off_basis(self, columns: FloatArray) -> FloatArray:
        return columns - self._basis @ (self._basis.T @ columns)


def _square(triangle: FloatArray) -> FloatArray:
    """The upper triangle as a square array, with zero rows where there were fewer rows than columns."""
    size = triangle.shape[1]
    square = np.zeros((size, size))
    square[: min(len(triangle), size)] = triangle[:size]
    return square


def _widen(factor: FloatArray, size: int) -> FloatArray:
    """Room for new directions between the old ones and the target column."""
    old = len(factor) - 1
    if size == old + 1:
        return factor
    wide = np.zeros((size, size))
    wide[:old, :old] = factor[:-1, :-1]
    wide[:old, -1] = factor[:-1, -1]
    wide[-1, -1] = factor[-1, -1]
    return wide


def _update(factor: FloatArray, block: FloatArray) -> FloatArray:
    """The upper triangle of [factor; block]."""
    triangle, _, _, info = dtpqrt(0, min(32, len(factor)), np.asfortranarray(factor), np.asfortranarray(block))
    if info != 0:
        raise np.linalg.LinAlgError(f"dtpqrt reported {info}")
    return np.triu(triangle)
