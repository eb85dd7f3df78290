"""How many directions a matrix of anchor scores really has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.replay.measures import check_score_matrix

__all__ = ["Spectrum", "spectrum"]

_ITEMS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """Singular values, largest first."""

    singular_values: FloatArray

    @property
    def effective_rank(self) -> float:
        """exp of the entropy of the normalised singular values (Roy and Vetterli 2007): r if r of them are equal."""
        values = self.singular_values[self.singular_values > 0]
        if not len(values):
            return 0.0
        shares = values / values.sum()
        return float(np.exp(-(shares * np.log(shares)).sum()))

    def rank_for(self, share: float) -> int:
        """The smallest rank whose best approximation keeps this share of the sum of squares."""
        if not 0 < share <= 1:
            raise InputError(f"A share of the sum of squares lies above 0 and at most at 1; got {share}.")
        energy = np.cumsum(self.singular_values**2)
        return int(np.searchsorted(energy, share * energy[-1] * (1 - 1e-12))) + 1 if energy[-1] else 0


def spectrum(anchor_scores: FloatArray, *, centred: bool = False) -> Spectrum:
    """The spectrum of anchor scores, items × anchor queries as in `index.matrix`.

    `centred` takes each item's mean over the anchor queries out first, as the Gaussian does. The matrix is read in
    blocks of items, so it may be larger than memory allows to copy.
    """
    anchor_scores = check_score_matrix(anchor_scores, n_queries=len(anchor_scores), kind="anchor")
    triangle: Any = np.empty((0, anchor_scores.shape[1]))
    for start in range(0, len(anchor_scores), _ITEMS_AT_ONCE):
        block = anchor_scores[start : start + _ITEMS_AT_ONCE].astype(np.float64)
        if centred:
            block -= block.mean(axis=1, keepdims=True)
        # R of [R; block] has the singular values of all rows so far, to full precision; their Gram matrix would not.
        triangle = np.linalg.qr(np.concatenate([triangle, block]), mode="r")
    return Spectrum(singular_values=np.linalg.svd(triangle, compute_uv=False))
