"""Runs with known numbers, written for the tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.replay import Run

N_QUERIES = 30


def run(
    method: str = "gaussian",
    *,
    recall: float = 0.8,
    ndcg: float | None = 0.5,
    collection: str = "town",
    n: int = N_QUERIES,
    measures: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """A run whose recalls vary by the same pattern from query to query, around a mean."""
    wave = 0.1 * np.sin(np.arange(n))
    found: dict[str, Any] = {"recall@10": recall + wave - wave.mean(), "calls": np.full(n, settings.get("budget", 0.0))}
    if ndcg is not None:
        # Every third query was never judged.
        found["nDCG@10"] = np.where(np.arange(n) % 3 == 0, np.nan, ndcg + wave)
    ids = tuple(f"q{position}" for position in range(n))
    return Run(collection, method, {"method": method, "seed": 0} | settings, ids, found | (measures or {}))


def contest(collection: str = "town", *, anchors: int = 50) -> list[Run]:
    """Three methods at two budgets, and a sweep of one of them over rounds."""
    runs = []
    for budget, gain in ((50, 0.0), (100, 0.1)):
        runs.append(run("rerank", recall=0.5 + gain, collection=collection, budget=budget, first="bm25"))
        for method, recall in (("gaussian", 0.7), ("adacur", 0.6)):
            chosen = {"budget": budget, "rounds": 5, "anchors": anchors, "first": "bm25"}
            steps = {f"seconds.{step}": np.full(N_QUERIES, 0.002) for step in ("solve", "predict", "score")}
            more = steps | {"index_calls": np.full(N_QUERIES, 300.0 * anchors), "error.all": np.full(N_QUERIES, 0.4)}
            more |= {"error.ranks@1-10": np.full(N_QUERIES, 1.4), "error.ranks@11-": np.full(N_QUERIES, 0.3)}
            runs.append(run(method, recall=recall + gain, collection=collection, measures=more, **chosen))
            if budget == 100 and method == "adacur":
                for rounds in (1, 2, 20):
                    swept = chosen | {"rounds": rounds}
                    runs.append(run(method, recall=0.5 + rounds / 100, collection=collection, measures=more, **swept))
    return runs
