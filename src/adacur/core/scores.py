"""The door where scores arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import NonFiniteScore, ScoreCountError
from adacur.core.protocols import Items
from adacur.core.records import Item, Pair, Query

__all__ = ["check_grid", "check_scores"]


def check_scores(scores: Any, pairs: Sequence[Pair]) -> FloatArray:
    """One finite number per pair, or an error that names the pair."""
    values = _as_floats(scores)
    if values.shape != (len(pairs),):
        several = " Take one column of it." if values.ndim > 1 and len(values) == len(pairs) else ""
        raise ScoreCountError(
            f"A scorer returns one score per pair; for {len(pairs)} pairs it returned shape {values.shape}.{several}"
        )
    if not np.isfinite(values).all():
        worst = int(np.flatnonzero(~np.isfinite(values))[0])
        raise _non_finite(values[worst], *pairs[worst])
    return values


def check_grid(scores: Any, queries: Sequence[Query], items: Sequence[Item] | Items) -> FloatArray:
    """One finite number per (query, item), or an error that names the pair."""
    values = _as_floats(scores)
    if values.shape != (len(queries), len(items)):
        raise ScoreCountError(
            f"A scorer returns one score per query and item; for {len(queries)} queries × {len(items)} items "
            f"it returned shape {values.shape}."
        )
    if not np.isfinite(values).all():
        row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(values)))
        raise _non_finite(values[row, column], queries[row], items[column])
    return values


def _as_floats(scores: Any) -> FloatArray:
    try:
        values = np.asarray(scores)
        if values.dtype.kind in "US":
            raise TypeError("they are texts")
        return values if values.dtype.kind == "f" else values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ScoreCountError(f"A scorer returns an array of numbers; this cannot be read as one: {error}") from error


def _non_finite(value: Any, query: Query, item: Item) -> NonFiniteScore:
    return NonFiniteScore(
        f"The scorer returned {value} for query {query.id!r} and item {item.id!r}. "
        "Scores must be finite; nothing was stored."
    )
