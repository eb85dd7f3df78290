"""The Gaussian model over items whose rows live in a vector engine: only what does not grow with them is held here.

A prediction is affine in an item's stored row, so an engine that finds the largest inner products finds the most
promising items. A row holds the item's packed features, and its prior mean in the last column; a row without a mean,
such as a dual encoder's vector, is all features.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from adacur.approximation.gaussian_features import Features
from adacur.approximation.item_factors import ROWS_PER_BLOCK, ItemFactors, ScoreScale
from adacur.core.arrays import FloatArray, IntArray

# What an outline has in common with the features it was made of.
_SHARED = ("anchors", "scale", "anchor_vectors", "precisions", "variance", "embedding_variance", "trust", "centre")


@dataclass(frozen=True, slots=True, eq=False)
class Affine:
    """A query's prediction of any item: `weights` · (what is stored of it, its mean) + `constant`.

    Of the `listed` items, which first stages rank, `rises` is what their ranks add.
    """

    weights: FloatArray
    constant: float
    listed: IntArray
    rises: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What predictions need of an index besides the rows of its items; see `Features` for most of it.

    `width` counts the columns of a row, `row_mean` and `row_covariance` are those of all rows: they give the standard
    deviation of a query's predictions without reading any.
    """

    n_items: int
    anchors: tuple[str, ...]
    scale: ScoreScale
    anchor_vectors: FloatArray | None
    precisions: FloatArray
    variance: float
    embedding_variance: float
    trust: float
    centre: float
    stored_centre: FloatArray
    mixing: FloatArray | None
    row_mean: FloatArray
    row_covariance: FloatArray
    _sums: dict[float, FloatArray] = field(repr=False, default_factory=dict)

    @classmethod
    def of(cls, features: Features) -> Outline:
        """The outline of features in memory; reads all rows once."""
        n_items, width = features.factors.n_items, len(features.factors.centre) + 1
        total, squares = np.zeros(width), np.zeros((width, width))
        for start in range(0, n_items, ROWS_PER_BLOCK):
            wide = rows_of(features, np.arange(start, min(start + ROWS_PER_BLOCK, n_items))).astype(np.float64)
            total += wide.sum(axis=0)
            squares += wide.T @ wide
        mean = total / n_items
        return cls(
            n_items=n_items,
            **{name: getattr(features, name) for name in _SHARED},
            stored_centre=features.factors.centre,
            mixing=features.factors.mixing,
            row_mean=mean,
            row_covariance=squares / n_items - np.outer(mean, mean),
        )

    @classmethod
    def of_vectors(cls, sample: FloatArray, *, n_items: int) -> Outline:
        """The outline of items known only by a dual encoder's vectors, of which these are a sample."""
        wide = np.asarray(sample, dtype=np.float64)
        mean = wide.mean(axis=0)
        covariance = np.cov(wide, rowvar=False, bias=True).reshape(len(mean), len(mean))
        return cls(
            n_items=n_items,
            anchors=(),
            scale=ScoreScale.plain(),
            anchor_vectors=None,
            precisions=np.zeros(0),
            variance=0.0,
            embedding_variance=float(np.trace(covariance)),
            trust=1.0,
            centre=0.0,
            stored_centre=mean,
            mixing=None,
            row_mean=mean,
            row_covariance=covariance,
        )

    @property
    def width(self) -> int:
        """Columns of a row in the engine."""
        return len(self.row_mean)

    def features(self, read: Callable[[IntArray], FloatArray]) -> Features:
        """Features of items whose rows `read` fetches by position."""
        n_stored = len(self.stored_centre)

        def split(positions: IntArray) -> tuple[FloatArray, FloatArray]:
            rows = read(positions).astype(np.float64)
            # The last column is the item's prior mean, if it is not a feature.
            return rows[:, :n_stored], rows[:, -1] if self.width > n_stored else np.zeros(len(rows))

        return Features(
            **{name: getattr(self, name) for name in _SHARED},
            means=np.empty(0),
            factors=ItemFactors([], self.stored_centre, mixing=self.mixing),
            read=split,
            known_sums=self._sums,
        )

    def weights(self, prediction: Affine) -> FloatArray:
        """What the engine multiplies rows by."""
        return prediction.weights[: self.width].astype(np.float32)

    def deviation(self, prediction: Affine, listed: FloatArray, rises: FloatArray) -> float:
        """The standard deviation of the predictions of all items, some of which are raised.

        `listed` are predictions before they are raised by `rises`.
        """
        weights = self.weights(prediction).astype(np.float64)
        mean = float(self.row_mean @ weights) + prediction.constant
        square = float(weights @ self.row_covariance @ weights) + mean**2
        n = max(1, self.n_items)
        mean += float(rises.sum()) / n
        square += float((2 * listed * rises + rises**2).sum()) / n
        return math.sqrt(max(0.0, square - mean**2))


def rows_of(features: Features, positions: IntArray) -> FloatArray:
    """The rows of these items, as an engine holds them; float32."""
    return np.hstack([features.factors.stored(positions), features.means[positions, None]]).astype(np.float32)
