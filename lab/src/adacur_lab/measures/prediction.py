"""How far predicted scores are from exact ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import check_k
from adacur.errors import InputError
from adacur.replay.measures import check_score_matrix
from adacur.results import Hits

__all__ = ["approximation_error", "predictions"]


def predictions(found: Sequence[Hits]) -> FloatArray:
    """The final predictions (Ŝ) that searches kept, shape (queries, items)."""
    kept = [hits.trace.approximate_scores for hits in found]
    rows = [row for row in kept if row is not None]
    if not rows or len(rows) < len(kept):
        raise InputError(
            f"{len(kept) - len(rows)} of {len(kept)} hits kept no predictions. Search with keep_predictions='last' "
            "and a method that predicts."
        )
    return np.stack(rows)


def approximation_error(
    approximate: FloatArray,
    exact: FloatArray,
    *,
    top: Sequence[int] = (1, 10, 100),
    band_ends: Sequence[int] = (10, 100, 1000),
) -> dict[str, FloatArray]:
    """Mean absolute difference of approximate and exact scores (queries × items) per query, by exact rank.

    "error.all" is the paper's; "error.top@10" is over the scorer's ten best items; "error.ranks@11-100" is over a band
    that ends at one of `band_ends`, and "error.ranks@1001-" over the rest. Items that were scored during the search
    count too. Items with equal exact scores share their ranks. NaN for a band beyond the last item.
    """
    for k in (*top, *band_ends):
        check_k(k)
    approximate = np.asarray(approximate)
    exact = check_score_matrix(exact, n_queries=len(approximate))
    if approximate.shape != exact.shape:
        raise InputError(f"Approximate and exact scores differ in shape: {approximate.shape} and {exact.shape}.")
    check_score_matrix(approximate, n_queries=len(exact), kind="approximate")
    starts = (0, *sorted(set(band_ends)))
    ranges: dict[str, tuple[int, int | None]] = {"error.all": (0, None)}
    ranges |= {f"error.top@{k}": (0, k) for k in top}
    ranges |= {
        f"error.ranks@{start + 1}-{end or ''}": (start, end)
        for start, end in zip(starts, (*starts[1:], None), strict=True)
    }
    values = {name: np.full(len(exact), np.nan) for name in ranges}
    for row in range(len(exact)):
        by_rank = _error_by_rank(approximate[row], exact[row])
        for name, (start, end) in ranges.items():
            if start < len(by_rank):
                values[name][row] = by_rank[start:end].mean()
    return values


def _error_by_rank(approximate: FloatArray, exact: FloatArray) -> FloatArray:
    error = np.abs(approximate.astype(np.float64) - exact)
    _, group, sizes = np.unique(-exact, return_inverse=True, return_counts=True)
    # The mean over a group of equals is what each of its ranks would show on average, however the tie is broken.
    return np.repeat(np.bincount(group, weights=error) / sizes, sizes)
