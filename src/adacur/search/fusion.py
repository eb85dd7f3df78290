"""The final order: exact scores and the first stage's scores, blended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.approximation.gaussian_features import rows_at
from adacur.approximation.item_factors import ScoreScale
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores, Ranking

# Further down, a first stage's scores are noise.
LISTED = 100
# The few scores at the very top decide the order, so they are distinguished as far as the anchor scores go.
_RAREST = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Fusion:
    """The rarity of exact scores among the anchor scores, plus `weight` × the first stage's scores.

    One standard deviation among the first stage's best 100 for the query counts as much as an exact score that is
    exp(`weight`) times as rare; an item that is not among them counts as their lowest.
    """

    weight: float
    scale: ScoreScale

    @classmethod
    def fit(cls, anchors: AnchorScores, *, weight: float) -> Fusion:
        """A fusion on the scale of these anchor scores, so that a weight means the same on every index."""
        n_anchors = len(anchors.anchor_queries)
        if not n_anchors:
            raise InputError(
                "fuse weighs exact scores by how rare they are among the anchor scores, and this index has no anchor "
                "queries. Build it with some, or leave fuse out."
            )
        sample = ScoreScale.sample(anchors.items.keys, n_anchors=n_anchors)
        return cls(weight, ScoreScale.of(rows_at(anchors, sample), rarest=_RAREST))

    def values(
        self, exact: FloatArray, positions: IntArray, *, listed: IntArray, listed_scores: FloatArray
    ) -> FloatArray:
        """The values to order these positions by, given the first stage's list for the query, best first."""
        return np.asarray(self.scale.rarity(exact) + self.weight * _standing(positions, listed, listed_scores))


def listed_by(answer: Ranking, *, allowed: BoolArray) -> tuple[IntArray, FloatArray]:
    """The allowed positions of a first stage's answer, and their scores."""
    is_allowed = allowed[answer.positions]
    scores = np.asarray(answer.scores, dtype=np.float64)[is_allowed]
    if not np.isfinite(scores[:LISTED]).all():
        raise InputError("fuse blends the first stage's scores in, and these hold NaN or infinity.")
    return answer.positions[is_allowed], scores


def _standing(positions: IntArray, listed: IntArray, scores: FloatArray) -> FloatArray:
    """The first stage's scores of these positions, in standard deviations from the mean of its best."""
    listed, scores = listed[:LISTED], np.asarray(scores[:LISTED], dtype=np.float64)
    deviation = scores.std() if len(scores) else 0.0
    if not deviation:
        return np.zeros(len(positions))
    standing = (scores - scores.mean()) / deviation
    known = dict(zip(listed.tolist(), standing.tolist(), strict=True))
    lowest = float(standing.min())
    return np.array([known.get(position, lowest) for position in positions.tolist()])
