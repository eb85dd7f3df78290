"""Does `adacur try` advise what the whole collection says?

    python lab/benchmarks/try_advice.py --scores DIR --data DIR [--calls 8000,20000] [--items N] [--json OUT]

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), texts and judgements.
`try` runs as it would on a user's folder, on anchor queries, with stored scores for a scorer and at most as many calls
as a CPU makes in minutes. The truth is worked out by the same code with every item scored, on the test queries, which
no trial has seen. "kept" says how much is lost by following the advice: recall of the scorer's best 10 at 100 calls,
and nDCG@10.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from recall_at_budget import numbers
from rivals import SHARED

from adacur import BM25, Dense, Item, Query
from adacur.data import read_items, read_qrels, read_queries
from adacur.first_stages import EncoderCard
from adacur.replay import Trial, try_collection
from adacur.replay.advice import Advice
from adacur.replay.material import read_material
from adacur.replay.measuring import Measured, TrialSizes, measure
from adacur.replay.searches import Asked, Way
from adacur.scorers import MatrixScorer
from adacur_lab.experiments import Testbed

NAMES = ("scifact", "wikivital", "mondo")


class LookedUp:
    """The dual encoder's stored vectors, by text."""

    def __init__(self, bed: Testbed) -> None:
        assert bed.item_embeddings is not None
        assert bed.query_embeddings is not None
        assert bed.anchor_embeddings is not None
        self._items = {item.text: row for item, row in zip(bed.items, bed.item_embeddings, strict=True)}
        queries = [*bed.anchor_queries, *bed.test_queries]
        vectors = np.concatenate([bed.anchor_embeddings, bed.query_embeddings])
        self._queries = {query.text: row for query, row in zip(queries, vectors, strict=True)}
        self.dimension = vectors.shape[1]
        self.card = EncoderCard(kind=f"looked up of {bed.name}", dimension=self.dimension)

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._items[text] for text in texts]).astype(np.float32)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._queries[text] for text in texts]).astype(np.float32)


def open_bed(scores: Path, data: Path) -> Testbed:
    qrels: dict[str, dict[str, int]] = {}
    for file in sorted(data.glob("qrels*.tsv")):
        for query, grades in read_qrels(file).items():
            qrels.setdefault(query, {}).update(grades)
    items, queries = read_items(data / "corpus.jsonl.gz"), read_queries(data / "queries.jsonl.gz")
    return Testbed.from_score_folder(scores, items=items, queries=queries, qrels=qrels)


def write_folder(bed: Any, queries: Sequence[Query], folder: Path) -> Path:
    """A collection as a user has it."""
    folder.mkdir(parents=True)
    records: tuple[tuple[str, Sequence[Item | Query]], ...] = (("corpus", bed.items), ("queries", queries))
    for name, some in records:
        lines = (json.dumps({"_id": one.id, "text": one.text}) + "\n" for one in some)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    asked = {query.id for query in queries}
    rows = [f"{query}\t{item}\t{grade}\n" for query, of in (bed.qrels or {}).items() if query in asked
            for item, grade in of.items()]  # fmt: skip
    if rows:
        (folder / "qrels.tsv").write_text("".join(rows), encoding="utf-8")
    return folder


def truth_of(bed: Testbed, folder: Path, encoder: LookedUp) -> Measured:
    """The same measurements with every item scored."""
    material = read_material(folder, most=len(bed.test_queries))
    n = len(material.items)
    scorer = MatrixScorer(bed.test_queries, bed.items, bed.exact_scores)
    plan = TrialSizes(bed.name, n, n, len(material.queries), len(material.qrels), ("bm25", "dense"), 10, 100, *[0] * 6)
    items = list(material.items)
    first = {"bm25": BM25.build(items), "dense": Dense.build(items, encoder=encoder, storage="float32")}
    measured = measure(material, plan, scorer=scorer, first=first, seconds=math.inf)
    exact = scorer.score_grid(measured.asked, items)
    stages = {name: Asked(measured.index.first_stage(name)) for name in measured.stages}
    return Measured(material, plan, measured.index, measured.asked, scores=exact, stages=stages, calls=0)


