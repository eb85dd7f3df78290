"""Scores that teachers give to candidates, paid for once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.protocols import Items, Scorer
from adacur.core.records import Query
from adacur.core.scores import check_scores
from adacur.scorers.cached import Cached

__all__ = ["close_all", "mean_scores"]

_PAIRS_AT_ONCE = 16_384


def mean_scores(
    teachers: Sequence[Scorer],
    queries: Sequence[Query],
    positions: Sequence[IntArray],
    items: Items,
    *,
    cache: Path | None,
    progress: bool = False,
) -> list[FloatArray]:
    """Per query, the teachers' mean score of the items at these positions.

    Every score is kept in `cache`, if there is one, as it comes, so that nothing is paid twice after a kill.
    """
    from tqdm import tqdm

    sizes = [len(own) for own in positions]
    query_of, item_of = np.repeat(np.arange(len(queries)), sizes), np.concatenate([*positions, np.empty(0, np.intp)])
    total = np.zeros(len(item_of), np.float32)
    with tqdm(total=len(teachers) * len(item_of), desc="teach", unit=" pairs", disable=not progress) as bar:
        for teacher in teachers:
            scorer = teacher if cache is None else Cached(teacher, cache)
            for start in range(0, len(item_of), _PAIRS_AT_ONCE):
                part = slice(start, start + _PAIRS_AT_ONCE)
                asked = [queries[query] for query in query_of[part]]
                pairs = list(zip(asked, items.at(item_of[part].astype(int)), strict=True))
                total[part] += check_scores(scorer.score(pairs), pairs)
                bar.update(len(pairs))
    return np.split(total / max(1, len(teachers)), np.cumsum(sizes)[:-1])


def close_all(teachers: Sequence[Scorer]) -> None:
    """Close those that can be closed."""
    for teacher in teachers:
        if callable(close := getattr(teacher, "close", None)):
            close()
