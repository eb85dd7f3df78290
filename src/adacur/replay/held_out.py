"""Anchor queries that are searched for as if they were new, and which of them can be."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.acquire import best_positions
from adacur.protocols import AnchorScores
from adacur.records import Query
from adacur.replay.measures import kth_best
from adacur.search import AnchorIndex
from adacur.seeds import item_keys, stream_key, uniform
from adacur.store import AnchorTable, IndexFolder


class HeldOut:
    """Up to `queries` anchor queries, by a seeded draw that does not depend on their order."""

    def __init__(self, anchors: AnchorScores, *, queries: int, seed: int = 0) -> None:
        keys = item_keys(query.id for query in anchors.anchor_queries)
        draws = uniform(stream_key(seed, "held out"), keys)
        self.anchors = anchors
        self.seed = seed
        self.positions: IntArray = np.sort(best_positions(draws, min(queries, len(keys)), keys=keys))
        self.queries: list[Query] = [anchors.anchor_queries[at] for at in self.positions.tolist()]

    def least(self, k: int) -> FloatArray:
        """Of each query, the score that the true top k have at least."""
        exact = np.ascontiguousarray(self.anchors.matrix[:, self.positions].T)
        return kth_best(exact, min(k, exact.shape[1]))

    def rest(self) -> AnchorTable:
        """The index without them."""
        others = np.setdiff1d(np.arange(len(self.anchors.anchor_queries)), self.positions)
        return some_anchors(self.anchors, others)


def some_anchors(anchors: AnchorScores, which: IntArray) -> AnchorTable:
    """The anchor queries at these positions, in memory."""
    queries = tuple(anchors.anchor_queries[at] for at in which.tolist())
    return AnchorTable(anchors.items, queries, np.ascontiguousarray(anchors.matrix[:, which]))


def exact_anchors(index: AnchorIndex) -> BoolArray:
    """For each anchor query, whether the scorer gave all its scores; of a logged search most are predicted."""
    anchors = index.anchors
    every = np.ones(len(index.anchor_queries), dtype=np.bool_)
    return anchors.exact_anchors() if isinstance(anchors, IndexFolder) else every


def check_exact(index: AnchorIndex, queries: Sequence[Query] | None = None) -> None:
    """Refuse to take predicted scores for the truth: of these anchor queries, or of any."""
    exact = exact_anchors(index)
    predicted = {index.anchor_queries[at].id for at in np.flatnonzero(~exact).tolist()}
    if predicted if queries is None else predicted & {query.id for query in queries}:
        raise InputError(
            f"Only {exact.sum()} of the {len(exact)} anchor queries were scored against every item; of the others "
            "most scores are predicted, and a search for them cannot be checked against the truth. Measure recall "
            "on queries of your own."
        )


def check_anchors(index: AnchorIndex, purpose: str, *, fewest: int = 1) -> None:
    """Refuse an index with fewer anchor queries than this purpose needs, and say how to add some."""
    if not index.snapshot.in_memory:
        raise InputError(f"{purpose} works on the folder of an index, and the items of this one are in an engine.")
    there = len(index.anchor_queries)
    if there < fewest:
        where = "INDEX" if index.path is None else str(index.path)
        raise InputError(
            f"{purpose} needs anchor queries, at least {fewest}; this index has {there}. Add some: adacur index "
            f"add {where} --anchors FILE, or edit.add_anchors(queries) in Python."
        )
