"""Where to start, and what judgements choose: every first stage, all together, and what tuning takes of them.

    python lab/benchmarks/chosen_start.py --scores DIR --data DIR --json OUT [--qrels FILE,FILE] [--queries 200]

DIR of --scores holds exact scores (see score_folders.py), DIR of --data the texts (corpus.jsonl.gz, queries.jsonl.gz),
which BM25 needs. Each budget is tuned for on anchor queries alone; searches are in 5 rounds, and reported on test
queries: recall of the scorer's top 10 with a 95 % bootstrap interval, for re-ranking and the default method from each
first stage with the default settings, and as tuned ("chosen"). With --qrels, judged tuning on the judged anchor queries
is reported on the judged test queries beside the default: nDCG@10, recall, and the paired difference.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from recall_at_budget import numbers, read_judgements
from score_folders import ScoreFolder, read_score_folder

import adacur
from adacur import BM25, AnchorIndex, Dense, Gaussian, Hits, Item, Query
from adacur.replay import bootstrap_interval, judged_quality, top_k_recall
from adacur.replay.tune_index import verdict
from adacur_lab.known_vectors import KnownVectors

K = 10
FIRSTS = ("dense", "bm25", "bm25+dense")


def texts(path: Path) -> dict[str, str]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {str(one["_id"]): " ".join(part for part in (one.get("title"), one.get("text")) if part) for one in records}


def with_texts(folder: ScoreFolder, data: Path) -> ScoreFolder:
    items, queries = texts(data / "corpus.jsonl.gz"), texts(data / "queries.jsonl.gz")
    return replace(
        folder,
        items=[Item(item.id, items[item.id]) for item in folder.items],
        anchors=[Query(query.id, queries[query.id]) for query in folder.anchors],
        test=[Query(query.id, queries[query.id]) for query in folder.test],
    )


def index_of(folder: ScoreFolder) -> AnchorIndex:
    vectors = np.concatenate([folder.anchor_embeddings, folder.query_embeddings])
    encoder = KnownVectors([*folder.anchors, *folder.test], vectors)
    dense = Dense.from_embeddings([item.id for item in folder.items], folder.item_embeddings, encoder=encoder)
    return AnchorIndex.from_arrays(
        items=folder.items,
        anchor_queries=folder.anchors,
        scores=folder.anchor_scores,
        scorer=folder.scorer,
        first={"bm25": BM25.build(folder.items), "dense": dense},
    )


def mean(values: np.ndarray) -> list[float]:
    return [round(value, 4) for value in (float(np.nanmean(values)), *bootstrap_interval(values))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--qrels", help="judgements: files, commas between")
    parser.add_argument("--budgets", type=numbers, default=[50, 100, 200])
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--judged-only", action="store_true", help="leave out the comparison of first stages")
    parser.add_argument("--quick", action="store_true", help="tune as `adacur build` does")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    folder = with_texts(read_score_folder(given.scores, n_anchors=given.anchors, n_queries=given.queries), given.data)
    index, rows = index_of(folder), []
    five = Gaussian(rounds=5)

    def row(name: str, hits: list[Hits], **more: Any) -> np.ndarray:
        recalls = top_k_recall(hits, folder.test_scores, k=K)
        about = {"domain": folder.domain, "anchors": len(folder.anchors), "queries": len(hits), "row": name}
        rows.append(about | {"recall": mean(recalls)} | more)
        print(json.dumps(rows[-1]), flush=True)
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
        return recalls

    for budget in [] if given.judged_only else given.budgets:
        index.snapshot.tunings = ()
        default = np.empty(0)
        for first in FIRSTS:
            row(
                f"rerank {first}",
                index.search(folder.test, K, budget=budget, method="rerank", first=first),
                budget=budget,
            )
            found = row(first, index.search(folder.test, K, budget=budget, method=five, first=first), budget=budget)
            default = default if len(default) else found
        began = time.monotonic()
        tuning = adacur.tune(index, k=K, budget=budget, quick=given.quick)
        told = {"first": tuning.first, "rerank_first": tuning.rerank_first, "verdict": verdict(tuning)}
        seconds = round(time.monotonic() - began, 1)
        hits = index.search(folder.test, K, budget=budget, method=five)
        chosen = top_k_recall(hits, folder.test_scores, k=K)
        row("chosen", hits, budget=budget, **told, gain=mean(chosen - default), seconds=seconds)
    if given.qrels is None:
        return
    qrels = read_judgements(given.qrels)
    for budget in given.budgets:
        index.snapshot.tunings = ()
        plain = index.search(folder.test, K, budget=budget)
        before = judged_quality(plain, qrels)["nDCG@10"]
        row("judged: not tuned", plain, budget=budget, ndcg=mean(before), judged=int((~np.isnan(before)).sum()))
        began = time.monotonic()
        tuning = adacur.tune(index, k=K, budget=budget, qrels=qrels, quick=given.quick)
        seconds = round(time.monotonic() - began, 1)
        hits = index.search(folder.test, K)
        after = judged_quality(hits, qrels)["nDCG@10"]
        told = {name: hits[0].trace.settings[name] for name in ("first", "fuse", "tuned")}
        spent = {
            "budget": budget,
            "calls": hits[0].trace.calls,
            "chosen_on": tuning.judged.n_queries if tuning.judged else 0,
        }
        row(
            "judged: chosen",
            hits,
            **spent,
            **told,
            ndcg=mean(after),
            gain=mean(after - before),
            verdict=verdict(tuning),
            seconds=seconds,
        )
        again = index.search(folder.test, K, method="rerank", first=tuning.first)
        reranked = judged_quality(again, qrels)["nDCG@10"]
        row("judged: rerank as chosen", again, **spent, ndcg=mean(reranked))


if __name__ == "__main__":
    main()
