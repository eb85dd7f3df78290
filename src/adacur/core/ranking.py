"""The best positions of a row of scores, the same whatever the order of the items.

There are two rules for ties, on purpose. A search gives them to the smaller random key: saturated scores tie by the
thousand, and no item is to be preferred for its name. A first stage gives them to the smaller id, which needs no key.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray, IntArray, KeyArray

__all__ = ["best_by_id", "best_positions"]


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


def best_by_id(scores: FloatArray, ids: Sequence[str], k: int) -> IntArray:
    """Positions of the k highest scores, best first; ties go to the smaller id."""
    candidates = np.arange(len(scores))
    if k < len(scores):
        cut = len(scores) - k
        candidates = np.flatnonzero(scores >= np.partition(scores, cut)[cut])
    names = np.array([ids[position] for position in candidates.tolist()], dtype=np.str_)
    return candidates[np.lexsort((names, -scores[candidates]))[:k]]
