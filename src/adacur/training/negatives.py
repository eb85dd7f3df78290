"""Negatives: where they are looked for, and which of them a query is shown in an epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.protocols import FirstStage, Items
from adacur.core.records import Query
from adacur.core.seeds import stream_key, uniform
from adacur.first_stages import AnyStage, placed
from adacur.training.judged_queries import JudgedQueries


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """What each query is shown: a relevant item at random, first, and `negatives` of a pool.

    A draw depends on seed, epoch and query alone, so that a run that was killed draws the same again.
    """

    judged: JudgedQueries
    items: Items
    negatives: int
    seed: int

    def __call__(self, place: int, epoch: int, pool: IntArray | None) -> IntArray:
        """The positions to show for the query at this place; without a pool the relevant item alone."""
        relevant = self._drawn("relevant", self.judged.relevant[place], 1, place, epoch)
        if pool is None:
            return relevant
        return np.concatenate((relevant, self._drawn("negatives", pool, self.negatives, place, epoch)))

    def _drawn(self, what: str, of: IntArray, n: int, place: int, epoch: int) -> IntArray:
        stream = stream_key(self.seed, what, str(epoch), self.judged.queries[place].id)
        return of[np.argsort(uniform(stream, self.items.keys[of]), kind="stable")[:n]]


def facts_of_first(first: AnyStage | None) -> dict[str, Any]:
    """The identity of the first stage that a run is made from: its name and settings, with an encoder's weights."""
    return {
        "first": None if first is None else getattr(first, "name", type(first).__name__),
        "first_settings": first.settings() if isinstance(first, FirstStage) else None,
    }


def first_stage_positions(first: AnyStage, queries: Sequence[Query], items: Items, *, depth: int) -> list[IntArray]:
    """Per query, the positions of the first stage's best items, best first: at most `depth`."""
    return [positions for positions, _ in placed(first, items).search(queries, min(depth, len(items)))]


def hard_negatives(first: AnyStage, judged: JudgedQueries, items: Items, *, depth: int, seed: int) -> list[IntArray]:
    """Per query, `depth` items that are not relevant: the first stage's best, and random ones where it finds fewer.

    All queries get the same number, which is less than `depth` in a small collection.
    """
    most_relevant = max(map(len, judged.relevant))
    depth = min(depth, len(items) - most_relevant)
    best = first_stage_positions(first, judged.queries, items, depth=depth + most_relevant)
    pools = without(judged.relevant, best, depth=depth)
    for place, (query, pool) in enumerate(zip(judged.queries, pools, strict=True)):
        if len(pool) < depth:
            others = np.argsort(uniform(stream_key(seed, "more negatives", query.id), items.keys), kind="stable")
            fresh = others[~np.isin(others, np.concatenate((pool, judged.relevant[place])))]
            pools[place] = np.concatenate((pool, fresh[: depth - len(pool)]))
    return pools


def without(left_out: Sequence[IntArray], best: Sequence[IntArray], *, depth: int) -> list[IntArray]:
    """Per query, the first `depth` of the best positions that are not left out."""
    return [row[~np.isin(row, out)][:depth] for row, out in zip(best, left_out, strict=True)]
