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
# Rows that add less than this share of the largest row may add nothing: then all singular values decide, as in pinv.
_DOUBT = 1e-6
# Singular values below this share of the largest are rounding.
_SMALLEST = 1e-13


class GrowingLeastSquares:
    """pinv(M) · c for a matrix M that grows by rows; float64 throughout."""

    def __init__(self, n_columns: int) -> None:
        self.n_columns = n_columns
        self.n_rows = 0
        self.solution: FloatArray = np.zeros(n_columns)
        self._basis: FloatArray = np.empty((n_columns, 0), order="F")
        self._rows: list[FloatArray] = []
        self._targets: list[FloatArray] = []
        self._largest_norm = 0.0
        # Upper triangle of [M in the basis | targets]: absent while the solution still passes through every target.
        self._factor: FloatArray | None = None

    @property
    def rank(self) -> int:
        """Directions seen so far."""
        return int(self._basis.shape[1])

    def append(self, rows: FloatArray, targets: FloatArray) -> None:
        """Add rows (m × columns) and their targets (m)."""
        if not len(rows):
            return
        rows = np.asarray(rows, dtype=np.float64)
        targets = np.asarray(targets, dtype=np.float64)
        self.n_rows += len(rows)
        self._largest_norm = max(self._largest_norm, float(np.linalg.norm(rows, axis=1).max()))
        directions, in_doubt = self._new_directions(rows)
        if self._factor is None and not in_doubt and directions.shape[1]:
            missing = targets - rows @ self.solution
            self.solution = self.solution + directions @ np.linalg.solve(rows @ directions, missing)
            self._basis = np.hstack([self._basis, directions])
            self._rows.append(rows)
            self._targets.append(targets)
        else:
            self._solve_all(rows, targets, directions, in_doubt=in_doubt)

    def _new_directions(self, rows: FloatArray) -> tuple[FloatArray, bool]:
        """Orthonormal directions that the rows add to the basis, and whether some of them may be rounding."""
        room = self.n_columns - self.rank
        if room == 0:
            return np.empty((self.n_columns, 0)), False
        left = self._off_basis(self._off_basis(rows.T))
        directions, triangle = np.linalg.qr(left)
        in_doubt = len(rows) > room or np.abs(np.diag(triangle)).min() <= _DOUBT * self._largest_norm
        if in_doubt:
            rounding = max(self.n_rows, self.n_columns) * np.finfo(np.float64).eps * self._largest_norm
            directions, lengths, _ = _singular(left)
            directions = directions[:, : min(room, np.count_nonzero(lengths > rounding))]
        # What survives a near-dependence is mostly rounding along the basis: clean and normalise it again.
        return np.linalg.qr(self._off_basis(directions))[0], bool(in_doubt)

    def _solve_all(self, rows: FloatArray, targets: FloatArray, directions: FloatArray, *, in_doubt: bool) -> None:
        """Solve with targets that compete; from the first time on, the whole system is kept as a triangle."""
        if self._factor is None:
            rows = np.vstack([*self._rows, rows])
            targets = np.concatenate([*self._targets, targets])
            self._rows, self._targets = [], []
            above = np.empty((0, self.rank + directions.shape[1] + 1))
        else:
            # Old equations say nothing about new directions: zeros between the old columns and the target column.
            above = np.insert(self._factor, [self.rank] * directions.shape[1], 0, axis=1)
        self._basis = np.hstack([self._basis, directions])
        system = np.vstack([above, np.hstack([rows @ self._basis, targets[:, None]])])
        if in_doubt:
            # Earlier directions are only as sharp as the rows that gave them: judged one by one, a dependent row can
            # seem to add something. Turn the basis to the singular directions of the whole and keep the real ones.
            _, sizes, turn = _singular(system[:, :-1])
            turn = turn[: np.count_nonzero(sizes > _SMALLEST * sizes.max(initial=0.0))].T
            self._basis = self._basis @ turn
            system = np.hstack([system[:, :-1] @ turn, system[:, -1:]])
        factor = np.asarray(np.linalg.qr(system, mode="r"))
        self._factor = factor
        solved = _back_substituted(factor[: self.rank, : self.rank], factor[: self.rank, -1])
        self.solution = self._basis @ solved

    def _off_basis(self, columns: FloatArray) -> FloatArray:
        return columns - self._basis @ (self._basis.T @ columns)


def _singular(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The thin singular value decomposition."""
    try:
        left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
    except np.linalg.LinAlgError:
        # LAPACK's quick algorithm gives up on a finite matrix now and then, and not on its transpose.
        right, sizes, left = np.linalg.svd(matrix.T, full_matrices=False)
        left, right = left.T, right.T
    return left, sizes, right


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
