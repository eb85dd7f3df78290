"""What anchor queries save: the random items are searched with each query left out of the anchors in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.evaluation.recall import top_k_recall
from adacur.first_stages import BM25, Dense
from adacur.scorers import MatrixScorer
from adacur.search import AnchorIndex
from adacur.trying.measuring import Measured
from adacur.tuning import replay

# The best k of the grid, and the calls to find them: fewer are closer to the top of all items, more are less noisy.
_CELLS = ((2, 10), (2, 20), (5, 25), (5, 50))
# A search that scores more of the grid than this share has nothing left to find.
_SHARE = 0.25
_FEWEST_QUERIES = 10
# Compared with searches of whole collections, estimates from a grid were off by about this factor (docs/try.md).
_OFF = 1.5
_MULTIPLES = (0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
_RESAMPLES = 400


@dataclass(frozen=True, slots=True)
class Saving:
    """With `n_anchors` anchor queries a search needs 1 / `ratio` of the calls for the same recall; and its interval.

    `recall` and `without` are the means at equal calls, with anchor queries and without.
    """

    n_anchors: int
    ratio: float
    low: float
    high: float
    recall: float
    without: float


def saving(measured: Measured, first: str) -> Saving | None:
    """How many times the calls searches without anchor queries need; None where there are too few queries or items."""
    grid, queries = measured.plan.grid, measured.queries
    tried = [(k, budget) for k, budget in _CELLS if budget <= _SHARE * grid]
    if len(queries) < _FEWEST_QUERIES or not tried:
        return None
    items, scores = list(measured.table.items), measured.scores[:, :grid]
    stages: dict[str, Any] = {"bm25": BM25.build(items)}
    vectors = measured.index.snapshot.item_vectors()
    if vectors is not None:
        encoder = measured.index.first_stage("dense").source.open_encoder()
        rows = np.asarray(vectors.rows(np.arange(grid)), dtype=np.float32)
        stages["dense"] = Dense.from_embeddings([item.id for item in items], rows, encoder=encoder)
    without = AnchorIndex.from_items(items, scorer=MatrixScorer(queries, items, scores), first=stages)
    with_anchors = AnchorIndex(measured.table, first=stages)
    methods = ("rerank", "gaussian") if vectors is not None else ("rerank",)
    cells = []
    for k, budget in tried:
        steps = sorted({max(k, round(budget * times)) for times in _MULTIPLES if budget * times < grid})
        by_query = top_k_recall(replay(with_anchors, queries, k, budget=budget, first=first), scores, k=k)
        curves = []
        for method in methods:
            hits = [without.search(queries, k, budget=step, method=method, first=first) for step in steps]
            # Scoring everything finds everything.
            curves.append([*(top_k_recall(one, scores, k=k) for one in hits), np.ones(len(queries))])
        cells.append((budget, [*steps, grid], np.array(curves), by_query))
    draws = np.random.default_rng(0).integers(len(queries), size=(_RESAMPLES, len(queries)))
    ratios = [_ratio(cells, draw) for draw in draws]
    off = 1.0 if grid == measured.plan.n_items else _OFF
    low, high = np.quantile(ratios, [0.025, 0.975]) * (1 / off, off)
    found = np.mean([cell[3] for cell in cells])
    free = np.mean([curves[:, steps.index(budget)].mean(axis=1).max() for budget, steps, curves, _ in cells])
    every = np.arange(len(queries))
    return Saving(len(queries) - 1, _ratio(cells, every), float(low), float(high), float(found), float(free))


def _ratio(cells: list[tuple[int, list[int], FloatArray, FloatArray]], queries: Any) -> float:
    """The geometric mean of calls without anchor queries to calls with them, at equal mean recall of these queries."""
    logs = []
    for budget, steps, curves, found in cells:
        free = np.maximum.accumulate(curves[:, :, queries].mean(axis=2).max(axis=0))
        # Recall rises with the logarithm of the calls, nearly on a line.
        needed = np.interp(found[queries].mean(), free + 1e-9 * np.arange(len(free)), np.log(steps))
        logs.append(needed - np.log(budget))
    return float(np.exp(np.mean(logs)))
