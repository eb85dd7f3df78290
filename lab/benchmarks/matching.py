"""Two tables matched: pairs found and calls, beside a blocker's best N of every row scored.

    python lab/benchmarks/matching.py folder --data DIR --out FOLDER
    python lab/benchmarks/matching.py products --data DIR --matcher MODEL --encoder FOLDER [--rows N] [--json FILE]
    python lab/benchmarks/matching.py synonyms --scores DIR --collection DIR [--rows 300] [--json FILE]
    python lab/benchmarks/matching.py killed [--times 30] [--at-once 8]
    python lab/benchmarks/matching.py large [--left 100000] [--right 100000]

`folder` writes a table of products as a folder that `adacur train cross-encoder` reads, with the matches of its train
split. `products` matches rows of the test split and rows without a match, at the line by which the validation split's
candidates have the best F1. `synonyms` does the same with names of diseases, of which all scores are known.

Blockers are BM25, the encoder, and both joined by reciprocal ranks. For every match: recall of all pairs that the
scorer accepts among those that anything here has scored, recall and F1 of the known matches, and the blocker's figures
at as many calls (its next whole N); the least N, and its calls, by which the blocker finds as many accepted pairs.
Intervals are 95 % of 1,000 resamples of rows.

`killed` ends a match by SIGKILL at random moments, continues it each time, and counts the pairs that were paid for
again, and lost; its scorer is called with `--at-once` pairs at most, and pays as a call returns. `large` is two
synthetic tables and a scorer that costs nothing: minutes and memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import read_score_folder

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.first_stages import BM25
from adacur.scorers import Cached, FunctionScorer, MatrixScorer

COLUMNS = {"abt-buy": ("name",), "walmart-amazon": ("title", "brand", "modelno")}
DEPTHS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50, 100)
BLOCKERS = ("bm25", "dense", "bm25+dense")
RESAMPLES, CHOSEN_DEPTH = 1000, 5
Pairs = set[tuple[str, str]]


@dataclass(frozen=True)
class Task:
    """Rows to match with an index, the scorer's line, and the pairs that people know to match."""

    name: str
    rows: Sequence[Query]
    index: AnchorIndex
    scorer: Any
    above: float
    known: Pairs


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def side(data: Path, name: str) -> dict[str, str]:
    """The texts of one table: the columns by which people tell products apart."""
    rows = lines_of(data / f"{name}.jsonl.gz")
    texts = {row["_id"]: " ".join(row["metadata"].get(one, "") for one in COLUMNS[data.name]) for row in rows}
    return {row["_id"]: " ".join(texts[row["_id"]].split()) or row["text"] for row in rows}


def matches_of(data: Path) -> dict[str, Pairs]:
    """The known matches of each split."""
    splits: dict[str, Pairs] = {}
    for line in (data / "matches.tsv").read_text().splitlines()[1:]:
        left, right, split = line.split("\t")
        splits.setdefault(split, set()).add((left, right))
    return splits


def write_folder(data: Path, out: Path) -> None:
    """The tables and the train split, for a training."""
    (out / "qrels").mkdir(parents=True)
    for name, file in (("right", "corpus"), ("left", "queries")):
        rows = [json.dumps({"_id": id_, "text": text}) + "\n" for id_, text in side(data, name).items()]
        (out / f"{file}.jsonl").write_text("".join(rows))
    train = sorted(matches_of(data)["train"])
    rows = [f"{left}\t{right}\t1\n" for left, right in train]
    (out / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))


def best_line(scored: Mapping[tuple[str, str], float], known: Pairs) -> float:
    """The score from which on the pairs have the best F1."""
    pairs = sorted(scored, key=lambda pair: -scored[pair])
    right = np.cumsum([pair in known for pair in pairs])
    f1 = 2 * right / (np.arange(1, len(pairs) + 1) + len(known))
    return scored[pairs[int(np.argmax(f1))]]


def candidates(index: AnchorIndex, rows: Sequence[Query], blocker: str, depth: int) -> list[list[int]]:
    return [answer.positions[:depth].tolist() for answer in index.first_stage(blocker).search(rows, depth)]


def score_of(task_scorer: Any, index: AnchorIndex, rows: Sequence[Query], lists: Sequence[Iterable[int]]) -> Any:
    """The scores of these pairs, by ids."""
    pairs = [(row, item) for row, some in zip(rows, lists, strict=True) for item in index.items.at(list(some))]
    scores = task_scorer.score(pairs)
    return {(row.id, item.id): float(score) for (row, item), score in zip(pairs, scores, strict=True)}


