"""Scores that are known, in place of a scorer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import UnknownName
from adacur.protocols import AnchorScores, Items, ScorerCard
from adacur.records import Pair, Query


class KnownScores:
    """The scorer of a replay: scores of shape (items, queries), looked up by position where both are the same items."""

    card = ScorerCard(name="known scores", backend="none")

    def __init__(self, queries: Sequence[Query], items: Items, scores: FloatArray) -> None:
        self._columns = {query.id: column for column, query in enumerate(queries)}
        self._items = items
        self._scores = scores

    @classmethod
    def of(cls, anchors: AnchorScores) -> KnownScores:
        """Those of anchor queries."""
        return cls(anchors.anchor_queries, anchors.items, anchors.matrix)

    def columns(self, queries: Sequence[Query]) -> IntArray:
        """The places of these queries among those whose scores are known."""
        if unknown := [query.id for query in queries if query.id not in self._columns]:
            raise UnknownName(f"Only queries with known scores can be replayed; {unknown[0]!r} has none.")
        return np.array([self._columns[query.id] for query in queries], dtype=np.intp)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        positions = self._items.positions(item.id for _, item in pairs)
        return np.asarray(self._scores[positions, self.columns([query for query, _ in pairs])])

    def score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        """One score per pair, without a text."""
        if items is not self._items:
            positions = self._items.positions(items.ids[at] for at in positions.tolist())
        return np.asarray(self._scores[positions, self.columns(queries)[query_of]])
