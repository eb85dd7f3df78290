"""Top-k-Recall@B by replay: which method finds the scorer's own top k with the fewest calls?

    python lab/benchmarks/recall_at_budget.py --scores DIR [--scores DIR …] --methods adacur,rerank --budgets 50,100 \
        --rounds 5 --anchors 500 --queries 100 --json OUT

Reads folders of exact scores (see score_folders.py), takes the first N anchor and test queries, starts from the dense
embeddings, and writes a list of {"domain", "method", "k", "budget", "rounds", "anchors", "recall", "low", "high"};
low and high bound a 95 % bootstrap interval over the queries. With --qrels FILE (one per --scores, in order) nDCG@10
on the judged test queries stands beside the recall: "ndcg", "ndcg_low", "ndcg_high", "judged".
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur import ANNCUR, AdaCUR, AnchorIndex, Exact, Gaussian, Hits, Rerank
from adacur.data import read_qrels
from adacur.model import Softmax, TopK, Uniform
from adacur.protocols import Acquisition
from adacur.replay import bootstrap_interval, judged_quality, top_k_recall
from adacur_lab.axn import AXN, EmbeddingRegression
from adacur_lab.experiments.held_out_splits import held_out_splits
from adacur_lab.oracle import Oracle


class Spent(NamedTuple):
    """The scorer calls of a search, and the rounds they are spent in."""

    calls: int
    rounds: int


Method = Callable[[AnchorIndex, ScoreFolder, Spent, int], list[Hits]]


def best_split(index: AnchorIndex, folder: ScoreFolder, budget: Spent, k: int, *, first: Any) -> list[Hits]:
    """ANNCUR as the paper reports it: the best of nine splits, chosen on the test queries (an upper bound)."""
    runs = [
        AnchorIndex(index, scorer=folder.scorer).search(
            folder.test, k, budget=budget.calls, method=ANNCUR(split=tenth / 10), first=first
        )
        for tenth in range(1, 10)
    ]
    return max(runs, key=lambda run: top_k_recall(run, folder.test_scores, k=k).mean())


def held_out(index: AnchorIndex, folder: ScoreFolder, budget: Spent, k: int) -> list[Hits]:
    """ANNCUR with the split that is best on held-out anchor queries: what a user can have."""
    split = held_out_splits(index, budget=budget.calls, ks=(k,))[k]
    return AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=ANNCUR(split=split)
    )


def by_oracle(choice: Acquisition, *, mask_top_k: bool = False) -> Method:
    """Anchor items by their exact scores, then as ANNCUR with the best split: how the paper evaluates its oracles."""

    def search(index: AnchorIndex, folder: ScoreFolder, budget: Spent, k: int) -> list[Hits]:
        oracle = Oracle(
            queries=folder.test,
            items=folder.items,
            exact_scores=folder.test_scores,
            choice=choice,
            masked=k if mask_top_k else 0,
        )
        return best_split(index, folder, budget, k, first=oracle)

    return search


def gaussian(index: AnchorIndex, folder: ScoreFolder, budget: Spent, k: int) -> list[Hits]:
    """The default of `index.search`, as it comes, in the number of rounds asked for."""
    return index.search(folder.test, k, budget=budget.calls, method=Gaussian(rounds=budget.rounds), first="dense")


# Each method answers all test queries: (index, folder, budget, k) -> hits.
METHODS: dict[str, Method] = {
    "adacur": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=AdaCUR(rounds=budget.rounds), first=folder.dense
    ),
    "adacur_random": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=AdaCUR(rounds=budget.rounds)
    ),
    "adacur_softmax": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test,
        k,
        budget=budget.calls,
        method=AdaCUR(rounds=budget.rounds, acquisition=Softmax()),
        first=folder.dense,
    ),
    "gaussian": gaussian,
    "axn": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test,
        k,
        budget=budget.calls,
        method=AXN(
            rounds=budget.rounds,
            approximator=EmbeddingRegression(folder.item_embeddings, embed_queries=folder.embed_queries),
        ),
        first=folder.dense,
    ),
    "uniform": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=AdaCUR(rounds=budget.rounds, acquisition=Uniform())
    ),
    "topk_oracle": by_oracle(TopK()),
    "topk_oracle_masked": by_oracle(TopK(), mask_top_k=True),
    "softmax_oracle": by_oracle(Softmax()),
    "softmax_oracle_masked": by_oracle(Softmax(), mask_top_k=True),
    "anncur": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=ANNCUR()
    ),
    "anncur_dense": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=ANNCUR(), first=folder.dense
    ),
    "anncur_best_split": lambda index, folder, budget, k: best_split(index, folder, budget, k, first=None),
    "anncur_held_out_split": held_out,
    "anncur_dense_best_split": lambda index, folder, budget, k: best_split(
        index, folder, budget, k, first=folder.dense
    ),
    "rerank": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, budget=budget.calls, method=Rerank(), first=folder.dense
    ),
    "exact": lambda index, folder, budget, k: AnchorIndex(index, scorer=folder.scorer).search(
        folder.test, k, method=Exact()
    ),
}
# These choose per k, so one run cannot serve every k.
CHOSEN_PER_K = {"gaussian"} | {name for name in METHODS if name.endswith("_split") or "_oracle" in name}
FROM_RANDOM = {"adacur_random", "uniform", "anncur", "anncur_best_split", "anncur_held_out_split"}


def measure(
    folder: ScoreFolder,
    *,
    methods: list[str],
    budgets: list[int],
    rounds: int,
    ks: list[int],
    qrels: dict[str, dict[str, int]] | None = None,
) -> list[dict[str, Any]]:
    """One row per method, budget and k; k larger than the budget is measured on what the budget can return."""
    index = folder.index
    rows = []
    for calls in budgets:
        budget = Spent(calls, min(rounds, calls))
        for method in methods:
            most = min(max(ks), calls)
            shared = None if method in CHOSEN_PER_K else METHODS[method](index, folder, budget, most)
            for k in ks:
                hits = shared if shared is not None else METHODS[method](index, folder, budget, min(k, calls))
                recalls = top_k_recall(hits, folder.test_scores, k=k)
                low, high = bootstrap_interval(recalls)
                rows.append(
                    {
                        "domain": folder.domain,
                        "method": method,
                        "k": k,
                        "budget": calls,
                        "rounds": budget.rounds,
                        "anchors": len(folder.anchors),
                        "queries": len(folder.test),
                        "first": "random" if method in FROM_RANDOM else "oracle" if "_oracle" in method else "dense",
                        "recall": round(float(recalls.mean()), 4),
                        "low": round(low, 4),
                        "high": round(high, 4),
                    }
                )
                if qrels is not None:
                    values = judged_quality(hits, qrels)["nDCG@10"]
                    values = values[~np.isnan(values)]
                    low, high = bootstrap_interval(values)
                    rows[-1] |= {
                        "ndcg": round(float(values.mean()), 4),
                        "ndcg_low": round(low, 4),
                        "ndcg_high": round(high, 4),
                        "judged": len(values),
                    }
    return rows


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Per method the mean of 1 − recall over all cells, and the cell where it does worst beside the best other."""
    cells: dict[tuple[Any, ...], dict[str, float]] = {}
    for row in rows:
        cells.setdefault((row["domain"], row["budget"], row["k"]), {})[row["method"]] = row["recall"]
    lines = [
        f"mean of 1 − recall over {len(cells)} cells (domain, budget, k), and the worst cell beside the best other"
    ]
    for method in dict.fromkeys(row["method"] for row in rows):
        mean = np.mean([1 - own[method] for own in cells.values()])
        lines.append(f"  {method:24} {mean:.4f}")
        if len(cells) and len(next(iter(cells.values()))) > 1:
            gaps = {
                where: own[method] - max(value for name, value in own.items() if name != method)
                for where, own in cells.items()
            }
            (domain, calls, k), gap = min(gaps.items(), key=lambda entry: entry[1])
            lines[-1] += f"  {gap:+.3f} at {domain}, B = {calls}, k = {k}"
    return lines


