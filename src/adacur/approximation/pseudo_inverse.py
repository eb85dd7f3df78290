"""The paper's approximation: Ŝ = C · pinv(R_anc[A]) · R_anc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.approximation.least_squares import GrowingLeastSquares
from adacur.approximation.linear import Weights, predictions
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query

__all__ = ["PseudoInverse"]


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
        return predictions(self._items, self._weights())

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions are scores already."""
        return predicted

    def _weights(self) -> list[Weights]:
        return [(solve.solution, 0.0) for solve in self._solves]
