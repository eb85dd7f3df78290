"""The conditional mean of a Gaussian: what anchor queries, embeddings and exact scores let one expect.

Anchor queries are draws from the population of queries, so they estimate the prior mean m and covariance K of a query's
scores over the items. Given scores s at items A, the posterior mean is

    ŝ = m + K[:, A] (K[A, A] + λ I)⁻¹ (s_A − m_A)

What goes into m and K, each part of which can be left out:

- scores are modelled on a `ScoreScale`, so that the crowded bottom of a cross-encoder's range counts;
- m is what anchor queries like this one scored: a kernel regression on the query embeddings, or the plain mean;
- K is the covariance of that regression's residuals, each anchor query's taken without its own help, with more weight
  on anchor queries like this one;
- means over few anchor queries are shrunk towards what they have in common, as far as they are noise;
- items that embed alike share evidence, where anchor queries are too few to show that they are alike;
- items that a first stage ranks high are expected to score higher, by slopes that anchor queries and scores tell.

With every part left out this is the paper's pseudo-inverse.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.approximation.engine_rows import Affine
from adacur.approximation.gaussian_features import (
    QUERY_SCALE,
    EmbedQueries,
    Extraction,
    Features,
    query_kernel,
    unit_vectors,
)
from adacur.approximation.growing_cholesky import GrowingCholesky
from adacur.approximation.item_factors import Allocate, PackedRows, RowSource, Storage, in_memory
from adacur.approximation.leave_one_out import LeaveOneOut
from adacur.approximation.on_device import DeviceRow
from adacur.approximation.rank_slopes import RANKS_THAT_COUNT, RISE, RankSlopes, rises
from adacur.core.arrays import FloatArray, IntArray, KeyArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores
from adacur.core.records import Query

# Per query, the positions that each first stage ranks, best first.
Ranks = Sequence[Sequence[IntArray]]

# Settings were chosen at 500 anchor queries by replay; with fewer, each has to speak for more queries, and embeddings
# for more items.
_USUAL_ANCHORS = 500

# Variance of a query's own level, which lifts all items alike, relative to that of an item's score.
_LEVEL = 0.5
# Below this the system is singular as soon as two items are alike; predictions differ by less than float32 can tell.
_LEAST_NOISE = 1e-10
_LOCALITY = 0.07
# Log-odds that an item scores above the best scored: for one predicted to score just that, per standard deviation of
# this query's residuals that it is predicted higher, and per logarithm of the rank it would take. Fitted by likelihood
# to held-out anchor queries of three collections with 420 others; with fewer, fewer come above than stated.
_AT_EQUAL, _PER_DEVIATION, _PER_RANK = -1.6, 1.55, 0.38
# Fewer residuals than these say nothing of their standard deviation.
_FEWEST_RESIDUALS = 10


@dataclass(slots=True, eq=False)
class _Extracted:
    """The features of the index searched last, shared by models that differ only in their settings."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    anchors: AnchorScores | None = None
    features: Features | None = None


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
    - `features` (`compressed`, or read from a file) spare reading the scores of the index they came from.
    - `slopes` say what the ranks of first stages, where a search has them, tell of scores; None to make no use of them.
    - `device` is torch's name of where features lie and predictions are made, e.g. "cuda"; by default numpy makes them.

    Features depend on the index alone; they are computed once, and kept for the index searched last.
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
        slopes: RankSlopes | None = None,
        device: str | None = None,
    ) -> None:
        if not query_noise > 0:
            raise InputError(f"query_noise must be positive; got {query_noise}.")
        self._item_vectors: RowSource | None = None
        if embeddings is not None and hasattr(embeddings, "rows"):
            self._item_vectors, embeddings = embeddings, None
        if embeddings is not None:
            embeddings = np.asarray(embeddings)
            if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
                raise InputError(f"Embeddings must be finite numbers, a row per item; got shape {embeddings.shape}.")
            # Weights are cast to the embeddings' type, and whole numbers or halves would lose them.
            embeddings = embeddings if embeddings.dtype in (np.float32, np.float64) else embeddings.astype(np.float32)
            self._item_vectors = PackedRows(embeddings)
        self.embeddings: FloatArray | None = embeddings
        self.embed_queries = embed_queries
        self.query_noise = query_noise
        self._set(noise=noise, embedding_weight=embedding_weight, locality=locality)
        self.slopes = slopes
        self.rescale = rescale
        self.centre = centre
        self.device = device
        self._given = features if features is None or device is None else features.on(device)
        # The items' random keys, where they are stored with the given features.
        self.keys: KeyArray | None = None if features is None else features.keys
        self._extracted = _Extracted()
        self._together = False

    def adjusted(
        self,
        *,
        noise: float,
        embedding_weight: float | None,
        locality: float | None,
        slopes: RankSlopes | None = None,
    ) -> GaussianModel:
        """The same model with other settings, sharing everything that depends on the index alone."""
        # A copy: searches come here each time, and a new model would check all embeddings.
        other = copy.copy(self)
        other._set(noise=noise, embedding_weight=embedding_weight, locality=locality)
        other.slopes = slopes
        return other

    def in_one_product(self) -> GaussianModel:
        """The same model, which predicts for all queries of a batch at once: faster, and rounded by their number."""
        other = copy.copy(self)
        other._together = True
        return other

    def _set(self, *, noise: float, embedding_weight: float | None, locality: float | None) -> None:
        if not noise >= 0:
            raise InputError(f"noise must not be negative; got {noise}.")
        if embedding_weight is not None and not embedding_weight >= 0:
            raise InputError(f"embedding_weight must not be negative; got {embedding_weight}.")
        if locality is not None and not locality > 0:
            raise InputError(
                f"locality must be positive; got {locality}. With float('inf') all anchor queries count alike."
            )
        self.noise = noise
        self.embedding_weight = embedding_weight
        self.locality = locality

    def __repr__(self) -> str:
        given = self._given
        has_embeddings = self._item_vectors is not None or (given is not None and given.embedding_variance > 0)
        weight = "auto" if self.embedding_weight is None else self.embedding_weight
        parts = [f"noise={self.noise}", f"embedding_weight={weight}" if has_embeddings else "no embeddings"]
        if self.embed_queries is not None:
            parts += [f"query_noise={self.query_noise}", f"locality={self.locality or 'auto'}"]
        parts += ["rescale=False"] * (not self.rescale) + ["centre=False"] * (not self.centre)
        if given is not None:
            parts.append("features: " + " + ".join(str(part.shape[1]) for part in given.factors.parts))
        parts += [f"device={self.device!r}"] * (self.device is not None)
        return f"GaussianModel({', '.join(parts)})"

    def begin(
        self,
        anchors: AnchorScores,
        queries: Sequence[Query],
        ranks: Ranks | None = None,
        *,
        features: Features | None = None,
    ) -> _Posteriors:
        """A fresh approximation for these queries; `ranks` are, per query, what each first stage ranks, best first.

        `features` take the place of those of the index: of items whose rows live in an engine.
        """
        features = self.features_of(anchors) if features is None else features
        vectors = unit_vectors(self.embed_queries, queries) if features.anchor_vectors is not None else None
        return _Posteriors(
            features,
            self._posteriors(features, vectors, [None] * len(queries), ranks),
            in_scores=features.scale.score,
            together=self._together,
        )

    def replay(self, anchors: AnchorScores, positions: IntArray, ranks: Ranks | None = None) -> _Posteriors:
        """An approximation for the anchor queries at these positions, each as if it were new.

        Only the score scale, the mean variance, the slopes, and what means are shrunk towards and how far have seen
        them. All are predicted in one product, which is fast, but rounds differently with the size of the batch: for
        statistics, not for answers.
        """
        if len(anchors.anchor_queries) < 2:
            # The mean of one is its own scores.
            raise InputError(
                f"Leaving an anchor query out takes two anchor queries or more; got {len(anchors.anchor_queries)}."
            )
        features = self.features_of(anchors)
        vectors = features.anchor_vectors
        kernel = np.eye(len(features.precisions))
        if vectors is not None:
            kernel = query_kernel(vectors, vectors) + self.query_noise * kernel
        inverse = np.linalg.inv(kernel)
        left_out = [
            LeaveOneOut.of(position, kernel, inverse, n_features=features.factors.n_features, centre=self.centre)
            for position in positions.tolist()
        ]
        replayed = None if vectors is None else vectors[positions]
        return _Posteriors(
            features,
            self._posteriors(features, replayed, left_out, ranks),
            in_scores=features.scale.score,
            together=True,
        )

    def compressed(
        self, anchors: AnchorScores, *, rank: int, storage: Storage = "int8", allocate: Allocate = in_memory
    ) -> Features:
        """Features of these anchor scores in less memory: `rank` columns more than embeddings have, in `storage`.

        A rank of all anchor queries keeps every feature. Anchor scores and embeddings are read three times, a block at
        a time; arrays that grow with the items come from `allocate`: "means" and the parts of the factors.
        """
        if rank < 1:
            raise InputError(f"rank must be at least 1; got {rank}.")
        if not anchors.anchor_queries:
            raise InputError("There are no anchor scores to compress: this index has no anchor queries.")
        extraction = self._extraction(anchors, whole=False)
        share, _ = self._by_anchors(len(anchors.anchor_queries), extraction.embedding_variance)
        return extraction.compressed(rank=rank, storage=storage, embedding_share=share, allocate=allocate)

    def features_of(self, anchors: AnchorScores) -> Features:
        """The features of this index: as given, or extracted once."""
        if self._given is not None and self._given.belong_to(anchors):
            return self._given
        last = self._extracted
        # Many threads may begin at once, and each set of features is a second copy of the index.
        with last.lock:
            known = last.anchors
            if last.features is None or known is None or (known is not anchors and known.matrix is not anchors.matrix):
                features = self._extraction(anchors, whole=True).features()
                last.features = features if self.device is None else features.on(self.device)
                last.anchors = anchors
            return last.features

    def _extraction(self, anchors: AnchorScores, *, whole: bool) -> Extraction:
        return Extraction(
            anchors,
            item_vectors=self._item_vectors,
            embed_queries=self.embed_queries,
            query_noise=self.query_noise,
            rescale=self.rescale,
            centre=self.centre,
            whole=whole,
        )

    def _posteriors(
        self,
        features: Features,
        vectors: FloatArray | None,
        left_out: Sequence[LeaveOneOut | None],
        ranks: Ranks | None,
    ) -> list[_Posterior]:
        """The prior of each query, given its vector and the anchor query that it must not know."""
        if ranks is not None and self.slopes is not None:
            _check_stages(ranks, len(self.slopes.means))
        n_anchors, n_features = len(features.precisions), features.factors.n_features
        share, locality = self._by_anchors(n_anchors, features.embedding_variance)
        # An index whose scores never vary says nothing of scale; the embeddings then stand alone.
        variance = features.variance or 1.0
        usual = variance * (1 + share)
        # Where all anchor queries agree, ranks may be all that scores can vary by.
        from_ranks = 0.0 if ranks is None or self.slopes is None else self.slopes.variance * RISE[0] ** 2
        sums = features.sums(self.query_noise) if features.trust < 1 else np.zeros(n_anchors)
        posteriors = []
        for query, without in enumerate(left_out):
            weights, trust = np.zeros(n_features), features.trust
            variances = np.full(n_features, share * variance / features.embedding_variance if share else 0.0)
            variances[:n_anchors] = 1 / max(1, n_anchors)
            if features.anchor_vectors is not None and vectors is not None:
                likeness = features.anchor_vectors @ vectors[query]
                if without is not None:
                    likeness[without.position] = -np.inf
                nearness = np.exp((likeness - likeness.max()) / locality)
                variances[:n_anchors] = nearness / nearness.sum()
                precisions = features.precisions if without is None else without.precisions
                kernel = np.exp((likeness - 1) / QUERY_SCALE)
                weights[:n_anchors] = kernel * precisions
                # What the means lack, the regression makes up for, as far as it knows queries like this one.
                made_up = float(np.clip(kernel @ (sums if without is None else without.sums), 0, 1))
                trust += (1 - trust) * made_up
            elif without is not None:
                variances[:n_anchors] = 1 / max(1, n_anchors - 1)
                variances[without.position] = 0.0
            posteriors.append(
                _Posterior(
                    features,
                    prior=weights,
                    weights=weights if without is None else without.weights(weights, trust=trust),
                    trust=trust,
                    variances=variances,
                    level_variance=_LEVEL * variance if self.centre else 0.0,
                    noise=max(self.noise * usual, _LEAST_NOISE * (usual + from_ranks)),
                    left_out=without,
                    slopes=self.slopes,
                    lists=() if ranks is None or self.slopes is None else ranks[query],
                )
            )
        return posteriors

    def _by_anchors(self, n_anchors: int, embedding_variance: float) -> tuple[float, float]:
        """The embeddings' share of covariance relative to the residuals', and the locality; both are higher for few."""
        shortage = float(np.clip(_USUAL_ANCHORS / max(1, n_anchors), 1, 16))
        share = shortage**0.3 if self.embedding_weight is None else self.embedding_weight
        return share if embedding_variance else 0.0, self.locality or _LOCALITY * shortage**0.5