def compared(trial: Trial, truth: Advice) -> dict[str, Any]:
    """One trial beside the truth, question by question."""
    whole = truth.measured
    said = {one.question: one for one in trial.answers}
    first = trial.figures["way"]["first"]
    recalls = {name: float(truth.recalls(name, 100).mean()) for name in whole.stages}
    way = trial.figures["way"]
    fuse = way["fuse"]
    # Where no call is advised, quality is that of the first stage alone.
    budget = min((0, *whole.budgets()), key=lambda n: abs(n - way["budget"]))

    def quality(first: str, budget: int, fuse: float) -> float:
        return float(np.nanmean(whole.quality(Way("rerank" if budget else "first", first, budget, fuse))))

    of_first = [row["recall"] for row in trial.figures["rerank"] if row["first"] == first]
    told = of_first[-1]
    return {
        "queries": trial.n_queries,
        "calls": trial.calls,
        "first": first,
        "recall lost by first": max(recalls.values()) - recalls[first],
        "recall": [told.value, told.low, told.high, recalls[first]],
        "budget": way["budget"],
        "nDCG lost by budget": quality(first, 100, fuse) - quality(first, budget, fuse),
        "fuse": fuse,
        "nDCG gained by fuse": quality(first, 100, fuse) - quality(first, 100, 0.0),
        "scorer": said["scorer"].choice,
        "method": way["method"],
        "nDCG": quality(first, budget, fuse),
        "nDCG lost by advice": float(np.nanmean(truth.quality(truth.way))) - quality(first, budget, fuse),
        "untuned": quality("bm25+dense", 100, 0.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--collections", default=",".join(NAMES))
    parser.add_argument("--calls", type=numbers, default=[8000, 20000])
    parser.add_argument("--items", type=int, help="a sample of N items, as where encoding is slow")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in given.collections.split(","):
        bed = open_bed(given.scores / name, given.data / name)
        encoder = LookedUp(bed)
        scorer = MatrixScorer(bed.anchor_queries, bed.items, bed.anchor_scores)
        with tempfile.TemporaryDirectory() as made:
            tried = write_folder(bed, bed.anchor_queries, Path(made) / "tried" / name)
            truth = Advice(truth_of(bed, write_folder(bed, bed.test_queries, Path(made) / "truth" / name), encoder))
            whole = {one.question: one for one in truth.answers()}
            print(f"\n{name}, the truth on {len(truth.measured.queries)} queries")
            for one in whole.values():
                print(f"  {one.question}: {one.words}")
            for calls in given.calls:
                for seed in range(given.seeds):
                    options: dict[str, Any] = {"scorer": scorer, "encoder": encoder, "calls": calls, "seed": seed}
                    options |= {"items": given.items, "kept": Path(made) / "kept", "progress": False}
                    trial = try_collection(tried, **options)
                    row = compared(trial, truth)
                    row |= {"collection": name, "limit": calls, "seed": seed, "items": given.items}
                    row |= {"true": {key: one.choice for key, one in whole.items()}}
                    row["true"]["method"] = truth.way.method
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    if given.json:
                        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    report(rows)


def report(rows: list[dict[str, Any]]) -> None:
    """Agreement by question, for each limit of calls."""
    for limit in sorted({row["limit"] for row in rows}):
        some = [row for row in rows if row["limit"] == limit]
        n = len(some)

        def count(holds: Any, some: list[dict[str, Any]] = some) -> str:
            return f"{sum(map(bool, map(holds, some)))}/{len(some)}"

        print(f"\nat most {limit:,} calls, {n} trials of {np.mean([row['queries'] for row in some]):.0f} queries")
        print("first stage within .01 of the best recall:", count(lambda row: row["recall lost by first"] <= 0.01))
        print("  worst:", round(max(row["recall lost by first"] for row in some), 3))
        print(
            "true recall in the interval:", count(lambda row: row["recall"][1] <= row["recall"][3] <= row["recall"][2])
        )
        print("  mean error:", round(float(np.mean([row["recall"][0] - row["recall"][3] for row in some])), 3))
        print("budget loses at most .01 of nDCG@10:", count(lambda row: row["nDCG lost by budget"] <= 0.01))
        print("  worst:", round(max(row["nDCG lost by budget"] for row in some), 3))
        print("fuse does not hurt (−.002):", count(lambda row: row["nDCG gained by fuse"] >= -0.002))
        print("  mean:", round(float(np.mean([row["nDCG gained by fuse"] for row in some])), 4))
        print("scorer, same verdict:", count(lambda row: row["scorer"] == row["true"].get("scorer")))
        print("method, same:", count(lambda row: row["method"] == row["true"].get("method")))
        print(
            "advice loses at most .01 of nDCG@10 against the true one:",
            count(lambda row: row["nDCG lost by advice"] <= 0.01),
        )
        lost = [row["nDCG lost by advice"] for row in some]
        print("  mean, worst:", round(float(np.mean(lost)), 3), round(max(lost), 3))
        print(
            "nDCG@10 as advised minus untuned:",
            round(float(np.mean([row["nDCG"] - row["untuned"] for row in some])), 4),
        )


if __name__ == "__main__":
    main()
