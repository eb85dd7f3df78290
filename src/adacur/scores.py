"""The door where scores arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from adacur.arrays import FloatArray, IntArray
from adacur.errors import AdacurError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.protocols import Items, PositionScorer, Scorer
from adacur.records import Item, Pair, Query

# What float32 cannot tell from 0, sums of squares in float64 cannot either, and solves by it fail.
_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)


@dataclass(frozen=True, slots=True, eq=False)
class PairsAt(Sequence[Pair]):
    """Pairs by position: pair i is queries[query_of[i]] with the item at positions[i], looked up when it is read.

    For scorers that have `score_at`, which need no texts.
    """

    items: Items
    queries: Sequence[Query]
    query_of: IntArray
    positions: IntArray

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return PairsAt(self.items, self.queries, self.query_of[at], self.positions[at])
        return self.queries[self.query_of[at]], self.items.at([int(self.positions[at])])[0]

    def __iter__(self) -> Iterator[Pair]:
        items = self.items.at(self.positions.tolist())
        return iter([(self.queries[at], item) for at, item in zip(self.query_of.tolist(), items, strict=True)])


def joined_pairs(parts: Sequence[Sequence[Pair]]) -> Sequence[Pair]:
    """Pairs of several callers, one after another; by position where all are, and of the same items."""
    by_position = [part for part in parts if isinstance(part, PairsAt)]
    items = {id(part.items) for part in by_position}
    if len(by_position) < len(parts) or len(items) != 1:
        return [pair for part in parts for pair in part]
    starts = np.cumsum([0, *(len(part.queries) for part in by_position)])
    return PairsAt(
        by_position[0].items,
        [query for part in by_position for query in part.queries],
        np.concatenate([part.query_of + start for part, start in zip(by_position, starts[:-1], strict=True)]),
        np.concatenate([part.positions for part in by_position]),
    )


def score_pairs(scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
    """One finite score per pair, in order; whatever the scorer raises becomes one error that names it."""
    with NamingFailure(scorer):
        return check_scores(scores_of(scorer, pairs), pairs)


def scores_of(scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
    """What the scorer returns for these pairs: by position, if they are given so and it can."""
    if isinstance(pairs, PairsAt) and hasattr(scorer, "score_at"):
        by_position = cast(PositionScorer, scorer)
        return by_position.score_at(pairs.items, pairs.queries, pairs.query_of, pairs.positions)
    return scorer.score(list(pairs) if isinstance(pairs, PairsAt) else pairs)


class NamingFailure:
    """Whatever a scorer raises in this block becomes one error that names it."""

    # No generator: contextlib takes an error caused by StopIteration for its own, and lets StopIteration through.
    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AdacurError):
            raise failure_of(self._scorer, error) from error


def failure_of(scorer: Scorer, error: BaseException) -> ScorerFailed:
    """The error that names the scorer which raised this one."""
    failure = ScorerFailed(f"Scorer {scorer.card.name!r} failed with {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure


def check_scores(scores: Any, pairs: Sequence[Pair]) -> FloatArray:
    """One finite number per pair, or an error that names the pair; numbers too small for float32 are 0."""
    given, values = _as_floats(scores)
    if values.shape != (len(pairs),):
        several = " Take one column of it." if values.ndim > 1 and len(values) == len(pairs) else ""
        raise ScoreCountError(
            f"A scorer returns one score per pair; for {len(pairs)} pairs it returned shape {values.shape}.{several}"
        )
    for worst in np.flatnonzero(~np.isfinite(values)):
        raise _non_finite(given[worst], *pairs[int(worst)])
    return values


def check_grid(scores: Any, queries: Sequence[Query], items: Sequence[Item] | Items) -> FloatArray:
    """One finite number per (query, item), or an error that names the pair; numbers too small for float32 are 0."""
    given, values = _as_floats(scores)
    if values.shape != (len(queries), len(items)):
        raise ScoreCountError(
            f"A scorer returns one score per query and item; for {len(queries)} queries × {len(items)} items "
            f"it returned shape {values.shape}."
        )
    for row, column in np.argwhere(~np.isfinite(values)).tolist():
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
