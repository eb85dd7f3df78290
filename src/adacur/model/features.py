"""What the Gaussian model computes of an index before any query: prior means and features of the items.

The prior covariance of two items' scores is the product of their features, weighted by the query at hand. The features
are of two kinds: residuals, the part of each anchor query's score that the others leave unexplained, and the item's
embedding.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.constants import NOISE, QUERY_SCALE
from adacur.model.on_device import moved
from adacur.model.rows import (
    ROWS_PER_BLOCK,
    Allocate,
    ItemFactors,
    PackedRows,
    RowSource,
    in_memory,
)
from adacur.model.scale import ScoreScale
from adacur.protocols import AnchorScores, BlockedScores
from adacur.records import Query

EmbedQueries = Callable[[Sequence[Query]], FloatArray]


@dataclass(frozen=True, eq=False)
class Features:
    """Prior means and features of all items of an index, and the ids of its `anchors`.

    The first `len(precisions)` features of an item are residuals, one per anchor query, the others its embedding. A
    prediction has two more: the item's mean, and 1, whose weight is the level of all items.
    `precisions` is the diagonal of (K + ρ I)⁻¹, with K the kernel of the `anchor_vectors`; zeros without vectors.
    `variance` and `embedding_variance` are means over the items. `device_means` are the means where predictions are
    made on a device. `trust` is the share of the means' variance about their `centre` that is more than chance: over
    few anchor queries they are mostly noise.
    """

    anchors: tuple[str, ...]
    scale: ScoreScale
    means: FloatArray
    factors: ItemFactors
    anchor_vectors: FloatArray | None
    precisions: FloatArray
    variance: float
    embedding_variance: float
    device_means: Any = None
    # What was recorded of choices over these features; see extras/kernels/graph_top_n.py.
    recorded: Any = None
    trust: float = field(init=False)
    centre: float = field(init=False)

    def __post_init__(self) -> None:
        means = self.means
        # Without anchor queries all means are zero.
        spread = float(means.var(dtype=np.float64)) if self.anchors else 0.0
        n_others = len(self.anchors) - 1
        # Of a single anchor query's scores, nothing can be measured.
        trust = 0.0 if n_others == 0 else 1.0
        if n_others > 0 and spread > 0:
            trust = max(0.0, 1 - self.variance / n_others / spread)
        object.__setattr__(self, "trust", trust)
        object.__setattr__(self, "centre", float(means.mean(dtype=np.float64)) if self.anchors else 0.0)

    def kernel(self) -> FloatArray:
        """K + ρ I; the identity without vectors."""
        identity = np.eye(len(self.precisions))
        vectors = self.anchor_vectors
        return identity if vectors is None else query_kernel(vectors, vectors) + NOISE * identity

    @cached_property
    def sums(self) -> FloatArray:
        """The sums of the rows of (K + ρ I)⁻¹; zeros without vectors."""
        if self.anchor_vectors is None:
            return np.zeros(len(self.precisions))
        return np.linalg.solve(self.kernel(), np.ones(len(self.precisions)))

    @property
    def learns_level(self) -> bool:
        """Whether nothing but a query's own scores says where these lie."""
        return not len(self.precisions)

    @property
    def nbytes(self) -> int:
        """Bytes that grow with the items."""
        return self.factors.nbytes + self.means.nbytes

    def belong_to(self, anchors: AnchorScores) -> bool:
        """Whether these are the features of this index, as far as ids and sizes show."""
        ids = tuple(query.id for query in anchors.anchor_queries)
        return ids == self.anchors and len(anchors.items) == len(self.means)

    def rows(self, at: Any) -> Any:
        """What predictions take of the items at these places, where the features are: an axis at the end, float64."""
        xp = array_namespace(at)
        last = xp.ones((*at.shape, 2), dtype=xp.float64, device=device(at))
        last[..., 0] = (self.means if self.device_means is None else self.device_means)[at]
        return self.factors.rows(at, last)

    def rows_in_memory(self, at: IntArray) -> FloatArray:
        """The same in memory."""
        if self.device_means is None:
            return np.asarray(self.rows(at))
        return np.asarray(self.rows(moved(at, self.device_means.device, dtype="int64")).cpu().numpy())

    def predictions(self, weights: Any) -> Any:
        """Predictions of all items by the weights of several queries, (queries, items), where the features are."""
        return self.factors.predictions(weights, self.means if self.device_means is None else self.device_means)

    def predictions_in_memory(self, weights: FloatArray) -> FloatArray:
        """The same in memory."""
        if self.device_means is None:
            return np.asarray(self.predictions(weights))
        return np.asarray(self.predictions(moved(weights, self.device_means.device)).cpu().numpy())

    def on(self, device: str) -> Features:
        """The same features with everything that grows with the items on a torch device."""
        return replace(self, factors=self.factors.on(device), device_means=moved(self.means, device, dtype="float32"))


