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

import copy
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from adacur.approximation.growing_cholesky import GrowingCholesky
from adacur.approximation.item_factors import ItemFactors
from adacur.approximation.packed_rows import PackedRows, Room, Rows, RowSource, Storage, check_storage, in_memory
from adacur.approximation.score_scale import ScoreScale
from adacur.core.arrays import FloatArray, IntArray, KeyArray
from adacur.core.device_row import DeviceRow
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import AnchorScores, BlockedScores
from adacur.core.records import Query

__all__ = ["EmbedQueries", "Features", "GaussianModel", "Outline", "rows_at"]

_ROWS_PER_BLOCK = 4096
# Variance of a query's own level, which lifts all items alike, relative to that of an item's score.
_LEVEL = 0.5
# Below this the system is singular as soon as two items are alike; predictions differ by less than float32 can tell.
_LEAST_NOISE = 1e-10
# Chosen at 500 anchor queries by replay; with fewer, each has to speak for more queries, and embeddings for more items.
_SETTLED_ANCHORS = 500
_LOCALITY = 0.07
_QUERY_SCALE = 0.2
# Log-odds that an item scores above the best found: for one predicted to score just that, per spread of this query's
# errors that it is predicted higher, and per logarithm of the rank it would take. Fitted to held-out anchor queries of
# four collections by likelihood.
_AT_FIRST, _PER_SPREAD, _PER_RANK = -4.1, 1.54, 0.68
# Fewer errors than these say nothing of their spread.
_FEWEST_ERRORS = 10

EmbedQueries = Callable[[Sequence[Query]], FloatArray]


