"""Top-k-Recall by ids: among equal scores only the first items count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import check_k
from adacur.replay.measures import check_score_matrix, kth_best
from adacur.results import Hits

__all__ = ["strict_recall"]


def strict_recall(found: Sequence[Hits], exact: FloatArray, *, k: int, ids: Sequence[str]) -> FloatArray:
    """Recall per query of the first k items in a stable sort by exact score; `ids` name the columns of `exact`."""
    check_k(k)
    exact = check_score_matrix(exact, n_queries=len(found), ids=ids)
    k = min(k, exact.shape[1])
    recalls = np.empty(len(found))
    for row, (hits, scores, threshold) in enumerate(zip(found, exact, kth_best(exact, k), strict=True)):
        above = np.flatnonzero(scores > threshold)
        tied = np.flatnonzero(scores == threshold)[: k - len(above)]
        best = {ids[position] for position in (*above, *tied)}
        recalls[row] = len(best.intersection(hits.ids[:k])) / k
    return recalls