class Extraction:
    """Makes the features of an index, a block of items at a time.

    `item_vectors` are the items' embeddings, `embed_queries` the encoder of the anchor queries; either may be missing.
    """

    def __init__(
        self,
        anchors: AnchorScores,
        *,
        item_vectors: RowSource | None,
        embed_queries: EmbedQueries | None,
        rescale: bool,
        centre: bool,
    ) -> None:
        self._anchors = anchors
        self._centre = centre
        self._item_vectors = item_vectors
        self.n_items, n_anchors = len(anchors.items), len(anchors.anchor_queries)
        self._scale = ScoreScale.plain()
        if rescale and n_anchors:
            sample = ScoreScale.sample(anchors.items.keys, n_anchors=n_anchors)
            self._scale = ScoreScale.of(rows_at(anchors, sample))
        self._embedding_mean: FloatArray = np.empty(0)
        self.embedding_variance = 0.0
        if item_vectors is not None:
            if item_vectors.shape[0] != self.n_items:
                raise InputError(
                    f"One embedding per item is needed; got {item_vectors.shape[0]} for {self.n_items} items."
                )
            self._embedding_mean, self.embedding_variance = _moments(item_vectors)
        self.n_features = n_anchors + len(self._embedding_mean)
        self.query_vectors = unit_vectors(embed_queries, anchors.anchor_queries) if n_anchors else None
        self.precisions = np.zeros(n_anchors)
        self._residual_weights: FloatArray | None = None
        if self.query_vectors is not None:
            # Leaving each anchor query out of the regression, in closed form: residual = (K + ρ)⁻¹ y / diagonal.
            kernel = query_kernel(self.query_vectors, self.query_vectors)
            inverse = np.linalg.inv(kernel + NOISE * np.eye(n_anchors))
            self.precisions = np.diag(inverse).copy()
            self._residual_weights = inverse / self.precisions[:, None]

    def features(self, allocate: Allocate = in_memory) -> Features:
        """Features in the precision of the scores; means and residuals in the arrays "means" and "part0"."""
        vectors, n_anchors = self._item_vectors, len(self.precisions)
        blocks = self._residual_blocks()
        # Without anchor queries there is no block.
        first = next(blocks, (np.zeros(self.n_items), np.empty((self.n_items, 0), dtype=np.float32)))
        means = allocate("means", (self.n_items,), first[1].dtype.name)
        residuals = allocate("part0", (self.n_items, n_anchors), first[1].dtype.name)
        squares, start = 0.0, 0
        for block_means, block in itertools.chain([first], blocks):
            rows = slice(start, start + len(block))
            means[rows], residuals[rows] = block_means, block
            squares += float(np.square(block, dtype=np.float64).sum())
            start += len(block)
        parts = [PackedRows(residuals)]
        if vectors is not None:
            # Embeddings that are in memory are shared, not copied.
            held = vectors if isinstance(vectors, PackedRows) else PackedRows(vectors.rows(np.arange(self.n_items)))
            parts.append(held)
        centre = np.concatenate([np.zeros(len(self.precisions)), self._embedding_mean])
        return self.made(means, ItemFactors(parts, centre), squares=squares)

    def made(self, means: FloatArray, factors: ItemFactors, *, squares: float) -> Features:
        """Features of these parts; `squares` is the sum of those of the residuals."""
        n_anchors = len(self.precisions)
        return Features(
            anchors=tuple(query.id for query in self._anchors.anchor_queries),
            scale=self._scale,
            means=means,
            factors=factors,
            anchor_vectors=self.query_vectors,
            precisions=self.precisions,
            variance=squares / len(means) / n_anchors if n_anchors else 0.0,
            embedding_variance=self.embedding_variance,
        )

    def _residual_blocks(self) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Prior means and residuals of the items, a block at a time."""
        for stored in _score_blocks(self._anchors):
            weights = None if self._residual_weights is None else self._residual_weights.T.astype(stored.dtype)
            block = self._scale.rarity(stored)
            means = block.mean(axis=1) if self._centre and len(self.precisions) else np.zeros(len(block))
            block -= means[:, None]
            residuals = block.astype(stored.dtype)
            yield means, residuals if weights is None else residuals @ weights

    def feature_blocks(self) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Prior means, residuals and all features (float64) of the items, a block at a time."""
        start = 0
        for means, residuals in self._residual_blocks():
            rows = residuals.astype(np.float64)
            if self._item_vectors is not None:
                vectors = self._item_vectors.rows(np.arange(start, start + len(rows)))
                rows = np.hstack([rows, vectors - self._embedding_mean])
            yield means, residuals, rows
            start += len(rows)


