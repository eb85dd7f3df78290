"""Predicted and measured recall: can a user rely on what `adacur tune` says?

    python lab/benchmarks/predicted_recall.py --scores DIR [--scores DIR …] --budgets 50,100 --k 1,10 --json OUT

For each folder of exact scores (see score_folders.py), budget and k, tunes on the anchor queries alone, then searches
for the test queries with each of the four methods. Prints predicted and measured recall beside one another, the mean
absolute difference, the share of cells in which the measured one lies in the predicted interval, and what the chosen
settings gain over the defaults on the test queries.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from recall_at_budget import numbers
from score_folders import ScoreFolder, read_score_folder

from adacur.replay import top_k_recall
from adacur.replay.chosen_settings import choose_settings
from adacur.replay.searches import Searches, held_out, method_of
from adacur.search.tuned import GaussianSettings, default_settings


class Measured:
    """Searches for the test queries of a folder, each made once."""

    def __init__(self, folder: ScoreFolder) -> None:
        self._folder = folder
        self._found: dict[tuple[Any, int], Any] = {}

    def recall(self, method: str | GaussianSettings, *, k: int, budget: int) -> float:
        if (method, budget) not in self._found:
            self._found[method, budget] = self._searched(method, budget)
        return float(top_k_recall(self._found[method, budget], self._folder.test_scores, k=k).mean())

    def _searched(self, method: str | GaussianSettings, calls: int) -> Any:
        folder, chosen = self._folder, method
        if isinstance(method, GaussianSettings):
            snapshot = folder.index.snapshot
            slopes = snapshot.rank_slopes(snapshot.first_stage("dense"))
            chosen = method_of(method, snapshot.gaussian_model(), slopes=slopes)
        k = min(calls, len(folder.items))
        return folder.index.search(folder.test, k, budget=calls, method=chosen, first="dense")


def measure(
    folder: ScoreFolder, *, budgets: list[int], ks: list[int], queries: int, quick: bool, methods: list[str]
) -> list[dict[str, Any]]:
    """One row per budget, k and method."""
    snapshot = folder.index.snapshot
    stages, model = {None: snapshot.first_stage("dense")}, snapshot.gaussian_model()
    held = [snapshot.anchors.anchor_queries[at] for at in held_out(snapshot.anchors, queries)]
    measured = Measured(folder)
    rows = []
    for budget in budgets:
        for k in (k for k in ks if k <= budget):
            started = time.perf_counter()
            given: dict[str, Any] = {"model": model, "slopes": snapshot.rank_slopes}
            searches = Searches(snapshot.anchors, held, k=k, stages=stages, **given)
            tuning = choose_settings(searches, budget=budget, quick=quick)
            seconds = time.perf_counter() - started
            usual = measured.recall(default_settings(k), k=k, budget=budget)
            for method in methods:
                predicted = tuning.recall_of(method)
                chosen = tuning.settings if method == "gaussian" else method
                found = measured.recall(chosen, k=k, budget=budget)
                row = {
                    "domain": folder.domain,
                    "k": k,
                    "budget": budget,
                    "method": method,
                    "predicted": predicted.recall,
                    "low": predicted.low,
                    "high": predicted.high,
                    "measured": found,
                    "inside": predicted.low <= found <= predicted.high,
                    "replayed": tuning.n_queries,
                    "test_queries": len(folder.test),
                }
                if method == "gaussian":
                    row |= {"default": usual, "settings": repr(tuning.settings), "tuning_seconds": round(seconds, 1)}
                rows.append(row)
                print(
                    f"  B={budget:<4} k={k:<4} {method:9} predicted {predicted.recall:.3f} "
                    f"[{predicted.low:.3f}, {predicted.high:.3f}]  measured {found:.3f}"
                    + ("" if row["inside"] else "  outside")
                    + (f"  defaults {usual:.3f}  tuned in {seconds:.0f} s" if method == "gaussian" else ""),
                    flush=True,
                )
    return rows


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """The figures by which the predictions are judged, a line per method."""
    lines = []
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        difference = np.mean([abs(row["predicted"] - row["measured"]) for row in own])
        inside = np.mean([row["inside"] for row in own])
        lines.append(f"{method:9} {len(own)} cells: mean absolute difference {difference:.4f}, inside {inside:.0%}")
    gains = [row["measured"] - row["default"] for row in rows if row["method"] == "gaussian"]
    if gains:
        lines.append(f"tuned less defaults, on the test queries: mean {np.mean(gains):+.4f}, worst {min(gains):+.4f}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True, help="a folder of exact scores; may be repeated")
    parser.add_argument("--budgets", type=numbers, default=[50, 100, 200, 500], help="scorer calls per query")
    parser.add_argument("--k", type=numbers, default=[1, 10, 100])
    parser.add_argument("--anchors", type=int, default=500, help="the first N anchor queries")
    parser.add_argument("--replayed", type=int, default=100, help="anchor queries to replay")
    parser.add_argument("--queries", type=int, default=1_000_000, help="the first N test queries; default: all")
    parser.add_argument("--methods", default="gaussian,adacur,anncur,rerank")
    parser.add_argument("--quick", action="store_true", help="the quick tune that ends a build")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for where in arguments.scores:
        folder = read_score_folder(where, n_anchors=arguments.anchors, n_queries=arguments.queries)
        print(
            f"\n{folder.domain}: {len(folder.items):,} items, {len(folder.anchors)} anchors, {arguments.replayed} "
            f"replayed, {len(folder.test)} test queries",
            flush=True,
        )
        rows += measure(
            folder,
            budgets=arguments.budgets,
            ks=arguments.k,
            queries=arguments.replayed,
            quick=arguments.quick,
            methods=arguments.methods.split(","),
        )
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    print()
    for line in summary(rows):
        print(line)


if __name__ == "__main__":
    main()
