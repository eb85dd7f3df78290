"""Can a trained scorer be searched? Near misses alone against the mixture, and re-ranking against search. Wants a GPU.

    python lab/benchmarks/searchable_scorers.py split DATA OUT --scores DIR       # here: train and test apart
    python lab/benchmarks/searchable_scorers.py embed DATA WORK --encoder FOLDER  # there: vectors of all texts
    python lab/benchmarks/searchable_scorers.py run DATA WORK OUT --base FOLDER   # there: every cell that is not done
    python lab/benchmarks/searchable_scorers.py table OUT

A cell is a collection, a head, a recipe ("near": near misses alone; "mixture": near misses, random items and, in its
second turn, what searches find) and a seed; both recipes make the same number of updates. Each cell is a process of its
own, several at a time. OUT/rows.jsonl gets a row per cell: nDCG@10 of the test queries where the scorer ranks the dense
stage's best 50, 100, 500, and all items; minutes; and at 50, 100 and 200 calls re-ranking and "gaussian" (250 anchor
queries from the training, 5 rounds) from BM25, from the dense stage and from both joined, with 95 % paired bootstrap
intervals. A cell that was cut short goes on from its last epoch. OUT/texts.json holds phantom hits (the scorer's best
item is none that was judged relevant) and what training set aside, as texts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur import BM25, AnchorIndex, Dense, Gaussian, Query
from adacur.core.records import ItemList
from adacur.data import JudgedCollection, read_beir, split_queries
from adacur.evaluation import bootstrap_interval
from adacur.scorers import MatrixScorer, TorchCrossEncoder
from adacur.training import Mixture, TrainingSettings, train_cross_encoder
from adacur.training.judged_queries import words_of
from adacur_lab.known_vectors import KnownVectors

COLLECTIONS = ("mondo", "medquad", "scifact")
HEADS = ("cls", "emb")
RECIPES = {"near": (Mixture(near=1, random=0, found=0), 1), "mixture": (Mixture(), 2)}
DEPTHS = (50, 100, 500)
CALLS = (50, 100, 200)
K = 10
# Where items are cut, and epochs: scifact has a tenth of the queries.
ITEM_TOKENS = {"mondo": 64, "medquad": 128, "scifact": 192}
EPOCHS = {"mondo": 2, "medquad": 2, "scifact": 10}
QUERY_PREFIX = "Represent this sentence for searching relevant passages: "
QUERIES_AT_ONCE = 50


# ── here ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def split(asked: argparse.Namespace) -> None:
    """BEIR folders in which no query of the training shares a text or a relevant item with the test's.

    scifact is split as its authors do: its training claims may be about abstracts of the test.
    """
    for name in asked.collections:
        collection = read_beir(asked.data / name, split="train" if name == "scifact" else None)
        if name == "scifact":
            test = read_beir(asked.data / name, split="test")
        else:
            meta = asked.scores / name / "meta.json"
            ids = set(json.loads(meta.read_text())["test_query_ids"]) if meta.exists() else set()
            chosen = [query for query in collection.judged if query.id in ids]
            chosen = chosen or list(split_queries(collection.judged, anchors=0, test=asked.test, seed=0).test)
            test = JudgedCollection(
                name, collection.items, chosen, {one.id: collection.qrels[one.id] for one in chosen}
            )
        write_split(asked.out / name, collection, test, n=asked.train, characters=asked.characters)


def write_split(folder: Path, collection: JudgedCollection, test: JudgedCollection, *, n: int, characters: int) -> None:
    tested = {words_of(query.text) for query in test.judged}
    of_test = {item for query in test.judged for item, grade in test.qrels[query.id].items() if grade > 0}
    free = [
        query
        for query in collection.judged
        if words_of(query.text) not in tested
        and (collection.name == "scifact" or not of_test & collection.qrels[query.id].keys())
    ]
    learnt = split_queries(free, anchors=0, test=min(n, len(free)), seed=1).test
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    items = [{"_id": item.id, "text": item.text[:characters]} for item in collection.items]
    queries = [{"_id": query.id, "text": query.text} for query in (*learnt, *test.judged)]
    for file, rows in (("corpus", items), ("queries", queries)):
        with gzip.open(folder / f"{file}.jsonl.gz", "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for part, chosen, qrels in (("train", learnt, collection.qrels), ("test", test.judged, test.qrels)):
        lines = [f"{query.id}\t{item}\t{grade}\n" for query in chosen for item, grade in qrels[query.id].items()]
        (folder / "qrels" / f"{part}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    print(f"{folder.name}: {len(items):,} items, {len(learnt):,} queries to learn from, {len(test.judged)} to test")


# ── there ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def embed(asked: argparse.Namespace) -> None:
    """Vectors of all items and queries by bge-small: CLS, length 1, with its prefix before queries."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(asked.encoder)
    model = AutoModel.from_pretrained(asked.encoder).to(device).eval()
    model = model.half() if device == "cuda" else model.float()

    def vectors(texts: Sequence[str]) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts], kind="stable")
        rows = np.empty((len(texts), model.config.hidden_size), np.float32)
        for start in range(0, len(texts), 256):
            some = order[start : start + 256]
            encoded = tokenizer(
                [texts[at] for at in some], padding=True, truncation=True, max_length=512, return_tensors="pt"
            )
            with torch.inference_mode():
                first = model(**encoded.to(device)).last_hidden_state[:, 0].float()
            rows[some] = torch.nn.functional.normalize(first, dim=1).cpu().numpy()
        return rows

    for name in asked.collections:
        started = time.monotonic()
        training, test = read_parts(asked, name)
        items, queries = training.items, [*training.judged, *test.judged]
        file = asked.work / f"{name}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        texts = [QUERY_PREFIX + query.text for query in queries]
        np.savez(file, items=vectors([item.text for item in items]), queries=vectors(texts))
        print(
            f"{name}: {len(items):,} items and {len(texts):,} queries, {time.monotonic() - started:.0f} s", flush=True
        )


