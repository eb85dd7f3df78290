"""The best positions of a row of scores, the same whatever the order of the items."""

from __future__ import annotations

import numpy as np

from adacur.core.arrays import FloatArray, IntArray, KeyArray

__all__ = ["best_positions"]


def best_positions(values: FloatArray, n: int, *, keys: KeyArray) -> IntArray:
    """Positions of the n largest values, best first; ties go to the smaller key; -inf is never chosen."""
    n = min(n, len(values))
    if n <= 0:
        return np.empty(0, dtype=np.intp)
    threshold = np.partition(values, len(values) - n)[len(values) - n]
    chosen = np.flatnonzero(values >= threshold)
    if threshold == -np.inf:
        chosen = chosen[values[chosen] > -np.inf]
    if len(chosen) > 4 * n:
        # Saturated scores tie by the thousand: keep the winners, then only as many of the tied as are needed.
        above = chosen[values[chosen] > threshold]
        tied = chosen[values[chosen] == threshold]
        tied = tied[np.argpartition(keys[tied], n - len(above) - 1)[: n - len(above)]]
        chosen = np.concatenate([above, tied])
    return chosen[np.lexsort((keys[chosen], -values[chosen]))][:n]
