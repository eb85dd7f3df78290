"""Minimum-norm least squares that grows: rows are appended, nothing is solved twice.

With M the rows seen so far and c their targets, `solution` is pinv(M) · c. Two regimes:

- While every new row brings a new direction, the solution passes through every target. Old coordinates stay
  as they are, and a batch of m rows costs O(m · k · rank).
- Once a row lies in the span of the earlier ones (more rows than columns, or equal rows), targets compete.
  The triangular factor of M in the basis is then kept and updated with each batch, O((m + rank) · rank²).
"""

from __future__ import annotations

import numpy as np

from adacur.core.arrays import FloatArray

__all__ = ["GrowingLeastSquares"]

_BLOCK = 64


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
        # Upper triangle of [M in the basis | targets]: absent while the solution still passes through every target.
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
        old_rank, self.rank = self.rank, self.rank + directions.shape[1]
        self._basis = np.hstack([self._basis, directions])
        if self._factor is None and directions.shape[1] == len(rows):
            missing = targets - rows @ self.solution
            self.solution = self.solution + directions @ np.linalg.solve(rows @ directions, missing)
            self._rows.append(rows)
            self._targets.append(targets)
            return
        if self._factor is None:
            # The first row that brings nothing new: from here on the whole system is kept as a triangle.
            rows = np.vstack([*self._rows, rows])
            targets = np.concatenate([*self._targets, targets])
            self._rows, self._targets = [], []
            above = np.empty((0, self.rank + 1))
        else:
            # Old equations say nothing about new directions: zeros between the old columns and the target column.
            above = np.insert(self._factor, [old_rank] * (self.rank - old_rank), 0, axis=1)
        new = np.hstack([rows @ self._basis, targets[:, None]])
        factor = np.asarray(np.linalg.qr(np.vstack([above, new]), mode="r"))
        self._factor = factor
        triangle, image = factor[: self.rank, : self.rank], factor[: self.rank, -1]
        self.solution = self._basis @ _back_substituted(triangle, image)

    def _new_directions(self, rows: FloatArray) -> FloatArray:
        """Orthonormal directions that the rows add to the basis; none where what is left is rounding."""
        room = self.n_columns - self.rank
        if room == 0:
            return np.empty((self.n_columns, 0))
        left = self._off_basis(self._off_basis(rows.T))
        rounding = max(self.n_rows, self.n_columns) * np.finfo(np.float64).eps * self._largest_norm
        directions, triangle = np.linalg.qr(left)
        if len(rows) > room or np.abs(np.diag(triangle)).min() <= rounding:
            # Some rows depend on others: keep the directions along which more than rounding is left.
            directions, lengths, _ = np.linalg.svd(left, full_matrices=False)
            directions = directions[:, : min(room, np.count_nonzero(lengths > rounding))]
        # What survives a near-dependence is mostly rounding along the basis: clean and normalise it again.
        return np.linalg.qr(self._off_basis(directions))[0]

    def _off_basis(self, columns: FloatArray) -> FloatArray:
        return columns - self._basis @ (self._basis.T @ columns)


def _back_substituted(triangle: FloatArray, image: FloatArray) -> FloatArray:
    """The solution of an upper triangular system, block by block from below.

    Numpy has no triangular solver. SciPy's brings a second BLAS, whose idle threads keep a core busy for a while after
    every call: alternating between the two cost ten times the arithmetic on a machine with two cores.
    """
    solution = np.array(image)
    for stop in range(len(image), 0, -_BLOCK):
        start = max(0, stop - _BLOCK)
        solution[start:stop] = np.linalg.solve(triangle[start:stop, start:stop], solution[start:stop])
        solution[:start] -= triangle[:start, start:stop] @ solution[start:stop]
    return solution
