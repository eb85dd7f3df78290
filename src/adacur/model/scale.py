"""The scale on which scores are modelled: rarities.

Cross-encoders squeeze most pairs into a narrow band (logits near −11, probabilities near 0) and spread the few that
matter. On the scale −log(share of anchor scores above), each step up means equally rarer at every height, and a scorer
that gives logits is modelled exactly like one that gives their sigmoids.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray

# Scores rarer than one in ten thousand are hardly told apart: there are few of them, and their order is chance.
RAREST = 1e-4
KNOTS = 4096
_SAMPLE = 1_000_000


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

    def rarity(self, scores: FloatArray) -> FloatArray:
        """Scores on this scale, in float64."""
        return _along(np.asarray(scores, dtype=np.float64), self.scores, self.rarities)

    def score(self, rarities: FloatArray) -> FloatArray:
        """The scores of these rarities, in float64."""
        return _along(np.asarray(rarities, dtype=np.float64), self.rarities, self.scores)


def _along(values: FloatArray, source: FloatArray, target: FloatArray) -> FloatArray:
    """Piecewise linear from `source` to `target`; beyond the ends with the mean slope of the whole."""
    inside = np.interp(values, source, target)
    slope = (target[-1] - target[0]) / (source[-1] - source[0])
    return np.asarray(inside + slope * (values - np.clip(values, source[0], source[-1])))
