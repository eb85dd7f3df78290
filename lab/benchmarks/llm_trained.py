"""A small language model trained as a scorer, an index with it, and a search: end to end. Wants a GPU.

    python lab/benchmarks/llm_trained.py DATA WORK --base SMOLLM2 [--beside MINILM] [--json FILE]

DATA is a BEIR folder with qrels.tsv (mondo). Queries are split so that no training query shares a relevant item with
a test query; both models are trained alike (judged items, near misses of BM25 and random items), on the same queries
and for the same epochs, then asked about every item of a part of the collection that holds the test queries' relevant
items. Printed: accuracy (a judged item above a random one), nDCG@10 of re-ranking BM25's best 50 and 100 and of all
items, and for the language model an index and searches of 100 calls, beside re-ranking the same number. On a CPU,
`--near-only` keeps the encoder's part to an hour: quality by depth, without all items.
`--smoke` takes a tiny random model and a few queries, anywhere.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur import BM25, AnchorIndex, Item, Query
from adacur.data import JudgedCollection, read_beir
from adacur.extras.train import Mixture, TrainingSettings, train_cross_encoder
from adacur.records import ItemList
from adacur.replay import bootstrap_interval
from adacur.scorers import TorchCrossEncoder

K = 10


def split(collection: JudgedCollection, asked: argparse.Namespace) -> tuple[JudgedCollection, list[Query]]:
    """Training queries with all items, and test queries of which none shares a relevant item with them."""
    rng = np.random.default_rng(0)
    everyone = list(collection.judged)
    judged = [everyone[at] for at in rng.permutation(len(everyone))]
    test = judged[: asked.test]
    taken = {id_ for query in test for id_, grade in collection.qrels[query.id].items() if grade > 0}
    learnt = [
        query for query in judged[asked.test :] if not taken & {i for i, g in collection.qrels[query.id].items() if g}
    ][: asked.train]
    qrels = {query.id: collection.qrels[query.id] for query in learnt}
    return JudgedCollection(collection.name, collection.items, learnt, qrels), test


def part_of(items: Sequence[Item], test: Sequence[Query], qrels: Any, n: int) -> list[Item]:
    """The relevant items of the test queries and others by chance, n in all, in the collection's order."""
    wanted = {id_ for query in test for id_ in qrels[query.id]}
    others = [item.id for item in items if item.id not in wanted]
    rng = np.random.default_rng(1)
    wanted |= set(rng.choice(others, size=max(0, min(len(others), n - len(wanted))), replace=False).tolist())
    return [item for item in items if item.id in wanted]


def ndcg(ranked: Sequence[str], grades: Any) -> float:
    discounts = 1 / np.log2(np.arange(K) + 2)
    gains = np.array([grades.get(id_, 0) for id_ in ranked[:K]], float)
    best = np.sort([float(grade) for grade in grades.values()])[::-1][:K]
    return float(gains @ discounts[: len(gains)] / max(best @ discounts[: len(best)], 1e-9))


def told(values: Sequence[float]) -> str:
    low, high = bootstrap_interval(np.array(values))
    return f"{np.mean(values):.3f} ({low:.3f}–{high:.3f})"


