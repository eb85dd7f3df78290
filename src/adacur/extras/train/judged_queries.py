"""Queries with their relevant items, split into those to learn from and those to check with."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.data import JudgedCollection, split_queries
from adacur.errors import InputError
from adacur.protocols import Items
from adacur.records import Item, ItemList, Query

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
    """The judged queries of a collection, at random in two parts; a tenth is held out, at most 200, by default.

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
    if useless := [id_ for id_, positions in relevant.items() if not len(positions)]:
        message = "%d of %d judged queries have no relevant item here and are left out, such as %r."
        _log.warning(message, len(useless), len(relevant), useless[0])
    learnt, checked = split_for_learning(usable, held_out=held_out, seed=seed)
    digest = hashlib.blake2b(digest_size=16)
    for part in (collection.items, learnt, checked):
        update_with_texts(digest, part)
    for query in (*learnt, *checked):
        digest.update(relevant[query.id].astype("<i8").tobytes() + b"\0")
    to_learn, to_check = (JudgedQueries(part, [relevant[query.id] for query in part]) for part in (learnt, checked))
    return LearningData(collection.name, items, to_learn, to_check, digest.hexdigest())


def split_for_learning(
    queries: Sequence[Query], *, held_out: int | None, seed: int
) -> tuple[Sequence[Query], Sequence[Query]]:
    """Queries to learn from and queries to check with, at random; no text is in both."""
    size = held_out if held_out is not None else max(1, min(_MOST_HELD_OUT, int(_HELD_OUT_SHARE * len(queries))))
    if not 1 <= size < len(queries):
        raise InputError(f"held_out must be from 1 to {len(queries) - 1}, the usable queries less one; got {held_out}.")
    split = split_queries(queries, anchors=0, held_out=size, seed=seed)
    if not split.test:
        raise InputError(f"All {len(queries)} usable queries are alike in text, so that none can be held out.")
    _log.info("%d queries to learn from, %d held out for checks.", len(split.test), len(split.held_out))
    return split.test, split.held_out


def update_with_texts(digest: Any, records: Iterable[Item] | Iterable[Query]) -> None:
    """Add the ids and texts of records to a hash."""
    for record in records:
        digest.update(f"{record.id}\0{record.text}\0".encode(errors="replace"))


def words_of(text: str) -> str:
    """The words of a text in the order of the alphabet: texts with the same differ in case, order or punctuation."""
    return " ".join(sorted(re.findall(r"\w+", text.casefold()))) or text


def same_words(items: Items) -> IntArray:
    """A number per item; near-duplicates, which are items of the same words, have the same."""
    return np.unique([words_of(item.text) for item in items.at(range(len(items)))], return_inverse=True)[1]


def with_equal_texts(judged: JudgedQueries, row_of: IntArray) -> JudgedQueries:
    """The same queries; relevant are also the items whose text is that of a relevant one."""
    relevant = [np.flatnonzero(np.isin(row_of, row_of[of_query])) for of_query in judged.relevant]
    for query, of_query in zip(judged.queries, relevant, strict=True):
        if len(of_query) == len(row_of):
            raise InputError(
                f"Learning needs an item that is not relevant; all {len(row_of)} items are relevant to {query.id!r}."
            )
    return JudgedQueries(judged.queries, relevant)
