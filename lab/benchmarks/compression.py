"""What compressed features cost in recall, by replay of score folders.

    python lab/benchmarks/compression.py --scores DIR [--scores DIR …] [--held-out] [--ranks 128,256] [--storages int8]

Mean of 1 − Top-k-Recall@B of the default search over B = 50, 100, 200, 500 and k = 1, 10, 100, in 5 rounds with 500
anchor queries, with the features as they are and compressed. Reports on the test queries, or, to choose by, on 100
anchor queries that are held out from the others.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from score_folders import read_score_folder

from adacur import AnchorIndex
from adacur.first_stages import placed
from adacur.model import GaussianModel
from adacur.replay import top_k_recall
from adacur.replay.searches import method_of
from adacur.search.index_stages import learned_slopes
from adacur.search.tuned import default_settings
from adacur.store import AnchorTable

BUDGETS, KS = (50, 100, 200, 500), (1, 10, 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--scores", type=Path, action="append", required=True)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--ranks", type=whole, default=[128, 256])
    parser.add_argument("--storages", type=lambda text: text.split(","), default=["int8"])
    parser.add_argument("--queries", type=int, default=100)
    given = parser.parse_args()
    variants = [(rank, storage) for rank in given.ranks for storage in given.storages]
    cells: dict[str, list[float]] = {}
    for path in given.scores:
        folder = read_score_folder(path, n_anchors=500, n_queries=given.queries, held_out=given.held_out)
        table = AnchorTable.from_arrays(items=folder.items, anchor_queries=folder.anchors, scores=folder.anchor_scores)
        full = GaussianModel(embeddings=folder.item_embeddings, embed_queries=folder.embed_queries)
        approximators = {"full": full}
        sizes = {"full": table.matrix.nbytes + full.features_of(table).nbytes}
        for rank, storage in variants:
            features = full.compressed(table, rank=rank, storage=storage)
            sizes[f"{rank} {storage}"] = features.nbytes
            approximators[f"{rank} {storage}"] = GaussianModel(embed_queries=folder.embed_queries, features=features)
        for name, approximator in approximators.items():
            missed, slopes = [], learned_slopes(approximator, table, placed(folder.dense, table.items))
            for budget in BUDGETS:
                for k in KS:
                    method = method_of(default_settings(k), approximator, slopes=slopes)
                    hits = AnchorIndex(table, scorer=folder.scorer).search(
                        folder.test, min(k, budget), budget=budget, method=replace(method, rounds=5), first=folder.dense
                    )
                    missed.append(1 - float(top_k_recall(hits, folder.test_scores, k=k).mean()))
            cells.setdefault(name, []).extend(missed)
            size = f"{sizes[name] / len(folder.items):>7,.0f} bytes per item"
            print(f"{folder.domain:>12} {name:>14} {size} {np.mean(missed):.4f}", flush=True)
    for name, missed in cells.items():
        lost = np.mean(missed) - np.mean(cells["full"])
        print(f"{'all':>12} {name:>14} {np.mean(missed):.4f}  lost {lost:+.4f} over {len(missed)} cells")


if __name__ == "__main__":
    main()
