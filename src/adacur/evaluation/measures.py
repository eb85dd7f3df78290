"""Top-k-Recall@B: how many of the scorer's own k best items a search found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.budget import check_k
from adacur.core.errors import InputError, NonFiniteScore
from adacur.core.results import Hits


def top_k_recall(found: Sequence[Hits], exact: FloatArray, *, k: int) -> FloatArray:
    """Recall per query, given the exact scores of all items (queries × items).

    An item counts if its exact score reaches the k-th best, and at most k count: among equal scores any will do.
    A k larger than the collection means all of it.
    """
    check_k(k)
    exact = check_score_matrix(exact, n_queries=len(found))
    k = min(k, exact.shape[1])
    right = [
        np.count_nonzero(np.asarray(hits.scores[:k]) >= threshold)
        for hits, threshold in zip(found, kth_best(exact, k), strict=True)
    ]
    return np.array(right, dtype=np.float64) / k


def kth_best(exact: FloatArray, k: int) -> FloatArray:
    """The k-th highest score of each row."""
    cut = exact.shape[1] - k
    # Row by row: a row fits the cache, and the whole matrix is not copied.
    return np.array([np.partition(scores, cut)[cut] for scores in exact], dtype=exact.dtype)


def check_score_matrix(
    scores: FloatArray, *, n_queries: int, ids: Sequence[str] | None = None, kind: str = "exact"
) -> FloatArray:
    """Finite scores of shape (queries, items), at least one item; `ids` name the columns where they are needed."""
    scores = np.asarray(scores)
    if scores.ndim != 2 or len(scores) != n_queries or not scores.shape[1]:
        raise InputError(
            f"One row of {kind} scores per query and one column per item are needed; got shape {scores.shape} "
            f"for {n_queries} queries."
        )
    if ids is not None and len(ids) != scores.shape[1]:
        raise InputError(f"One id per column of {kind} scores is needed; got {len(ids)} for {scores.shape[1]} columns.")
    if not np.isfinite(scores).all():
        row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(scores)))
        raise NonFiniteScore(
            f"The {kind} score of query {row} and item {column} (by position) is {scores[row, column]}. "
            "Every pair must be scored before anything is measured against it."
        )
    return scores
