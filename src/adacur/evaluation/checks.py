"""The door of the measures: exact scores and hits that belong together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, NonFiniteScore
from adacur.core.results import Hits

__all__ = ["check_same_queries", "check_score_matrix"]


def check_score_matrix(
    scores: FloatArray, *, n_queries: int, ids: Sequence[str] | None = None, kind: str = "exact"
) -> FloatArray:
    """Finite scores of shape (queries, items), at least one item; `ids` name the columns where they are needed."""
    scores = np.asarray(scores)
    if scores.ndim != 2 or len(scores) != n_queries or not scores.shape[1]:
        raise InputError(
            f"One row of {kind} scores per query and one column per item are needed; got shape {scores.shape} "
            f"for {n_queries} queries."
        )
    if ids is not None and len(ids) != scores.shape[1]:
        raise InputError(f"One id per column of {kind} scores is needed; got {len(ids)} for {scores.shape[1]} columns.")
    if not np.isfinite(scores).all():
        row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(scores)))
        raise NonFiniteScore(
            f"The {kind} score of query {row} and item {column} (by position) is {scores[row, column]}. "
            "Every pair must be scored before anything is measured against it."
        )
    return scores


def check_same_queries(found: Sequence[Hits], first: Sequence[Hits]) -> None:
    """Refuse hits and first-stage hits of different queries."""
    if [hits.query.id for hits in found] != [hits.query.id for hits in first]:
        raise InputError(
            f"Hits and first-stage hits must answer the same queries in the same order; "
            f"got {len(found)} and {len(first)}. Search both with one list of queries."
        )