def _check_stages(ranks: Ranks, n_stages: int) -> None:
    """Refuse ranks that the slopes are not of."""
    if others := {len(of_query) for of_query in ranks} - {n_stages}:
        raise InputError(
            f"Ranks must be those of the first stages that the slopes are of; there are slopes of {n_stages} and ranks "
            f"of {min(others)}. Learn the slopes from the first stage that searches start from, or give slopes=None."
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Posteriors:
    """The approximation of a batch of queries, each conditioned on its exact scores.

    `in_scores` turns predictions into scores of the scorer; `together` predicts all queries in one product.
    """

    _features: Features
    _queries: Sequence[_Posterior]
    in_scores: Callable[[FloatArray], FloatArray]
    together: bool = False

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for query, where, exact in zip(self._queries, positions, scores, strict=True):
            if len(where):
                query.tell(where, exact)

    def predict(self) -> FloatArray | list[DeviceRow]:
        """Predictions for every item on the score scale, a row per query."""
        features = self._features
        if self.together:
            predicted = features.factors.products(np.stack([query.weights for query in self._queries]))
            # Row by row: all at once would take as much memory again.
            for row, query in zip(predicted, self._queries, strict=True):
                trust, centre = row.dtype.type(query.trust), row.dtype.type(features.centre)
                row += features.means if trust == 1 else trust * features.means + (1 - trust) * centre
                row += row.dtype.type(query.level)
                query.raised(row)
            return predicted
        if features.device_means is not None:
            return [query.raised(DeviceRow(self._on_device(query))) for query in self._queries]
        predicted = np.empty((len(self._queries), len(features.means)), dtype=features.means.dtype)
        # One product per query: a product for the whole batch rounds differently with the batch's size, and an answer
        # must not depend on its neighbours.
        for row, query in zip(predicted, self._queries, strict=True):
            row[:] = features.factors.predictions(query.weights, means=features.means)
            row += row.dtype.type(query.level)
            if query.trust < 1:
                row -= row.dtype.type(1 - query.trust) * (features.means - row.dtype.type(features.centre))
            query.raised(row)
        return predicted

    def _on_device(self, query: _Posterior) -> Any:
        features = self._features
        row = features.factors.predictions(query.weights, means=features.device_means).add_(query.level)
        if query.trust < 1:
            row.sub_(features.device_means, alpha=1 - query.trust).add_((1 - query.trust) * features.centre)
        return row

    def affine(self) -> list[Affine]:
        """What `predict` computes, for an engine that has the rows: as weights of what is stored of an item."""
        factors, affine = self._features.factors, []
        for query in self._queries:
            stored = factors.stored_weights(query.weights)
            affine.append(
                Affine(
                    weights=np.append(stored, query.trust),
                    constant=query.level + (1 - query.trust) * self._features.centre - float(factors.centre @ stored),
                    listed=query.listed,
                    rises=query.rises(),
                )
            )
        return affine

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best).

        The unit is the standard deviation of this query's residuals; the posterior variance hardly differs between
        items, and its level was chosen for recall (docs/decisions/0026-stopping.md).
        """
        deviation = self._queries[query].residual_deviation
        if not math.isfinite(deviation):
            return np.ones((len(predicted), len(best)))
        thresholds = self._features.scale.rarity(best)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            distances = (np.asarray(predicted, dtype=np.float64)[:, None] - thresholds) / deviation
            log_odds = _AT_EQUAL + _PER_DEVIATION * distances + _PER_RANK * np.log(ranks)
            return np.asarray(1 / (1 + np.exp(-log_odds)))


@dataclass(slots=True, eq=False)
class _Posterior:
    """One query: the weights of the features and the level of all items, given its exact scores.

    A prediction is the item's mean, as far as there is `trust` in it, + features · `weights` + `level`, and what its
    ranks in the first stages' `lists` add by their `slopes`. The weights are the `prior`'s at first. `left_out` is the
    anchor query that must not be known, in a replay: the weights are then mapped to the features with it.
    """

    features: Features
    prior: FloatArray
    weights: FloatArray
    variances: FloatArray
    level_variance: float
    noise: float
    trust: float = 1.0
    left_out: LeaveOneOut | None = None
    slopes: RankSlopes | None = None
    lists: Sequence[IntArray] = ()
    level: float = 0.0
    _offset: float = 0.0
    _system: GrowingCholesky = field(default_factory=GrowingCholesky)
    _positions: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    _rows: FloatArray | None = None
    _solved: FloatArray = field(default_factory=lambda: np.empty(0))
    _listed: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    _rises: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    _steps: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    _slope: FloatArray = field(default_factory=lambda: np.empty(0))

    def __post_init__(self) -> None:
        if self.slopes is not None and self.lists:
            # Copies: a part of a first stage's answer would hold all of it.
            self.lists = [some[:RANKS_THAT_COUNT].copy() for some in self.lists]
            self._listed = np.unique(np.concatenate(self.lists))
            self._rises = rises(self.lists, self._listed)
            self._slope = self.slopes.means
            self._steps = np.empty((0, len(self._slope)))

    @property
    def listed(self) -> IntArray:
        """The items whose predictions the first stages' ranks raise."""
        return self._listed

    def rises(self) -> FloatArray:
        """What the first stages' ranks add to the predictions of the `listed` items."""
        return np.asarray(self._rises @ self._slope) if len(self._listed) else np.empty(0)

    def raised(self, row: Any) -> Any:
        """A row of predictions, in place, with what the first stages' ranks add."""
        if len(self._listed):
            row[self._listed] = row[self._listed] + self.rises().astype(row.dtype)
        return row

    def tell(self, positions: IntArray, scores: FloatArray) -> None:
        """Condition on the exact scores of these items."""
        features, left_out, known = self.features, self.left_out, len(self._positions)
        rarities = features.scale.rarity(scores)
        if not known and not len(features.precisions):
            # Without anchor queries nothing else says where this query's scores lie.
            self._offset = float(rarities.mean())
        new, means = features.at(positions)
        if left_out is not None:
            new, means = left_out.rows(new), means - new @ left_out.shift
        means = features.centre + self.trust * (means - features.centre)
        # Read again each round: held, they would take more memory than the factor. A replay has to map them too.
        earlier = features.at(self._positions)[0] if self._rows is None else self._rows
        rows = np.vstack([earlier, new])
        self._positions = np.concatenate([self._positions, positions])
        if left_out is not None:
            self._rows = rows
        covariance = (new * self.variances) @ rows.T + self.level_variance
        among_new = covariance[:, known:]
        among_new[np.diag_indices_from(among_new)] += self.noise
        residuals = rarities - means - new @ self.prior - self._offset
        if self.slopes is not None and len(self._listed):
            steps = rises(self.lists, positions)
            self._steps = np.vstack([self._steps, steps])
            covariance += steps @ self.slopes.covariance @ self._steps.T
            residuals -= steps @ self.slopes.means
        self._solved = self._system.append(covariance[:, :known], among_new, residuals)
        weights = self.prior + self.variances * (rows.T @ self._solved)
        if self.slopes is not None and len(self._listed):
            self._slope = self.slopes.means + self.slopes.covariance @ (self._steps.T @ self._solved)
        self.weights = weights if left_out is None else left_out.weights(weights, trust=self.trust)
        self.level = self._offset + self.level_variance * float(self._solved.sum())

    @property
    def residual_deviation(self) -> float:
        """The standard deviation of the scores from what the other scores predict of each; infinite for too few."""
        if len(self._positions) < _FEWEST_RESIDUALS:
            return math.inf
        # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
        return float((self._solved / self._system.precisions()).std())
