"""MedQuAD's longest answers: read as passages, cut at 160 tokens, or cut at the model's 512.

    python lab/benchmarks/passages.py --data DIR [--queries 100] [--longest 1500] [--others 1500] --json OUT

DIR holds corpus.jsonl.gz, queries.jsonl.gz and qrels.tsv. The collection is the longest answers and other ones as
distractors; the questions are those whose answer is among the longest. Every search re-ranks what BM25 finds, in
whole answers or in passages. Per row: nDCG@10 with a 95 % bootstrap interval, calls and tokens per question, and how
many items the scorer cuts.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import adacur
from adacur import AnchorIndex, Budget, Item, Query
from adacur.data import Passages, read_items, read_qrels, read_queries
from adacur.replay import bootstrap_interval
from adacur.store.estimate import count_cut

SCORER = "ms-marco-MiniLM-L-12-v2"
WORDS = 100
USUAL = [Query("usual", "What are the symptoms of diabetes ?")]


def collection(folder: Path, *, longest: int, others: int, n_queries: int) -> tuple[list[Item], list[Query], Any]:
    """The items, the questions, and the judgements."""
    items = sorted(read_items(folder / "corpus.jsonl.gz"), key=lambda item: (-len(item.text), item.id))
    draw = random.Random(0)
    chosen = items[:longest] + draw.sample(items[longest:], others)
    qrels = read_qrels(folder / "qrels.tsv")
    long_ids = {item.id for item in items[:longest]}
    about = [query for query in read_queries(folder / "queries.jsonl.gz") if long_ids & set(qrels.get(query.id, ()))]
    return chosen, draw.sample(about, n_queries), qrels


def ndcg(documents: list[str], grades: dict[str, int], k: int = 10) -> float:
    """nDCG@k of a list of documents."""
    discounts = 1 / np.log2(np.arange(2, k + 2))
    gains = np.array([grades.get(document, 0) for document in documents[:k]], float)
    ideal = np.sort(np.array(list(grades.values()), float))[::-1][:k]
    return float((gains * discounts[: len(gains)]).sum() / (ideal * discounts[: len(ideal)]).sum())


def main() -> None:
    """Measure, print and write rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--longest", type=int, default=1500)
    parser.add_argument("--others", type=int, default=1500)
    parser.add_argument("--budgets", type=int, nargs="+", default=[50, 100])
    parser.add_argument("--whole", type=int, default=50, help="the budget at which answers are also cut at 512 tokens")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    items, queries, qrels = collection(given.data, longest=given.longest, others=given.others, n_queries=given.queries)
    passages = list(Passages(items, WORDS))
    print(f"{len(items):,} answers, {len(passages):,} passages of up to {WORDS} words; {len(queries)} questions")
    ways: list[tuple[str, list[Item], dict[str, Any], list[int]]] = [
        ("cut at 160 tokens", items, {"max_item_tokens": 160}, given.budgets),
        (f"passages of {WORDS} words, cut at 160 tokens", passages, {"max_item_tokens": 160}, given.budgets),
        ("cut at 512 tokens with the question", items, {}, [given.whole]),
    ]
    rows = []
    for name, collected, options, budgets in ways:
        scorer = adacur.scorer(SCORER, **options)
        with tempfile.TemporaryDirectory() as folder:
            cached = adacur.Cached(scorer, Path(folder) / "scores.sqlite")
            index = AnchorIndex.from_items(collected, scorer=cached, first="bm25", progress=False)
            cut = count_cut(scorer, USUAL, index.items)
            for budget in sorted(budgets, reverse=True):
                spend = Budget(budget, tokens=10**9)
                found = index.search(queries, 10, budget=spend, method="rerank", fuse=0)
                values = np.array([ndcg([hit.document for hit in hits], qrels[hits.query.id]) for hits in found])
                low, high = bootstrap_interval(values)
                row = {
                    "items": name,
                    "n_items": len(collected),
                    "cut": cut,
                    "budget": budget,
                    "ndcg": float(values.mean()),
                    "low": low,
                    "high": high,
                    "calls": float(np.mean([hits.trace.calls for hits in found])),
                    "tokens": float(np.mean([hits.trace.tokens or 0 for hits in found])),
                    "documents": float(np.mean([len(hits) for hits in found])),
                    "values": values.round(4).tolist(),
                }
                rows.append(row)
                print({key: value for key, value in row.items() if key != "values"}, flush=True)
            cached.close()
    for budget in given.budgets:
        one, other = (np.array(row["values"]) for row in rows if row["budget"] == budget and "160" in row["items"])
        low, high = bootstrap_interval(other - one)
        print(f"passages − cut at 160, {budget} calls: {(other - one).mean():+.3f} ({low:+.3f} … {high:+.3f})")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
