"""The Gaussian's posterior, query by query: on numpy a query's answer does not depend on the others of its batch."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.model.features import Features
from adacur.model.item_factors import ScoreScale
from adacur.model.linear_prediction import LinearPrediction
from adacur.model.listed_features import ListedFeatures

# Fewer residuals than these say nothing of their standard deviation.
FEWEST_RESIDUALS = 10
# Log-odds that an item scores above the best scored: for one predicted to score just that, per standard deviation of
# this query's residuals that it is predicted higher, and per logarithm of the rank it would take. Fitted by likelihood
# to held-out anchor queries of three collections with 420 others; with fewer, fewer come above than stated.
_AT_EQUAL, _PER_DEVIATION, _PER_RANK = -1.6, 1.55, 0.38


@dataclass(frozen=True, slots=True, eq=False)
class Priors:
    """What is known of several queries before any score: arrays with an axis of queries.

    `weights` and `variances` are those of the features, `trusts` those of the items' means. `listed` has per query the
    features that only listed items have.
    """

    weights: FloatArray
    variances: FloatArray
    trusts: FloatArray
    level_variance: float
    noise: float
    listed: Sequence[ListedFeatures]

    @classmethod
    def joined(cls, parts: Sequence[Priors]) -> Priors:
        """The priors of all these queries, which must agree in all but the arrays and lists."""
        return replace(
            parts[0],
            weights=np.concatenate([part.weights for part in parts]),
            variances=np.concatenate([part.variances for part in parts]),
            trusts=np.concatenate([part.trusts for part in parts]),
            listed=[of_query for part in parts for of_query in part.listed],
        )


@dataclass(frozen=True, slots=True, eq=False)
class Posteriors:
    """The approximation of a batch of queries; `together` predicts all of them in one product."""

    _features: Features
    _queries: Sequence[Posterior]
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
                query.add_listed(row)
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
            query.add_listed(row)
        return predicted

    def in_scores(self, predicted: FloatArray) -> FloatArray:
        """Predictions as scores of the scorer."""
        return self._features.scale.score(predicted)

    def affine(self) -> list[LinearPrediction]:
        """What `predict` computes, for an engine that has the rows: as weights of what is stored of an item."""
        factors, affine = self._features.factors, []
        for query in self._queries:
            stored = factors.stored_weights(query.weights)
            affine.append(
                LinearPrediction(
                    weights=np.append(stored, query.trust),
                    constant=query.level + (1 - query.trust) * self._features.centre - float(factors.centre @ stored),
                    listed=query.listed.positions,
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
    and its level was chosen for recall (docs/design/stopping.md).
    """
    if not math.isfinite(deviation):
        return np.ones((len(predicted), len(best)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        distances = (np.asarray(predicted, dtype=np.float64)[:, None] - scale.rarity(best)) / deviation
        log_odds = _AT_EQUAL + _PER_DEVIATION * distances + _PER_RANK * np.log(ranks)
        return np.asarray(1 / (1 + np.exp(-log_odds)))


class Posterior:
    """One query: the weights of the features and the level of all items, given the exact scores of those `scored`.

    A prediction is the item's mean, as far as there is `trust` in it, + features · `weights` + `level`, and of `listed`
    items + their listed features · `listed_weights`.

    - `priors`: of this query alone;
    - `left_out`: the anchor query that a replay must not know; the weights are then those of the features with it;
    - `keeps_rows`: whether rows of scored items are kept; reading them again takes less memory.
    """

    def __init__(
        self, features: Features, priors: Priors, *, left_out: LeaveOneOut | None = None, keeps_rows: bool = False
    ) -> None:
        self._features, self._left_out = features, left_out
        self._priors = priors
        self._keeps_rows = keeps_rows or left_out is not None
        self.trust = float(priors.trusts[0])
        self.weights = self._mapped(priors.weights[0])
        self.level = self._offset = 0.0
        self.scored: IntArray = np.empty(0, dtype=np.intp)
        self.listed = priors.listed[0]
        self.listed_weights = self.listed.means
        self._scored_listed: FloatArray = np.empty((0, self.listed.n_features))
        self._system = GrowingCholesky()
        self._solved: FloatArray = np.empty(0)
        self._rows: FloatArray | None = None
        self._expected: tuple[dict[int, int], FloatArray] | None = None

    def copied(self) -> Posterior:
        """A copy that is told scores independently of this one."""
        other = copy.copy(self)
        other._system = copy.copy(self._system)
        return other

    def expect(self, positions: IntArray, rows: FloatArray) -> None:
        """Features of items that are likely to be scored next, so that they need not be read."""
        self._expected = {place: row for row, place in enumerate(positions.tolist())}, rows

    def rises(self) -> FloatArray:
        """What their listed features add to the predictions of the listed items."""
        return np.asarray(self.listed.values @ self.listed_weights)

    def add_listed(self, row: FloatArray) -> None:
        """Add to a row of predictions, in place, what listed features add."""
        where = self.listed.positions
        if len(where):
            row[where] = row[where] + self.rises().astype(row.dtype)

    def tell(self, positions: IntArray, scores: FloatArray) -> None:
        """Condition on the exact scores of these items."""
        features, priors, left_out, known = self._features, self._priors, self._left_out, len(self.scored)
        prior, variances = priors.weights[0], priors.variances[0]
        rarities = features.scale.rarity(scores)
        if not known and not len(features.precisions):
            # Without anchor queries nothing else says where this query's scores lie.
            self._offset = float(rarities.mean())
        new, means = self._read(positions)
        if left_out is not None:
            new, means = left_out.rows(new), means - new @ left_out.shift
        means = features.centre + self.trust * (means - features.centre)
        # Read again each round: held, they would take more memory than the factor. A replay has to map them too.
        earlier = features.at(self.scored)[0] if self._rows is None else self._rows
        rows = np.vstack([earlier, new])
        self.scored = np.concatenate([self.scored, positions])
        if self._keeps_rows:
            self._rows = rows
        covariance = (new * variances) @ rows.T + priors.level_variance
        among_new = covariance[:, known:]
        among_new[np.diag_indices_from(among_new)] += priors.noise
        residuals = rarities - means - new @ prior - self._offset
        listed = self.listed
        if listed.n_features:
            new_listed = listed.at(positions)
            self._scored_listed = np.vstack([self._scored_listed, new_listed])
            covariance += new_listed @ listed.covariance @ self._scored_listed.T
            residuals -= new_listed @ listed.means
        self._solved = self._system.append(covariance[:, :known], among_new, residuals)
        self.weights = self._mapped(prior + variances * (rows.T @ self._solved))
        if listed.n_features:
            self.listed_weights = listed.means + listed.covariance @ (self._scored_listed.T @ self._solved)
        self.level = self._offset + priors.level_variance * float(self._solved.sum())

    @property
    def residual_deviation(self) -> float:
        """The standard deviation of the scores from what the other scores predict of each; infinite for too few."""
        if len(self.scored) < FEWEST_RESIDUALS:
            return math.inf
        # Leaving one out, in closed form: residual = (K + λ)⁻¹ y / diagonal.
        return float((self._solved / self._system.precisions()).std())

    def _mapped(self, weights: FloatArray) -> FloatArray:
        return weights if self._left_out is None else self._left_out.weights(weights, trust=self.trust)

    def _read(self, positions: IntArray) -> tuple[FloatArray, FloatArray]:
        """Features and means of items."""
        if self._expected is not None:
            places, rows = self._expected
            self._expected, known = None, [places.get(position, -1) for position in positions.tolist()]
            if min(known, default=-1) >= 0:
                return rows[known], self._features.means[positions]
        return self._features.at(positions)


@dataclass(slots=True, eq=False)
class GrowingCholesky:
    """The inverse factor L⁻¹ of a covariance L Lᵀ that grows by blocks, and the targets to solve for; float64.

    Rounds only append to the scored items, so nothing is factored twice. The inverse is stored rather than L: it grows
    by products alone, and numpy has no triangular solver. A block of b rows beside m costs O(m² b), so all rounds
    together cost about what one factorisation does.
    """

    inverse: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    targets: FloatArray = field(default_factory=lambda: np.empty(0))

    def append(self, across: FloatArray, among: FloatArray, targets: FloatArray) -> FloatArray:
        """Add rows, and return (L Lᵀ)⁻¹ · all targets.

        `across` is their covariance with the rows so far (b × m), `among` that with each other (b × b).
        """
        size, new = len(self.inverse), len(among)
        beside = across @ self.inverse.T
        corner = np.linalg.inv(np.linalg.cholesky(among - beside @ beside.T))
        grown = np.zeros((size + new, size + new))
        grown[:size, :size] = self.inverse
        grown[size:, :size] = -corner @ (beside @ self.inverse)
        # inv leaves dust above the diagonal.
        grown[size:, size:] = np.tril(corner)
        self.inverse = grown
        self.targets = np.concatenate([self.targets, targets])
        return np.asarray(grown.T @ (grown @ self.targets))

    def precisions(self) -> FloatArray:
        """The diagonal of (L Lᵀ)⁻¹: one over the variance of each row that the others leave unexplained."""
        return np.asarray(np.square(self.inverse).sum(axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class LeaveOneOut:
    """A linear map from the features with an anchor query j to those without it, to replay j as a new query.

    With G the inverse of the anchor queries' kernel A, leaving out j changes G by a rank-one term, and the mean by a
    share of j's scores, which are the features · (diag G · A[:, j]):

        feature' i = stretch_i · feature i − across_i · feature j + level_i · (features · shift)
        mean'      = mean − features · shift

    `precisions` is the diagonal of G without j, `sums` are the sums of its rows; `position` is j.
    """

    position: int
    precisions: FloatArray
    stretch: FloatArray
    across: FloatArray
    shift: FloatArray
    level: FloatArray
    sums: FloatArray

    @classmethod
    def of(
        cls, position: int, kernel: FloatArray, inverse: FloatArray, *, n_features: int, centre: bool
    ) -> LeaveOneOut:
        """Without the anchor query at this position; features beyond the anchor queries' stay as they are."""
        n_anchors, before = len(kernel), np.diag(inverse)
        row = inverse[position]
        precisions = before - row**2 / before[position]
        # The feature of the query left out gets no weight, so its value does not matter.
        precisions[position] = 1.0
        # Without j; what is left at j itself is next to nothing.
        sums = inverse.sum(axis=1)
        sums = sums - row * sums[position] / before[position]
        stretch, (across, shift, level) = np.ones(n_features), np.zeros((3, n_features))
        stretch[:n_anchors] = before / precisions
        across[:n_anchors] = row / precisions
        if centre and n_anchors > 1:
            shift[:n_anchors] = before * kernel[:, position] / (n_anchors - 1)
            level[:n_anchors] = sums / precisions
        for values in (stretch, across, level, precisions):
            values[position] = 0.0
        return cls(position, precisions, stretch, across, shift, level, sums)

    def rows(self, rows: FloatArray) -> FloatArray:
        """Rows of features as they would be."""
        changed = rows * self.stretch - np.outer(rows[:, self.position], self.across)
        return np.asarray(changed + np.outer(rows @ self.shift, self.level))

    def weights(self, weights: FloatArray, *, trust: float) -> FloatArray:
        """The weights of the features as they are that give trust · (mean' − mean) + features' · weights."""
        mapped = self.stretch * weights + self.shift * (self.level @ weights - trust)
        mapped[self.position] -= self.across @ weights
        return np.asarray(mapped)
