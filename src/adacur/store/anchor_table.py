"""Anchor scores in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import DuplicateId, EmptyInput
from adacur.protocols import Items
from adacur.records import Item, ItemList, Query, as_query, repeats
from adacur.scores import check_grid


@dataclass(frozen=True, slots=True, eq=False)
class AnchorTable:
    """R_anc in memory: `matrix` is item-major, (items, anchor queries), float32 or float64."""

    items: Items
    anchor_queries: tuple[Query, ...]
    matrix: FloatArray

    @classmethod
    def of_items(cls, items: Items) -> AnchorTable:
        """Items without anchor queries."""
        return cls(items, (), np.empty((len(items), 0), dtype=np.float32))

    @classmethod
    def from_arrays(cls, *, items: Iterable[Item], anchor_queries: Iterable[Query | str], scores: Any) -> AnchorTable:
        """A table from known scores, given as in the paper: anchor queries × items."""
        collection = list(items)
        stored = ItemList(collection)
        anchors = distinct_anchors(query if isinstance(query, Query) else as_query(query) for query in anchor_queries)
        values = check_grid(scores, anchors, collection)
        dtype = np.float64 if values.dtype.itemsize >= 8 else np.float32
        return cls(stored, anchors, np.ascontiguousarray(values.T, dtype=dtype))


def distinct_anchors(anchor_queries: Iterable[Query]) -> tuple[Query, ...]:
    """At least one anchor query, no id twice."""
    anchors = tuple(anchor_queries)
    if not anchors:
        raise EmptyInput(
            "There are no anchor queries. Give at least one; 100 to 500 serve most collections. For an index without "
            "any, say so: adacur.build(items, 0, …), or adacur build … -n 0."
        )
    ids = [query.id for query in anchors]
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Anchor query ids must be unique; {repeats(ids)} more than once.")
    return anchors
