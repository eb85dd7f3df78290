"""Predict scores by the conditional mean of a Gaussian, given anchor queries, embeddings and exact scores.

Anchor queries are draws from the population of queries, so they estimate the prior mean m and covariance K of a query's
scores over the items. Given scores s at items A, the posterior mean is

    ŝ = m + K[:, A] (K[A, A] + λ I)⁻¹ (s_A − m_A)

What goes into m and K, each part of which can be left out:

- scores are modelled on a `ScoreScale`, so that the crowded bottom of a cross-encoder's range counts;
- m is what anchor queries like this one scored: a kernel regression on the query embeddings, or the plain mean;
- K is the covariance of that regression's residuals, each anchor query's taken without its own help, with more weight
  on anchor queries like this one;
- means over few anchor queries are shrunk towards their own mean, as far as they are noise;
- items that embed alike share evidence, where anchor queries are too few to show that they are alike;
- items that a first stage ranks high are expected to score higher, by slopes learned from anchor queries and scores.

With every part left out this is the paper's pseudo-inverse.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.approximation import Posterior
from adacur.model.compressed import compressed
from adacur.model.constants import NOISE, QUERY_SCALE, embedding_share, locality
from adacur.model.device_posterior import DevicePosterior
from adacur.model.features import EmbedQueries, Extraction, Features, checked_embeddings, unit_vectors
from adacur.model.left_out import LeaveOneOut
from adacur.model.posterior import Prior
from adacur.model.rank_slopes import RISE, ListedFeatures, RankSlopes, room_for, stacked
from adacur.model.rows import Allocate, PackedRows, RowSource, Storage, in_memory
from adacur.names import RECORDED_CHOICES, named
from adacur.protocols import AnchorScores, BlockedScores, Ranking
from adacur.records import Query
from adacur.requirements import require

_log = logging.getLogger(__name__)
# Per query, the positions that each first stage ranks, best first.
Ranks = Sequence[Sequence[IntArray]]
# Per query, what each of its words adds to the items that have it.
Terms = Sequence[Sequence[Ranking]]

# Below this the system is singular as soon as two items are alike; predictions differ by less than float32 can tell.
_LEAST_NOISE = 1e-10


@dataclass(slots=True, eq=False)
class _Extracted:
    """Cached features of the index searched last, shared by models that differ only in their settings."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    scores: object = None
    features: Features | None = None


