"""The scale on which scores are modelled: rarities.

Cross-encoders squeeze most pairs into a narrow band (logits near −11, probabilities near 0) and spread the few that
matter. On the scale −log(share of anchor scores above), each step up means equally rarer at every height, and a scorer
that gives logits is modelled exactly like one that gives their sigmoids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.model.constants import FIRST_DEVIATION

# Scores rarer than one in ten thousand are hardly told apart: there are few of them, and their order is chance.
RAREST = 1e-4
KNOTS = 4096
_SAMPLE = 1_000_000
# Scores that vary by less, relative to their height, are equal but for rounding.
_EQUAL = 1e-12
# Further from 0, a probability is 1 but for the rounding of its last digits.
_MOST_LOG_ODDS = 30.0


@dataclass(frozen=True, slots=True, eq=False)
class ScoreScale:
    """A strictly rising, piecewise linear map between `scores` and `rarities`; beyond its ends it goes on straight."""

    scores: FloatArray
    rarities: FloatArray

    @classmethod
    def sample(cls, keys: KeyArray, *, n_anchors: int) -> IntArray:
        """Ascending positions of enough items to estimate the scale from."""
        n_rows = max(1, _SAMPLE // max(1, n_anchors))
        if n_rows >= len(keys):
            return np.arange(len(keys))
        # By key and not by position: the scale must not depend on the order of the items.
        return np.sort(np.argpartition(keys, n_rows)[:n_rows])

    @classmethod
    def of(cls, scores: FloatArray, *, rarest: float = RAREST) -> ScoreScale:
        """The scale of these scores, whatever their shape; those rarer than `rarest` are hardly told apart."""
        values = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
        steps = np.unique(values)
        if len(steps) < 2:
            return cls.plain()
        if len(steps) > KNOTS:
            # Dense where scores are rare: the top decides, and the bulk needs few knots.
            share = np.concatenate([np.linspace(0, 1, KNOTS // 2), 1 - np.geomspace(1 / len(values), 1, KNOTS // 2)])
            steps = np.unique(values[np.minimum((share * len(values)).astype(np.intp), len(values) - 1)])
        below, up_to = np.searchsorted(values, steps, side="left"), np.searchsorted(values, steps, side="right")
        above = 1 - (below + up_to) / (2 * len(values))
        return cls(steps, np.log1p(rarest) - np.log(above + rarest))

    @classmethod
    def plain(cls) -> ScoreScale:
        """The identity."""
        return cls(np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    @classmethod
    def of_first(cls, scores: FloatArray) -> ScoreScale:
        """The scale of a query whose own first scores are all that is known: their mean is 0, and their deviation 1.5.

        A first stage's best are no sample: they vary more than the rarities of all items, whose deviation is 1. Scores
        that all lie between 0 and 1 are taken for probabilities, and modelled as log-odds.
        """
        scores = np.asarray(scores, dtype=np.float64)
        steps, values = _between_0_and_1(scores)
        heights = np.interp(scores, steps, values) if steps is not None else scores
        # Squares of the largest floats would overflow.
        largest = float(np.abs(heights).max()) or 1.0
        centre, deviation = (largest * float(of(heights / largest)) for of in (np.mean, np.std))
        # Equal scores have no deviation.
        unit = deviation / FIRST_DEVIATION if deviation > _EQUAL * largest else largest
        if steps is None:
            return cls(np.array([centre, centre + unit]), np.array([0.0, 1.0]))
        return cls(steps, (values - centre) / unit)

    def rarity(self, scores: FloatArray) -> FloatArray:
        """Scores on this scale, in float64."""
        return _along(np.asarray(scores, dtype=np.float64), self.scores, self.rarities)

    def score(self, rarities: FloatArray) -> FloatArray:
        """The scores of these rarities, in float64."""
        return _along(np.asarray(rarities, dtype=np.float64), self.rarities, self.scores)


class QueryScales:
    """The scale of each query of a batch: the index's, or, without anchor queries, one made of its first scores."""

    def __init__(self, scale: ScoreScale | None, n_queries: int) -> None:
        self._scales = [scale] * n_queries

    def rarity(self, query: int, scores: FloatArray) -> FloatArray:
        """Scores of one query on its scale, which its first scores make where there is none."""
        if self._scales[query] is None:
            self._scales[query] = ScoreScale.of_first(scores)
        return self.of(query).rarity(scores)

    def of(self, query: int) -> ScoreScale:
        """The scale of one query; before any score, the identity."""
        return self._scales[query] or ScoreScale.plain()


def _between_0_and_1(scores: FloatArray) -> tuple[FloatArray | None, FloatArray]:
    """Steps of probabilities and their log-odds, where scores are probabilities; no steps where they are not.

    Scores of exactly 0 or 1, rounded or given as grades, count as half as far from it as the nearest other score is.
    """
    inside = scores[(scores > 0) & (scores < 1)]
    if not len(inside) or scores.min() < 0 or scores.max() > 1:
        return None, np.empty(0)
    low = np.log(inside.min() / 2 / (1 - inside.min() / 2)) if (scores == 0).any() else -_MOST_LOG_ODDS
    rest = 1 - inside.max()
    high = -np.log(rest / 2 / (1 - rest / 2)) if (scores == 1).any() else _MOST_LOG_ODDS
    log_odds = np.linspace(max(low, -_MOST_LOG_ODDS), min(high, _MOST_LOG_ODDS), KNOTS)
    return 1 / (1 + np.exp(-log_odds)), log_odds


def _along(values: FloatArray, source: FloatArray, target: FloatArray) -> FloatArray:
    """Piecewise linear from `source` to `target`; beyond the ends with the mean slope of the whole."""
    inside = np.interp(values, source, target)
    slope = (target[-1] - target[0]) / (source[-1] - source[0])
    return np.asarray(inside + slope * (values - np.clip(values, source[0], source[-1])))