def read_judgements(files: str) -> dict[str, dict[str, int]]:
    merged: dict[str, dict[str, int]] = {}
    for file in files.split(","):
        for query, items in read_qrels(file).items():
            merged.setdefault(query, {}).update(items)
    return merged


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True, help="a folder of exact scores; may be repeated")
    parser.add_argument("--methods", default="adacur,rerank", help=f"comma-separated, of: {', '.join(METHODS)}")
    parser.add_argument("--budgets", type=numbers, default=[50, 100, 200, 500], help="scorer calls per query")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--anchors", type=int, default=500, help="the first N anchor queries")
    parser.add_argument("--queries", type=int, default=100, help="the first N test queries")
    parser.add_argument(
        "--qrels", action="append", help="judgements per --scores: a file, or several with commas between"
    )
    parser.add_argument("--k", type=numbers, default=[1, 10, 100])
    parser.add_argument("--json", type=Path, help="where to write the rows")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    if unknown := set(methods) - set(METHODS):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}. Known: {', '.join(METHODS)}")

    if arguments.qrels and len(arguments.qrels) != len(arguments.scores):
        parser.error("give --qrels as often as --scores")

    rows: list[dict[str, Any]] = []
    for where, judgements in zip(arguments.scores, arguments.qrels or [None] * len(arguments.scores), strict=True):
        folder = read_score_folder(where, n_anchors=arguments.anchors, n_queries=arguments.queries)
        print(
            f"\n{folder.domain}: {len(folder.items):,} items, {len(folder.anchors)} anchors, "
            f"{arguments.rounds} rounds, {len(folder.test)} test queries; Top-k-Recall@B with 95 % interval"
        )
        own = measure(
            folder,
            methods=methods,
            budgets=arguments.budgets,
            rounds=arguments.rounds,
            ks=arguments.k,
            qrels=read_judgements(judgements) if judgements else None,
        )
        for calls in arguments.budgets:
            for method in methods:
                cells = [
                    f"k={row['k']}: {row['recall']:.3f} [{row['low']:.3f}, {row['high']:.3f}]"
                    for row in own
                    if row["method"] == method and row["budget"] == calls
                ]
                judged = next((row for row in own if row["method"] == method and row["budget"] == calls), {})
                if "ndcg" in judged:
                    interval = f"[{judged['ndcg_low']:.3f}, {judged['ndcg_high']:.3f}]"
                    cells.append(f"nDCG@10: {judged['ndcg']:.3f} {interval} on {judged['judged']} judged")
                print(f"  B={calls:<4} {method:24} " + "  ".join(cells))
        rows += own
    print("\n" + "\n".join(summary(rows)))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