def rows_at(anchors: AnchorScores, positions: IntArray) -> FloatArray:
    """Anchor scores of the items at these positions, which must be ascending; read in blocks where they can be."""
    if not isinstance(anchors, BlockedScores):
        return np.asarray(anchors.matrix[positions])
    parts, start = [], 0
    for block in _score_blocks(anchors):
        low, high = np.searchsorted(positions, [start, start + len(block)])
        parts.append(block[positions[low:high] - start])
        start += len(block)
    return np.concatenate(parts)


def query_kernel(some: FloatArray, others: FloatArray) -> FloatArray:
    """The kernel of queries by their unit vectors: 1 where these are equal."""
    return np.asarray(np.exp((some @ others.T - 1) / QUERY_SCALE))


def unit_vectors(embed_queries: EmbedQueries | None, queries: Sequence[Query]) -> FloatArray | None:
    """The queries' unit vectors; None without an encoder."""
    if embed_queries is None:
        return None
    vectors = np.asarray(embed_queries(queries), dtype=np.float64)
    if vectors.ndim != 2 or len(vectors) != len(queries) or not np.isfinite(vectors).all():
        raise InputError(
            f"embed_queries must give a finite vector per query; got shape {vectors.shape} for {len(queries)} queries."
        )
    return normalised(vectors)


def normalised(vectors: FloatArray) -> FloatArray:
    """Rows at length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0))


def checked_embeddings(embeddings: FloatArray) -> FloatArray:
    """Embeddings as float32 or float64, refused unless they are finite and two-dimensional."""
    embeddings = np.asarray(embeddings)
    if embeddings.ndim != 2 or not np.isfinite(embeddings).all():
        raise InputError(f"Embeddings must be finite numbers, a row per item; got shape {embeddings.shape}.")
    # Weights are cast to the embeddings' type, and whole numbers or halves would lose them.
    return embeddings if embeddings.dtype in (np.float32, np.float64) else embeddings.astype(np.float32)


def _score_blocks(anchors: AnchorScores) -> Iterator[FloatArray]:
    """Scores in blocks of one size, however they are stored: a product's last bits depend on its shape."""
    stored = (block for _, block in anchors.blocks()) if isinstance(anchors, BlockedScores) else iter([anchors.matrix])
    parts: list[FloatArray] = []
    for block in stored:
        wide = block.astype(np.promote_types(block.dtype, np.float32), copy=False)
        while len(wide):
            parts.append(wide[: ROWS_PER_BLOCK - sum(map(len, parts))])
            wide = wide[len(parts[-1]) :]
            if sum(map(len, parts)) == ROWS_PER_BLOCK:
                yield parts[0] if len(parts) == 1 else np.concatenate(parts)
                parts = []
    if parts:
        yield np.concatenate(parts)


def _moments(rows: RowSource) -> tuple[FloatArray, float]:
    """The mean of all rows, and their mean squared distance from it, in float64."""
    n_rows, width = rows.shape
    total, squares = np.zeros(width), 0.0
    for start in range(0, n_rows, ROWS_PER_BLOCK):
        block = rows.rows(np.arange(start, min(start + ROWS_PER_BLOCK, n_rows)))
        if not np.isfinite(block).all():
            raise InputError("Embeddings must be finite numbers, a row per item; some are not finite.")
        total += block.sum(axis=0, dtype=np.float64)
        squares += float(np.square(block, dtype=np.float64).sum())
    mean = total / n_rows
    return mean, max(0.0, squares / n_rows - float(mean @ mean))
