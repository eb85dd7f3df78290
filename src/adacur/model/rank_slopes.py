"""Features that only listed items have: their ranks in first stages, and what the query's words add to them.

An item's prior mean rises with the logarithm of its rank, by a slope that differs from query to query. The anchor
queries give the slopes' mean and covariance; the query's own scores then update the slopes, like everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.model.constants import ASSUMED_QUERIES, NOISE, SLOPE, SLOPE_DEVIATION
from adacur.model.features import Features
from adacur.protocols import Ranking

# Beyond this rank a first stage says nothing.
RANKS_THAT_COUNT = 1000
# More items than this share a word only where it says little.
ITEMS_OF_A_TERM = 10_000
# With fewer scores, a query cannot tell which of its words matter.
SCORES_FOR_TERMS = 15
# Steps are of the natural logarithm: a tenfold rank counts up to 2.3 less. The first ten are much alike.
_ALIKE = 10
RISE: FloatArray = np.log((_ALIKE + RANKS_THAT_COUNT) / (_ALIKE + np.arange(RANKS_THAT_COUNT)))

# More anchor queries hardly change the estimate, and each costs a search of the first stage.
MOST_QUERIES = 60
# The order among a stage's best decides what is scored; items at random say where everything else lies.
_BEST, _AT_RANDOM = 100, 1000
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


@dataclass(frozen=True, slots=True, eq=False)
class RankSlopes:
    """Mean and covariance, over queries, of the slopes of some first stages, on the scale of rarities."""

    means: FloatArray
    covariance: FloatArray

    @property
    def variance(self) -> float:
        """Of the slopes, summed over the stages."""
        return float(np.trace(self.covariance))

    @classmethod
    def assumed(cls, n_stages: int) -> RankSlopes:
        """The prior, for stages that cannot be asked about the anchor queries."""
        return cls(np.full(n_stages, SLOPE), np.eye(n_stages) * SLOPE_DEVIATION**2)

    def features(self, lists: Sequence[IntArray], terms: Sequence[Ranking] = ()) -> ListedFeatures:
        """How high each stage ranks the items of a query; `lists` has per stage what it ranks, best first.

        After these, what each of its `terms` adds to an item's score by words.
        """
        cut = [some[:RANKS_THAT_COUNT] for some in lists]
        added = [RISE[: len(some)] for some in cut]
        cut, added = [*cut, *(term.positions for term in terms)], [*added, *(term.scores for term in terms)]
        listed, places = np.unique(np.concatenate(cut), return_inverse=True)
        stages = np.repeat(np.arange(len(cut)), [len(some) for some in cut])
        steps = np.concatenate(added)
        values = np.zeros(len(listed) * len(cut))
        # Of an item that a stage names twice, the better rank counts.
        np.maximum.at(values, places * len(cut) + stages, steps)
        means = np.concatenate([self.means, np.zeros(len(terms))])
        covariance = np.eye(len(cut)) * SLOPE_DEVIATION**2
        covariance[: len(lists), : len(lists)] = self.covariance
        return ListedFeatures(listed, values.reshape(len(listed), len(cut)), means, covariance)

    @classmethod
    def fitted(
        cls, features: Features, columns: IntArray, lists: Sequence[Sequence[IntArray]], *, keys: KeyArray
    ) -> RankSlopes:
        """From the anchor queries in these columns, where `lists` are, per query, each stage's positions, best first.

        Each is predicted by the others, of which there must be some; its slopes are fitted to the residuals. `keys`
        are the items' random keys.
        """
        n_stages = len(lists[0])
        sample = np.sort(np.argsort(keys, kind="stable")[:_AT_RANDOM])
        kernel, sums = features.kernel(), features.sums
        squares, products = [], []
        for column, of_query in zip(columns.tolist(), lists, strict=True):
            best = np.unique(np.concatenate([some[:_BEST] for some in of_query]))
            others = sample[~np.isin(sample, best)]
            positions = np.concatenate([best, others])
            weights = np.ones(len(positions))
            weights[len(best) :] = max(1, len(best)) / max(1, len(others))
            steps = rises(of_query, positions)
            left = _unexplained(features, column, positions, kernel, sums)
            weights /= weights.sum()
            steps, left = steps - weights @ steps, left - weights @ left
            squares.append((steps * weights[:, None]).T @ steps)
            products.append((steps * weights[:, None]).T @ left)
        assumed = cls.assumed(n_stages)
        typical = np.diag(np.diag(np.mean(squares, axis=0))) + 1e-12 * np.eye(n_stages)
        means = np.linalg.solve(
            np.sum(squares, axis=0) + ASSUMED_QUERIES * typical,
            np.sum(products, axis=0) + ASSUMED_QUERIES * typical @ assumed.means,
        )
        away = [
            # Regularised, so that a stage that found next to nothing for a query does not matter.
            np.linalg.solve(square + NOISE * typical, product - square @ means)
            for square, product in zip(squares, products, strict=True)
        ]
        total = np.einsum("qi,qj->ij", away, away) + ASSUMED_QUERIES * assumed.covariance
        return cls(means, np.asarray(total / (len(away) + ASSUMED_QUERIES)))


def rises(lists: Sequence[IntArray], positions: IntArray) -> FloatArray:
    """How high each stage ranks the items at these positions, on a logarithmic scale: shape (positions, stages)."""
    found = np.zeros((len(positions), len(lists)))
    for stage, listed in enumerate(lists):
        listed = listed[:RANKS_THAT_COUNT]
        order = np.argsort(listed, kind="stable")
        places = np.minimum(np.searchsorted(listed, positions, sorter=order), max(0, len(listed) - 1))
        if len(listed):
            ranks = order[places]
            found[:, stage] = np.where(listed[ranks] == positions, RISE[ranks], 0.0)
    return found


def _unexplained(
    features: Features, column: int, positions: IntArray, kernel: FloatArray, sums: FloatArray
) -> FloatArray:
    """The residuals of an anchor query's scores at these positions, predicted by the others, up to a constant.

    `kernel` is that of the anchor queries, with noise, and `sums` are the sums of the rows of its inverse.
    """
    n_anchors = len(features.precisions)
    rows = features.rows_in_memory(positions)
    residuals, means = rows[:, :n_anchors], rows[:, -2]
    left, centred, from_others = residuals[:, column], residuals[:, column], 0.0
    if features.anchor_vectors is not None:
        # Features are residuals of the regression: its inverse times the scores, over its diagonal.
        centred = residuals @ (features.precisions * kernel[:, column])
        # What the regression on the others makes of a constant.
        from_others = 1 - float(sums[column] / features.precisions[column])
    # The mean that scores are centred by must not know this query either.
    shift = centred / (n_anchors - 1)
    trust = features.trust + (1 - features.trust) * float(np.clip(from_others, 0, 1))
    return np.asarray(means + left - trust * (means - shift) - shift * from_others)


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
