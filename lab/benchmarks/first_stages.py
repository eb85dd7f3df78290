"""First stages compared by replay: how much of the scorer's own top k does each put within reach?

    python lab/benchmarks/first_stages.py --scores DIR --data BEIR_FOLDER [--items N] [--queries 100] [--budget 100] \
        [--anchors 500] [--k 10] [--json OUT]

Takes the exact scores of a folder (see score_folders.py) and the texts of the same collection, keeps the first N items,
and measures Top-k-Recall of each first stage in three roles: re-ranked, as ANNCUR's anchor items, and as
ADACUR's first batch. Texts are encoded with bge-small-en-v1.5; the dense stage uses
the folder's own embeddings.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from score_folders import read_score_folder

from adacur import ANNCUR, AdaCUR, AnchorIndex, Item, Query, Rerank
from adacur.data import fetch, read_items, read_queries
from adacur.first_stages import BM25, Matrix, OnnxEncoder, bge_small
from adacur.protocols import FirstStage
from adacur.replay import bootstrap_interval, top_k_recall
from adacur.scorers import MatrixScorer
from adacur_lab.first_stages import MultiVector, TfIdf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", required=True, help="a folder of exact scores")
    parser.add_argument("--data", required=True, help="the BEIR folder with the texts")
    parser.add_argument("--items", type=int, default=2000, help="the first N items")
    parser.add_argument("--queries", type=int, default=100, help="the first N test queries")
    parser.add_argument("--anchors", type=int, default=500, help="the first N anchor queries")
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--json", type=Path, help="where to write the rows")
    given = parser.parse_args()

    folder = read_score_folder(given.scores, n_anchors=given.anchors, n_queries=given.queries)
    item_texts = {item.id: item.text for item in read_items(given.data)}
    query_texts = {query.id: query.text for query in read_queries(given.data)}
    items = [Item(item.id, item_texts[item.id]) for item in folder.items[: given.items]]
    queries = [Query(query.id, query_texts[query.id]) for query in folder.test]
    exact = folder.test_scores[:, : len(items)]
    index = AnchorIndex.from_arrays(
        items=items, anchor_queries=folder.anchors, scores=folder.anchor_scores[:, : len(items)]
    )
    scorer = MatrixScorer(queries, items, exact)
    dense_scores = folder.dense_scores[:, : len(items)]
    model = fetch("bge-small-en-v1.5")
    scratch = tempfile.TemporaryDirectory()
    saved = Path(scratch.name)

    def multi_vector() -> MultiVector:
        built = MultiVector.build(items, encoder=bge_small(model), folder=saved)
        built.save(saved)
        return built

    stages: dict[str, Callable[[], FirstStage]] = {
        "bm25": lambda: BM25.build(items),
        "tfidf": lambda: TfIdf.build(items),
        "tfidf, 1-2 words": lambda: TfIdf.build(items, ngrams=(1, 2), stopwords="english", sublinear=True),
        "tfidf, 3-5 letters": lambda: TfIdf.build(items, analyzer="char_wb", ngrams=(3, 5), sublinear=True),
        "multi-vector": multi_vector,
        # Items have no prefix, so that only the query's side differs.
        "multi-vector, no prefix": lambda: MultiVector.load(saved, encoder=OnnxEncoder(model)),
        "dense": lambda: Matrix(queries=queries, items=items, scores=dense_scores),
    }
    index = AnchorIndex(index, scorer=scorer)
    print(
        f"{folder.domain}: {len(items):,} items, {len(queries)} queries, {len(folder.anchors)} anchors, "
        f"B={given.budget}, {given.rounds} rounds; Top-{given.k}-Recall with 95 % interval"
    )
    rows = []
    for name, build in stages.items():
        started = time.perf_counter()
        first = build()
        built = time.perf_counter()
        first.search(queries, given.budget)
        searched = time.perf_counter()
        roles = {
            "rerank": Rerank(),
            "anncur": ANNCUR(),
            "adacur": AdaCUR(rounds=given.rounds),
        }
        cells = []
        for role, method in roles.items():
            hits = index.search(queries, given.k, budget=given.budget, method=method, first=first)
            recalls = top_k_recall(hits, exact, k=given.k)
            low, high = bootstrap_interval(recalls)
            row = {"domain": folder.domain, "items": len(items), "first": name, "method": role, "k": given.k}
            row |= {"budget": given.budget, "recall": float(recalls.mean()), "low": low, "high": high}
            rows.append(row)
            cells.append(f"{role} {recalls.mean():.3f} [{low:.3f}, {high:.3f}]")
        per_query = (searched - built) / len(queries)
        print(
            f"  {name:24} {'  '.join(cells)}  built {built - started:.1f} s, {1000 * per_query:.1f} ms/query",
            flush=True,
        )
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    scratch.cleanup()


if __name__ == "__main__":
    main()
