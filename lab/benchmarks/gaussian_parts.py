"""What is each part of the Gaussian worth? Replayed on held-out anchor queries, never on test queries.

    python lab/benchmarks/gaussian_parts.py --scores DIR [--scores DIR …] [--budgets 50,100,200,500] [--queries 100]

The last `--queries` of up to 500 anchor queries are searched, the others are the index. Prints the mean of 1 − recall
over budgets and k ∈ {1, 10, 100}, per domain and over all, with every part and with one left out.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur import AdaCUR, AnchorIndex
from adacur.first_stages import placed
from adacur.model import GaussianModel
from adacur.replay import top_k_recall
from adacur.search.index_stages import learned_slopes

# name: (left out of the approximator, whether the first stage's ranks are part of predictions)
PARTS: dict[str, tuple[dict[str, Any], bool]] = {
    "every part": ({}, True),
    "scores as they are": ({"rescale": False}, True),
    "no query embeddings": ({"embed_queries": None}, True),
    "no item embeddings": ({"embeddings": None}, True),
    "no first stage after the first round": ({}, False),
}
KS = (1, 10, 100)


def measured(folder: ScoreFolder, index: AnchorIndex, name: str, *, budgets: list[int], rounds: int) -> float:
    """The mean of 1 − recall over budgets and k."""
    without, ranks = PARTS[name]
    given = {"embeddings": folder.item_embeddings, "embed_queries": folder.embed_queries} | without
    approximator = GaussianModel(**given)
    if ranks:
        first = placed(folder.dense, index.snapshot.anchors.items)
        approximator.slopes = learned_slopes(approximator, index.snapshot.anchors, first)
    missed = []
    for calls in budgets:
        hits = AnchorIndex(index, scorer=folder.scorer).search(
            folder.test,
            min(max(KS), calls),
            budget=calls,
            method=AdaCUR(rounds=rounds, approximator=approximator),
            first=folder.dense,
        )
        missed += [1 - top_k_recall(hits, folder.test_scores, k=k).mean() for k in KS]
    return float(np.mean(missed))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True)
    parser.add_argument("--budgets", default="50,100,200,500")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--queries", type=int, default=100)
    arguments = parser.parse_args()
    budgets = [int(part) for part in arguments.budgets.split(",")]
    table: dict[str, list[float]] = {name: [] for name in PARTS}
    domains = []
    for where in arguments.scores:
        folder = read_score_folder(where, n_anchors=500, n_queries=arguments.queries, held_out=True)
        domains.append(f"{folder.domain} ({len(folder.anchors)} anchors)")
        index = AnchorIndex.from_arrays(items=folder.items, anchor_queries=folder.anchors, scores=folder.anchor_scores)
        for name in PARTS:
            table[name].append(measured(folder, index, name, budgets=budgets, rounds=arguments.rounds))
            print(f"  {folder.domain:12} {name:44} {table[name][-1]:.4f}", flush=True)
    print(
        f"mean of 1 − recall over B ∈ {budgets}, k ∈ {list(KS)}, {arguments.rounds} rounds, "
        f"{arguments.queries} held-out queries: {', '.join(domains)}"
    )
    for name, own in table.items():
        print(f"  {name:44} {'  '.join(f'{value:.4f}' for value in own)}  mean {np.mean(own):.4f}")


if __name__ == "__main__":
    main()
