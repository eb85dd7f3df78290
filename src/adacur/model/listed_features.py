"""Features of one query that only a few items have, such as their ranks in first stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray

# Arrays that hold those of several queries have room for a multiple of so many items and features.
_ITEMS, _FEATURES = 1024, 4


@dataclass(frozen=True, slots=True, eq=False)
class ListedFeatures:
    """Features of the items at `positions`, which are ascending and distinct; those of all other items are zero.

    `values` has a row per item. A feature's weight is drawn for each query: `means` and `covariance` are its prior, on
    the scale of rarities.
    """

    positions: IntArray
    values: FloatArray
    means: FloatArray
    covariance: FloatArray

    @classmethod
    def none(cls) -> ListedFeatures:
        """No features at all."""
        return cls(np.empty(0, dtype=np.intp), np.empty((0, 0)), np.empty(0), np.empty((0, 0)))

    @property
    def n_features(self) -> int:
        """How many an item has."""
        return len(self.means)


def room_for(listed: Sequence[ListedFeatures]) -> tuple[int, int]:
    """How many items and features arrays that hold those of several queries need.

    Rounded up, so that searches whose lists differ a little can be computed in one batch.
    """
    n_items, n_features = _needed(listed)
    if n_features > _FEATURES:
        n_features = -(-n_features // _FEATURES) * _FEATURES
    return -(-n_items // _ITEMS) * _ITEMS, n_features


def _needed(listed: Sequence[ListedFeatures]) -> tuple[int, int]:
    n_items = max((len(some.positions) for some in listed), default=0)
    return n_items, max((some.n_features for some in listed), default=0)


def stacked(listed: Sequence[ListedFeatures], room: tuple[int, int] | None = None) -> tuple[Any, Any, Any, Any]:
    """The fields of several queries as arrays with a first axis of queries, with this room; by default, what is needed.

    Padding repeats the last position, with features of 0; features that a query lacks have weights of 0.
    """
    if room is None and len(listed) == 1:
        (one,) = listed
        return one.positions[None], one.values[None], one.means[None], one.covariance[None]
    n_items, n_features = room or _needed(listed)
    at, values = np.zeros((len(listed), n_items), dtype=np.int64), np.zeros((len(listed), n_items, n_features))
    means, covariances = np.zeros((len(listed), n_features)), np.zeros((len(listed), n_features, n_features))
    for query, some in enumerate(listed):
        n, m = len(some.positions), some.n_features
        at[query, :n], values[query, :n, :m] = some.positions, some.values
        at[query, n:] = some.positions[-1] if n else 0
        means[query, :m], covariances[query, :m, :m] = some.means, some.covariance
    return at, values, means, covariances
