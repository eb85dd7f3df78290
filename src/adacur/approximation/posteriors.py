"""The Gaussian's posterior of queries, one by one: on numpy an answer does not depend on its neighbours."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.approximation.device_posteriors import FEWEST_RESIDUALS
from adacur.approximation.engine_rows import Affine
from adacur.approximation.gaussian_features import Features
from adacur.approximation.growing_cholesky import GrowingCholesky
from adacur.approximation.item_factors import ScoreScale
from adacur.approximation.leave_one_out import LeaveOneOut
from adacur.approximation.rank_slopes import RANKS_THAT_COUNT, RankSlopes, rises
from adacur.core.arrays import FloatArray, IntArray

# Log-odds that an item scores above the best scored: for one predicted to score just that, per standard deviation of
# this query's residuals that it is predicted higher, and per logarithm of the rank it would take. Fitted by likelihood
# to held-out anchor queries of three collections with 420 others; with fewer, fewer come above than stated.
_AT_EQUAL, _PER_DEVIATION, _PER_RANK = -1.6, 1.55, 0.38


@dataclass(frozen=True, slots=True, eq=False)
class Posteriors:
    """The approximation of a batch of queries, each conditioned on its exact scores.

    `in_scores` turns predictions into scores of the scorer; `together` predicts all queries in one product.
    """

    _features: Features
    _queries: Sequence[Posterior]
    in_scores: Callable[[FloatArray], FloatArray]
    together: bool = False

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        for query, where, exact in zip(self._queries, positions, scores, strict=True):
            if len(where):
                query.tell(where, exact)

    def predict(self) -> FloatArray:
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
        alone = len(self._queries) == 1
        predicted = np.empty((0 if alone else len(self._queries), len(features.means)), dtype=features.means.dtype)
        # One product per query: a product for the whole batch rounds differently with the batch's size, and an answer
        # must not depend on its neighbours.
        for at, query in enumerate(self._queries):
            row = features.factors.predictions(query.weights, means=features.means)
            if alone:
                predicted = row[None, :].astype(predicted.dtype, copy=False)
            else:
                predicted[at] = row
            row = predicted[at]
            row += row.dtype.type(query.level)
            if query.trust < 1:
                row -= row.dtype.type(1 - query.trust) * (features.means - row.dtype.type(features.centre))
            query.raised(row)
        return predicted

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
        """How likely unscored items are to score above the best scored, shape (predicted, best)."""
        deviation = self._queries[query].residual_deviation
        return chance_above(self._features.scale, deviation, predicted, best, ranks)


def chance_above(
    scale: ScoreScale, deviation: float, predicted: FloatArray, best: FloatArray, ranks: IntArray
) -> FloatArray:
    """How likely unscored items are to score above the best scored, shape (predicted, best).

    The unit is the standard deviation of this query's residuals; the posterior variance hardly differs between items,
    and its level was chosen for recall (docs/decisions/0026-stopping.md).
    """
    if not math.isfinite(deviation):
        return np.ones((len(predicted), len(best)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        distances = (np.asarray(predicted, dtype=np.float64)[:, None] - scale.rarity(best)) / deviation
        log_odds = _AT_EQUAL + _PER_DEVIATION * distances + _PER_RANK * np.log(ranks)
        return np.asarray(1 / (1 + np.exp(-log_odds)))


@dataclass(slots=True, eq=False)
class Posterior:
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
    # Whether rows of scored items are kept: reading them again takes less memory.
    keeps_rows: bool = False
    slopes: RankSlopes | None = None
    lists: Sequence[IntArray] = ()
    level: float = 0.0
    _offset: float = 0.0
    _system: GrowingCholesky = field(default_factory=GrowingCholesky)
    _positions: IntArray = field(default_factory=lambda: np.empty(0, dtype=np.intp))
    _rows: FloatArray | None = None
    _expected: tuple[dict[int, int], FloatArray] | None = None
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

    def copied(self) -> Posterior:
        """A posterior of its own, which knows the same scores."""
        other = copy.copy(self)
        other._system = copy.copy(self._system)
        return other

    @property
    def listed(self) -> IntArray:
        """The items whose predictions the first stages' ranks raise."""
        return self._listed

    @property
    def scored(self) -> IntArray:
        """The items whose exact scores are known."""
        return self._positions

    def expect(self, positions: IntArray, rows: FloatArray) -> None:
        """Features of items that are likely to be scored next, so that they need not be read."""
        self._expected = {place: row for row, place in enumerate(positions.tolist())}, rows

    def _read(self, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Features and means of items."""
        if self._expected is not None:
            places, rows = self._expected
            self._expected, known = None, [places.get(position, -1) for position in positions.tolist()]
            if min(known, default=-1) >= 0:
                return rows[known], self.features.means[positions]
        return self.features.at(positions)

    @property
    def slope(self) -> FloatArray:
        """How steeply predictions rise with each stage's ranks."""
        return self._slope

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
        new, means = self._read(positions)
        if left_out is not None:
            new, means = left_out.rows(new), means - new @ left_out.shift
        means = features.centre + self.trust * (means - features.centre)
        # Read again each round: held, they would take more memory than the factor. A replay has to map them too.
        earlier = features.at(self._positions)[0] if self._rows is None else self._rows
        rows = np.vstack([earlier, new])
        self._positions = np.concatenate([self._positions, positions])
        if left_out is not None or self.keeps_rows:
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
        if len(self._positions) < FEWEST_RESIDUALS:
            return math.inf
        # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
        return float((self._solved / self._system.precisions()).std())
