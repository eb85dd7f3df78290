"""A first stage in an index: its answers in the index's positions, whatever the order of its items."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError, UnknownName
from adacur.protocols import FirstStage, Items, Ranking, Vectors
from adacur.records import Query, as_queries
from adacur.results import Hits
from adacur.seeds import item_keys

# By first stage: the items that it was compared with last, and where its own are among them.
_KNOWN: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[Items], IntArray | None]] = weakref.WeakKeyDictionary()


@runtime_checkable
class Retriever(Protocol):
    """Anything that answers queries with hits by id, best first: a search engine, another index."""

    def search(self, queries: Sequence[Query | str], k: int) -> Sequence[Hits]:
        """At most k hits per query, in the order of the queries."""
        ...


def placed(first: AnyStage, items: Items) -> Placed:
    """A first stage, or anything that answers with hits by id, speaking of positions in `items`."""
    if isinstance(first, Placed):
        return first if first.items is items else Placed(first.source, items, name=first.name)
    return Placed(first, items)


def best_by_id(scores: FloatArray, ids: Sequence[str], k: int, *, at: IntArray | None = None) -> IntArray:
    """Places of the k highest scores, best first; ties go to the smaller id.

    The ids are those of the places, or of the positions that places have in `at`; they are read only where scores tie.
    """
    candidates = np.arange(len(scores))
    if k < len(scores):
        cut = len(scores) - k
        candidates = np.flatnonzero(scores >= np.partition(scores, cut)[cut])
    order = np.argsort(-scores[candidates], kind="stable")
    in_order = scores[candidates[order]]
    if (in_order[1:] == in_order[:-1]).any():
        tied = candidates if at is None else at[candidates]
        names = np.array([ids[position] for position in tied.tolist()], dtype=np.str_)
        order = np.lexsort((names, -scores[candidates]))
    return candidates[order[:k]]


def as_hits(
    queries: Sequence[Query | str], answers: Sequence[Ranking], ids: Sequence[str] | Mapping[int, str]
) -> list[Hits]:
    """A first stage's answers by id, where `ids` are those of its positions."""
    return [
        Hits(query=query, ids=tuple(ids[position] for position in positions.tolist()), scores=scores)
        for query, (positions, scores) in zip(as_queries(queries), answers, strict=True)
    ]


