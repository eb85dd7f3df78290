"""The paper's approximation: Ŝ = C · pinv(R_anc[A]) · R_anc, with a pseudo-inverse that grows round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.protocols import AnchorScores
from adacur.records import Query

# The weights of the columns, and the constant beside them.
Weights = tuple[FloatArray, float]

_BLOCK = 64
# Rows that add less than this share of the largest row may add nothing: then all singular values decide, as in pinv.
_DOUBT = 1e-6
# Singular values below this share of the largest are rounding.
_SMALLEST = 1e-13


@dataclass(frozen=True, slots=True)
class PseudoInverse:
    """Algorithm 1, lines 12–13, with the pseudo-inverse extended round by round instead of recomputed.

    Query embeddings are solved in float64. Scores of all items are their product with the index in the index's
    own precision.
    """

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _QueryEmbeddings:
        """A fresh approximation for these queries."""
        return _QueryEmbeddings(anchors.matrix, len(queries))

    def replay(self, anchors: AnchorScores, positions: IntArray) -> _QueryEmbeddings:
        """An approximation for the anchor queries at these positions, each as if it were new.

        All are predicted in one product, which is fast, but rounds differently with the size of the batch: for
        statistics, not for answers.
        """
        return _QueryEmbeddings(anchors.matrix, len(positions), left_out=positions)


class _QueryEmbeddings:
    """The latent embeddings e_q of a batch of queries, and the scores that follow from them."""

    def __init__(self, item_embeddings: FloatArray, n_queries: int, *, left_out: IntArray | None = None) -> None:
        self._items = item_embeddings
        self._left_out = left_out
        self._solves = [GrowingLeastSquares(item_embeddings.shape[1]) for _ in range(n_queries)]

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for query, (solve, where, exact) in enumerate(zip(self._solves, positions, scores, strict=True)):
            rows = self._items[where]
            if self._left_out is not None:
                # The solution of least norm gives no weight to a column of zeros.
                rows[:, self._left_out[query]] = 0
            solve.append(rows, exact)

    def predict(self) -> FloatArray:
        """Predicted scores of every item, shape (queries, items)."""
        if self._left_out is not None:
            return np.stack([solve.solution for solve in self._solves]).astype(self._items.dtype) @ self._items.T
        return linear_predictions(self._items, [(solve.solution, 0.0) for solve in self._solves])

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Predictions are scores already."""
        return predicted


def linear_predictions(rows: FloatArray, queries: Sequence[Weights]) -> FloatArray:
    """Every row · weights + constant in the precision of the rows, shape (queries, rows)."""
    predicted = np.empty((len(queries), len(rows)), dtype=rows.dtype)
    # One product per query: a product for the whole batch rounds differently with the batch's size, and an answer must
    # not depend on its neighbours.
    for row, (weights, constant) in zip(predicted, queries, strict=True):
        np.dot(rows, weights.astype(row.dtype), out=row)
        if constant:
            row += row.dtype.type(constant)
    return predicted


class GrowingLeastSquares:
    """Minimum-norm least squares that grows: rows are appended, nothing is solved twice; float64 throughout.

    With M the rows seen so far and c their targets, `solution` is pinv(M) · c. Two regimes:

    - While every new row brings a new direction, the solution passes through every target. Old coordinates stay
      as they are, and a batch of m rows costs O(m · k · rank).
    - Once a row lies in the span of the earlier ones (more rows than columns, or equal rows), targets compete.
      The triangular factor of M in the basis is then kept and updated with each batch, O((m + rank) · rank²).
    """

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
