"""The conditional mean of a Gaussian: what anchor queries, embeddings and exact scores let one expect.

Anchor queries are draws from the population of queries, so they estimate the mean m and the covariance K of a query's
scores over the items. Having seen scores s at items A, the best linear guess of the rest is

    ŝ = m + K[:, A] (K[A, A] + λ I)⁻¹ (s_A − m_A)

What goes into m and K, each part of which can be left out:

- scores are modelled on a `ScoreScale`, so that the crowded bottom of a cross-encoder's range counts;
- m is what anchor queries like this one scored: a kernel regression on the query embeddings, or the plain mean;
- K is the covariance of what that regression left unexplained of each anchor query, told without that query's help,
  with more weight on anchor queries like this one;
- items that embed alike share evidence, which anchor queries may be too few to tell.

With every part left out this is the paper's pseudo-inverse.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from adacur.approximation.growing_cholesky import GrowingCholesky
from adacur.approximation.item_factors import ItemFactors
from adacur.approximation.score_scale import ScoreScale
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query

__all__ = ["Gaussian"]

_ROWS_PER_BLOCK = 4096
# Variance of a query's own level, which lifts all items alike, relative to that of an item's score.
_LEVEL = 0.5
# Below this the system is singular as soon as two items are alike; predictions differ by less than float32 can tell.
_LEAST_NOISE = 1e-10
# Chosen at 500 anchor queries by replay; with fewer, each has to speak for more queries, and embeddings for more items.
_SETTLED_ANCHORS = 500
_LOCALITY = 0.07
_QUERY_SCALE = 0.2

EmbedQueries = Callable[[Sequence[Query]], FloatArray]


class Gaussian:
    """Predict by the mean and covariance of the anchor queries' scores and, where given, embeddings.

    - `embeddings`: of the items, in the order of the index; `embedding_weight` is their share of covariance relative
      to the anchor scores' (default: 1 at 500 anchor queries, more with fewer; 0 for none).
    - `embed_queries`: the dual encoder's query vectors, as `Dense.embed_queries` gives them. `query_noise` regularises
      the regression of anchor scores on them; `locality` is the temperature at which anchor queries count by their
      likeness (default: .07 at 500 anchor queries, more with fewer; infinity for all alike).
    - `noise` (λ) is relative to the mean variance of an item's score.
    - `rescale=False` models scores as they are, `centre=False` leaves the mean out.

    What depends on the index alone is computed once and kept while searches go on with the same index.
    """

    def __init__(
        self,
        *,
        embeddings: FloatArray | None = None,
        embed_queries: EmbedQueries | None = None,
        noise: float = 0.3,
        embedding_weight: float | None = None,
        query_noise: float = 0.3,
        locality: float | None = None,
        rescale: bool = True,
        centre: bool = True,
    ) -> None:
        if not noise >= 0:
            raise InputError(f"noise is not negative; got {noise}.")
        if embedding_weight is not None and not embedding_weight >= 0:
            raise InputError(f"embedding_weight is not negative; got {embedding_weight}.")
        if not query_noise > 0:
            raise InputError(f"query_noise is positive; got {query_noise}.")
        if locality is not None and not locality > 0:
            raise InputError(f"locality is positive; got {locality}. float('inf') counts all anchor queries alike.")
        if embeddings is not None:
            embeddings = np.asarray(embeddings)
            if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
                raise InputError(f"Embeddings are finite numbers, a row per item; got shape {embeddings.shape}.")
            # Weights are cast to the embeddings' type, and whole numbers or halves would lose them.
            embeddings = embeddings if embeddings.dtype in (np.float32, np.float64) else embeddings.astype(np.float32)
        self.embeddings = embeddings
        self.embed_queries = embed_queries
        self.noise = noise
        self.embedding_weight = embedding_weight
        self.query_noise = query_noise
        self.locality = locality
        self.rescale = rescale
        self.centre = centre
        self._kept = _Kept()

    def adjusted(
        self, *, noise: float | None = None, embedding_weight: float | None = None, locality: float | None = None
    ) -> Gaussian:
        """The same with other settings, sharing what depends on the index alone; None leaves one as it is."""
        given = {"noise": noise, "embedding_weight": embedding_weight, "locality": locality}
        own = {name: getattr(self, name) if value is None else value for name, value in given.items()}
        other = Gaussian(
            embeddings=self.embeddings,
            embed_queries=self.embed_queries,
            query_noise=self.query_noise,
            rescale=self.rescale,
            centre=self.centre,
            **own,
        )
        other._kept = self._kept
        return other

    def __repr__(self) -> str:
        weight = "auto" if self.embedding_weight is None else self.embedding_weight
        parts = [
            f"noise={self.noise}",
            f"embedding_weight={weight}" if self.embeddings is not None else "no embeddings",
        ]
        if self.embed_queries is not None:
            parts += [f"query_noise={self.query_noise}", f"locality={self.locality or 'auto'}"]
        parts += ["rescale=False"] * (not self.rescale) + ["centre=False"] * (not self.centre)
        return f"Gaussian({', '.join(parts)})"

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _Conditioned:
        """A fresh approximation for these queries."""
        features = self._features_of(anchors)
        prior = self._prior(features)
        vectors = self._vectors(queries) if features.anchor_vectors is not None else None
        return _Conditioned(
            prior, [prior.posterior(None if vectors is None else vectors[row]) for row in range(len(queries))]
        )

    def _features_of(self, anchors: AnchorScores) -> _Features:
        # Many threads may begin at once, and each set of features is a second copy of the index.
        with self._kept.lock:
            if self._kept.features is None or self._kept.matrix is not anchors.matrix:
                self._kept.matrix, self._kept.features = anchors.matrix, self._extracted(anchors)
            return self._kept.features

    def _extracted(self, anchors: AnchorScores) -> _Features:
        matrix = anchors.matrix
        if self.embeddings is not None and len(self.embeddings) != len(matrix):
            raise InputError(f"One embedding per item is needed; got {len(self.embeddings)} for {len(matrix)} items.")
        n_anchors = matrix.shape[1]
        scale = ScoreScale.plain()
        if self.rescale and n_anchors:
            scale = ScoreScale.fit(matrix, keys=anchors.items.keys)
        vectors = self._vectors(anchors.anchor_queries) if n_anchors else None
        spread, trust = np.eye(n_anchors), np.zeros(n_anchors)
        if vectors is not None:
            # What the others say of an anchor query, without itself, in closed form: residual = (K + ρ)⁻¹ y / diagonal.
            inverse = np.linalg.inv(_kernel(vectors, vectors) + self.query_noise * np.eye(n_anchors))
            trust = np.diag(inverse).copy()
            spread = inverse / trust[:, None]
        means = np.zeros(len(matrix))
        residuals = np.empty_like(matrix)
        turn = spread.T.astype(matrix.dtype)
        for start in range(0, len(matrix), _ROWS_PER_BLOCK):
            rows = slice(start, start + _ROWS_PER_BLOCK)
            block = scale.rarity(matrix[rows])
            if self.centre and n_anchors:
                means[rows] = block.mean(axis=1)
                block -= means[rows, None]
            block = block.astype(matrix.dtype)
            residuals[rows] = block @ turn if vectors is not None else block
        parts, centres = [residuals], [np.zeros(n_anchors)]
        embedding_variance = 0.0
        if self.embeddings is not None:
            middle = self.embeddings.mean(axis=0, dtype=np.float64)
            squares = float(np.square(self.embeddings, dtype=np.float64).sum(axis=1).mean())
            embedding_variance = max(0.0, squares - float(middle @ middle))
            parts.append(self.embeddings)
            centres.append(middle)
        return _Features(
            scale=scale,
            means=means.astype(matrix.dtype),
            factors=ItemFactors(parts, centres),
            anchor_vectors=vectors,
            trust=trust,
            variance=float(np.square(residuals, dtype=np.float64).mean()) if n_anchors else 0.0,
            embedding_variance=embedding_variance,
        )

    def _prior(self, features: _Features) -> _Prior:
        fewer = float(np.clip(_SETTLED_ANCHORS / max(1, len(features.trust)), 1, 16))
        weight = fewer**0.3 if self.embedding_weight is None else self.embedding_weight
        if not features.embedding_variance:
            weight = 0.0
        # An index whose scores never vary says nothing of scale; the embeddings then stand alone.
        variance = features.variance or 1.0
        return _Prior(
            features=features,
            locality=self.locality or _LOCALITY * fewer**0.5,
            per_dimension=weight * variance / features.embedding_variance if weight else 0.0,
            level=_LEVEL * variance if self.centre else 0.0,
            noise=max(self.noise, _LEAST_NOISE) * variance * (1 + weight),
        )

    def _vectors(self, queries: Sequence[Query]) -> FloatArray | None:
        """Query vectors at length 1."""
        if self.embed_queries is None:
            return None
        vectors = np.asarray(self.embed_queries(queries), dtype=np.float64)
        if vectors.ndim != 2 or len(vectors) != len(queries) or not np.isfinite(vectors).all():
            raise InputError(
                f"embed_queries gives a finite vector per query; got shape {vectors.shape} for {len(queries)} queries."
            )
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


class _Kept:
    """The features of the index searched last, shared by approximators that differ in their settings."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.matrix: FloatArray | None = None
        self.features: _Features | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Features:
    """What follows from the index alone: means and features of the items, and who the anchor queries are.

    The first `len(trust)` features of an item belong to the anchor queries, the rest to its embedding; `variance` and
    `embedding_variance` are the means over the items.
    """

    scale: ScoreScale
    means: FloatArray
    factors: ItemFactors
    anchor_vectors: FloatArray | None
    trust: FloatArray
    variance: float
    embedding_variance: float