def read_parts(asked: argparse.Namespace, name: str) -> tuple[JudgedCollection, JudgedCollection]:
    """The training's part of a collection and the test's, of the same items; for a rehearsal, a few of each."""
    parts = [read_beir(asked.data / name, split=part) for part in ("train", "test")]
    judged = [sorted(part.judged, key=lambda query: query.id)[: asked.limit_queries or None] for part in parts]
    items = list(parts[0].items)
    if asked.limit_items:
        kept = {id_ for part, own in zip(parts, judged, strict=True) for query in own for id_ in part.qrels[query.id]}
        items = sorted(items, key=lambda item: item.id not in kept)[: asked.limit_items]
    there = {item.id for item in items}
    training, test = (
        JudgedCollection(
            name,
            items,
            [query for query in own if there & part.qrels[query.id].keys()],
            {query.id: part.qrels[query.id] for query in own if there & part.qrels[query.id].keys()},
        )
        for part, own in zip(parts, judged, strict=True)
    )
    return training, test


class Cell:
    """One model: trained, scored over everything, searched."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.name, self.head, self.recipe, self.seed = asked.cell
        self.seed = int(self.seed)
        self.training, test = read_parts(asked, self.name)
        self.items, self.test, self.qrels = list(self.training.items), list(test.judged), test.qrels
        queries = [*self.training.judged, *self.test]
        self.anchors = list(
            split_queries(self.training.judged, anchors=min(asked.anchors, len(self.training.judged) - 20)).anchors
        )
        stored = np.load(asked.work / f"{self.name}.npz")
        ids = [item.id for item in self.items]
        encoder = KnownVectors(queries, stored["queries"])
        self.dense = Dense.from_embeddings(ids, stored["items"], encoder=encoder)
        self.folder = asked.work / "-".join(asked.cell)
        self.tokens = ITEM_TOKENS[self.name]

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = dict(
            zip(("collection", "head", "recipe", "seed"), (self.name, self.head, self.recipe, self.seed), strict=True)
        )
        started = time.monotonic()
        trained = self.train()
        row["minutes_to_train"] = round((time.monotonic() - started) / 60, 2)
        row |= {"updates": trained.updates, "best_update": trained.best_update, "queries": len(self.training.judged)}
        row["checks"] = [line for line in trained.log if "mrr_all" in line]
        started = time.monotonic()
        exact = self.grid("test", self.test)
        row["minutes_of_test_grid"] = round((time.monotonic() - started) / 60, 2)
        row["ndcg"] = self.depths(exact)
        row["test_queries"] = len(self.test)
        self.write_texts(exact)
        if self.recipe in self.asked.search:
            started = time.monotonic()
            row["anchors"] = len(self.anchors)
            row["searches"] = self.searches(exact, self.grid("anchors", self.anchors))
            row["minutes_of_searches"] = round((time.monotonic() - started) / 60, 2)
        return row

    def train(self) -> Any:
        mixture, turns = RECIPES[self.recipe]
        asked = self.asked
        epochs = asked.epochs or EPOCHS[self.name]
        settings = TrainingSettings(
            epochs=epochs,
            learning_rate=asked.learning_rate,
            batch_queries=32,
            warmup=0.1,
            patience=None,
            seed=self.seed,
        )
        n_queries = len(self.training.judged)
        return train_cross_encoder(
            self.training,
            self.folder / "model",
            base=asked.base,
            first=self.dense,
            head=self.head,
            negatives=min(asked.negatives, len(self.items) // 4),
            depth=64,
            mixture=mixture,
            turns=turns,
            mining_calls=2 * max(asked.mining_anchors * len(self.items), 100 * n_queries),
            settings=settings,
            held_out=min(100, n_queries // 8),
            sample=500,
            max_item_tokens=self.tokens,
        )

    def grid(self, part: str, queries: Sequence[Query]) -> np.ndarray:
        """Scores of every item, from the folder where they were computed before."""
        file = self.folder / f"{part}.npy"
        if not file.exists():
            with TorchCrossEncoder(self.folder / "model", max_item_tokens=self.tokens) as scorer:
                scores = np.concatenate(
                    [
                        scorer.score_grid(queries[start : start + QUERIES_AT_ONCE], self.items)
                        for start in range(0, len(queries), QUERIES_AT_ONCE)
                    ]
                )
            np.save(file.with_suffix(".partial.npy"), scores)
            os.replace(file.with_suffix(".partial.npy"), file)
        return np.load(file)

    def depths(self, exact: np.ndarray) -> dict[str, list[float]]:
        """nDCG@10 with its interval where the scorer ranks the dense stage's best, and everything."""
        quality = {}
        nearest = [answer.positions for answer in self.dense.search(self.test, min(max(DEPTHS), len(self.items)))]
        for depth in (*DEPTHS, None):
            ranked = []
            for row, near in zip(exact, nearest, strict=True):
                among = np.arange(len(row)) if depth is None else near[:depth]
                ranked.append(among[np.argsort(-row[among], kind="stable")[:K]])
            quality["all" if depth is None else str(depth)] = with_interval(self.ndcg(ranked))
        return quality

    def ndcg(self, ranked: Sequence[np.ndarray]) -> np.ndarray:
        """nDCG@10 of each test query."""
        values = []
        for query, positions in zip(self.test, ranked, strict=True):
            grades = self.qrels[query.id]
            gains = np.array([grades.get(self.items[at].id, 0) for at in positions[:K].tolist()], float)
            best = np.sort([float(grade) for grade in grades.values()])[::-1][:K]
            values.append(gains @ discounts(len(gains)) / max(best @ discounts(len(best)), 1e-9))
        return np.array(values)

    def searches(self, exact: np.ndarray, anchor_scores: np.ndarray) -> list[dict[str, Any]]:
        """Re-ranking and search at equal calls, from each first stage, by replay of the exact scores."""
        held, scorer = ItemList(self.items), MatrixScorer(queries=self.test, items=self.items, scores=exact)
        bm25 = BM25.build(self.items)
        # What starts from BM25 alone has no vectors to predict from either.
        starts = {"bm25": {"bm25": bm25}, "dense": {"dense": self.dense}}
        starts["bm25+dense"] = starts["bm25"] | starts["dense"]
        rows = []
        for first, stages in starts.items():
            index = AnchorIndex.from_arrays(
                items=self.items, anchor_queries=self.anchors, scores=anchor_scores, scorer=scorer, first=stages
            )
            for calls in (calls for calls in CALLS if calls <= len(self.items)):
                quality, recall = {}, {}
                for method in ("rerank", Gaussian(rounds=5)):
                    answers = index.search(self.test, K, budget=calls, method=method, first=first)
                    ranked = [held.positions(hits.ids) for hits in answers]
                    name = "rerank" if method == "rerank" else "gaussian"
                    quality[name] = self.ndcg(ranked)
                    best = [np.argsort(-row, kind="stable")[:K] for row in exact]
                    recall[name] = float(np.mean([np.isin(a, b).mean() for a, b in zip(best, ranked, strict=True)]))
                row = {"first": first, "calls": calls} | {
                    name: round(float(v.mean()), 4) for name, v in quality.items()
                }
                row["difference"] = with_interval(quality["gaussian"] - quality["rerank"])
                rows.append(row | {f"recall_{name}": round(value, 4) for name, value in recall.items()})
        return rows

    def write_texts(self, exact: np.ndarray) -> None:
        """Phantom hits and what training set aside, for a person to read."""
        phantoms = []
        for query, row in zip(self.test, exact, strict=True):
            grades = self.qrels[query.id]
            right = [at for at, item in enumerate(self.items) if grades.get(item.id, 0) > 0]
            best = int(np.argmax(row))
            if right and best not in right:
                liked = max(right, key=lambda at: row[at])
                phantoms.append(
                    {
                        "query": query.text,
                        "preferred": self.items[best].text[:300],
                        "score": round(float(row[best]), 3),
                        "judged": self.items[liked].text[:300],
                        "judged_score": round(float(row[liked]), 3),
                        "judged_rank": int(np.count_nonzero(row > row[liked])) + 1,
                    }
                )
        phantoms.sort(key=lambda one: one["judged_score"] - one["score"])
        aside = self.folder / "model" / "set_aside.jsonl"
        rows = [json.loads(line) for line in aside.read_text().splitlines()] if aside.exists() else []
        texts = {
            "phantoms": phantoms[:40],
            "n_phantoms": len(phantoms),
            "set_aside": rows[:40],
            "n_set_aside": len(rows),
        }
        (self.folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False))


