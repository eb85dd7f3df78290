"""The conditional mean of a Gaussian: what the anchor queries and the item embeddings let one expect.

Anchor queries are draws from the population of queries, so they estimate the mean m and the covariance K of a
query's scores over the items. Having seen scores s at items A, the best linear guess of the rest is

    ŝ = m + K[:, A] (K[A, A] + λ I)⁻¹ (s_A − m_A),    K = X Xᵀ / k_q + w E Eᵀ

with X the centred anchor scores and E the centred embeddings of the items. With m = 0, λ = 0 and w = 0 this is the
paper's pseudo-inverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query

__all__ = ["Gaussian"]

_ROWS_PER_BLOCK = 4096


class Gaussian:
    """Predict by the mean and covariance of the anchor queries' scores and, if given, the items' embeddings.

    `noise` (λ) is relative to the mean variance of an item's score; `embedding_weight` (w) is the embeddings' share of
    covariance relative to that of the anchor scores. `embeddings` are in the order of the index's items. What depends
    on the index alone is computed once and kept while searches go on with the same index.
    """

    def __init__(
        self, *, embeddings: FloatArray | None = None, noise: float = 0.3, embedding_weight: float = 1.0
    ) -> None:
        if not noise > 0:
            raise InputError(f"noise is positive; got {noise}. Without noise, use PseudoInverse().")
        if not embedding_weight > 0:
            raise InputError(f"embedding_weight is positive; got {embedding_weight}. Or leave the embeddings out.")
        if embeddings is not None:
            embeddings = np.asarray(embeddings)
            if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
                raise InputError(f"Embeddings are finite numbers, a row per item; got shape {embeddings.shape}.")
            # Weights are cast to the embeddings' type, and whole numbers or halves would lose them.
            embeddings = embeddings if embeddings.dtype in (np.float32, np.float64) else embeddings.astype(np.float32)
        self.embeddings = embeddings
        self.noise = noise
        self.embedding_weight = embedding_weight
        self._prior: _Prior | None = None

    def __repr__(self) -> str:
        kernel = f"embedding_weight={self.embedding_weight}" if self.embeddings is not None else "no embeddings"
        return f"Gaussian(noise={self.noise}, {kernel})"

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _Conditioned:
        """A fresh approximation for these queries."""
        scores = anchors.matrix
        if self.embeddings is not None and len(self.embeddings) != len(scores):
            raise InputError(f"One embedding per item is needed; got {len(self.embeddings)} for {len(scores)} items.")
        prior = self._prior
        if prior is None or prior.scores is not scores:
            prior = _Prior(scores, self.embeddings, noise=self.noise, embedding_weight=self.embedding_weight)
            self._prior = prior
        return _Conditioned(prior, len(queries))


class _Prior:
    """Means and scales of an index; the scores themselves are not copied."""

    def __init__(
        self, scores: FloatArray, embeddings: FloatArray | None, *, noise: float, embedding_weight: float
    ) -> None:
        self.scores = scores
        self.embeddings = embeddings
        self.means = np.empty(len(scores))
        variance = 0.0
        for block, rows in _blocks(scores):
            self.means[rows] = block.mean(axis=1)
            variance += float(block.var(axis=1).sum()) / len(scores)
        # An index whose scores never vary says nothing of scale; the embeddings then stand alone.
        scale = variance or 1.0
        self.embedding_mean: FloatArray = np.zeros(0)
        self.embedding_scale = 0.0
        if embeddings is not None:
            self.embedding_mean = embeddings.mean(axis=0, dtype=np.float64)
            spread = sum(float(((block - self.embedding_mean) ** 2).sum()) for block, _ in _blocks(embeddings))
            self.embedding_scale = embedding_weight * scale * len(embeddings) / spread if spread else 0.0
        self.noise = noise * scale * (1 + (embedding_weight if self.embedding_scale else 0))


class _Conditioned:
    """A batch of queries, each conditioned on its own exact scores."""

    def __init__(self, prior: _Prior, n_queries: int) -> None:
        self._prior = prior
        # Told nothing yet, a query is expected to score like the average one.
        self._told: list[list[IntArray]] = [[np.empty(0, dtype=np.intp)] for _ in range(n_queries)]
        self._exact: list[list[FloatArray]] = [[np.empty(0)] for _ in range(n_queries)]

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for told, exact, where, score in zip(self._told, self._exact, positions, scores, strict=True):
            told.append(where)
            exact.append(np.asarray(score, dtype=np.float64))

    def predict(self) -> FloatArray:
        """Predicted scores of every item, shape (queries, items)."""
        prior = self._prior
        predicted = np.empty((len(self._told), len(prior.scores)), dtype=prior.scores.dtype)
        for row, (told, exact) in zip(predicted, zip(self._told, self._exact, strict=True), strict=True):
            by_anchor, by_embedding = self._weights(np.concatenate(told), np.concatenate(exact))
            # (x − m) · u = x · u − m Σu: the big product runs on the index as it lies there.
            np.dot(prior.scores, by_anchor.astype(row.dtype), out=row)
            row += (prior.means * (1 - by_anchor.sum())).astype(row.dtype)
            if prior.embeddings is not None:
                similar = prior.embeddings @ by_embedding.astype(prior.embeddings.dtype)
                row += (similar - prior.embedding_mean @ by_embedding).astype(row.dtype)
        return predicted

    def predict_precisely(self) -> FloatArray:
        """The same in float64, whatever the index is stored in."""
        prior = self._prior
        predicted = np.empty((len(self._told), len(prior.scores)))
        for row, (told, exact) in zip(predicted, zip(self._told, self._exact, strict=True), strict=True):
            by_anchor, by_embedding = self._weights(np.concatenate(told), np.concatenate(exact))
            for block, rows in _blocks(prior.scores):
                row[rows] = prior.means[rows] * (1 - by_anchor.sum()) + block @ by_anchor
            if prior.embeddings is not None:
                for block, rows in _blocks(prior.embeddings):
                    row[rows] += (block - prior.embedding_mean) @ by_embedding
        return predicted

    def _weights(self, told: IntArray, exact: FloatArray) -> tuple[FloatArray, FloatArray]:
        """How much an anchor query's centred score, and an embedding's dimension, say for this query."""
        prior = self._prior
        scores = prior.scores[told].astype(np.float64) - prior.means[told, None]
        covariance = scores @ scores.T / scores.shape[1]
        embeddings = np.empty((len(told), 0))
        if prior.embeddings is not None:
            embeddings = prior.embeddings[told].astype(np.float64) - prior.embedding_mean
            covariance += prior.embedding_scale * embeddings @ embeddings.T
        covariance[np.diag_indices_from(covariance)] += prior.noise
        answer = np.linalg.solve(covariance, exact - prior.means[told])
        return scores.T @ answer / scores.shape[1], prior.embedding_scale * (embeddings.T @ answer)


def _blocks(rows: FloatArray) -> Iterator[tuple[FloatArray, slice]]:
    """Blocks of rows in float64, and where they lie."""
    for start in range(0, len(rows), _ROWS_PER_BLOCK):
        block = rows[start : start + _ROWS_PER_BLOCK].astype(np.float64)
        yield block, slice(start, start + len(block))
