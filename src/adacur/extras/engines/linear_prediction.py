"""The Gaussian model over items whose vectors live in an engine: only what does not grow with them is held here.

A prediction is affine in an item's vector, so an engine that finds the largest inner products finds the most promising
items.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.model.approximation import Posterior
from adacur.model.features import Features
from adacur.model.posterior import rises
from adacur.model.rows import ItemFactors
from adacur.model.scale import ScoreScale

_MOST_ITEMS = 1 << 40


@dataclass(frozen=True, slots=True, eq=False)
class LinearPrediction:
    """A query's prediction of any item: `weights` · (its features, its prior mean) + `constant`.

    Of the `listed` items, which first stages rank, `rises` is what their ranks add.
    """

    weights: FloatArray
    constant: float
    listed: IntArray
    rises: FloatArray


def linear_predictions(posterior: Posterior) -> list[LinearPrediction]:
    """What `posterior.predict` computes, as weights of what is stored of an item."""
    factors, predictions = posterior.features.factors, []
    for state in posterior.states:
        stored = factors.stored_weights(state.weights[0, :-2])
        predictions.append(
            LinearPrediction(
                weights=np.append(stored, state.weights[0, -2]),
                constant=float(state.weights[0, -1] - factors.centre @ stored),
                listed=state.prior.listed[0],
                rises=rises(state)[0],
            )
        )
    return predictions


class _EngineRows:
    """Rows that an engine holds."""

    def __init__(self, read: Callable[[IntArray], FloatArray], shape: tuple[int, int]) -> None:
        self._read, self.shape = read, shape

    def rows(self, positions: IntArray) -> FloatArray:
        read: FloatArray = self._read(positions.reshape(-1)).astype(np.float64)
        return read.reshape(*positions.shape, self.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What predictions need to know of all items: how many there are, and the mean and covariance of their vectors.

    These give the standard deviation of a query's predictions without reading any vector.
    """

    n_items: int
    mean: FloatArray
    covariance: FloatArray

    @classmethod
    def of(cls, sample: FloatArray, *, n_items: int) -> Outline:
        """The outline of items whose vectors these are a sample of."""
        rows = np.asarray(sample, dtype=np.float64)
        mean = rows.mean(axis=0)
        return cls(n_items, mean, np.cov(rows, rowvar=False, bias=True).reshape(len(mean), len(mean)))

    @property
    def width(self) -> int:
        """Numbers of a vector in the engine."""
        return len(self.mean)

    def features(self, read: Callable[[IntArray], FloatArray]) -> Features:
        """Features of items whose vectors `read` fetches by position."""
        return Features(
            anchors=(),
            scale=ScoreScale.plain(),
            anchor_vectors=None,
            precisions=np.zeros(0),
            variance=0.0,
            embedding_variance=float(np.trace(self.covariance)),
            # A broadcast value takes no memory; items are numbered as a search meets them.
            means=np.broadcast_to(np.float32(0), _MOST_ITEMS),
            factors=ItemFactors([_EngineRows(read, (_MOST_ITEMS, self.width))], self.mean),
        )

    def weights(self, prediction: LinearPrediction) -> FloatArray:
        """What the engine multiplies vectors by."""
        return prediction.weights[: self.width].astype(np.float32)