def discounts(n: int) -> np.ndarray:
    return 1 / np.log2(np.arange(n) + 2)


def with_interval(values: np.ndarray) -> list[float]:
    """Mean, and the bounds of a 95 % bootstrap interval."""
    return [round(float(value), 4) for value in (values.mean(), *bootstrap_interval(values))]


def run(asked: argparse.Namespace) -> None:
    """Every cell that has no row yet, several processes at a time, until the time is up."""
    started, ended = time.monotonic(), False
    asked.out.mkdir(parents=True, exist_ok=True)
    done = {tuple(map(str, cell_of(row))) for row in rows_in(asked.work)}
    # One seed of everything before the next, and the head that people use first.
    waiting = [
        (name, head, recipe, str(seed))
        for seed in asked.seeds
        for head in asked.heads
        for name in asked.collections
        for recipe in reversed(RECIPES)
        if (name, head, recipe, str(seed)) not in done
    ]
    print(f"{len(done)} cells are done, {len(waiting)} wait.", flush=True)
    running: dict[subprocess.Popen[bytes], tuple[tuple[str, ...], float]] = {}
    environment = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2", "TOKENIZERS_PARALLELISM": "false"}
    while waiting or running:
        is_late = time.monotonic() - started > asked.time_limit
        while waiting and len(running) < asked.jobs and not is_late:
            cell = waiting.pop(0)
            log = (asked.work / f"{'-'.join(cell)}.log").open("ab")
            command = [sys.executable, *sys.argv, "--cell", *cell]
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            running[process] = cell, time.monotonic()
        if is_late and not ended:
            # What they have trained is kept: the next run goes on from there.
            for process in running:
                process.terminate()
            waiting, ended = [], True
        for process in [one for one in running if one.poll() is not None]:
            cell, began = running.pop(process)
            log_tail = (asked.work / f"{'-'.join(cell)}.log").read_text(errors="replace")[-1500:]
            failed = "" if process.returncode == 0 else f" (ended by {process.returncode}) {log_tail}"
            print(f"{' '.join(cell)}: {time.monotonic() - began:.0f} s{failed}", flush=True)
        time.sleep(0.5)
    all_rows = rows_in(asked.work)
    (asked.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in all_rows))
    texts = {file.parent.name: json.loads(file.read_text()) for file in sorted(asked.work.glob("*/texts.json"))}
    (asked.out / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=1))
    show(all_rows)


