"""The door where scores arrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import AdacurError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.core.protocols import Items, PositionScorer, Scorer
from adacur.core.records import Item, Pair, Query

# What float32 cannot tell from 0, sums of squares in float64 cannot either, and solves by it fail.
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


def score_pairs(scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
    """One finite score per pair, in order; whatever the scorer raises becomes one error that names it."""
    try:
        scores = scorer.score(pairs)
    except AdacurError:
        raise
    except Exception as error:
        raise scorer_failed(scorer, error) from error
    return check_scores(scores, pairs)


def score_positions(
    scorer: PositionScorer, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray
) -> FloatArray:
    """The same of pairs given by position; an item is looked up only to name it in an error."""
    try:
        scores = scorer.score_at(items, queries, query_of, positions)
    except AdacurError:
        raise
    except Exception as error:
        raise scorer_failed(scorer, error) from error
    return check_scores(scores, _PairsAt(items, queries, query_of, positions))


@dataclass(frozen=True, slots=True, eq=False)
class _PairsAt(Sequence[Pair]):
    """Pairs by position, looked up one by one."""

    items: Items
    queries: Sequence[Query]
    query_of: IntArray
    positions: IntArray

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, at: Any) -> Any:
        return self.queries[self.query_of[at]], self.items.at([int(self.positions[at])])[0]


def scorer_failed(scorer: Scorer, error: Exception) -> ScorerFailed:
    """What to raise from an error inside a scorer."""
    return ScorerFailed(f"Scorer {scorer.card.name!r} failed with {type(error).__name__}: {error}")


def check_scores(scores: Any, pairs: Sequence[Pair]) -> FloatArray:
    """One finite number per pair, or an error that names the pair; numbers too small for float32 are 0."""
    given, values = _as_floats(scores)
    if values.shape != (len(pairs),):
        several = " Take one column of it." if values.ndim > 1 and len(values) == len(pairs) else ""
        raise ScoreCountError(
            f"A scorer returns one score per pair; for {len(pairs)} pairs it returned shape {values.shape}.{several}"
        )
    if not np.isfinite(values).all():
        worst = int(np.flatnonzero(~np.isfinite(values))[0])
        raise _non_finite(given[worst], *pairs[worst])
    return values


def check_grid(scores: Any, queries: Sequence[Query], items: Sequence[Item] | Items) -> FloatArray:
    """One finite number per (query, item), or an error that names the pair; numbers too small for float32 are 0."""
    given, values = _as_floats(scores)
    if values.shape != (len(queries), len(items)):
        raise ScoreCountError(
            f"A scorer returns one score per query and item; for {len(queries)} queries × {len(items)} items "
            f"it returned shape {values.shape}."
        )
    if not np.isfinite(values).all():
        row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(values)))
        raise _non_finite(given[row, column], queries[row], items[column])
    return values


def _as_floats(scores: Any) -> tuple[npt.NDArray[Any], FloatArray]:
    """The scores as they came, and as floats: those too small for float32 are 0."""
    if scores is None:
        raise ScoreCountError("A scorer returns one number per pair; this one returned None. Does it lack a return?")
    try:
        given = np.asarray(scores)
        # Of other objects None and texts would be read as numbers, and of complex numbers a part.
        objects = given.flat if given.dtype.kind == "O" else ()
        if given.dtype.kind not in "fiubO" or any(isinstance(one, str | bytes | complex) for one in objects):
            raise TypeError(f"it holds {_kind(given)}")
        values = given if given.dtype.kind == "f" and given.dtype.itemsize <= 8 else given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ScoreCountError(f"A scorer must return an array of numbers, and this is not one: {error}") from error
    if values.dtype.itemsize == 8:
        traces = (np.abs(values) < _SMALLEST) & (values != 0)
        values = np.where(traces, 0.0, values) if traces.any() else values
    return given, values


def _kind(given: npt.NDArray[Any]) -> str:
    kinds = {"c": "complex numbers", "U": "texts", "S": "bytes", "M": "dates", "m": "durations", "V": "records"}
    return kinds.get(given.dtype.kind, "texts or complex numbers among other objects")


def _non_finite(value: Any, query: Query, item: Item) -> NonFiniteScore:
    return NonFiniteScore(
        f"The scorer returned {value} for query {query.id!r} and item {item.id!r}. "
        "Scores must be finite numbers; nothing was stored."
    )
