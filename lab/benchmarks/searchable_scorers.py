"""Can a trained scorer be searched? Near misses alone against the mixture, and re-ranking against search. Wants a GPU.

    python lab/benchmarks/searchable_data.py split DATA OUT --scores DIR          # here: train and test apart
    python lab/benchmarks/searchable_data.py embed OUT --encoder FOLDER           # here: vectors of all texts, int8
    python lab/benchmarks/searchable_scorers.py run DATA WORK OUT --base FOLDER   # there: every cell that is not done
    python lab/benchmarks/searchable_scorers.py search DATA OUT                   # here: re-ranking against search
    python lab/benchmarks/searchable_scorers.py table OUT

A cell is a collection, a head, a recipe ("near": near misses alone; "mixture": near misses, random items and, in its
second turn, what searches find) and a seed; both recipes make the same number of updates. Each cell is a process of its
own, several at a time; one that fails is tried once more, alone, before the time is up, and one that was cut short goes
on from its last epoch in the next run. OUT/rows.jsonl gets a row per cell: nDCG@10 of the test queries where the scorer
ranks the dense stage's best 50, 100, 500, and all items; and minutes. OUT/scores-*.npz holds what the first seed's
mixture models score every item for the test queries and for the anchor queries (from the training), in steps of a
16,000th of their range; "search" replays them at 50, 100 and 200 calls, re-ranking and the default in 5 rounds, from
BM25, from the dense stage and from both joined, with 95 % paired bootstrap intervals. OUT/texts.json holds phantom
hits (the scorer's best item is none that was judged relevant) and what training set aside, as texts; OUT/logs.txt the
end of every cell's log.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from searchable_data import COLLECTIONS, read_parts, read_vectors

from adacur import BM25, AnchorIndex, Dense, Query
from adacur.data import split_queries
from adacur.extras.train import Mixture, TrainingSettings, train_cross_encoder
from adacur.extras.train.mining import Together
from adacur.records import ItemList
from adacur.replay import bootstrap_interval
from adacur.scorers import MatrixScorer, TorchCrossEncoder
from adacur_lab.known_vectors import KnownVectors

HEADS = ("cls", "emb")
RECIPES = {"near": (Mixture(near=1, random=0, found=0), 1), "mixture": (Mixture(), 2)}
DEPTHS = (50, 100, 500)
CALLS = (50, 100, 200)
K = 10
# Where items are cut, and epochs: scifact has 806 queries. A check must not cost more than its epoch.
ITEM_TOKENS = {"mondo": 64, "medquad": 64, "scifact": 128}
EPOCHS = {"mondo": 2, "medquad": 2, "scifact": 6}
CHECKED = {"mondo": 500, "medquad": 500, "scifact": 100}
QUERIES_AT_ONCE = 50


class Cell:
    """One model: trained, scored over everything, searched."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.name, self.head, self.recipe, self.seed = asked.cell
        self.seed = int(self.seed)
        self.training, test = read_parts(
            asked.data, self.name, n_items=asked.limit_items, n_queries=asked.limit_queries
        )
        # Chosen by their ids' order, so that later seeds are tested on some of the first one's queries.
        n_test = asked.test_queries if self.seed == 0 else asked.later_test_queries
        self.items, self.test, self.qrels = list(self.training.items), list(test.judged)[: n_test or None], test.qrels
        queries = [*self.training.judged, *self.test]
        self.anchors = list(
            split_queries(self.training.judged, anchors=min(asked.anchors, len(self.training.judged) - 20)).anchors
        )
        ids, folder = [item.id for item in self.items], asked.data / self.name
        encoder = KnownVectors(queries, read_vectors(folder, "query", [query.id for query in queries]))
        self.dense = Dense.from_embeddings(ids, read_vectors(folder, "item", ids), encoder=encoder)
        self.folder = asked.work / "-".join(asked.cell)
        self.tokens = ITEM_TOKENS[self.name]

    def row(self) -> dict[str, Any]:
        row: dict[str, Any] = dict(
            zip(("collection", "head", "recipe", "seed"), (self.name, self.head, self.recipe, self.seed), strict=True)
        )
        started = time.monotonic()
        # The minutes of a cell that was cut short before are those since it went on.
        row["went_on"] = (self.folder / "model").exists()
        trained = self.train()
        row["minutes_to_train"] = round((time.monotonic() - started) / 60, 2)
        row |= {"updates": trained.updates, "best_update": trained.best_update, "queries": len(self.training.judged)}
        row["checks"] = [line for line in trained.log if "mrr_all" in line]
        started = time.monotonic()
        exact = self.grid("test", self.test)
        row["minutes_of_test_grid"] = round((time.monotonic() - started) / 60, 2)
        per_query = self.depths(exact)
        row["ndcg"] = {depth: with_interval(values) for depth, values in per_query.items()}
        row["ndcg_of_queries"] = {depth: np.round(values, 4).tolist() for depth, values in per_query.items()}
        row["test_queries"] = len(self.test)
        self.write_texts(exact)
        if self.recipe == "mixture" and self.seed == 0:
            started = time.monotonic()
            anchors = self.grid("anchors", self.anchors)
            low, high = (float(pick([pick(exact), pick(anchors)])) for pick in (np.min, np.max))
            step = (high - low) / 16_000
            rounded = {
                part: np.round((scores - low) / step).astype(np.int16)
                for part, scores in (("test", exact), ("anchors", anchors))
            }
            np.savez_compressed(self.folder / "scores.npz", low=low, step=step, **rounded)
            row["anchors"] = len(self.anchors)
            row["minutes_of_anchor_grid"] = round((time.monotonic() - started) / 60, 2)
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
            sample=CHECKED[self.name],
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

    def depths(self, exact: np.ndarray) -> dict[str, np.ndarray]:
        """nDCG@10 of each test query where the scorer ranks the dense stage's best, and everything."""
        quality = {}
        nearest = [answer.positions for answer in self.dense.search(self.test, min(max(DEPTHS), len(self.items)))]
        for depth in (*DEPTHS, None):
            ranked = []
            for row, near in zip(exact, nearest, strict=True):
                among = np.arange(len(row)) if depth is None else near[:depth]
                ranked.append(among[np.argsort(-row[among], kind="stable")[:K]])
            quality["all" if depth is None else str(depth)] = self.ndcg(ranked)
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
                for method in ("rerank", Together(rounds=5)):
                    answers = index.search(self.test, K, budget=calls, method=method, first=first, fuse=0)
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
        texts = {"phantoms": phantoms[:40], "n_phantoms": len(phantoms)}
        (self.folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False))