def one(asked: argparse.Namespace) -> None:
    """A single cell, in a process of its own."""
    import torch

    # Checks score in float32: TF32 products are good enough to choose a checkpoint, and several times as fast.
    torch.set_float32_matmul_precision("high")
    row = Cell(asked).row()
    # One line in one call: several processes append.
    with (asked.work / "rows.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def rows_in(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rows.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def cell_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("collection", "head", "recipe", "seed"))


def show(rows: Sequence[dict[str, Any]]) -> None:
    """The tables of all rows."""
    depths = [*map(str, DEPTHS), "all"]
    print("\n| collection | head | trained on | seed | " + " | ".join(depths) + " | minutes |")
    print("|" + "---|" * (5 + len(depths)))
    for row in sorted(rows, key=cell_of):
        cells = [f"{row['ndcg'][depth][0]:.3f}" for depth in depths]
        minutes = f"{row['minutes_to_train']:.1f}"
        print("| " + " | ".join([*map(str, cell_of(row)), *cells, minutes]) + " |")
    print("\n| collection | head | trained on | seed | first | calls | re-rank | gaussian | difference | recall |")
    print("|" + "---|" * 10)
    for row in sorted(rows, key=cell_of):
        for one_search in row.get("searches", ()):
            mean, low, high = one_search["difference"]
            cells = [*cell_of(row), one_search["first"], one_search["calls"]]
            figures = (
                f"{one_search['rerank']:.3f} | {one_search['gaussian']:.3f} | {mean:+.3f} ({low:+.3f} to {high:+.3f})"
            )
            recall = f"{one_search['recall_rerank']:.3f} → {one_search['recall_gaussian']:.3f}"
            print(f"| {' | '.join(map(str, cells))} | {figures} | {recall} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)

    def names(text: str) -> list[str]:
        return text.split(",")

    splitting, embedding, running, table = (commands.add_parser(name) for name in ("split", "embed", "run", "table"))
    for command in (splitting, embedding, running):
        command.add_argument("data", type=Path)
        command.add_argument("--collections", type=names, default=list(COLLECTIONS))
    splitting.add_argument("out", type=Path)
    splitting.add_argument("--scores", type=Path, default=Path("../shared/scores"))
    splitting.add_argument("--train", type=int, default=7900, help="queries to learn from, held-out ones included")
    splitting.add_argument("--test", type=int, default=200)
    splitting.add_argument("--characters", type=int, default=1600, help="where items are cut, to travel light")
    for command in (embedding, running):
        command.add_argument("work", type=Path)
        command.add_argument("--limit-items", type=int, default=0, help="of a rehearsal")
        command.add_argument("--limit-queries", type=int, default=0, help="of a rehearsal")
    embedding.add_argument("--encoder", type=Path, required=True)
    running.add_argument("out", type=Path)
    running.add_argument("--base", type=Path, required=True)
    running.add_argument("--heads", type=names, default=list(HEADS))
    running.add_argument("--seeds", type=names, default=["0", "1", "2"])
    running.add_argument("--jobs", type=int, default=5)
    running.add_argument("--time-limit", type=float, default=520, help="seconds; then cells are cut short")
    running.add_argument("--search", type=names, default=["mixture"], help="recipes whose models are searched")
    running.add_argument("--anchors", type=int, default=250)
    running.add_argument("--mining-anchors", type=int, default=100)
    running.add_argument("--negatives", type=int, default=31)
    running.add_argument("--epochs", type=int, help="instead of the collection's usual number")
    running.add_argument("--learning-rate", type=float, default=5e-5)
    running.add_argument("--cell", nargs=4, help="only this one, here: collection, head, recipe, seed")
    table.add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.command == "run":
        one(asked) if asked.cell else run(asked)
    elif asked.command == "table":
        show(rows_in(asked.out))
    else:
        {"split": split, "embed": embed}[asked.command](asked)


if __name__ == "__main__":
    main()
