"""AXN's approximation: a query's vector by regression of its exact scores on the items' embeddings.

With V the embeddings of the items scored so far and s their scores, both centred,

    u_linreg = Vᵀ (V Vᵀ + ρ I)⁻¹ s,    u = (1 − λ) · u_linreg + λ · ‖u_linreg‖ · u_dual / ‖u_dual‖

and an item's predicted score is its embedding · u, plus the constant that makes the mean of the scored items right.
No anchor query is used, so the index costs no scorer call.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.approximation.gaussian_features import EmbedQueries, checked_embeddings, unit_vectors
from adacur.approximation.pseudo_inverse import Weights, linear_predictions
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query


class EmbeddingRegression:
    """Predict by a dual encoder's item embeddings and a query vector that follows the exact scores (AXN_DE,DE).

    `embeddings` are in the order of the index's items. `embed_queries` gives the dual encoder's own query vectors, as
    `Dense.embed_queries` does; `blend` (λ) is their weight beside the regression, 0 for none. The dual encoder's scale
    is not the scorer's, so its vector is stretched to the length of the regression's. `ridge` (ρ) is relative to the
    mean squared distance of the scored items from their centre.
    """

    def __init__(
        self,
        embeddings: FloatArray,
        *,
        embed_queries: EmbedQueries | None = None,
        blend: float = 0.6,
        ridge: float = 0.3,
    ) -> None:
        if not 0 <= blend <= 1:
            raise InputError(f"blend must be between 0 and 1; got {blend}.")
        if blend and embed_queries is None:
            raise InputError(f"blend={blend} mixes in the query's own embedding; give embed_queries=…, or blend=0.")
        if not ridge > 0:
            raise InputError(f"ridge must be positive; got {ridge}. A small one, such as 1e-6, comes close to none.")
        self.embeddings = checked_embeddings(embeddings)
        self.embed_queries = embed_queries
        self.blend = blend
        self.ridge = ridge

    def __repr__(self) -> str:
        return f"EmbeddingRegression(blend={self.blend}, ridge={self.ridge})"

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _Regressed:
        """A fresh approximation for these queries; of `anchors` only the items are asked for."""
        if len(self.embeddings) != len(anchors.items):
            raise InputError(
                f"One embedding per item is needed; got {len(self.embeddings)} for {len(anchors.items)} items."
            )
        return _Regressed(self.embeddings, self._directions(queries), blend=self.blend, ridge=self.ridge)

    def _directions(self, queries: Sequence[Query]) -> FloatArray:
        """The dual encoder's query vectors at length 1, or zeros where they have no weight."""
        shape = (len(queries), self.embeddings.shape[1])
        if not self.blend:
            return np.zeros(shape)
        vectors = unit_vectors(self.embed_queries, queries)
        assert vectors is not None
        if vectors.shape != shape:
            raise InputError(f"embed_queries must give vectors of shape {shape}; got {vectors.shape}.")
        return vectors


class _Regressed:
    """A batch of queries, each with a vector fitted to its own exact scores."""

    def __init__(self, embeddings: FloatArray, directions: FloatArray, *, blend: float, ridge: float) -> None:
        self._embeddings = embeddings
        self._directions = directions
        self._blend = blend
        self._ridge = ridge
        self._positions: list[list[IntArray]] = [[np.empty(0, dtype=np.intp)] for _ in directions]
        self._exact: list[list[FloatArray]] = [[np.empty(0)] for _ in directions]

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for scored, exact, where, score in zip(self._positions, self._exact, positions, scores, strict=True):
            scored.append(where)
            exact.append(np.asarray(score, dtype=np.float64))

    def predict(self) -> FloatArray:
        """Predicted scores of every item, shape (queries, items)."""
        return linear_predictions(self._embeddings, [self._fitted(at) for at in range(len(self._positions))])

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions are scores already."""
        return predicted

    def _fitted(self, index: int) -> Weights:
        scored, exact = np.concatenate(self._positions[index]), np.concatenate(self._exact[index])
        direction = self._directions[index]
        if not len(scored):
            return self._blend * direction, 0.0
        rows = self._embeddings[scored].astype(np.float64)
        centre, level = rows.mean(axis=0), float(exact.mean())
        rows -= centre
        kernel = rows @ rows.T
        # Items that embed alike say nothing; the ridge still has to make the system solvable.
        kernel[np.diag_indices_from(kernel)] += self._ridge * (kernel.trace() / len(scored) or 1.0)
        vector = rows.T @ np.linalg.solve(kernel, exact - level)
        # Equal scores, or a single one, point nowhere: then the dual encoder alone leads.
        length = float(np.linalg.norm(vector)) or 1.0
        vector = (1 - self._blend) * vector + self._blend * length * direction
        return vector, level - float(centre @ vector)