class Placed:
    """A first stage of an index: `search` and `vectors` speak of positions in the index's `items`.

    A stage of the same items in the same order is passed through; of another order, its positions are translated.
    What answers with hits by id is looked up at every search, and then `stage` is None. `name` is what the index calls
    it; by default, what it calls itself.
    """

    def __init__(self, source: Any, items: Items, *, name: str | None = None) -> None:
        if not isinstance(source, FirstStage) and not isinstance(source, Retriever):
            raise InputError(f"A first stage must be a name, or an object with search(queries, k); got {source!r}.")
        self.source: Any = source
        self.stage: FirstStage | None = source if isinstance(source, FirstStage) else None
        self.items = items
        self.name: str = name if name is not None else getattr(source, "name", type(source).__name__)
        self._positions = None if self.stage is None else _positions_of(self.stage, items)
        # How many stages it is made of; whether it may be asked what no user has asked (what answers by id may be a
        # service); and whether it can say what each word of a query adds to an item's score.
        self.n_stages = int(getattr(self.stage, "n_stages", 1))
        self.can_be_asked = self.stage is not None and bool(getattr(self.stage, "can_be_asked", True))
        self.knows_words = bool(getattr(self.stage, "knows_words", False))

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query, in the order of the queries."""
        answers: Sequence[Any] = self.source.search(queries, k)
        if len(answers) != len(queries):
            raise InputError(f"A first stage must answer every query; got {len(answers)} answers to {len(queries)}.")
        if self.stage is None:
            return [_looked_up(hits, self.items) for hits in answers]
        if self._positions is None:
            return list(answers)
        return [Ranking(self._positions[positions], scores) for positions, scores in answers]

    @property
    def answers_anything(self) -> bool:
        """Whether it answers whatever is asked, and may be asked where a search starts from another stage.

        Known scores answer their own queries alone, and vectors without an encoder answer none.
        """
        return self.can_be_asked and bool(getattr(self.stage, "answers_anything", True))

    def search_parts(self, queries: Sequence[Query | str], k: int) -> tuple[list[Ranking], list[list[IntArray]]]:
        """As `search`; and, per query, the positions that each of the stages it is made of answered with."""
        if self.n_stages == 1:
            answers = self.search(queries, k)
            return answers, [[positions] for positions, _ in answers]
        answers, lists = self.source.search_parts(queries, k)
        if (to := self._positions) is None:
            return answers, lists
        return [Ranking(to[positions], scores) for positions, scores in answers], [
            [to[positions] for positions in of_query] for of_query in lists
        ]

    def terms(self, queries: Sequence[Query], k: int) -> list[list[Ranking]]:
        """Per query, what each of its words adds to at most k items; nothing where no stage knows words."""
        if not self.knows_words:
            return [[] for _ in queries]
        answers: list[list[Ranking]] = self.source.terms(queries, k)
        if (to := self._positions) is None:
            return answers
        return [[Ranking(to[positions], values) for positions, values in of_query] for of_query in answers]

    def vectors(self) -> Vectors | None:
        """A vector of every item of the index, and what embeds queries; None where some item has none."""
        vectors = None if self.stage is None else self.stage.vectors()
        if vectors is None or self._positions is None:
            return vectors
        if len(self._positions) < len(self.items):
            return None
        read, row_of = vectors.rows, np.argsort(self._positions)
        return Vectors(vectors.shape, lambda positions: read(row_of[positions]), vectors.embed_queries)


AnyStage = FirstStage | Retriever | Placed


def _positions_of(stage: FirstStage, items: Items) -> IntArray | None:
    """Where the items of a stage are among these; None where both have the same, in the same order."""
    if getattr(stage, "items", None) is items:
        return None
    # What cannot be a weak key (a dataclass that compares by value, say) is compared at every search.
    with suppress(TypeError):
        compared, positions = _KNOWN.get(stage, (None, None))
        if compared is not None and compared() is items:
            return positions
    # By their keys, which take a tenth of the memory of ids and are needed in every search.
    ours, theirs = items.keys, getattr(stage.ids, "keys", None)
    if theirs is None:
        theirs = item_keys(stage.ids)
    positions = None if np.array_equal(ours, theirs) else _positions_among(theirs, ours, stage)
    with suppress(TypeError):
        _KNOWN[stage] = weakref.ref(items), positions
    return positions


def _positions_among(theirs: Any, ours: Any, stage: FirstStage) -> IntArray:
    order = np.argsort(ours)
    positions: IntArray = order[np.minimum(np.searchsorted(ours, theirs, sorter=order), len(ours) - 1)]
    unknown = np.flatnonzero(ours[positions] != theirs)
    if len(unknown):
        raise UnknownName(
            f"{len(unknown)} of the {len(theirs)} items of the first stage {stage.name!r} are not in this index, such "
            f"as {stage.ids[int(unknown[0])]!r}. Build it from the items of the index."
        )
    return positions


def _looked_up(hits: Hits, items: Items) -> Ranking:
    """Hits as positions; an item that is named twice (by its passages, say) counts where it is named first."""
    if len(hits.scores) != len(hits.ids):
        raise InputError(
            f"A first stage must give a score for each hit; got {len(hits.scores)} scores of {len(hits.ids)} hits."
        )
    ranks: dict[str, int] = {}
    for rank, id_ in enumerate(hits.ids):
        ranks.setdefault(id_, rank)
    return Ranking(items.positions(ranks), np.asarray(hits.scores)[list(ranks.values())])
