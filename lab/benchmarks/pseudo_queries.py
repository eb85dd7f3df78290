"""What pseudo-queries are worth: the shipped index against as many real queries, by replay.

    python lab/benchmarks/pseudo_queries.py --scores DIR-of-wikivital [--budgets 100,200] [--queries 300]
        [--held-out] [--anchors NAME=FILE.npy …]

--anchors adds others (from lab/reproduction/score_queries.py); --held-out takes the last anchor queries
instead of the test queries, to choose a kind by. The folder holds exact scores of real questions for the articles of
the shipped index (see score_folders.py).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

import adacur
from adacur import AdaCUR, AnchorIndex, Query, Rerank
from adacur.data import fetch, pseudo_queries, wikivital
from adacur.first_stages import bge_small
from adacur.model import GaussianModel
from adacur.replay import bootstrap_interval, top_k_recall

SHIPPED = Path(adacur.__file__).parents[1] / "adacur_wikivital" / "scores.npy"


def shipped_vectors() -> np.ndarray:
    """The dual encoder's vectors of the shipped index's pseudo-queries, which are cut from the articles again."""
    about = json.loads((SHIPPED.parent / "about.json").read_text())
    made = pseudo_queries(wikivital(), about["n_anchors"], seed=about["seed"])
    return bge_small(fetch("bge-small-en-v1.5")).encode_queries([query.text for query in made])


def looked_up(folder: ScoreFolder, anchors: np.ndarray) -> Callable[[Sequence[Query]], np.ndarray]:
    """Query vectors by id: "a0", "a1" … are the anchor queries."""
    known = {f"a{row}": vector for row, vector in enumerate(anchors)}
    known |= {query.id: vector for query, vector in zip(folder.test, folder.query_embeddings, strict=True)}
    return lambda queries: np.stack([known[query.id] for query in queries])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", required=True)
    parser.add_argument("--budgets", type=lambda text: [int(part) for part in text.split(",")], default=[100, 200])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--anchors", action="append", default=[], metavar="NAME=FILE")
    arguments = parser.parse_args()
    pseudo = np.load(SHIPPED).astype(np.float32).T
    folder = read_score_folder(
        arguments.scores, n_anchors=len(pseudo), n_queries=arguments.queries, held_out=arguments.held_out
    )
    kind = "held-out" if arguments.held_out else "test"
    print(
        f"{folder.domain}: {len(folder.items):,} items, {len(pseudo)} anchors, 5 rounds, dense first stage, "
        f"{len(folder.test)} {kind} queries; Top-k-Recall@B with 95 % interval"
    )
    indexes = {
        name: AnchorIndex.from_arrays(
            items=folder.items, anchor_queries=[Query(f"a{n}", "anchor") for n in range(len(scores))], scores=scores
        )
        for name, scores in (
            ("shipped", pseudo),
            ("real", folder.anchor_scores),
            *(
                (name, np.load(file).astype(np.float32).T)
                for name, _, file in (a.partition("=") for a in arguments.anchors)
            ),
        )
    }
    vectors = {"shipped": shipped_vectors(), "real": folder.anchor_embeddings}
    for calls in arguments.budgets:
        runs: dict[str, tuple[AnchorIndex, Any]] = {"re-rank": (indexes["real"], Rerank())}
        for name, index in indexes.items():
            runs[f"adacur, {name} anchors"] = (index, AdaCUR())
            model = GaussianModel(
                embeddings=folder.item_embeddings,
                embed_queries=looked_up(folder, vectors[name]) if name in vectors else None,
            )
            runs[f"gaussian, {name} anchors"] = (index, AdaCUR(approximator=model))
        for name, (index, method) in runs.items():
            found = AnchorIndex(index, scorer=folder.scorer).search(
                folder.test, min(100, calls), budget=calls, method=method, first=folder.dense
            )
            cells = []
            for k in (1, 10, 100):
                recalls = top_k_recall(found, folder.test_scores, k=k)
                low, high = bootstrap_interval(recalls)
                cells.append(f"k={k}: {recalls.mean():.3f} [{low:.3f}, {high:.3f}]")
            print(f"  B={calls:<4} {name:24} " + "  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
