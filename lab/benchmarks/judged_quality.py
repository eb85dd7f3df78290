"""Judged quality by replay: what do people think of the order, with and without the first stage blended in?

    python lab/benchmarks/judged_quality.py --scores DIR --qrels FILE [--judged DIR] [--scores … ] --json OUT

Per folder of exact scores (see score_folders.py): `fuse` is chosen by `adacur.tune` on the judged anchor queries, or on
the test queries of a second folder of the same items (--judged DIR; "-" for none), and reported on all test queries,
beside the first stage alone, re-ranking and exact search, each with and without. Writes rows of {"domain", "method",
"budget", "fuse", "ndcg", "low", "high", "recall"}; low and high bound a 95 % bootstrap interval over the queries, and
recall is the share of the scorer's own top 10 among the ten hits that are returned.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from recall_at_budget import numbers, read_judgements
from score_folders import ScoreFolder, read_score_folder

import adacur
from adacur import AnchorIndex, Dense, Gaussian, Hits
from adacur.replay import bootstrap_interval, judged_quality, top_k_recall
from adacur.replay.tune_index import verdict
from adacur.scorers import MatrixScorer
from adacur_lab.known_vectors import KnownVectors

ALL = 1_000_000
K = 10


def index_of(folder: ScoreFolder, judged: ScoreFolder | None) -> AnchorIndex:
    """The index as a user has it, its scorer and its encoder replaced by what is known."""
    others = [folder, *([judged] if judged else [])]
    queries = [*folder.anchors, *(query for other in others for query in other.test)]
    vectors = np.concatenate([folder.anchor_embeddings, *(other.query_embeddings for other in others)])
    dense = Dense.from_embeddings(
        [item.id for item in folder.items], folder.item_embeddings, encoder=KnownVectors(queries, vectors)
    )
    scorer = MatrixScorer(
        queries=[query for other in others for query in other.test],
        items=folder.items,
        scores=np.concatenate([other.test_scores for other in others]),
    )
    return AnchorIndex.from_arrays(
        items=folder.items,
        anchor_queries=folder.anchors,
        scores=folder.anchor_scores,
        scorer=scorer,
        first={"dense": dense},
    )


def measured(hits: list[Hits], folder: ScoreFolder, qrels: dict[str, dict[str, int]]) -> dict[str, Any]:
    values = judged_quality(hits, qrels)["nDCG@10"]
    values = values[~np.isnan(values)]
    low, high = bootstrap_interval(values)
    return {
        "ndcg": round(float(values.mean()), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "judged": len(values),
        "recall": round(float(top_k_recall(hits, folder.test_scores, k=K).mean()), 4),
    }


def measure(
    index: AnchorIndex, folder: ScoreFolder, qrels: dict[str, dict[str, int]], *, fuse: float, budgets: list[int]
) -> list[dict[str, Any]]:
    """A row per method, budget and weight."""
    ids = [item.id for item in folder.items]
    dense = [
        Hits(query=query, ids=tuple(ids[at] for at in positions.tolist()), scores=exact[positions])
        for query, exact, (positions, _) in zip(
            folder.test, folder.test_scores, index.snapshot.first_stage("dense").search(folder.test, K), strict=True
        )
    ]
    rows = [{"method": "dense alone", "budget": 0, "fuse": None} | measured(dense, folder, qrels)]
    for weight in dict.fromkeys((0.0, fuse)):
        for method in ("exact", "rerank", "gaussian"):
            for calls in budgets if method != "exact" else [len(folder.items)]:
                chosen = Gaussian(rounds=min(5, calls)) if method == "gaussian" else method
                hits = index.search(folder.test, K, budget=calls, method=chosen, fuse=weight)
                rows.append({"method": method, "budget": calls, "fuse": weight} | measured(hits, folder, qrels))
                print(f"  {rows[-1]}", flush=True)
    return [{"domain": folder.domain, "anchors": len(folder.anchors)} | row for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True, help="a folder of exact scores; may be repeated")
    parser.add_argument("--qrels", action="append", required=True, help="its judgements: files, commas between")
    parser.add_argument("--judged", action="append", default=[], help="a folder of other judged queries, or '-'")
    parser.add_argument("--budgets", type=numbers, default=[50, 100, 200, 500])
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--choose-at", type=int, default=100, help="the budget at which fuse is chosen")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if len(given.qrels) != len(given.scores) or len(given.judged) > len(given.scores):
        parser.error("give --qrels as often as --scores, and --judged at most so often")
    rows: list[dict[str, Any]] = []
    others = given.judged + ["-"] * (len(given.scores) - len(given.judged))
    for where, files, other in zip(given.scores, given.qrels, others, strict=True):
        folder = read_score_folder(where, n_anchors=given.anchors, n_queries=ALL)
        judged = None if other == "-" else read_score_folder(other, n_anchors=0, n_queries=ALL)
        qrels = read_judgements(files)
        index = index_of(folder, judged)
        print(f"\n{folder.domain}: {len(folder.items):,} items, {len(folder.anchors)} anchors, {len(folder.test)} test")
        options = {"k": K, "budget": given.choose_at, "qrels": qrels}
        by = adacur.tune(index, queries=judged.test if judged else len(folder.anchors), **options)
        assert by.judged is not None
        print(f"  {verdict(by)}", flush=True)
        # Each budget is measured as it is asked for, with this weight and without.
        index.snapshot.tunings = ()
        chosen = {"chosen_on": by.judged.n_queries, "chosen_from": "other queries" if judged else "anchor queries"}
        rows += [row | chosen for row in measure(index, folder, qrels, fuse=by.judged.fuse, budgets=given.budgets)]
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
