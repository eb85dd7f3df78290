"""Top-k-Recall@B: how many of the scorer's own k best items a search found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError
from adacur.core.results import Hits

__all__ = ["bootstrap_interval", "top_k_recall"]


def top_k_recall(
    found: Sequence[Hits], exact: FloatArray, *, k: int, strict_ids: Sequence[str] | None = None
) -> FloatArray:
    """Recall per query, given the exact scores of all items (queries × items).

    An item counts if its exact score reaches the k-th best, and at most k count: among equal scores any will do.
    With `strict_ids` (the items' ids, in the order of the columns) only the first k in a stable sort count.
    """
    if len(found) != len(exact):
        raise InputError(f"One row of exact scores per query is needed; got {len(found)} hits, {len(exact)} rows.")
    k = min(k, exact.shape[1])
    recalls = np.empty(len(found))
    for row, (hits, scores) in enumerate(zip(found, exact, strict=True)):
        if strict_ids is None:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            right = int(np.count_nonzero(np.asarray(hits.scores[:k]) >= threshold))
        else:
            wanted = {strict_ids[position] for position in np.argsort(-scores, kind="stable")[:k]}
            right = len(wanted.intersection(hits.ids[:k]))
        recalls[row] = min(right, k) / k
    return recalls


def bootstrap_interval(
    values: FloatArray, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean."""
    generator = np.random.default_rng(seed)
    means = values[generator.integers(len(values), size=(samples, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
