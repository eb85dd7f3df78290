"""Which blend and ridge for AXN? Chosen on held-out anchor queries, never on test queries.

    python lab/benchmarks/axn_settings.py --scores DIR … [--budgets 50,100,200] [--rounds 10] [--queries 100]

Prints, for each setting, the mean recall for k = 1, 10 and 100 over all domains and budgets, and the mean of these.
"""

from __future__ import annotations

import argparse

import numpy as np
from score_folders import read_score_folder

from adacur import AnchorIndex
from adacur.replay import top_k_recall
from adacur_lab.axn import AXN, EmbeddingRegression

KS = (1, 10, 100)
SETTINGS = [
    # blend, ridge
    *((blend, 0.3) for blend in (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8)),
    *((0.6, ridge) for ridge in (0.03, 0.1, 1.0, 3.0)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True)
    parser.add_argument("--budgets", default="50,100,200")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--queries", type=int, default=100)
    arguments = parser.parse_args()
    budgets = [int(calls) for calls in arguments.budgets.split(",")]
    folders = [
        read_score_folder(where, n_anchors=1, n_queries=arguments.queries, held_out=True) for where in arguments.scores
    ]
    indexes = [
        AnchorIndex.from_arrays(items=f.items, anchor_queries=f.anchors, scores=f.anchor_scores) for f in folders
    ]
    domains = ", ".join(folder.domain for folder in folders)
    print(
        f"{domains}; B = {arguments.budgets}, {arguments.rounds} rounds, dense first stage, "
        f"{arguments.queries} held-out queries a domain; recall for k = 1, 10, 100"
    )
    for blend, ridge in SETTINGS:
        means = []
        for folder, index in zip(folders, indexes, strict=True):
            approximator = EmbeddingRegression(
                folder.item_embeddings, embed_queries=folder.embed_queries, blend=blend, ridge=ridge
            )
            for calls in budgets:
                found = AnchorIndex(index, scorer=folder.scorer).search(
                    folder.test,
                    min(max(KS), calls),
                    budget=calls,
                    method=AXN(rounds=arguments.rounds, approximator=approximator),
                    first=folder.dense,
                )
                means.append([top_k_recall(found, folder.test_scores, k=k).mean() for k in KS])
        cells = "  ".join(f"{mean:.4f}" for mean in np.mean(means, axis=0))
        print(f"  blend {blend:<4} ridge {ridge:<4} {cells}  mean {np.mean(means):.4f}", flush=True)


if __name__ == "__main__":
    main()