class GaussianModel:
    """Predict by the mean and covariance of the anchor queries' scores and, where given, embeddings.

    - `embeddings`: of the items, in the order of the index: an array, or rows that `compressed` reads a block at a
      time.
    - `embed_queries`: the dual encoder's query vectors, as `Dense.embed_queries` gives them.
    - `noise` (λ): relative to the mean variance of an item's score.
    - `rescale=False` models scores as they are, `centre=False` leaves the mean out.
    - `features` (`compressed`, or read from a file) replace those computed from the scores of the index.
    - `slopes`: how much predictions rise with ranks in first stages; None to ignore ranks.
    - `device`: the torch device that holds the features and predicts, e.g. "cuda"; numpy by default.

    Features depend on the index alone; they are computed once, and cached for the index searched last.
    """

    def __init__(
        self,
        *,
        embeddings: FloatArray | RowSource | None = None,
        embed_queries: EmbedQueries | None = None,
        noise: float = NOISE,
        rescale: bool = True,
        centre: bool = True,
        features: Features | None = None,
        slopes: RankSlopes | None = None,
        device: str | None = None,
    ) -> None:
        if not noise >= 0:
            raise InputError(f"noise must not be negative; got {noise}.")
        self._item_vectors: RowSource | None = None
        self.embeddings: FloatArray | None = None
        if embeddings is not None and hasattr(embeddings, "rows"):
            self._item_vectors = embeddings
        elif embeddings is not None:
            self.embeddings = checked_embeddings(embeddings)
            self._item_vectors = PackedRows(self.embeddings)
        self.embed_queries = embed_queries
        self.noise = noise
        self.slopes = slopes
        self.rescale = rescale
        self.centre = centre
        self.device = device
        self._given = None if features is None else _placed(features, device)
        self._extracted = _Extracted()
        self._together = False

    def with_slopes(self, slopes: RankSlopes | None) -> GaussianModel:
        """The same model with these slopes, sharing everything that depends on the index alone."""
        # A copy: searches come here each time, and a new model would check all embeddings.
        other = copy.copy(self)
        other.slopes = slopes
        return other

    def in_one_product(self) -> GaussianModel:
        """The same model, predicting for all queries of a batch at once: faster, but rounded by the batch's size."""
        other = copy.copy(self)
        other._together = True
        return other

    def __repr__(self) -> str:
        given = self._given
        has_embeddings = self._item_vectors is not None or (given is not None and given.embedding_variance > 0)
        parts = [f"noise={self.noise}"]
        parts += ["no embeddings"] * (not has_embeddings)
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
        terms: Terms = (),
        features: Features | None = None,
    ) -> Posterior | DevicePosterior:
        """A fresh approximation for these queries; `ranks` are, per query, what each first stage ranks, best first.

        `features` take the place of those of the index: of items whose rows live in an engine.
        """
        features = self.features_of(anchors) if features is None else features
        vectors = unit_vectors(self.embed_queries, queries) if features.anchor_vectors is not None else None
        listed = self._listed(ranks, terms, len(queries))
        if features.device_means is None or self._together:
            return Posterior(features, self._priors(features, vectors, listed), together=self._together)
        return DevicePosterior(
            features,
            lambda: self._prior(features, vectors, listed, room=room_for(listed)),
            n_queries=len(queries),
        )

    def replay(
        self,
        anchors: AnchorScores,
        positions: IntArray,
        ranks: Ranks | None = None,
        *,
        terms: Terms = (),
    ) -> Posterior:
        """An approximation for the anchor queries at these positions, each as if it were new.

        They still count in the score scale, the mean variance, the slopes, and how far means are shrunk. All are
        predicted in one product, which is fast, but rounds differently with the size of the batch: for statistics, not
        for answers.
        """
        if len(anchors.anchor_queries) < 2:
            # The mean of one is its own scores.
            raise InputError(
                f"Replaying an anchor query needs at least one other; got {len(anchors.anchor_queries)} in all."
            )
        features = self.features_of(anchors)
        vectors = features.anchor_vectors
        kernel = features.kernel()
        inverse = np.linalg.inv(kernel)
        n_features = features.factors.n_features + 2
        left_out = [
            LeaveOneOut.of(position, kernel, inverse, n_features=n_features, centre=self.centre)
            for position in positions.tolist()
        ]
        replayed = None if vectors is None else vectors[positions]
        priors = self._priors(features, replayed, self._listed(ranks, terms, len(positions)), left_out)
        return Posterior(features, priors, left_out=left_out, together=True)

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
            raise InputError("An index without anchor queries has no scores to compress. Add some first.")
        extraction = self.extraction(anchors)
        return compressed(extraction, rank=rank, storage=storage, allocate=allocate)

    def features_of(self, anchors: AnchorScores) -> Features:
        """The features of this index: as given, or extracted once."""
        if self._given is not None and self._given.belong_to(anchors):
            return self._given
        last, scores = self._extracted, anchors if isinstance(anchors, BlockedScores) else anchors.matrix
        # Many threads may begin at once, and each set of features is a second copy of the index.
        with last.lock:
            if last.features is None or last.scores is not scores:
                features = self.extraction(anchors).features()
                last.features, last.scores = _placed(features, self.device), scores
            return last.features

    def extraction(self, anchors: AnchorScores) -> Extraction:
        """What makes the features of this index."""
        return Extraction(
            anchors,
            item_vectors=self._item_vectors,
            embed_queries=self.embed_queries,
            rescale=self.rescale,
            centre=self.centre,
        )

    def _priors(
        self,
        features: Features,
        vectors: FloatArray | None,
        listed: Sequence[ListedFeatures],
        left_out: Sequence[LeaveOneOut] = (),
    ) -> list[Prior]:
        """The prior of each query; one by one, since a batch rounds by its size."""
        without: Sequence[LeaveOneOut | None] = left_out or [None] * len(listed)
        return [
            self._prior(features, None if vectors is None else vectors[[at]], listed[at : at + 1], left_out=without[at])
            for at in range(len(listed))
        ]

    def _prior(
        self,
        features: Features,
        vectors: FloatArray | None,
        listed: Sequence[ListedFeatures],
        *,
        left_out: LeaveOneOut | None = None,
        room: tuple[int, int] | None = None,
    ) -> Prior:
        """The prior of some queries, given their vectors; as if the anchor query `left_out` were not in the index.

        `room` is that for listed features; by default, what they need.
        """
        n_queries, n_anchors, n_features = len(listed), len(features.precisions), features.factors.n_features
        share = embedding_share(n_anchors) if features.embedding_variance else 0.0
        # An index whose scores never vary says nothing of scale; the embeddings then stand alone.
        variance = features.variance or 1.0
        usual = variance * (1 + share)
        # The last two are the item's mean, which nothing moves, and the level of all items.
        weights, variances = np.zeros((2, n_queries, n_features + 2))
        variances[:, n_anchors:-2] = share * variance / features.embedding_variance if share else 0.0
        variances[:, :n_anchors] = 1 / max(1, n_anchors - (left_out is not None))
        variances[:, -1] = usual if self.centre else 0.0
        trusts = np.full(n_queries, features.trust)
        if left_out is not None:
            variances[:, left_out.position] = 0.0
        if features.anchor_vectors is not None and vectors is not None:
            likeness = vectors @ features.anchor_vectors.T
            if left_out is not None:
                likeness[:, left_out.position] = -np.inf
            nearness = np.exp((likeness - likeness.max(axis=1, keepdims=True)) / locality(n_anchors))
            variances[:, :n_anchors] = nearness / nearness.sum(axis=1, keepdims=True)
            kernel = np.exp((likeness - 1) / QUERY_SCALE)
            precisions = features.precisions if left_out is None else left_out.precisions[:n_anchors]
            weights[:, :n_anchors] = kernel * precisions
            # What the means lack, the regression makes up for, as far as it knows queries like this one.
            sums = features.sums if left_out is None else left_out.sums
            trusts += (1 - trusts) * np.clip(kernel @ sums, 0, 1)
        weights[:, -2], weights[:, -1] = trusts, (1 - trusts) * features.centre
        at, values, listed_weights, covariance = stacked(listed, room)
        # Where all anchor queries agree, ranks may be all that scores can vary by.
        from_ranks = np.trace(covariance, axis1=1, axis2=2) * RISE[0] ** 2
        noise = np.maximum(self.noise * usual, _LEAST_NOISE * (usual + from_ranks))
        return Prior(weights, variances, noise, at, values, listed_weights, covariance)

    def _listed(self, ranks: Ranks | None, terms: Terms, n_queries: int) -> list[ListedFeatures]:
        """The listed features of each query; none without slopes."""
        if not ranks or self.slopes is None:
            return [ListedFeatures.none()] * n_queries
        n_stages = len(self.slopes.means)
        if others := {len(of_query) for of_query in ranks} - {n_stages}:
            raise InputError(
                f"There must be a slope for each first stage that ranks items; got {n_stages} slopes for the ranks of "
                f"{min(others)} stages. Learn the slopes from the first stage that searches start from, or give "
                "slopes=None."
            )
        terms = terms or [()] * n_queries
        return [self.slopes.features(lists, some) for lists, some in zip(ranks, terms, strict=True)]


def _placed(features: Features, device: str | None) -> Features:
    """The features on a device; where they do not fit there, they stay in memory."""
    if device is None:
        return features
    torch = require("torch", extra="torch")
    try:
        return replace(features.on(device), recorded=named(RECORDED_CHOICES)())
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        _log.warning(
            "The features of %d items take %.1f GB, and %s has too little memory left: searches predict on the "
            "processor. `adacur index compress` makes them smaller.",
            len(features.means),
            features.nbytes / 1e9,
            device,
        )
        return features
