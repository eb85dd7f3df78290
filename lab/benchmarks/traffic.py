"""An index that starts with no anchor queries and learns from its own searches: what test queries miss, as it is used.

    python lab/benchmarks/traffic.py --scores DIR --data DIR [--queries 100] [--every 100] --json OUT [--plot OUT.png]

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), and texts. The index
is a folder without anchor queries, with BM25 and dense first stages; it is opened with log=, and refreshed after every
N searches. Its traffic are the anchor queries and the test queries that nothing is measured on, in random order, each
once: searches for the best 10 with 100 calls in 5 rounds. There are 600 or 700 of them, so that is where a curve ends;
with --repeats, the same queries then come again, in another order. At each checkpoint the first test queries are
searched on the version of that moment, without being logged: 1 − recall for k = 1, 10, 100 and 50 to 500 calls, beside
the same queries in an index of 50 anchor queries that were paid for. Intervals are 95 % bootstrap intervals over
queries, paired for differences.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import adacur
from adacur import AnchorIndex, Query
from adacur.data import read_items, read_queries
from adacur.extras.server import SearchLog, refresh
from adacur.first_stages.encoders import EncoderCard
from adacur.replay import bootstrap_interval, top_k_recall
from adacur.scorers import MatrixScorer
from adacur.store import AnchorTable
from adacur_lab.experiments import Testbed

KS = (1, 10, 100)
BUDGETS = (50, 100, 200, 500)
CALLS = 100
FEW = 50
# Of anchor queries that come from the log: all of them here.
LIMIT = 2000
SHARED = Path(__file__).resolve().parents[2].parent / "shared"


class KnownTexts:
    """The stored vectors of queries and items, looked up by their texts."""

    def __init__(self, texts: list[str], vectors: np.ndarray) -> None:
        self._rows = {text: row for row, text in enumerate(texts)}
        self._vectors = vectors
        self.dimension = int(vectors.shape[1])
        self.card = EncoderCard(kind="looked up", dimension=self.dimension)

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        return self._vectors[[self._rows[text] for text in texts]]

    encode_items = encode_queries


class Replay:
    """One collection: its test queries, its traffic, and the scores of all."""

    def __init__(self, name: str, scores: Path, data: Path, *, n_queries: int) -> None:
        bed = Testbed.from_score_folder(
            scores / name,
            items=read_items(data / name / "corpus.jsonl.gz"),
            queries=read_queries(data / name / "queries.jsonl.gz"),
        )
        assert bed.item_embeddings is not None
        assert bed.anchor_embeddings is not None
        assert bed.query_embeddings is not None
        self.name, self.bed = name, bed
        self.test, self.exact = list(bed.test_queries[:n_queries]), bed.exact_scores[:n_queries]
        texts = {query.text for query in self.test}
        others = [*bed.anchor_queries, *bed.test_queries[n_queries:]]
        others = [query for query in others if query.text not in texts]
        self.traffic = [others[at] for at in np.random.default_rng(1).permutation(len(others))]
        everyone = [*bed.anchor_queries, *bed.test_queries]
        self.scorer = MatrixScorer(
            queries=everyone, items=bed.items, scores=np.concatenate([bed.anchor_scores, bed.exact_scores])
        )
        self.encoder = KnownTexts(
            [*(item.text for item in bed.items), *(query.text for query in everyone)],
            np.concatenate([bed.item_embeddings, bed.anchor_embeddings, bed.query_embeddings]),
        )

    def missed(self, index: AnchorIndex) -> np.ndarray:
        """1 − recall of every test query, (queries, cells); nothing is logged."""
        quiet = AnchorIndex(index.anchors, scorer=self.scorer, card=index.card, snapshot=index.snapshot)
        cells = [
            1 - top_k_recall(quiet.search(self.test, min(k, calls), budget=calls), self.exact, k=k)
            for calls, k in itertools.product(BUDGETS, KS)
        ]
        return np.stack(cells, axis=1)

    def with_few_anchors(self, index: AnchorIndex) -> AnchorIndex:
        """What 50 anchor queries buy beforehand."""
        bed = self.bed
        matrix = np.ascontiguousarray(bed.anchor_scores[:FEW].T, dtype=np.float32)
        table = AnchorTable(index.items, tuple(bed.anchor_queries[:FEW]), matrix)
        stages = {name: index.first_stage(name) for name in index.snapshot.named_stages}
        return AnchorIndex(table, scorer=self.scorer, first=stages, card=index.card)

    def curve(self, folder: Path, *, every: int, checkpoints: list[int], repeats: int) -> list[dict[str, Any]]:
        path, log = folder / "index.adacur", SearchLog(folder / "log")
        given: dict[str, Any] = {"scorer": self.scorer, "encoder": self.encoder}
        options: dict[str, Any] = {"first": ["bm25", "dense"], "progress": False, "tune": False}
        adacur.build(list(self.bed.items), 0, path=path, **options, **given).close()
        index = adacur.load(path, log=log, check=False, **given)
        few = self.missed(self.with_few_anchors(index))
        rows: list[dict[str, Any]] = []
        began = time.process_time()

        def measure(n: int) -> None:
            found = self.missed(index)
            rows.append(
                {
                    "collection": self.name,
                    "items": len(index),
                    "queries": len(self.test),
                    "searches": n,
                    "anchors": len(index.anchor_queries),
                    "missed": mean(found.mean(axis=1)),
                    "over_few": mean((found - few).mean(axis=1)),
                    "few": mean(few.mean(axis=1)),
                    "top10_at_100": mean(1 - found[:, 4]),
                    "cells": np.round(found.mean(axis=0), 4).tolist(),
                }
            )
            shown = {name: rows[-1][name] for name in ("missed", "over_few", "few")}
            print(f"{self.name:10} {n:5} searches {shown} ({time.process_time() - began:.0f} s)", flush=True)

        n = 0
        measure(0)
        shuffles = np.random.default_rng(2)
        stream = list(self.traffic)
        for _ in range(repeats):
            stream += [self.traffic[at] for at in shuffles.permutation(len(self.traffic))]
        stops = {*checkpoints, len(self.traffic), len(stream)}
        for stop in sorted(stop for stop in stops if stop <= len(stream)):
            while n < stop:
                some: list[Query] = stream[n : min(stop, n + every)]
                index.search(some, 10, budget=CALLS)
                n += len(some)
                index.close()
                refresh(path, log, limit=LIMIT, encoder=self.encoder)
                index = adacur.load(path, log=log, check=False, **given)
            measure(n)
        index.close()
        return rows


def mean(values: np.ndarray) -> list[float]:
    return [round(float(number), 4) for number in (values.mean(), *bootstrap_interval(values))]


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for number, name in enumerate(dict.fromkeys(row["collection"] for row in rows)):
        own = [row for row in rows if row["collection"] == name]
        served = [row["searches"] for row in own]
        middle, low, high = np.array([row["missed"] for row in own]).T
        axes.plot(served, middle, "o-", color=f"C{number}", label=name, ms=4)
        axes.fill_between(served, low, high, color=f"C{number}", alpha=0.12, lw=0)
        axes.axhline(own[0]["few"][0], color=f"C{number}", ls=":", lw=1)
    axes.set_xlabel("searches served, 100 calls each; dotted: 50 anchor queries paid beforehand")
    axes.set_ylabel("mean of 1 − recall")
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--collections", default="scifact,wikivital,mondo")
    parser.add_argument("--queries", type=int, default=100, help="the first N test queries; the others are traffic")
    parser.add_argument("--every", type=int, default=100, help="searches between two refreshes")
    parser.add_argument("--checkpoints", default="100,200,400", help="searches after which to measure")
    parser.add_argument("--repeats", type=int, default=0, help="how often all traffic comes again")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    rows = json.loads(given.json.read_text()) if given.json.exists() else []
    for name in given.collections.split(","):
        missing = [place for place in (given.scores / name, given.data / name) if not place.is_dir()]
        if missing:
            print(f"{name} is skipped: there is no folder {missing[0]}. Give --scores and --data.", file=sys.stderr)
            continue
        replay = Replay(name, given.scores, given.data, n_queries=given.queries)
        with tempfile.TemporaryDirectory() as folder:
            own = replay.curve(
                Path(folder),
                every=given.every,
                checkpoints=[int(part) for part in given.checkpoints.split(",") if part],
                repeats=given.repeats,
            )
        rows = [row for row in rows if row["collection"] != name] + own
        given.json.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    if given.plot is not None and rows:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
