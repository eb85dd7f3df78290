"""How well relevant items are ranked on a shortlist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray, IntArray

__all__ = ["ranking_quality"]


def ranking_quality(
    scores: Sequence[FloatArray], shortlists: Sequence[IntArray], relevant: Sequence[IntArray]
) -> dict[str, float]:
    """Means over queries: `accuracy` (a relevant item comes first), `mrr`, and `found`, the share of queries whose
    shortlist holds a relevant item at all, which bounds both.

    Among equal scores the relevant item comes last, so that a model that cannot tell does not gain.
    """
    ranks = []
    for own, shortlist, wanted in zip(scores, shortlists, relevant, strict=True):
        is_wanted = np.isin(shortlist, wanted)
        best = own[is_wanted].max(initial=-np.inf)
        # Not ">=": of a score that is no number nothing is greater.
        ranks.append(1 + int(np.count_nonzero(~(own[~is_wanted] < best))) if is_wanted.any() else 0)
    found = np.array(ranks)
    return {
        "accuracy": float(np.mean(found == 1)),
        "mrr": float(np.mean([1 / rank if rank else 0.0 for rank in ranks])),
        "found": float(np.mean(found > 0)),
    }
