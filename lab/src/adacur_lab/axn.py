"""AXN, a rival: like ADACUR, but a query's vector is a regression of its exact scores on the items' embeddings.

With V the embeddings of the items scored so far and s their scores, both centred,

    u_linreg = Vᵀ (V Vᵀ + ρ I)⁻¹ s,    u = (1 − λ) · u_linreg + λ · ‖u_linreg‖ · u_dual / ‖u_dual‖

and an item's predicted score is its embedding · u, plus the constant that makes the mean of the scored items right.
No anchor query is used, so the index costs no scorer call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.cur import Weights, linear_predictions
from adacur.model.features import EmbedQueries, checked_embeddings, unit_vectors
from adacur.protocols import AnchorScores, Approximator
from adacur.records import Query
from adacur.search import AdaCUR
from adacur.store import AnchorTable


@dataclass(frozen=True, slots=True, kw_only=True)
class AXN(AdaCUR):
    """Like `AdaCUR`, predicting from the dual encoder's item vectors alone: no anchor scores are used.

    `approximator` is by default an `EmbeddingRegression` on the vectors of the dense first stage.
    """

    name: ClassVar[str] = "axn"
    needs: ClassVar[tuple[str, ...]] = ("vectors",)

    approximator: Approximator | None = None  # type: ignore[assignment]

    def plan(self, base: Any, source: Any, *, k: int) -> Any:
        """The base plan in rounds of predictions from item vectors."""
        approximator = self.approximator or source.kept("axn", lambda: _of_dense(source))
        made = AdaCUR.plan(replace(self, approximator=approximator), base, source, k=k)
        assert made.model is not None
        return replace(made, model=replace(made.model, anchors=AnchorTable.of_items(source.anchors.items)))


def _of_dense(source: Any) -> EmbeddingRegression:
    vectors = source.item_vectors()
    if vectors is None or vectors.embed_queries is None:
        raise InputError("AXN predicts from a dual encoder's vectors of all items: the index needs first=['dense'].")
    return EmbeddingRegression(vectors.all_rows(), embed_queries=vectors.embed_queries)


class EmbeddingRegression:
    """Predict by a dual encoder's item embeddings and a query vector that follows the exact scores (AXN_DE,DE).

    `embeddings` are in the order of the index's items. `embed_queries` gives the dual encoder's own query vectors, as
    `Dense.embed_queries` does; `blend` (λ) is their weight in the mix, 0 for none. The dual encoder's scale
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
        """A fresh approximation for these queries; of `anchors` only the number of items is used."""
        if len(self.embeddings) != len(anchors.items):
            raise InputError(
                f"One embedding per item is needed; got {len(self.embeddings)} for {len(anchors.items)} items."
            )
        shape = (len(queries), self.embeddings.shape[1])
        directions = unit_vectors(self.embed_queries, queries) if self.blend else np.zeros(shape)
        assert directions is not None
        if directions.shape != shape:
            raise InputError(f"embed_queries must give vectors of shape {shape}; got {directions.shape}.")
        return _Regressed(self.embeddings, directions, blend=self.blend, ridge=self.ridge)


class _Regressed:
    """A batch of queries, each with a vector fitted to its own exact scores; `directions` are the dual encoder's."""

    def __init__(self, embeddings: FloatArray, directions: FloatArray, *, blend: float, ridge: float) -> None:
        self._embeddings = embeddings
        self._directions = directions
        self._blend = blend
        self._ridge = ridge
        self._scored: list[tuple[IntArray, FloatArray]] = [(np.empty(0, dtype=np.intp), np.empty(0))] * len(directions)

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        self._scored = [
            (np.append(known, where), np.append(exact, new))
            for (known, exact), where, new in zip(self._scored, positions, scores, strict=True)
        ]

    def predict(self) -> FloatArray:
        """Predicted scores of every item, shape (queries, items)."""
        fitted = [self._fitted(*scored, way) for scored, way in zip(self._scored, self._directions, strict=True)]
        return linear_predictions(self._embeddings, fitted)

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Predictions are scores already."""
        return predicted

    def _fitted(self, scored: IntArray, exact: FloatArray, direction: FloatArray) -> Weights:
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
