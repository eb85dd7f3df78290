"""When is the top k settled? The recall to expect of what has been found, from the chances of what has not.

Let N(s) be the number of unscored items above a score s, and s_1 ≥ s_2 ≥ … ≥ s_k the best found. The true top k then
lacks D of the k found, where D ≥ d just when at least d unscored items lie above the d-th from the end of them:

    E[D] = Σ_d P(N(s_{k−d+1}) ≥ d),    expected recall = 1 − E[D] / k

The first term alone, with N's mean in place of its probability, would count every unscored item above s_k as a miss,
though each that comes in moves the bar up for the next. N is a sum of rare events that hardly depend on one another,
so it is taken as Poisson.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from adacur.core.arrays import FloatArray, IntArray

__all__ = ["SHORTLIST", "expected_recall"]

# Unscored items that are looked at, the most promising first; what lies beyond is rarely what is missing.
SHORTLIST = 300


def expected_recall(chance_above: Callable[[FloatArray, IntArray], FloatArray], best: FloatArray) -> float:
    """The expected share of the true top k among the k best found, whose scores are `best`, best first.

    `chance_above(scores, ranks)` gives the chances of unscored items to lie above the best found of these ranks, shape
    (items, scores). Ties with the last found are no misses.
    """
    k = len(best)
    most = float(chance_above(best[-1:], np.array([k])).sum())
    if not math.isfinite(most):
        return 0.0
    # Beyond so many, P(N ≥ d) is nothing: N's mean is largest at the lowest score.
    depth = min(k, math.ceil(most + 8 * math.sqrt(most)) + 8)
    ranks = np.arange(k, k - depth, -1)
    means = chance_above(best[ranks - 1], ranks).sum(axis=0)
    return float(1 - _at_least(means).sum() / k)


def _at_least(means: FloatArray) -> FloatArray:
    """P(N_d ≥ d) for d = 1, 2, …, where N_d is Poisson with the d-th mean."""
    fewer = np.arange(len(means))
    log_factorials = np.cumsum(np.log(np.maximum(fewer, 1)))
    logs = fewer * np.log(np.maximum(means, 1e-300))[:, None] - means[:, None] - log_factorials
    return np.asarray(np.maximum(0.0, 1 - np.tril(np.exp(logs)).sum(axis=1)))
