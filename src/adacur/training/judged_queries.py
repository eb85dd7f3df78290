"""Queries with their relevant items, split into those to learn from and those to check with, and hard negatives."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import Items
from adacur.core.records import ItemList, Query
from adacur.core.seeds import stream_key, uniform
from adacur.data import JudgedCollection, split_queries
from adacur.first_stages import AnyStage, placed

__all__ = [
    "JudgedQueries",
    "LearningData",
    "distinct_texts",
    "drawn_items",
    "first_stage_positions",
    "hard_negatives",
    "learning_data",
    "split_for_learning",
    "with_equal_texts",
]

_log = logging.getLogger(__name__)
_HELD_OUT_SHARE = 0.1
_MOST_HELD_OUT = 200


@dataclass(frozen=True, slots=True, eq=False)
class JudgedQueries:
    """Queries and, for each, the positions of the items that are relevant to it: one at least."""

    queries: Sequence[Query] = field(repr=False)
    relevant: Sequence[IntArray] = field(repr=False)

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True, slots=True, eq=False)
class LearningData:
    """Items, the queries to learn from, and queries held out for checks; no text is in both."""

    name: str
    items: ItemList = field(repr=False)
    learnt: JudgedQueries
    held_out: JudgedQueries
    fingerprint: str


def learning_data(collection: JudgedCollection, *, held_out: int | None = None, seed: int = 0) -> LearningData:
    """The judged queries of a collection, at random in two parts; a tenth is held out, at most 200, unless told.

    Queries without a relevant item among the items teach nothing and are left out.
    """
    items = ItemList(collection.items)
    known = dict(zip(items.ids, range(len(items)), strict=True))
    relevant = {
        query.id: np.array(
            [known[id_] for id_, grade in collection.qrels[query.id].items() if grade > 0 and id_ in known], np.intp
        )
        for query in collection.judged
    }
    usable = [query for query in collection.judged if len(relevant[query.id])]
    if len(usable) < 2:
        raise InputError(
            "Learning needs at least 2 queries with a relevant item (a grade above 0 for an item of the collection); "
            f"{len(usable)} of the {len(relevant)} judged queries of {collection.name!r} have one."
        )
    if len(usable) < len(relevant):
        example = next(id_ for id_, positions in relevant.items() if not len(positions))
        _log.warning(
            "%d of %d judged queries have no relevant item here and are left out, such as %r.",
            len(relevant) - len(usable),
            len(relevant),
            example,
        )
    learnt, checked = split_for_learning(usable, held_out=held_out, seed=seed)
    digest = hashlib.blake2b(digest_size=16)
    texts = [(record.id, record.text) for part in (collection.items, learnt, checked) for record in part]
    for id_, text in texts:
        digest.update(f"{id_}\0{text}\0".encode(errors="replace"))
    for query in (*learnt, *checked):
        digest.update(relevant[query.id].astype("<i8").tobytes() + b"\0")
    parts = [JudgedQueries(part, [relevant[query.id] for query in part]) for part in (learnt, checked)]
    return LearningData(
        name=collection.name, items=items, learnt=parts[0], held_out=parts[1], fingerprint=digest.hexdigest()
    )


def split_for_learning(
    queries: Sequence[Query], *, held_out: int | None, seed: int
) -> tuple[Sequence[Query], Sequence[Query]]:
    """Queries to learn from and queries to check with, at random; no text is in both."""
    size = held_out if held_out is not None else max(1, min(_MOST_HELD_OUT, int(_HELD_OUT_SHARE * len(queries))))
    if not 1 <= size < len(queries):
        raise InputError(f"held_out lies between 1 and the {len(queries)} usable queries less one; got {held_out}.")
    split = split_queries(queries, anchors=0, held_out=size, seed=seed)
    if not split.test:
        raise InputError(f"All {len(queries)} usable queries are alike in text, so that none can be held out.")
    _log.info("%d queries to learn from, %d held out for checks.", len(split.test), len(split.held_out))
    return split.test, split.held_out


def distinct_texts(items: Items) -> tuple[list[str], IntArray]:
    """Every text of the items once, and which of them each item has."""
    rows: dict[str, int] = {}
    of = [rows.setdefault(item.text, len(rows)) for item in items.at(range(len(items)))]
    return list(rows), np.array(of, np.intp)


def with_equal_texts(judged: JudgedQueries, row_of: IntArray) -> JudgedQueries:
    """The same queries; relevant are also the items whose text is that of a relevant one."""
    relevant = [np.flatnonzero(np.isin(row_of, row_of[of_query])) for of_query in judged.relevant]
    for query, of_query in zip(judged.queries, relevant, strict=True):
        if len(of_query) == len(row_of):
            raise InputError(
                f"Learning needs an item that is not relevant; all {len(row_of)} items are relevant to {query.id!r}."
            )
    return JudgedQueries(judged.queries, relevant)


def first_stage_positions(first: AnyStage, queries: Sequence[Query], items: Items, *, depth: int) -> list[IntArray]:
    """Per query, the positions of the first stage's best items, best first: at most `depth`."""
    return [positions for positions, _ in placed(first, items).search(queries, min(depth, len(items)))]


def hard_negatives(first: AnyStage, judged: JudgedQueries, items: Items, *, depth: int, seed: int) -> list[IntArray]:
    """Per query, `depth` items that are not relevant: the first stage's best, and random ones where it finds fewer.

    All queries get as many, and so fewer than asked where the collection is small.
    """
    most_relevant = max(map(len, judged.relevant))
    depth = min(depth, len(items) - most_relevant)
    found = first_stage_positions(first, judged.queries, items, depth=depth + most_relevant)
    return [
        _topped_up(pool[~np.isin(pool, relevant)][:depth], depth, without=relevant, items=items, seed=seed, query=query)
        for pool, relevant, query in zip(found, judged.relevant, judged.queries, strict=True)
    ]


def drawn_items(
    relevant: IntArray, pool: IntArray | None, *, negatives: int, items: Items, seed: int, epoch: int, query: Query
) -> IntArray:
    """A relevant item at random, first, and `negatives` of the pool; the draw depends on seed, epoch and query alone.

    A run that was killed draws the same again.
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