def discounts(n: int) -> np.ndarray:
    return 1 / np.log2(np.arange(n) + 2)


def with_interval(values: np.ndarray) -> list[float]:
    """Mean, and the bounds of a 95 % bootstrap interval."""
    return [round(float(value), 4) for value in (values.mean(), *bootstrap_interval(values))]


def run(asked: argparse.Namespace) -> None:
    """Every cell that has no row yet, several processes at a time, until the time is up."""
    started = time.monotonic()
    asked.work.mkdir(parents=True, exist_ok=True)
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
    failed: list[tuple[str, ...]] = []
    tell(started, f"{len(done)} cells are done, {len(waiting)} wait")
    running: dict[subprocess.Popen[bytes], tuple[tuple[str, ...], float]] = {}
    is_late = is_second_try = False
    while running or ((waiting or failed) and not is_late):
        if not waiting and not running and failed:
            # Alone, as what failed may have had too little memory beside others.
            waiting, failed, is_second_try = failed, [], True
        while waiting and len(running) < (1 if is_second_try else asked.jobs) and not is_late:
            cell = waiting.pop(0)
            running[started_cell(asked, cell)] = cell, time.monotonic()
            tell(started, f"{' '.join(cell)}: begins")
        for process in [one for one in running if one.poll() is not None]:
            cell, began = running.pop(process)
            tell(started, f"{' '.join(cell)}: {how_it_ended(asked, cell, process.returncode, is_late)}", began)
            if process.returncode and not is_late and not is_second_try:
                failed.append(cell)
            publish(asked)
        if not is_late and time.monotonic() - started > asked.time_limit:
            is_late = True
            # What they have trained is kept: the next run goes on from there.
            for process in running:
                process.terminate()
        time.sleep(0.2)
    publish(asked)
    show(rows_in(asked.work))


def tell(started: float, event: str, began: float | None = None) -> None:
    """One short line: when, what, and how long it took."""
    now = time.monotonic()
    print(f"{now - started:4.0f} s  {event}{'' if began is None else f', {now - began:.0f} s'}", flush=True)


