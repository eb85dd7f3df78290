"""What anchor queries save: the grid of random items is searched with each query left out of the anchors in turn."""

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

# Of the grid; a search that scores more of it has nothing left to find.
_SHARE = 0.25
_BUDGETS, _PER_K = (50, 100), 5
_MULTIPLES = (0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
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
    budgets = [budget for budget in _BUDGETS if budget <= _SHARE * grid] or [int(_SHARE * grid)]
    if len(queries) < 10 or budgets[0] < 2 * _PER_K:
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
    for budget in budgets:
        k = min(10, budget // _PER_K)
        steps = sorted({max(k, round(budget * times)) for times in _MULTIPLES if budget * times < grid})
        found = top_k_recall(replay(with_anchors, queries, k, budget=budget, first=first), scores, k=k)
        curves = [
            [
                top_k_recall(without.search(queries, k, budget=step, method=method, first=first), scores, k=k)
                for step in steps
            ]
            for method in methods
        ]
        # Scoring everything finds everything.
        cells.append((budget, [*steps, grid], np.array([[*curve, np.ones(len(queries))] for curve in curves]), found))
    draws = np.random.default_rng(0).integers(len(queries), size=(_RESAMPLES, len(queries)))
    ratios = [_ratio(cells, draw) for draw in draws]
    low, high = np.quantile(ratios, [0.025, 0.975])
    budget, steps, curves_, found = cells[0]
    free = float(curves_[:, steps.index(budget)].mean(axis=1).max())
    every = np.arange(len(queries))
    return Saving(len(queries) - 1, _ratio(cells, every), float(low), float(high), float(found.mean()), free)


def _ratio(cells: list[tuple[int, list[int], FloatArray, FloatArray]], queries: Any) -> float:
    """The geometric mean of calls without anchor queries to calls with them, at equal mean recall of these queries."""
    logs = []
    for budget, steps, curves, found in cells:
        free = np.maximum.accumulate(curves[:, :, queries].mean(axis=2).max(axis=0))
        # Recall rises with the logarithm of the calls, nearly on a line.
        needed = np.interp(found[queries].mean(), free + 1e-9 * np.arange(len(free)), np.log(steps))
        logs.append(needed - np.log(budget))
    return float(np.exp(np.mean(logs)))
