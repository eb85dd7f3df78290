"""Which items come first, and what every retriever checks at its door."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import DuplicateId, EmptyInput
from adacur.core.records import first_repeat

__all__ = ["best_first", "check_ids"]


def best_first(scores: FloatArray, ids: Sequence[str], k: int) -> IntArray:
    """Positions of the k highest scores, best first; equal scores in the order of their ids.

    Ties go by id, so that neither the batch nor the order of the items decides them.
    """
    candidates = np.arange(len(scores))
    if k < len(scores):
        cut = len(scores) - k
        candidates = np.flatnonzero(scores >= np.partition(scores, cut)[cut])
    names = np.array([ids[position] for position in candidates.tolist()], dtype=np.str_)
    return candidates[np.lexsort((names, -scores[candidates]))[:k]]


def check_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """At least one id, none of them twice."""
    ids = tuple(ids)
    if not ids:
        raise EmptyInput("There are no items. Give at least one.")
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Item ids must be unique; {first_repeat(ids)!r} occurs more than once.")
    return ids
