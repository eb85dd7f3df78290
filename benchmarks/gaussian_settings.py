"""Which noise, embedding weight and first-stage share? Chosen on held-out anchor queries, never on test queries.

    python benchmarks/gaussian_settings.py --scores DIR [--scores DIR …] [--budget 100] [--queries 100]

Prints the mean of Top-1, Top-10 and Top-100 recall per domain and over all domains, for each setting.
"""

from __future__ import annotations

import argparse

import numpy as np
from score_folders import read_score_folder

from adacur import AdaCUR, AnchorIndex, Budget, Gaussian
from adacur.evaluation import top_k_recall

SETTINGS = [
    # noise, embedding weight (None: no embeddings), first share
    (0.3, 1.0, 0.2),
    (0.1, 1.0, 0.2),
    (0.3, 0.5, 0.2),
    (0.1, 0.5, 0.2),
    (1.0, 1.0, 0.2),
    (0.3, 2.0, 0.2),
    (0.3, 1.0, 0.0),
    (0.3, 1.0, 0.4),
    (0.3, None, 0.2),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--queries", type=int, default=100)
    arguments = parser.parse_args()
    folders = [
        read_score_folder(where, n_anchors=500, n_queries=arguments.queries, held_out=True)
        for where in arguments.scores
    ]
    indexes = [
        AnchorIndex.from_arrays(items=f.items, anchor_queries=f.anchors, scores=f.anchor_scores) for f in folders
    ]
    anchors = ", ".join(f"{folder.domain} {len(folder.anchors)}" for folder in folders)
    print(
        f"B = {arguments.budget}, 5 rounds, dense first stage, {arguments.queries} held-out queries; anchors: {anchors}"
    )
    for noise, weight, share in SETTINGS:
        means = []
        for folder, index in zip(folders, indexes, strict=True):
            kernel = {} if weight is None else {"embeddings": folder.item_embeddings, "embedding_weight": weight}
            found = AdaCUR(
                index=index,
                scorer=folder.scorer,
                budget=Budget(calls=arguments.budget),
                first=folder.dense,
                approximator=Gaussian(noise=noise, **kernel),
                first_share=share,
            ).search(folder.test, min(100, arguments.budget))
            means.append(np.mean([top_k_recall(found, folder.test_scores, k=k).mean() for k in (1, 10, 100)]))
        cells = "  ".join(f"{mean:.4f}" for mean in means)
        print(
            f"  noise {noise:<4} weight {weight!s:<5} share {share:<4} {cells}  mean {np.mean(means):.4f}", flush=True
        )


if __name__ == "__main__":
    main()
