"""Every scorer as a grid scorer and as an async scorer, whether or not it has a way of its own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_grid, check_scores
from adacur.scorers.shared_batches import shared_batches

__all__ = ["ascore", "score_grid"]

# A grid of a thousand queries and a million items must never exist as a list of pairs.
_PAIRS_PER_CALL = 8192


def score_grid(scorer: Scorer, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
    """Scores of shape (queries, items): by the scorer's own grid, else by pairs in bounded batches."""
    own = getattr(scorer, "score_grid", None)
    if own is not None:
        return check_grid(own(queries, items), queries, items)
    pairs = product(queries, items)
    batches: list[FloatArray] = []
    while batch := list(islice(pairs, _PAIRS_PER_CALL)):
        batches.append(check_scores(scorer.score(batch), batch))
    scores = np.concatenate(batches) if batches else np.empty(0)
    return scores.reshape(len(queries), len(items))


async def ascore(scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
    """One score per pair, in order: awaited where the scorer can be, else through the queue of those who wait for it.

    That queue merges what waits into one call (`SharedBatches`) where the scorer `shares_calls`.
    """
    own = getattr(scorer, "ascore", None) or shared_batches(scorer).ascore
    return check_scores(await own(pairs), pairs)
