"""Which items stand beside a relevant one: hard ones of a first stage, drawn anew for every epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import Items, Retriever
from adacur.core.records import Query
from adacur.core.seeds import stream_key, uniform
from adacur.training.judged_queries import JudgedQueries

__all__ = ["found_by", "hard_negatives", "shown"]


def found_by(first: Retriever, queries: Sequence[Query], items: Items, *, depth: int) -> list[IntArray]:
    """Per query, the positions of the first stage's best items, best first: at most `depth`."""
    return [items.positions(hits.ids) for hits in first.search(queries, min(depth, len(items)))]


def hard_negatives(first: Retriever, judged: JudgedQueries, items: Items, *, depth: int, seed: int) -> list[IntArray]:
    """Per query, `depth` items that are not relevant: the first stage's best, and random ones where it finds fewer.

    All queries get as many, and so fewer than asked where the collection is small.
    """
    most_relevant = max(map(len, judged.relevant))
    depth = min(depth, len(items) - most_relevant)
    if depth < 1:
        query = judged.queries[int(np.argmax([len(relevant) for relevant in judged.relevant]))]
        raise InputError(
            f"Learning needs an item that is not relevant; all {len(items)} items are relevant to query {query.id!r}."
        )
    found = found_by(first, judged.queries, items, depth=depth + most_relevant)
    return [
        _topped_up(pool[~np.isin(pool, relevant)][:depth], depth, without=relevant, items=items, seed=seed, query=query)
        for pool, relevant, query in zip(found, judged.relevant, judged.queries, strict=True)
    ]


def shown(
    relevant: IntArray, pool: IntArray | None, *, negatives: int, items: Items, seed: int, epoch: int, query: Query
) -> IntArray:
    """A relevant item at random, first, and so many of the pool; the draw follows from seed, epoch and query alone.

    So a run that was killed draws the same again.
    """

    def drawn(what: str, of: IntArray, n: int) -> IntArray:
        order = uniform(stream_key(seed, what, str(epoch), query.id), items.keys[of])
        return of[np.argsort(order, kind="stable")[:n]]

    one = drawn("relevant", relevant, 1)
    return one if pool is None else np.concatenate((one, drawn("negatives", pool, negatives)))


def _topped_up(pool: IntArray, n: int, *, without: IntArray, items: Items, seed: int, query: Query) -> IntArray:
    if len(pool) == n:
        return pool
    others = np.argsort(uniform(stream_key(seed, "more negatives", query.id), items.keys), kind="stable")
    fresh = others[~np.isin(others, np.concatenate((pool, without)))]
    return np.concatenate((pool, fresh[: n - len(pool)]))