class GaussianModel:
    """Predict by the mean and covariance of the anchor queries' scores and, where given, embeddings.

    - `embeddings`: of the items, in the order of the index, as an array, or as rows that only `compressed` reads, a
      block at a time; `embedding_weight` is their share of covariance relative to the anchor scores' (default: 1 at 500
      anchor queries, more with fewer; 0 for none).
    - `embed_queries`: the dual encoder's query vectors, as `Dense.embed_queries` gives them. `query_noise` regularises
      the regression of anchor scores on them; `locality` is the temperature at which anchor queries count by their
      likeness (default: .07 at 500 anchor queries, more with fewer; infinity for all alike).
    - `noise` (λ) is relative to the mean variance of an item's score.
    - `rescale=False` models scores as they are, `centre=False` leaves the mean out.
    - `device` is torch's name of where the features are to lie and predictions to be made, e.g. "cuda"; by default
      numpy makes them.

    What depends on the index alone is computed once and kept while searches go on with the same index. `features`
    (`compressed`, or read from a file) spare that for the index they came from.
    """

    def __init__(
        self,
        *,
        embeddings: FloatArray | RowSource | None = None,
        embed_queries: EmbedQueries | None = None,
        noise: float = 0.3,
        embedding_weight: float | None = None,
        query_noise: float = 0.3,
        locality: float | None = None,
        rescale: bool = True,
        centre: bool = True,
        features: Features | None = None,
        device: str | None = None,
    ) -> None:
        if not query_noise > 0:
            raise InputError(f"query_noise is positive; got {query_noise}.")
        self._item_vectors: RowSource | None = None
        if embeddings is not None and hasattr(embeddings, "rows"):
            self._item_vectors, embeddings = embeddings, None
        if embeddings is not None:
            embeddings = np.asarray(embeddings)
            if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
                raise InputError(f"Embeddings are finite numbers, a row per item; got shape {embeddings.shape}.")
            # Weights are cast to the embeddings' type, and whole numbers or halves would lose them.
            embeddings = embeddings if embeddings.dtype in (np.float32, np.float64) else embeddings.astype(np.float32)
            self._item_vectors = PackedRows(embeddings)
        self.embeddings: FloatArray | None = embeddings
        self.embed_queries = embed_queries
        self.query_noise = query_noise
        self._set(noise=noise, embedding_weight=embedding_weight, locality=locality)
        self.rescale = rescale
        self.centre = centre
        self.device = device
        self._kept = _Kept(given=features if features is None or device is None else features.on(device))

    def adjusted(self, *, noise: float, embedding_weight: float | None, locality: float | None) -> GaussianModel:
        """The same with other settings, which mean what they mean above, sharing what depends on the index alone."""
        # Not made anew: that would read all embeddings, and searches come here each time.
        other = copy.copy(self)
        other._set(noise=noise, embedding_weight=embedding_weight, locality=locality)
        return other

    def _set(self, *, noise: float, embedding_weight: float | None, locality: float | None) -> None:
        if not noise >= 0:
            raise InputError(f"noise is not negative; got {noise}.")
        if embedding_weight is not None and not embedding_weight >= 0:
            raise InputError(f"embedding_weight is not negative; got {embedding_weight}.")
        if locality is not None and not locality > 0:
            raise InputError(f"locality is positive; got {locality}. float('inf') counts all anchor queries alike.")
        self.noise = noise
        self.embedding_weight = embedding_weight
        self.locality = locality

    def __repr__(self) -> str:
        weight = "auto" if self.embedding_weight is None else self.embedding_weight
        parts = [
            f"noise={self.noise}",
            f"embedding_weight={weight}" if self._has_embeddings else "no embeddings",
        ]
        if self.embed_queries is not None:
            parts += [f"query_noise={self.query_noise}", f"locality={self.locality or 'auto'}"]
        parts += ["rescale=False"] * (not self.rescale) + ["centre=False"] * (not self.centre)
        if self._kept.given is not None:
            parts.append("features: " + " + ".join(str(part.shape[1]) for part in self._kept.given.factors.parts))
        parts += [f"device={self.device!r}"] * (self.device is not None)
        return f"GaussianModel({', '.join(parts)})"

    @property
    def keys(self) -> KeyArray | None:
        """The items' random keys, where they are kept with the features that were given."""
        return None if self._kept.given is None else self._kept.given.keys

    @property
    def _has_embeddings(self) -> bool:
        given = self._kept.given
        return self._item_vectors is not None or (given is not None and given.embedding_variance > 0)

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> _Conditioned:
        """A fresh approximation for these queries."""
        features = self.features_of(anchors)
        prior = self._prior(features)
        vectors = self._vectors(queries) if features.anchor_vectors is not None else None
        return _Conditioned(
            prior, [prior.posterior(None if vectors is None else vectors[row]) for row in range(len(queries))]
        )

    def replay(self, anchors: AnchorScores, positions: IntArray) -> _Conditioned:
        """An approximation for the anchor queries at these positions, each as if it had never been one.

        Only the score scale and the mean variance have seen them. All are predicted in one product, which is fast, but
        rounds differently with the size of the batch: for statistics, not for answers.
        """
        if len(anchors.anchor_queries) < 2:
            # The mean of one is its own scores.
            raise InputError(
                f"Leaving an anchor query out takes two anchor queries or more; got {len(anchors.anchor_queries)}."
            )
        features = self.features_of(anchors)
        prior = self._prior(features)
        vectors = features.anchor_vectors
        anchored = np.eye(len(features.trust))
        if vectors is not None:
            anchored = _kernel(vectors, vectors) + self.query_noise * anchored
        inverse = np.linalg.inv(anchored)
        queries = []
        for position in positions.tolist():
            without = _Without.of(
                position, anchored, inverse, n_features=features.factors.n_features, centre=self.centre
            )
            queries.append(prior.posterior(None if vectors is None else vectors[position], without=without))
        return _Conditioned(prior, queries, together=True)

    def compressed(
        self, anchors: AnchorScores, *, rank: int, storage: Storage = "int8", room: Room = in_memory
    ) -> Features:
        """Features of these anchor scores in less memory: `rank` columns more than embeddings have, in `storage`.

        The columns are those that matter most to queries like the anchor queries. A rank of all anchor queries keeps
        every feature. Anchor scores and embeddings are read three times, a block at a time; what grows with the items
        goes to `room`: "means" and the parts of the factors.
        """
        if rank < 1:
            raise InputError(f"rank is at least 1; got {rank}.")
        check_storage(storage)
        n_items, n_anchors = len(anchors.items), len(anchors.anchor_queries)
        if not n_anchors:
            raise InputError("There are no anchor scores to compress: this index has no anchor queries.")
        outline = self._outline(anchors, scores_at=partial(rows_at, anchors))
        inner, squares, start = np.zeros((outline.n_features, outline.n_features)), 0.0, 0
        means: FloatArray | None = None
        for own, residuals, rows in self._feature_blocks(anchors, outline):
            # The scores' own type is known when the first of them are there.
            if means is None:
                means = room("means", (n_items,), str(residuals.dtype))
            means[start : start + len(own)] = own
            inner += rows.T @ rows
            squares += float(np.square(residuals, dtype=np.float64).sum())
            start += len(own)
        assert means is not None
        variance = squares / n_items / n_anchors
        directions = np.eye(n_anchors)
        if outline.vectors is not None:
            # A query starts from the regression on the anchor queries, and then moves like any of them. Told without
            # its own help, anchor query j would start from row j of this.
            starts = _kernel(outline.vectors, outline.vectors) + self.query_noise * directions
            starts = starts * outline.trust - directions
            directions = directions + starts.T @ starts
        weight = self._weight(n_anchors, embedding_variance=outline.embedding_variance)
        per_dimension = weight * (variance or 1.0) / outline.embedding_variance if weight else 0.0
        spread = np.eye(outline.n_features) * np.sqrt(per_dimension or 1.0)
        spread[:n_anchors, :n_anchors] = np.linalg.cholesky(directions / n_anchors)
        factors = ItemFactors.packed(
            lambda: (rows for _, _, rows in self._feature_blocks(anchors, outline)),
            n_items=n_items,
            inner=inner,
            columns=rank + outline.n_features - n_anchors,
            storage=storage,
            spread=spread,
            room=room,
        )
        return outline.features(anchors.anchor_queries, means=means, factors=factors, variance=variance)

    def features_of(self, anchors: AnchorScores) -> Features:
        """What follows from these anchor scores alone: as given, or extracted once."""
        kept = self._kept
        if kept.given is not None and kept.given.belong_to(anchors):
            return kept.given
        # Many threads may begin at once, and each set of features is a second copy of the index.
        with kept.lock:
            if kept.features is None or kept.matrix is not anchors.matrix:
                features = self._extracted(anchors)
                kept.features = features if self.device is None else features.on(self.device)
                kept.matrix = anchors.matrix
            return kept.features

    def _extracted(self, anchors: AnchorScores) -> Features:
        matrix = anchors.matrix
        outline = self._outline(anchors, scores_at=matrix.__getitem__)
        means, residuals, squares = self._explained(matrix, outline)
        parts = [PackedRows(residuals)]
        if self._item_vectors is not None:
            whole = self.embeddings
            parts.append(PackedRows(self._item_vectors.rows(np.arange(len(matrix))) if whole is None else whole))
        return outline.features(
            anchors.anchor_queries,
            means=means,
            factors=outline.factors(parts),
            variance=outline.variance(squares, len(matrix)),
        )

    def _explained(self, matrix: FloatArray, outline: Outline) -> tuple[FloatArray, FloatArray, float]:
        """Means of items, what is left of their scores, and the sum of its squares."""
        means, residuals = np.zeros(len(matrix), dtype=matrix.dtype), np.empty_like(matrix)
        squares, start = 0.0, 0
        for own, block in self._residual_blocks(iter([matrix]), outline):
            rows = slice(start, start + len(own))
            means[rows], residuals[rows] = own, block
            squares += float(np.square(block, dtype=np.float64).sum())
            start += len(own)
        return means, residuals, squares

    def _outline(self, anchors: AnchorScores, *, scores_at: Callable[[IntArray], FloatArray]) -> Outline:
        """What is known before features are made, from a sample of the scores and all embeddings."""
        n_items, n_anchors = len(anchors.items), len(anchors.anchor_queries)
        scale = ScoreScale.plain()
        if self.rescale and n_anchors:
            sample = ScoreScale.sample(anchors.items.keys, n_anchors=n_anchors)
            scale = ScoreScale.of(scores_at(sample))
        middle: FloatArray = np.empty(0)
        embedding_variance = 0.0
        if self._item_vectors is not None:
            n_vectors = self._item_vectors.shape[0]
            if n_vectors != n_items:
                raise InputError(f"One embedding per item is needed; got {n_vectors} for {n_items} items.")
            middle, embedding_variance = _moments(self._item_vectors)
        vectors = self._vectors(anchors.anchor_queries) if n_anchors else None
        spread, trust = None, np.zeros(n_anchors)
        if vectors is not None:
            # What the others say of an anchor query, without itself, in closed form: residual = (K + ρ)⁻¹ y / diagonal.
            inverse = np.linalg.inv(_kernel(vectors, vectors) + self.query_noise * np.eye(n_anchors))
            trust = np.diag(inverse).copy()
            spread = inverse / trust[:, None]
        return Outline(scale, vectors, spread, trust, middle, embedding_variance)

    def _residual_blocks(
        self, scores: Iterator[FloatArray], outline: Outline
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Means of items, and what is left of their scores that neither these nor the other anchor queries explain."""
        for stored in scores:
            turn = None if outline.spread is None else outline.spread.T.astype(stored.dtype)
            for start in range(0, len(stored), _ROWS_PER_BLOCK):
                block = outline.scale.rarity(stored[start : start + _ROWS_PER_BLOCK])
                means = block.mean(axis=1) if self.centre and outline.n_anchors else np.zeros(len(block))
                block -= means[:, None]
                residuals = block.astype(stored.dtype)
                yield means, residuals if turn is None else residuals @ turn

    def _feature_blocks(
        self, anchors: AnchorScores, outline: Outline
    ) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Means, residuals and all features (float64) of the items, a block at a time."""
        start = 0
        for means, residuals in self._residual_blocks(_score_blocks(anchors), outline):
            rows = residuals.astype(np.float64)
            if self._item_vectors is not None:
                vectors = self._item_vectors.rows(np.arange(start, start + len(rows)))
                rows = np.hstack([rows, vectors - outline.middle])
            yield means, residuals, rows
            start += len(rows)

    def _weight(self, n_anchors: int, *, embedding_variance: float) -> float:
        """The embeddings' share of covariance relative to the anchor scores'."""
        if not embedding_variance:
            return 0.0
        return _fewer(n_anchors) ** 0.3 if self.embedding_weight is None else self.embedding_weight

    def _prior(self, features: Features) -> _Prior:
        weight = self._weight(len(features.trust), embedding_variance=features.embedding_variance)
        # An index whose scores never vary says nothing of scale; the embeddings then stand alone.
        variance = features.variance or 1.0
        return _Prior(
            features=features,
            locality=self.locality or _LOCALITY * _fewer(len(features.trust)) ** 0.5,
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


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What features are made with: the scale, the regression on the anchor queries, the middle of the embeddings.

    `spread` turns scores into what the others leave unexplained of each; without query vectors there is none.
    """

    scale: ScoreScale
    vectors: FloatArray | None
    spread: FloatArray | None
    trust: FloatArray
    middle: FloatArray
    embedding_variance: float

    @property
    def n_anchors(self) -> int:
        return len(self.trust)

    @property
    def n_features(self) -> int:
        return len(self.trust) + len(self.middle)

    def factors(self, parts: Sequence[Rows]) -> ItemFactors:
        """Factors of what is left of the scores and, where there are any, of the embeddings."""
        return ItemFactors(parts, np.concatenate([np.zeros(self.n_anchors), self.middle]))

    def variance(self, squares: float, n_items: int) -> float:
        """The mean variance of a score, given the sum of squares of what is left of them."""
        return squares / n_items / self.n_anchors if self.n_anchors else 0.0

    def features(
        self, anchor_queries: Sequence[Query], *, means: FloatArray, factors: ItemFactors, variance: float
    ) -> Features:
        """The features that were made with this."""
        return Features(
            anchors=tuple(query.id for query in anchor_queries),
            scale=self.scale,
            means=means,
            factors=factors,
            anchor_vectors=self.vectors,
            trust=self.trust,
            variance=variance,
            embedding_variance=self.embedding_variance,
        )


class _Kept:
    """The features of the index searched last, shared by approximators that differ in their settings."""

    def __init__(self, given: Features | None) -> None:
        self.lock = threading.Lock()
        self.given = given
        self.matrix: FloatArray | None = None
        self.features: Features | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Features:
    """What follows from the index alone: means and features of the items, and who the `anchors` are, by id.

    The first `len(trust)` features of an item belong to the anchor queries, the rest to its embedding; `variance` and
    `embedding_variance` are the means over the items. `device_means` are the means where predictions are made; `keys`
    are the items' random keys, where they are kept with the features.
    """

    anchors: tuple[str, ...]
    scale: ScoreScale
    means: FloatArray
    factors: ItemFactors
    anchor_vectors: FloatArray | None
    trust: FloatArray
    variance: float
    embedding_variance: float
    device_means: Any = None
    keys: KeyArray | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that grow with the items."""
        return self.factors.nbytes + self.means.nbytes

    def belong_to(self, anchors: AnchorScores) -> bool:
        """Whether these are the features of this index, as far as can be told without reading its scores."""
        ids = tuple(query.id for query in anchors.anchor_queries)
        return ids == self.anchors and len(anchors.items) == len(self.means)

    def on(self, device: str) -> Features:
        """The same with what grows with the items on a device that torch knows."""
        torch = require("torch", extra="torch")
        means = torch.from_numpy(self.means.astype(np.float32)).to(device)
        return replace(self, factors=self.factors.on(device), device_means=means)


@dataclass(frozen=True, slots=True, eq=False)
class _Prior:
    """What is expected of any query, before one is seen."""

    features: Features
    locality: float
    per_dimension: float
    level: float
    noise: float

    def posterior(self, vector: FloatArray | None, *, without: _Without | None = None) -> _Posterior:
        """What is expected of a query with this vector, told nothing yet."""
        features = self.features
        n_anchors = len(features.trust)
        trust = features.trust if without is None else without.trust
        variances = np.full(features.factors.n_features, self.per_dimension)
        start = np.zeros(features.factors.n_features)
        variances[:n_anchors] = 1 / max(1, n_anchors)
        if features.anchor_vectors is not None and vector is not None:
            likeness = features.anchor_vectors @ vector
            if without is not None:
                likeness[without.position] = -np.inf
            weights = np.exp((likeness - likeness.max()) / self.locality)
            variances[:n_anchors] = weights / weights.sum()
            start[:n_anchors] = np.exp((likeness - 1) / _QUERY_SCALE) * trust
        elif without is not None:
            variances[:n_anchors] = 1 / max(1, n_anchors - 1)
            variances[without.position] = 0.0
        return _Posterior(self, variances=variances, start=start, without=without)


@dataclass(frozen=True, slots=True, eq=False)
class _Without:
    """Features as they would be without one anchor query, which are linear in the features with it.

    With G the inverse of the anchor queries' kernel A, leaving out j changes G by a rank-one term, and the mean by a
    share of j's own scores, which are the features · (diag G · A[:, j]):

        feature' i = stretch_i · feature i − own_i · feature j + level_i · (features · shift)
        mean'      = mean − features · shift
    """

    position: int
    trust: FloatArray
    stretch: FloatArray
    own: FloatArray
    shift: FloatArray
    level: FloatArray

    @classmethod
    def of(cls, position: int, kernel: FloatArray, inverse: FloatArray, *, n_features: int, centre: bool) -> _Without:
        """Without the anchor query at this position; features beyond the anchor queries' stay as they are."""
        n_anchors, before = len(kernel), np.diag(inverse)
        across = inverse[position]
        trust = before - across**2 / before[position]
        # The feature of the one left out is given no weight, so its own value does not matter.
        trust[position] = 1.0
        sums = inverse.sum(axis=1)
        stretch, own, shift, level = (
            np.ones(n_features),
            np.zeros(n_features),
            np.zeros(n_features),
            np.zeros(n_features),
        )
        stretch[:n_anchors] = before / trust
        own[:n_anchors] = across / trust
        if centre and n_anchors > 1:
            shift[:n_anchors] = before * kernel[:, position] / (n_anchors - 1)
            level[:n_anchors] = (sums - across * sums[position] / before[position]) / trust
        for weights in (stretch, own, level):
            weights[position] = 0.0
        trust[position] = 0.0
        return cls(position, trust, stretch, own, shift, level)

    def rows(self, rows: FloatArray) -> FloatArray:
        """Rows of features as they would be."""
        changed = rows * self.stretch - np.outer(rows[:, self.position], self.own)
        return np.asarray(changed + np.outer(rows @ self.shift, self.level))

    def weights(self, direction: FloatArray) -> FloatArray:
        """The weights of the features as they are that give mean' − mean + features' · direction."""
        weights = self.stretch * direction + self.shift * (self.level @ direction - 1)
        weights[self.position] -= self.own @ direction
        return np.asarray(weights)


class _Conditioned:
    """A batch of queries, each conditioned on its own exact scores."""

    def __init__(self, prior: _Prior, queries: Sequence[_Posterior], *, together: bool = False) -> None:
        self._prior = prior
        self._queries = queries
        self._together = together

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for query, where, exact in zip(self._queries, positions, scores, strict=True):
            if len(where):
                query.tell(where, exact)

    def predict(self) -> FloatArray:
        """Predictions for every item on the prior's scale, shape (queries, items)."""
        features = self._prior.features
        if features.device_means is not None:
            # Searches use a row of these like an array.
            return [  # type: ignore[return-value]
                DeviceRow(features.factors.predictions(query.weights, means=features.device_means).add_(query.level))
                for query in self._queries
            ]
        if self._together:
            predicted = features.factors.products(np.stack([query.weights for query in self._queries]))
            predicted += features.means
            predicted += np.array([query.level for query in self._queries], dtype=predicted.dtype)[:, None]
            return predicted
        predicted = np.empty((len(self._queries), len(features.means)), dtype=features.means.dtype)
        # One product per query: an answer must not depend on the size of its batch.
        for row, query in zip(predicted, self._queries, strict=True):
            row[:] = features.factors.predictions(query.weights, means=features.means)
            row += row.dtype.type(query.level)
        return predicted

    @property
    def items(self) -> ItemFactors:
        """The features that are weighted."""
        return self._prior.features.factors

    def weights(self) -> list[tuple[FloatArray, float]]:
        """Per query, what the features of items are weighted by, and the level beside it."""
        return [(query.weights, query.level) for query in self._queries]

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions as scores of the scorer."""
        return self._prior.features.scale.score(predicted)

    def predict_precisely(self) -> FloatArray:
        """Predicted scores of every item in float64."""
        features = self._prior.features
        precise = [features.factors.precise_product(query.weights) + query.level for query in self._queries]
        return features.scale.score(np.stack(precise) + features.means)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best found, shape (predicted, best).

        The unit is what this query's own scores miss their prediction by, each told without itself; the posterior
        variance hardly differs between items, and its level was chosen for recall (docs/decisions/0026-stopping.md).
        """
        spread = self._queries[query].spread
        if not math.isfinite(spread):
            return np.ones((len(predicted), len(best)))
        thresholds = self._prior.features.scale.rarity(best)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            distances = (np.asarray(predicted, dtype=np.float64)[:, None] - thresholds) / spread
            return np.asarray(1 / (1 + np.exp(-(_AT_FIRST + _PER_SPREAD * distances + _PER_RANK * np.log(ranks)))))


class _Posterior:
    """One query: what its exact scores say of every item.

    `variances` are those of the features, `direction` their expected weights so far, `level` what all items share.
    """

    def __init__(
        self, prior: _Prior, *, variances: FloatArray, start: FloatArray, without: _Without | None = None
    ) -> None:
        self._prior = prior
        self._without = without
        self._variances = variances
        self._start = start
        self._factor = GrowingCholesky()
        self._told: IntArray = np.empty(0, dtype=np.intp)
        self._rows: FloatArray = np.empty((0, len(variances)))
        self._surprise: FloatArray = np.empty(0)
        self._answer: FloatArray = np.empty(0)
        self._offset = 0.0
        self.direction = start
        self.level = 0.0

    @property
    def weights(self) -> FloatArray:
        """What the features of the index are to be weighted by."""
        return self.direction if self._without is None else self._without.weights(self.direction)

    def tell(self, positions: IntArray, scores: FloatArray) -> None:
        prior, features, known = self._prior, self._prior.features, len(self._told)
        rarities = features.scale.rarity(scores)
        if not known and not len(features.trust):
            # Without anchor queries nothing else says where this query's scores lie.
            self._offset = float(rarities.mean())
        new, means = self._seen(positions)
        rows = np.vstack([self._rows_told(), new])
        self._told = np.concatenate([self._told, positions])
        if self._without is not None:
            self._rows = rows
        covariance = (new * self._variances) @ rows.T + prior.level
        own = covariance[:, known:]
        own[np.diag_indices_from(own)] += prior.noise
        self._factor.append(covariance[:, :known], own)
        missing = rarities - means - new @ self._start - self._offset
        self._surprise = np.concatenate([self._surprise, missing])
        answer = self._factor.solve(self._surprise)
        self._answer = answer
        self.direction = self._start + self._variances * (rows.T @ answer)
        self.level = self._offset + prior.level * float(answer.sum())

    @property
    def spread(self) -> float:
        """The standard deviation of what the scores told so far differ by from what the others say of each."""
        if len(self._told) < _FEWEST_ERRORS:
            return math.inf
        # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
        return float((self._answer / self._factor.precisions()).std())

    def _rows_told(self) -> FloatArray:
        # Read again each round: kept, they would take more memory than the factor. A replay has to rework them too.
        return self._prior.features.factors.rows(self._told) if self._without is None else self._rows

    def _seen(self, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Features and means of these items."""
        features = self._prior.features
        rows, means = features.factors.rows(positions), features.means[positions]
        if self._without is None:
            return rows, means
        return self._without.rows(rows), means - rows @ self._without.shift


def _moments(rows: RowSource) -> tuple[FloatArray, float]:
    """The mean of all rows, and their mean squared distance from it, in float64."""
    n_rows, width = rows.shape
    total, squares = np.zeros(width), 0.0
    for start in range(0, n_rows, _ROWS_PER_BLOCK):
        block = rows.rows(np.arange(start, min(start + _ROWS_PER_BLOCK, n_rows)))
        if not np.isfinite(block).all():
            raise InputError("Embeddings must be finite numbers, a row per item; some are not finite.")
        total += block.sum(axis=0, dtype=np.float64)
        squares += float(np.square(block, dtype=np.float64).sum())
    mean = total / n_rows
    return mean, max(0.0, squares / n_rows - float(mean @ mean))


def _score_blocks(anchors: AnchorScores) -> Iterator[FloatArray]:
    if not isinstance(anchors, BlockedScores):
        return iter([anchors.matrix])
    return (block.astype(np.promote_types(block.dtype, np.float32), copy=False) for _, block in anchors.blocks())


def rows_at(anchors: AnchorScores, positions: IntArray) -> FloatArray:
    """The scores of these items, which are in order."""
    found, start = [], 0
    for block in _score_blocks(anchors):
        own = positions[np.searchsorted(positions, start) : np.searchsorted(positions, start + len(block))]
        found.append(block[own - start])
        start += len(block)
    return np.concatenate(found)


def _fewer(n_anchors: int) -> float:
    """By how much anchor queries fall short of those that settings were chosen at."""
    return float(np.clip(_SETTLED_ANCHORS / max(1, n_anchors), 1, 16))


def _kernel(some: FloatArray, others: FloatArray) -> FloatArray:
    return np.asarray(np.exp((some @ others.T - 1) / _QUERY_SCALE))