def products(data: Path, matcher: Path, encoder: Path, scores: Path, *, n_rows: int) -> Task:
    """A table of products: rows of the test split and as many again, at most, that match nothing."""
    left, right, splits = side(data, "left"), side(data, "right"), matches_of(data)
    items = [Item(id_, text) for id_, text in right.items()]
    scorer = Cached(adacur.scorer(str(matcher)), scores, save_every=256)
    index = AnchorIndex.from_items(items, first=["bm25", "dense"], encoder=adacur.encoder(str(encoder)), progress=False)
    valid = [Query(id_, left[id_]) for id_ in sorted({one for one, _ in splits["valid"]})]
    above = best_line(
        score_of(scorer, index, valid, candidates(index, valid, "bm25+dense", CHOSEN_DEPTH)), splits["valid"]
    )
    matched, tested = {one for some in splits.values() for one, _ in some}, {one for one, _ in splits["test"]}
    chosen, draw = sorted(tested), random.Random(0)
    others = sorted(set(left) - matched)
    chosen = draw.sample(chosen, min(n_rows, len(chosen)))
    chosen += draw.sample(others, min(len(others), n_rows - len(chosen), len(chosen) // 2))
    draw.shuffle(chosen)
    known = {pair for pair in splits["test"] if pair[0] in set(chosen)}
    return Task(data.name, [Query(id_, left[id_]) for id_ in chosen], index, scorer, above, known)


def synonyms(scores: Path, collection: Path, *, n_rows: int) -> Task:
    """Names of diseases, and a model whose scores of them all are known; the line is chosen on other names."""
    folder = read_score_folder(scores, n_anchors=500, n_queries=200)
    queries, exact = [*folder.test, *folder.anchors], np.vstack([folder.test_scores, folder.anchor_scores])
    known: Pairs = set()
    for file in sorted(collection.glob("qrels*/*.tsv")) + sorted(collection.glob("*qrels*.tsv")):
        known |= {(row[0], row[1]) for row in (line.split("\t") for line in file.read_text().splitlines()[1:])}
    ids = {query.id for query in queries}
    known = {pair for pair in known if pair[0] in ids}
    scorer = MatrixScorer(queries=queries, items=folder.items, scores=exact)
    bm25 = BM25.build(folder.items)
    index = AnchorIndex.from_items(folder.items, first={"bm25": bm25, "dense": folder.dense}, progress=False)
    rows, others = queries[:n_rows], queries[500:]
    scored = score_of(scorer, index, others, candidates(index, others, "bm25+dense", CHOSEN_DEPTH))
    above = best_line(scored, {pair for pair in known if pair[0] in {one.id for one in others}})
    chosen = {row.id for row in rows}
    return Task(scores.name, rows, index, scorer, above, {pair for pair in known if pair[0] in chosen})


class Tally:
    """What each way finds, row by row, so that rows can be resampled."""

    def __init__(self, task: Task, accepted: Pairs) -> None:
        self._rows = {row.id: at for at, row in enumerate(task.rows)}
        self._known, self._accepted = task.known, accepted
        self._draws = np.random.default_rng(0).integers(0, len(self._rows), (RESAMPLES, len(self._rows)))

    def counts(self, pairs: Pairs) -> np.ndarray:
        counts = np.zeros(len(self._rows))
        for left, _ in pairs:
            counts[self._rows[left]] += 1
        return counts

    def of(self, found: Pairs) -> dict[str, Any]:
        """Recall of accepted pairs, and recall and F1 of known matches, each with its interval."""
        found = found & self._accepted
        right, known, accepted = self.counts(found & self._known), self.counts(self._known), self.counts(self._accepted)
        all_found = self.counts(found)
        return {
            "pairs": len(found),
            "recall": self._share(all_found, accepted),
            "recall_known": self._share(right, known),
            "f1_known": self._share(2 * right, all_found + known),
        }

    def _share(self, over: np.ndarray, under: np.ndarray) -> list[float]:
        resampled = over[self._draws].sum(axis=1) / np.maximum(1, under[self._draws].sum(axis=1))
        low, high = np.quantile(resampled, [0.025, 0.975])
        return [round(float(one), 4) for one in (over.sum() / max(1, under.sum()), low, high)]


def measured(task: Task, *, deepest: int) -> dict[str, Any]:
    """Every way to match a task, beside its blockers."""
    options: dict[str, Any] = {"scorer": task.scorer, "above": task.above, "progress": False}
    ways = {}
    for first in BLOCKERS:
        for learning in (True, False):
            for recall in (0.9, 0.95):
                started = time.process_time()
                done = adacur.match(
                    task.rows, task.index, first=first, learning=learning, recall=recall, **options, calls_per_row=200
                )
                pairs = {(pair.left, pair.right) for pair in done}
                calls = done.bill.calls + done.bill.known
                ways[first, learning, recall] = (pairs, calls, done.certificate.recall)
                print(f"{first} {learning} {recall}: {calls} calls, {time.process_time() - started:.0f} s", flush=True)
    lists = {blocker: candidates(task.index, task.rows, blocker, deepest) for blocker in BLOCKERS}
    blocked: dict[str, list[Pairs]] = {}
    accepted: Pairs = set().union(*(pairs for pairs, _, _ in ways.values()))
    if isinstance(task.scorer, MatrixScorer):
        every = task.scorer.score_grid(task.rows, list(task.index.items))
        for row, scores in zip(task.rows, every, strict=True):
            accepted |= {(row.id, task.index.items.ids[at]) for at in np.flatnonzero(scores >= task.above)}
    for blocker, some in lists.items():
        scored = score_of(task.scorer, task.index, task.rows, some)
        accepted |= {pair for pair, score in scored.items() if score >= task.above}
        ids = [[item.id for item in task.index.items.at(own)] for own in some]
        blocked[blocker] = [
            {(row.id, id_) for row, own in zip(task.rows, ids, strict=True) for id_ in own[:n]}
            for n in range(deepest + 1)
        ]
    tally, rows = Tally(task, accepted), []
    for (first, learning, recall), (pairs, calls, expected) in ways.items():
        ours = tally.of(pairs)
        row: dict[str, Any] = {"first": first, "learning": learning, "asked": recall, "calls": calls}
        row |= ours | {"expected_recall": round(expected, 4), "blockers": {}}
        for blocker, found in blocked.items():
            n = min(deepest, -(-calls // len(task.rows)))
            as_many = (depth for depth, some in enumerate(found) if len(some & accepted) >= ours["pairs"])
            least = next(as_many, None)
            least_calls = None if least is None else sum(len(own[:least]) for own in lists[blocker])
            row["blockers"][blocker] = {"depth": n, **tally.of(found[n]), "least_depth": least, "calls": least_calls}
        rows.append(row)
    fixed = {
        blocker: {str(n): tally.of(found[n]) for n in DEPTHS if n <= deepest} for blocker, found in blocked.items()
    }
    facts = {"rows": len(task.rows), "right": len(task.index), "above": round(task.above, 3)}
    return {"task": task.name, **facts, "known": len(task.known), "accepted": len(accepted), "match": rows, **fixed}


def said(result: dict[str, Any]) -> None:
    """The table of one task."""
    print(
        f"{result['task']}: {result['rows']} rows × {result['right']:,}, line {result['above']}, {result['known']} "
        f"known matches, {result['accepted']} accepted pairs"
    )
    print("first       learning asked | calls  recall [95 %]        known  F1    | best N: at equal calls, N and calls")
    for row in result["match"]:
        best = max(row["blockers"].items(), key=lambda one: one[1]["recall"][0])
        enough = [one for one in row["blockers"].values() if one["calls"] is not None]
        least = min(enough, key=lambda one: one["calls"]) if enough else None
        mean, low, high = row["recall"]
        print(
            f"{row['first']:11} {row['learning']!s:8} {row['asked']:5} | {row['calls']:6,} {mean:.3f} "
            f"[{low:.3f}, {high:.3f}] {row['recall_known'][0]:.3f} {row['f1_known'][0]:.3f} | "
            f"{best[0]} {best[1]['depth']}: {best[1]['recall'][0]:.3f}; "
            + ("none as many" if least is None else f"{least['least_depth']}: {least['calls']:,}")
        )


KILLED = """
import os, sys, time
import adacur
log = os.open(sys.argv[1] + ".log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def score(pairs):
    time.sleep(0.004 * len(pairs))
    os.write(log, "".join(f"{query}|{item}\\n" for query, item in pairs).encode())
    return [2.0 - abs(int(query.split()[1]) - int(item.split()[1])) for query, item in pairs]
left = [{"id": f"l{n}", "name": f"item {n} colour {n % 5}"} for n in range(0, 400, 2)]
right = [{"id": f"r{n}", "name": f"thing {n} of colour {n % 5} shape {n % 7}"} for n in range(400)]
scorer = adacur.scorers.FunctionScorer(score, name="logged-v1", batch_size=int(sys.argv[2]) or None)
adacur.match(left, right, scorer=scorer, above=0.0, path=sys.argv[1], output=sys.argv[1] + ".csv", force=True,
             progress=False)
"""


def killed(times: int, at_once: int) -> None:
    """Kills one match again and again, until it has been continued so often."""
    draw = random.Random(0)

    def run(path: Path, seconds: float | None) -> bool:
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(path), str(at_once)], stderr=subprocess.DEVNULL)
        log = Path(f"{path}.log")
        before = log.stat().st_size if log.exists() else 0
        while seconds is not None and process.poll() is None and not (log.exists() and log.stat().st_size > before):
            time.sleep(0.001)
        if seconds is not None:
            time.sleep(seconds)
            process.send_signal(signal.SIGKILL)
        return process.wait() == 0

    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder, "whole")
        run(whole, None)
        expected = sorted(Path(f"{whole}.csv").read_text().splitlines())
        kills = again = lost = wrong = number = 0
        while kills < times:
            path, ended = Path(folder, f"match-{number}"), False
            number += 1
            while not ended:
                ended = run(path, draw.uniform(0.0, 0.4) if kills < times else None)
                kills += not ended
            paid = Counter(Path(f"{path}.log").read_text().splitlines())
            again += sum(paid.values()) - len(paid)
            pairs = sorted(Path(f"{path}.csv").read_text().splitlines())
            lost, wrong = lost + len(set(expected) - set(pairs)), wrong + len(set(pairs) - set(expected))
        print(f"{kills} kills of {number} matches: {again} pairs paid for again, {lost} pairs lost, {wrong} wrong")


def large(n_left: int, n_right: int) -> None:
    """Two synthetic tables: names of three words and a number, of which one word is spelled differently."""
    words = [
        f"{first}{last}" for first in "bcdfghklmnprst" for last in ("al", "en", "or", "ix", "um", "ot", "ey", "ar")
    ]

    def rows(n: int, *, seed: int) -> Iterable[dict[str, str]]:
        for at in range(n):
            draw = random.Random(at)
            name = [draw.choice(words) + draw.choice(words) for _ in range(3)] + [f"{at % 9973:x}"]
            random.Random(at + seed).shuffle(name)
            name[0] += "s" * (seed == 1)
            yield {"id": f"{at}", "name": " ".join(name)}

    def same(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [len({*query.split()} & {*item.split()}) - 2.5 for query, item in pairs]

    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("left.jsonl", "right.jsonl")]
        for file, n, seed in zip(files, (n_left, n_right), (1, 2), strict=True):
            with file.open("w") as opened:
                opened.writelines(json.dumps(row) + "\n" for row in rows(n, seed=seed))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        started, cpu = time.time(), time.process_time()
        scorer = FunctionScorer(same, name="words-v1")
        done = adacur.match(files[0], files[1], scorer=scorer, above=0.0, progress=False)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{n_left:,} × {n_right:,} rows: {(time.time() - started) / 60:.1f} minutes "
            f"({(time.process_time() - cpu) / 60:.1f} of a processor), {peak:,.0f} MiB at most ({before:,.0f} before), "
            f"{done.bill.calls:,} calls, {sum(pair.left == pair.right for pair in done):,} of "
            f"{min(n_left, n_right):,} pairs found"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("folder", "products", "synonyms", "killed", "large"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--matcher", type=Path)
    parser.add_argument("--encoder", type=Path)
    parser.add_argument("--kept", type=Path, help="the file that keeps the matcher's scores")
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--collection", type=Path)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--deepest", type=int, default=30)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--at-once", type=int, default=0, help="pairs in a call of the scorer; 0 for all of 64")
    parser.add_argument("--left", type=int, default=100_000)
    parser.add_argument("--right", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.command == "folder":
        write_folder(given.data, given.out)
    elif given.command == "killed":
        killed(given.times, given.at_once)
    elif given.command == "large":
        large(given.left, given.right)
    else:
        if given.command == "products":
            kept = given.kept or Path(f"{given.matcher}.scores")
            task = products(given.data, given.matcher, given.encoder, kept, n_rows=given.rows)
        else:
            task = synonyms(given.scores, given.collection, n_rows=given.rows)
        result = measured(task, deepest=given.deepest)
        said(result)
        if given.json is not None:
            given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
