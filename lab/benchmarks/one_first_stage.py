"""From one first stage alone and without anchor queries: the default, AXN and re-ranking, cell by cell.

    python lab/benchmarks/one_first_stage.py --queries 100 --json lab/benchmarks/results/one_first_stage.json

Reads exact scores, embeddings and texts as anchors_and_rounds.py does. A search starts from BM25 or from the dual
encoder; the index has both. Differences are paired, query by query, with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from anchors_and_rounds import KS, NAMES, opened
from rivals import SHARED

from adacur.replay import top_k_recall
from adacur.search import Gaussian, Rerank
from adacur_lab.axn import AXN
from adacur_lab.rivals import Contest

ROUNDS = 5


def recalls(contest: Contest, method: Any, first: str, budget: int, ks: tuple[int, ...]) -> dict[int, np.ndarray]:
    queries, exact = list(contest.testbed.test_queries), contest.testbed.exact_scores
    hits = contest.index(0).search(queries, min(max(ks), budget), budget=budget, method=method, first=first)
    return {k: top_k_recall(hits, exact, k=k) for k in ks}


def rows_of(contest: Contest, first: str, budget: int) -> list[dict[str, Any]]:
    # Settings differ above k = 30.
    ours: dict[int, np.ndarray] = {}
    for ks in ((1, 10), (100,)):
        ours |= recalls(contest, Gaussian(rounds=ROUNDS), first, budget, ks)
    others = {
        "axn": recalls(contest, AXN(rounds=ROUNDS), first, budget, KS),
        "rerank": recalls(contest, Rerank(), first, budget, KS),
    }
    rows = []
    for k in KS:
        row = {"collection": contest.testbed.name, "first": first, "budget": budget, "k": k}
        row["ours"] = round(float(ours[k].mean()), 4)
        for name, found in others.items():
            apart = ours[k] - found[k]
            interval = 1.96 * float(apart.std(ddof=1)) / len(apart) ** 0.5
            row |= {name: round(float(found[k].mean()), 4)}
            row |= {f"over_{name}": [round(float(apart.mean()), 4), round(interval, 4)]}
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--queries", type=int, default=100, help="the first N test queries")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in NAMES:
        contest = opened(
            given.scores / name, given.data / name, held_out=0, n_queries=given.queries, scores_as="logits"
        )
        snapshot = contest.index(0).snapshot
        # For statistics, all queries may be predicted in one product.
        snapshot._cache["gaussian_model"] = snapshot.gaussian_model().in_one_product()
        for first in ("bm25", "dense"):
            for budget in (50, 100, 200, 500):
                rows += rows_of(contest, first, budget)
        given.json.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")
    for other in ("axn", "rerank"):
        gains = [row[f"over_{other}"] for row in rows]
        below, above = (sum(sign * gain > interval for gain, interval in gains) for sign in (-1, 1))
        print(f"{len(rows)} cells: {above} above {other} by more than their interval, {below} below")


if __name__ == "__main__":
    main()
