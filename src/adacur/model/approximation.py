"""Predictions for the queries of one search, each solved on its own by numpy: none depends on the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.model.features import Features
from adacur.model.left_out import LeaveOneOut
from adacur.model.posterior import Prior, State, Told, informed, residual_deviations, rises, start, tell
from adacur.model.scale import QueryScales, ScoreScale

# Log-odds that an item scores above the best scored: for one predicted to score just that, per standard deviation of
# this query's residuals that it is predicted higher, and per logarithm of the rank it would take. Fitted by likelihood
# to held-out anchor queries of three collections with 420 others; with fewer, fewer come above than stated.
_AT_EQUAL, _PER_DEVIATION, _PER_RANK = -1.6, 1.55, 0.38


class Posterior:
    """The approximation of a batch of queries: of each, what `model.posterior` knows of it.

    - `priors`: of one query each;
    - `left_out`: per query, the anchor query that a replay must not know: all is solved for features without it;
    - `together`: predict all queries in one product.
    """

    def __init__(
        self,
        features: Features,
        priors: Sequence[Prior],
        *,
        left_out: Sequence[LeaveOneOut] = (),
        together: bool = False,
    ) -> None:
        self.features = features
        self.states: Sequence[State] = [start(prior) for prior in priors]
        self._scales = QueryScales(None if features.learns_level else features.scale, len(priors))
        self._left_out = left_out
        self._together = together

    def tell(self, positions: Sequence[IntArray], scores: Sequence[FloatArray]) -> None:
        """Add exact scores, per query."""
        told = list(self.states)
        for query, (where, exact) in enumerate(zip(positions, scores, strict=True)):
            if len(where):
                told[query] = self._told(query, where, exact)
        self.states = told

    def _told(self, query: int, where: IntArray, exact: FloatArray) -> State:
        state, rarities = self.states[query], self._scales.rarity(query, exact)
        told = Told(where[None], np.ones((1, len(where)), dtype=np.bool_), rarities[None])
        if self.features.learns_level and not state.at.shape[1]:
            state = start(informed(state.prior, told))

        def rows(at: IntArray) -> FloatArray:
            read = self.features.rows_in_memory(at)
            return self._left_out[query].rows(read) if self._left_out else read

        return tell(state, told, rows)

    def weights(self) -> FloatArray:
        """Of the features as they are, a row per query."""
        weights = [state.weights for state in self.states]
        if self._left_out:
            weights = [one.weights(some) for one, some in zip(self._left_out, weights, strict=True)]
        return np.concatenate(weights) if weights else np.empty((0, 2))

    def predict(self) -> FloatArray:
        """Predictions for every item on the score scale, a row per query."""
        weights, features = self.weights(), self.features
        if self._together or len(weights) == 1:
            predicted = features.predictions_in_memory(weights)
        else:
            # One product per query: a product for the whole batch rounds differently with the batch's size, and an
            # answer must not depend on its neighbours.
            predicted = np.empty((len(weights), len(features.means)), dtype=features.means.dtype)
            for at, row in enumerate(predicted):
                row[:] = features.predictions_in_memory(weights[at : at + 1])[0]
        for row, state in zip(predicted, self.states, strict=True):
            if state.prior.listed.shape[1]:
                row[state.prior.listed[0]] += rises(state)[0].astype(row.dtype)
        return predicted

    def in_scores(self, query: int, predicted: FloatArray) -> FloatArray:
        """Predictions for one query as scores of the scorer."""
        return self._scales.of(query).score(predicted)

    def chance_above(self, query: int, predicted: FloatArray, best: FloatArray, *, ranks: IntArray) -> FloatArray:
        """How likely unscored items are to score above the best scored, shape (predicted, best)."""
        deviation = float(residual_deviations(self.states[query])[0])
        return chance_above(self._scales.of(query), deviation, predicted, best, ranks)


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
