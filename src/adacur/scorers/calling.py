"""Any scorer awaited, or called for a grid, whether or not it has a method for it; pairs: `scores.score_pairs`.

Scores are checked here and there, where they arrive, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, product

import numpy as np

from adacur.arrays import FloatArray
from adacur.protocols import Scorer
from adacur.records import Item, Pair, Query
from adacur.scorers.event_loop import in_thread
from adacur.scores import NamingFailure, check_grid, check_scores, score_pairs

# A grid of a thousand queries and a million items must never exist as a list of pairs.
_PAIRS_PER_CALL = 8192


async def ascore(scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
    """One finite score per pair, in order: awaited where the scorer can be, else scored in a thread."""
    if (call := getattr(scorer, "ascore", None)) is None:
        return await in_thread(score_pairs, scorer, pairs)
    with NamingFailure(scorer):
        return check_scores(await call(pairs), pairs)


def score_grid(scorer: Scorer, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
    """Finite scores of shape (queries, items): by the scorer's `score_grid` if it has one, else by pairs in batches."""
    if (call := getattr(scorer, "score_grid", None)) is not None:
        with NamingFailure(scorer):
            return check_grid(call(queries, items), queries, items)
    pairs = product(queries, items)
    batches: list[FloatArray] = []
    while batch := list(islice(pairs, _PAIRS_PER_CALL)):
        batches.append(score_pairs(scorer, batch))
    scores = np.concatenate(batches) if batches else np.empty(0)
    return scores.reshape(len(queries), len(items))
