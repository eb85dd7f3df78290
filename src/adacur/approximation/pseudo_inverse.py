"""The paper's approximation: Ŝ = C · pinv(R_anc[A]) · R_anc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.approximation.least_squares import GrowingLeastSquares
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query

__all__ = ["PseudoInverse"]

_ROWS_PER_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class PseudoInverse:
    """Algorithm 1, lines 12–13, with the pseudo-inverse extended round by round instead of recomputed.

    Query embeddings are solved in float64. Scores of all items are their product with the index in the index's
    own precision.
    """

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _QueryEmbeddings:
        """A fresh approximation for these queries."""
        return _QueryEmbeddings(anchors.matrix, len(queries))


class _QueryEmbeddings:
    """The latent embeddings e_q of a batch of queries, and the scores that follow from them."""

    def __init__(self, item_embeddings: FloatArray, n_queries: int) -> None:
        self._items = item_embeddings
        self._solves = [GrowingLeastSquares(item_embeddings.shape[1]) for _ in range(n_queries)]

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for solve, where, exact in zip(self._solves, positions, scores, strict=True):
            solve.append(self._items[where], exact)

    def predict(self) -> FloatArray:
        """Predicted scores of every item, shape (queries, items)."""
        predicted = np.empty((len(self._solves), len(self._items)), dtype=self._items.dtype)
        # One product per query: a product for the whole batch rounds differently with the batch's size, and an
        # answer must not depend on its neighbours.
        for row, solve in zip(predicted, self._solves, strict=True):
            np.dot(self._items, solve.solution.astype(self._items.dtype), out=row)
        return predicted

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions are scores already."""
        return predicted

    def predict_precisely(self) -> FloatArray:
        """The same in float64, whatever the index is stored in."""
        solutions = np.stack([solve.solution for solve in self._solves])
        predicted = np.empty((len(solutions), len(self._items)))
        for start in range(0, len(self._items), _ROWS_PER_BLOCK):
            block = self._items[start : start + _ROWS_PER_BLOCK].astype(np.float64)
            for row, solution in zip(predicted, solutions, strict=True):
                row[start : start + len(block)] = block @ solution
        return predicted
