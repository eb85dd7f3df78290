"""Anchor queries searched for as if they were new: their scores are known, and no search may use them unasked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError, UnknownName
from adacur.core.protocols import AnchorScores, Approximation, Approximator, ScorerCard
from adacur.core.records import Pair, Query

__all__ = ["AnchorScorer", "AsIfNew", "Replayable"]


@runtime_checkable
class Replayable(Protocol):
    """An approximator that can leave an anchor query out."""

    def replay(self, anchors: AnchorScores, positions: IntArray) -> Approximation:
        """An approximation for the anchor queries at these positions, each as if it had never been one."""
        ...


class AnchorScorer:
    """The scorer's own scores of anchor queries, looked up by their ids."""

    card = ScorerCard(name="anchor scores", backend="none")

    def __init__(self, anchors: AnchorScores) -> None:
        self._anchors = anchors
        self._columns = _columns(anchors)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        columns = _known(self._columns, [query for query, _ in pairs])
        return np.asarray(self._anchors.matrix[self._anchors.items.positions(item.id for _, item in pairs), columns])


class AsIfNew:
    """An approximator that forgets the row of each anchor query it is asked about."""

    def __init__(self, approximator: Approximator) -> None:
        self._approximator: Any = approximator

    def begin(self, anchors: AnchorScores, queries: Sequence[Query]) -> Approximation:
        """A fresh approximation for these queries, told nothing yet."""
        if not anchors.anchor_queries:
            return self._approximator.begin(anchors, queries)  # type: ignore[no-any-return]
        if not isinstance(self._approximator, Replayable):
            raise InputError(f"{self._approximator!r} cannot leave a query out, so anchor queries cannot be replayed.")
        return self._approximator.replay(anchors, _known(_columns(anchors), queries))

    def __repr__(self) -> str:
        return repr(self._approximator)


def _columns(anchors: AnchorScores) -> dict[str, int]:
    return {query.id: column for column, query in enumerate(anchors.anchor_queries)}


def _known(columns: dict[str, int], queries: Sequence[Query]) -> IntArray:
    if unknown := [query.id for query in queries if query.id not in columns]:
        raise UnknownName(f"Only anchor queries can be replayed; {unknown[0]!r} is none.")
    return np.array([columns[query.id] for query in queries], dtype=np.intp)
