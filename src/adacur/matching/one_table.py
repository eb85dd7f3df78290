"""Both tables being one: no row is paired with itself, and a pair is scored once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.protocols import Scorer
from adacur.records import Item, Pair, Query
from adacur.scorers.wrapping import Wrapping

# The score of a row with itself, which no scorer is asked for.
OWN = -1e30


class OnceEach(Wrapping):
    """A scorer of the pairs of one table: a pair and its reverse score the same, in the order of their ids.

    Around a cache, so that the reverse costs nothing.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        scores = np.full(len(pairs), OWN)
        others = [at for at, (query, item) in enumerate(pairs) if query.id != item.id]
        if others:
            scores[others] = self.scorer.score([_in_order(*pairs[at]) for at in others])
        return scores


def _in_order(query: Query, item: Item) -> Pair:
    if query.id <= item.id:
        return query, item
    return Query(item.id, item.text), Item(query.id, query.text)
