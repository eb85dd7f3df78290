"""An anchor query left out of its own predictions, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.arrays import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class LeaveOneOut:
    """A linear map from the features with an anchor query j to those without it, to replay j as a new query.

    With G the inverse of the anchor queries' kernel A, leaving out j changes G by a rank-one term, and the mean by a
    share of j's scores, which are the features · (diag G · A[:, j]):

        feature' i = stretch_i · feature i − across_i · feature j + level_i · (features · shift)
        mean'      = mean − features · shift

    The last two features are the mean and 1. `precisions` is the diagonal of G without j, `sums` are the sums of its
    rows; `position` is j.
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
        """Without the anchor query at this position; other features than the anchor queries' and the mean stay."""
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
        level[-2] = -1.0
        return cls(position, precisions, stretch, across, shift, level, sums)

    def rows(self, rows: FloatArray) -> FloatArray:
        """Rows of features as they would be."""
        changed = rows * self.stretch - rows[..., [self.position]] * self.across
        return np.asarray(changed + (rows @ self.shift)[..., None] * self.level)

    def weights(self, weights: FloatArray) -> FloatArray:
        """The weights of the features as they are that give features' · weights; a row per query."""
        mapped = self.stretch * weights + self.shift * (weights @ self.level)[:, None]
        mapped[:, self.position] -= weights @ self.across
        return np.asarray(mapped)