@dataclass(frozen=True, slots=True, eq=False)
class _Prior:
    """What is expected of any query, before one is seen."""

    features: _Features
    locality: float
    per_dimension: float
    level: float
    noise: float

    def posterior(self, vector: FloatArray | None) -> _Posterior:
        """What is expected of a query with this vector, told nothing yet."""
        features = self.features
        n_anchors = len(features.trust)
        variances = np.full(features.factors.n_features, self.per_dimension)
        start = np.zeros(features.factors.n_features)
        variances[:n_anchors] = 1 / max(1, n_anchors)
        if features.anchor_vectors is not None and vector is not None:
            likeness = features.anchor_vectors @ vector
            weights = np.exp((likeness - likeness.max()) / self.locality)
            variances[:n_anchors] = weights / weights.sum()
            start[:n_anchors] = np.exp((likeness - 1) / _QUERY_SCALE) * features.trust
        return _Posterior(self, variances=variances, start=start)


class _Conditioned:
    """A batch of queries, each conditioned on its own exact scores."""

    def __init__(self, prior: _Prior, queries: Sequence[_Posterior]) -> None:
        self._prior = prior
        self._queries = queries

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for query, where, exact in zip(self._queries, positions, scores, strict=True):
            if len(where):
                query.tell(where, exact)

    def predict(self) -> FloatArray:
        """Predictions for every item on the prior's scale, shape (queries, items)."""
        features = self._prior.features
        predicted = np.empty((len(self._queries), len(features.means)), dtype=features.means.dtype)
        # One product per query: an answer must not depend on the size of its batch.
        for row, query in zip(predicted, self._queries, strict=True):
            np.add(features.factors.product(query.direction), features.means, out=row)
            row += row.dtype.type(query.level)
        return predicted

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions as scores of the scorer."""
        return self._prior.features.scale.score(predicted)

    def predict_precisely(self) -> FloatArray:
        """Predicted scores of every item in float64."""
        features = self._prior.features
        precise = [features.factors.precise_product(query.direction) + query.level for query in self._queries]
        return features.scale.score(np.stack(precise) + features.means)

    def chance_above(self, query: int, positions: IntArray, score: float) -> FloatArray:
        """How likely each of these unscored items is to score above `score`, for the query at this place."""
        expected, deviation = self._queries[query].expect(positions)
        distance = (self._prior.features.scale.rarity(np.array([score]))[0] - expected) / deviation
        return _tail(distance)


class _Posterior:
    """One query: what its exact scores say of every item.

    `variances` are those of the features, `direction` their expected weights so far, `level` what all items share.
    """

    def __init__(self, prior: _Prior, *, variances: FloatArray, start: FloatArray) -> None:
        self._prior = prior
        self._variances = variances
        self._start = start
        self._factor = GrowingCholesky()
        self._told: IntArray = np.empty(0, dtype=np.intp)
        self._surprise: FloatArray = np.empty(0)
        self._offset = 0.0
        self.direction = start
        self.level = 0.0

    def tell(self, positions: IntArray, scores: FloatArray) -> None:
        prior, features, known = self._prior, self._prior.features, len(self._told)
        rarities = features.scale.rarity(scores)
        if not known and not len(features.trust):
            # Without anchor queries nothing else says where this query's scores lie.
            self._offset = float(rarities.mean())
        self._told = np.concatenate([self._told, positions])
        rows = features.factors.rows(self._told)
        covariance = (rows[known:] * self._variances) @ rows.T + prior.level
        own = covariance[:, known:]
        own[np.diag_indices_from(own)] += prior.noise
        self._factor.append(covariance[:, :known], own)
        missing = rarities - features.means[positions] - rows[known:] @ self._start - self._offset
        self._surprise = np.concatenate([self._surprise, missing])
        answer = self._factor.solve(self._surprise)
        self.direction = self._start + self._variances * (rows.T @ answer)
        self.level = self._offset + prior.level * float(answer.sum())

    def expect(self, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Mean and standard deviation of the scores of these items, on the prior's scale."""
        prior, features = self._prior, self._prior.features
        rows = features.factors.rows(positions)
        weighted = rows * self._variances
        across = weighted @ features.factors.rows(self._told).T + prior.level
        before = (weighted * rows).sum(axis=1) + prior.level + prior.noise
        explained = np.square(self._factor.whiten(across.T)).sum(axis=0)
        expected = features.means[positions] + rows @ self.direction + self.level
        # Rounding may explain a hair more than there is.
        return expected, np.sqrt(np.maximum(before - explained, 1e-12 * before))


def _kernel(some: FloatArray, others: FloatArray) -> FloatArray:
    return np.asarray(np.exp((some @ others.T - 1) / _QUERY_SCALE))


def _tail(distances: FloatArray) -> FloatArray:
    """The share of a normal distribution that lies above."""
    return np.array([0.5 * math.erfc(distance / math.sqrt(2)) for distance in distances.tolist()])