def trained(asked: argparse.Namespace, learnt: JudgedCollection, base: Path, head: str, folder: Path) -> float:
    started = time.monotonic()
    train_cross_encoder(
        learnt,
        folder,
        base=base,
        first=BM25.build(learnt.items),
        head=head,  # type: ignore[arg-type]
        readout="odds('yes', 'no')" if asked.smoke and head == "tokens" else None,
        negatives=min(asked.negatives, len(learnt.items) // 4),
        depth=64,
        mixture=Mixture(near=1, random=1, found=0),
        turns=1,
        settings=TrainingSettings(
            epochs=1, learning_rate=asked.learning_rate, batch_queries=32, warmup=0.1, patience=None
        ),
        held_out=min(50, len(learnt.judged) // 8),
        sample=50,
        max_item_tokens=asked.item_tokens,
    )
    return time.monotonic() - started


def measured(
    asked: argparse.Namespace, folder: Path, items: list[Item], test: list[Query], anchors: list[Query], qrels: Any
) -> dict[str, Any]:
    """What a model says of every item, and what searches find of it."""
    row: dict[str, Any] = {"items": len(items), "test": len(test)}
    held, first = ItemList(items), BM25.build(items)
    ids = np.array([item.id for item in items])
    with TorchCrossEncoder(folder, max_item_tokens=asked.item_tokens) as scorer:
        rng = np.random.default_rng(2)
        near = [ranking.positions for ranking in first.search(test, 100)]
        known = set(ids.tolist())
        right = [held.positions([i for i, g in qrels[query.id].items() if g > 0 and i in known]) for query in test]
        wrong = [rng.choice(np.setdiff1d(np.arange(len(items)), some), size=50) for some in right]
        started = time.monotonic()
        if asked.near_only:
            exact = np.full((len(test), len(items)), -np.inf)
            for query, scores, *places in zip(test, exact, near, right, wrong, strict=True):
                some = np.unique(np.concatenate(places))
                scores[some] = scorer.score_grid([query], [items[at] for at in some])[0]
        else:
            exact = scorer.score_grid(test, items)
        row["pairs_per_s"] = round(np.count_nonzero(np.isfinite(exact)) / (time.monotonic() - started))
        row["accuracy"] = told(
            [
                float(np.mean(scores[good][:, None] > scores[bad][None, :]))
                for scores, good, bad in zip(exact, right, wrong, strict=True)
            ]
        )
        for depth in (50, 100) if asked.near_only else (50, 100, None):
            values = []
            for query, scores, positions in zip(test, exact, near, strict=True):
                among = np.arange(len(items)) if depth is None else positions[:depth]
                values.append(ndcg(ids[among[np.argsort(-scores[among], kind="stable")]].tolist(), qrels[query.id]))
            row[f"ndcg_{depth or 'all'}"] = told(values)
        if not anchors:
            return row
        started = time.monotonic()
        anchor_scores = scorer.score_grid(anchors, items)
        row["anchors"], row["index_seconds"] = len(anchors), round(time.monotonic() - started, 1)
        index = AnchorIndex.from_arrays(
            items=items, anchor_queries=anchors, scores=anchor_scores, scorer=scorer, first={"bm25": first}
        )
        top = [set(ids[np.argsort(-scores, kind="stable")[:K]].tolist()) for scores in exact]
        for method in ("rerank", "gaussian"):
            started = time.monotonic()
            answers = index.search(test, K, budget=min(100, len(items) // 2), method=method, fuse=0)
            row[f"{method}_searches_per_s"] = round(len(test) / (time.monotonic() - started), 1)
            row[f"{method}_recall"] = told(
                [len(best & set(hits.ids)) / K for best, hits in zip(top, answers, strict=True)]
            )
            row[f"{method}_ndcg"] = told([ndcg(list(hits.ids), qrels[hits.query.id]) for hits in answers])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--beside", type=Path, help="an encoder to train alike")
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--test", type=int, default=100)
    parser.add_argument("--anchors", type=int, default=50)
    parser.add_argument("--items", type=int, default=8000)
    parser.add_argument("--negatives", type=int, default=11)
    parser.add_argument("--item-tokens", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--near-only", action="store_true", help="score BM25's best 100 and 50 random items, not all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    asked = parser.parse_args()
    logging.basicConfig(format="%(relativeCreated)d ms %(message)s")
    logging.getLogger("adacur").setLevel(logging.INFO)
    with tempfile.TemporaryDirectory() as scratch:
        if asked.smoke:
            from tiny_decoders import smoke_world

            asked.base = smoke_world(Path(scratch))[0]
            asked.train, asked.test, asked.anchors, asked.items = 16, 6, 4, 200
            asked.negatives = 3
        collection = read_beir(asked.data)
        learnt, test = split(collection, asked)
        items = part_of(collection.items, test, collection.qrels, asked.items)
        rows = {}
        for name, base, head in (("language model", asked.base, "tokens"), ("encoder", asked.beside, "cls")):
            if base is None:
                continue
            folder = asked.work / name.replace(" ", "-")
            seconds = trained(asked, learnt, base, head, folder)
            anchors = list(learnt.judged)[: asked.anchors] if head == "tokens" else []
            row = {"training_seconds": round(seconds), "queries": len(learnt.judged)}
            rows[name] = row | measured(asked, folder, items, test, anchors, collection.qrels)
            print(name, json.dumps(rows[name]), flush=True)
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