def started_cell(asked: argparse.Namespace, cell: tuple[str, ...]) -> subprocess.Popen[bytes]:
    cores = str(max(1, (os.cpu_count() or 1) // asked.jobs))
    environment = os.environ | {
        "OMP_NUM_THREADS": cores,
        "OPENBLAS_NUM_THREADS": cores,
        "RAYON_NUM_THREADS": cores,
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    with log_of(asked, cell).open("ab") as log:
        return subprocess.Popen([sys.executable, *sys.argv, "--cell", *cell], stdout=log, stderr=log, env=environment)


def log_of(asked: argparse.Namespace, cell: tuple[str, ...]) -> Path:
    return asked.work / f"{'-'.join(cell)}.log"


def how_it_ended(asked: argparse.Namespace, cell: tuple[str, ...], status: int, is_late: bool) -> str:
    if is_late and status:
        return "cut short"
    if status:
        lines = log_of(asked, cell).read_text(errors="replace").strip().splitlines() or ["no word"]
        return f"failed ({lines[-1][:100]})"
    row = next(row for row in reversed(rows_in(asked.work)) if tuple(map(str, cell_of(row))) == cell)
    minutes = ", ".join(f"{name.removeprefix('minutes_')} {row[name]:.1f}" for name in row if "minutes" in name)
    return f"done, all {row['ndcg']['all'][0]:.3f}, best 50 {row['ndcg']['50'][0]:.3f} (minutes {minutes})"


def publish(asked: argparse.Namespace) -> None:
    """Everything that is known so far: a run may be killed at any time."""
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_in(asked.work)))
    texts = {file.parent.name: json.loads(file.read_text()) for file in sorted(asked.work.glob("*/texts.json"))}
    (asked.out / "texts.json").write_text(json.dumps(texts, ensure_ascii=False, indent=1))
    logs = [(log.name, log.read_text(errors="replace")[-3000:]) for log in sorted(asked.work.glob("*.log"))]
    for file in asked.work.glob("*/scores.npz"):
        shutil.copy(file, asked.out / f"scores-{file.parent.name}.npz")
    (asked.out / "logs.txt").write_text("\n".join(f"==> {name}\n{text}" for name, text in logs))


def one(asked: argparse.Namespace) -> None:
    """A single cell, in a process of its own."""
    import torch

    logging.basicConfig(format="%(relativeCreated)d ms %(message)s")
    logging.getLogger("adacur").setLevel(logging.INFO)
    # Checks score in float32: TF32 products are good enough to choose a checkpoint, and several times as fast.
    torch.set_float32_matmul_precision("high")
    row = Cell(asked).row()
    if torch.cuda.is_available():
        row["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    # One line in one call: several processes append.
    with (asked.work / "rows.jsonl").open("a") as stream:
        stream.write(json.dumps(row) + "\n")


def search(asked: argparse.Namespace) -> None:
    """Adds re-ranking against search to every row whose scores are there."""
    rows = rows_in(asked.out)
    for row in rows:
        name = "-".join(map(str, cell_of(row)))
        file = asked.out / f"scores-{name}.npz"
        if not file.exists():
            continue
        with np.load(file) as stored:
            exact, anchors = (
                stored["low"] + stored["step"] * stored[part].astype(float) for part in ("test", "anchors")
            )
        asked.cell = tuple(map(str, cell_of(row)))
        row["searches"] = Cell(asked).searches(exact, anchors)
        print(f"{name}: searched", flush=True)
        (asked.out / "rows.jsonl").write_text("".join(json.dumps(one_row) + "\n" for one_row in rows))
    show(rows)


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
        minutes = f"{row['minutes_to_train']:.1f}" + (" and more" if row.get("went_on") else "")
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

    running, searching, table = (commands.add_parser(name) for name in ("run", "search", "table"))
    for command in (running, searching):
        command.add_argument("data", type=Path)
        command.add_argument("--limit-items", type=int, default=0, help="of a rehearsal")
        command.add_argument("--limit-queries", type=int, default=0, help="of a rehearsal")
        command.add_argument("--test-queries", type=int, default=200, help="of the first seed; 0 for all")
        command.add_argument("--later-test-queries", type=int, default=100, help="of the other seeds; 0 for all")
        command.add_argument("--anchors", type=int, default=100)
    searching.set_defaults(work=Path())
    searching.add_argument("out", type=Path)
    running.add_argument("work", type=Path)
    running.add_argument("--collections", type=names, default=list(COLLECTIONS))
    running.add_argument("out", type=Path)
    running.add_argument("--base", type=Path, required=True)
    running.add_argument("--heads", type=names, default=list(HEADS))
    running.add_argument("--seeds", type=names, default=["0", "1", "2"])
    running.add_argument("--jobs", type=int, default=2)
    running.add_argument("--time-limit", type=float, default=520, help="seconds; then cells are cut short")
    running.add_argument("--mining-anchors", type=int, default=50)
    running.add_argument("--negatives", type=int, default=31)
    running.add_argument("--epochs", type=int, help="instead of the collection's usual number")
    running.add_argument("--learning-rate", type=float, default=5e-5)
    running.add_argument("--cell", nargs=4, help="only this one, here: collection, head, recipe, seed")
    table.add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.command == "run":
        one(asked) if asked.cell else run(asked)
    elif asked.command == "search":
        search(asked)
    else:
        show(rows_in(asked.out))


if __name__ == "__main__":
    main()
