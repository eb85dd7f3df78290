"""Searches on a GPU: one question at a time, many at once, and how often their answers differ from numpy's.

    python lab/benchmarks/gpu_rounds.py --model FOLDER --scores SCORES --data DATA [--json FILE]

SCORES is a folder of exact scores (meta.json, scores.npz, dense_items.npy, dense_queries.npy: their anchor rows are
the index), DATA one of texts (corpus.jsonl.gz, queries.jsonl.gz). k = 10, 500 anchor queries, budget 100. Query
vectors are looked up, as in a first stage that costs nothing; the scorer runs. Each part gets its questions once
untimed, then timed. `--smoke` makes a tiny world that runs anywhere. `--only one,many` runs some parts.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gpu_search
import numpy as np
import torch

from adacur import AnchorIndex, Gaussian, Rerank
from adacur.first_stages import Dense
from adacur.records import Item, ItemList, Query
from adacur.results import Hits
from adacur.scorers import TorchCrossEncoder
from adacur.store import AnchorTable
from adacur_lab.known_vectors import KnownVectors

K, BUDGET = 10, 100


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    part: str
    way: str
    median_ms: float
    p95_ms: float
    per_s: float
    note: str = ""


@dataclass
class World:
    """What all parts share: questions, and one index on the device and another on the host."""

    items: list[Item]
    anchors: list[Query]
    anchor_scores: np.ndarray
    queries: list[Query]
    item_vectors: np.ndarray
    query_vectors: np.ndarray
    model: Path
    device: str
    max_item_tokens: int
    together: tuple[int, ...] = (300, 2000)

    @cached_property
    def scorer(self) -> TorchCrossEncoder:
        dtype = "float16" if self.device.startswith("cuda") else "float32"
        return TorchCrossEncoder(self.model, device=self.device, dtype=dtype, max_item_tokens=self.max_item_tokens)

    @cached_property
    def kept(self) -> ItemList:
        return ItemList(self.items)

    def index(self, device: str | None, *, scorer: Any = None) -> AnchorIndex:
        known = KnownVectors([*self.anchors, *self.queries], self.query_vectors)
        ids = [item.id for item in self.items]
        table = AnchorTable(self.kept, tuple(self.anchors), np.ascontiguousarray(self.anchor_scores.T, np.float32))
        scorer = scorer or self.scorer
        first = {"dense": Dense.from_embeddings(ids, self.item_vectors, encoder=known)}
        return AnchorIndex(table, scorer=scorer, first=first, card=scorer.card, device=device)

    @cached_property
    def on_device(self) -> AnchorIndex:
        return self.index(self.device)

    @cached_property
    def on_host(self) -> AnchorIndex:
        return self.index(None)

    def synchronise(self) -> None:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def timed(world: World, part: str, way: str, run: Callable[[Query], Hits], n: int, note: str = "") -> Row:
    """Each question alone, in turn: once untimed, once timed."""
    seconds: list[float] = []
    traces = []
    for again in range(2):
        for query in world.queries[:n]:
            world.synchronise()
            started = time.perf_counter()
            hits = run(query)
            if again:
                seconds.append(time.perf_counter() - started)
                traces.append(hits.trace)
    median, p95 = np.percentile(seconds, [50, 95]) * 1000
    steps: dict[str, list[float]] = {}
    for trace in traces:
        for name in {name for one in trace.rounds for name in one.seconds}:
            steps.setdefault(name, []).append(1000 * sum(one.seconds.get(name, 0.0) for one in trace.rounds))
    told = ", ".join(f"{name} {np.median(values):.2f}" for name, values in sorted(steps.items()))
    return Row(part, way, median, p95, 1 / float(np.mean(seconds)), note or told)


def one(world: World) -> Iterator[Row]:
    """One question at a time."""
    world.scorer.prepare(world.kept)
    n = min(100, len(world.queries))
    for rounds in (1, 3, 5, 10):
        method = Gaussian(rounds=rounds)
        yield timed(
            world,
            "one",
            f"{rounds} rounds",
            lambda query, method=method: world.on_device.search(query, K, budget=BUDGET, method=method),
            n,
        )
    yield timed(
        world, "one", "re-rank 100", lambda query: world.on_device.search(query, K, budget=BUDGET, method=Rerank()), n
    )
    yield timed(
        world,
        "one",
        "5 rounds, predictions by numpy",
        lambda query: world.on_host.search(query, K, budget=BUDGET, method=Gaussian(rounds=5)),
        n,
    )


def profile(world: World) -> Iterator[Row]:
    """Where the host's time goes in single questions."""
    world.on_device.search(world.queries[0], K, budget=BUDGET, method=Gaussian(rounds=5))
    profiler = cProfile.Profile()
    profiler.enable()
    for query in world.queries[:50]:
        world.on_device.search(query, K, budget=BUDGET, method=Gaussian(rounds=5))
    profiler.disable()
    pstats.Stats(profiler).sort_stats("cumtime").print_stats(60)
    yield from ()


def many(world: World) -> Iterator[Row]:
    """Many questions in one call."""
    world.scorer.prepare(world.kept)
    for n in world.together:
        queries = [world.queries[at % len(world.queries)] for at in range(n)]
        ways = {
            "5 rounds": lambda queries=queries: world.on_device.search(
                queries, K, budget=BUDGET, method=Gaussian(rounds=5)
            ),
            "re-rank 100": lambda queries=queries: world.on_device.search(queries, K, budget=BUDGET, method=Rerank()),
        }
        for way, run in ways.items():
            seconds = []
            for again in range(4):
                world.synchronise()
                started = time.perf_counter()
                hits = run()
                world.synchronise()
                if again:
                    seconds.append(time.perf_counter() - started)
            steps: dict[str, float] = {}
            for each in hits:
                for round_ in each.trace.rounds:
                    for name, spent in round_.seconds.items():
                        steps[name] = steps.get(name, 0.0) + spent
            told = ", ".join(f"{name} {1000 * total:.0f}" for name, total in sorted(steps.items()))
            yield Row(
                "many",
                f"{way}, {n} questions",
                1000 * float(np.median(seconds)),
                1000 * float(np.max(seconds)),
                n / float(np.median(seconds)),
                f"ms in all: {told}",
            )
    # The same pairs as a grid feeds the ceiling.
    some = world.queries[:100], world.items[:1000]
    world.scorer.score_grid(*some)
    world.synchronise()
    started = time.perf_counter()
    world.scorer.score_grid(*some)
    world.synchronise()
    spent = time.perf_counter() - started
    yield Row("many", "grid 100 × 1000", 1000 * spent, 1000 * spent, 100_000 / spent, "pairs a second, not searches")


def batch_profile(world: World) -> Iterator[Row]:
    """Where the host's time goes with 300 questions together, and the share of the time that the GPU computes."""
    queries = (world.queries * 7)[: world.together[0]]

    def run() -> None:
        world.on_device.search(queries, K, budget=BUDGET, method=Gaussian(rounds=5))

    run()
    profiler = cProfile.Profile()
    profiler.enable()
    run()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(30)
    if world.device.startswith("cuda"):
        from torch.profiler import ProfilerActivity

        world.synchronise()
        started = time.perf_counter()
        run()
        world.synchronise()
        wall = time.perf_counter() - started
        with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profile:
            run()
            world.synchronise()
        busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
        print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=15, max_name_column_width=60))
        yield Row(
            "many", "GPU computes", 1000 * busy, 1000 * wall, busy / wall, "share of the wall time, 300 questions"
        )


def agreement(world: World) -> Iterator[Row]:
    """For how many questions the top 10 differs from numpy's, and the true recall of both, by exact scores."""
    queries = world.queries
    answers = {}
    for way, index in (("device", world.on_device), ("numpy", world.on_host)):
        answers[way] = index.search(queries, K, budget=BUDGET, method=Gaussian(rounds=5))
    alone = [world.on_device.search(query, K, budget=BUDGET, method=Gaussian(rounds=5)) for query in queries[:100]]
    differ = sum(set(a.ids) != set(b.ids) for a, b in zip(answers["device"], answers["numpy"], strict=True))
    differ_alone = sum(set(a.ids) != set(b.ids) for a, b in zip(answers["device"], alone, strict=False))
    exact = world.scorer.score_grid(queries, world.items)
    ids = np.array([item.id for item in world.items])
    recall = {}
    for way, hits in answers.items():
        found = []
        for row, each in zip(exact, hits, strict=True):
            best = set(ids[np.argsort(-row)[:K]])
            found.append(len(best & set(each.ids)) / K)
        recall[way] = float(np.mean(found))
    note = (
        f"top 10 differs from numpy's for {differ} of {len(queries)}; together and alone for {differ_alone} of "
        f"{len(alone)}; recall device {recall['device']:.4f}, numpy {recall['numpy']:.4f}"
    )
    yield Row("agreement", "", float("nan"), float("nan"), float("nan"), note)


PARTS: dict[str, Callable[[World], Iterator[Row]]] = {
    "one": one,
    "many": many,
    "agreement": agreement,
    "profile": profile,
    "batch_profile": batch_profile,
}


def real_world(arguments: argparse.Namespace) -> World:
    meta = json.loads((arguments.scores / "meta.json").read_text())
    with np.load(arguments.scores / "scores.npz") as stored:
        scores = stored["scores"][: len(meta["anchor_query_ids"])].astype(np.float32) / 2048 - 16
    texts = {record["_id"]: record for record in gpu_search.records(arguments.data / "corpus.jsonl.gz")}
    asked = {record["_id"]: record["text"] for record in gpu_search.records(arguments.data / "queries.jsonl.gz")}
    items = [Item(id_, f"{texts[id_]['title']}. {texts[id_]['text']}") for id_ in meta["item_ids"]]
    return World(
        items=items,
        anchors=[Query(id_, asked[id_]) for id_ in meta["anchor_query_ids"]],
        anchor_scores=scores,
        queries=[Query(id_, asked[id_]) for id_ in meta["test_query_ids"]],
        item_vectors=np.load(arguments.scores / "dense_items.npy").astype(np.float32),
        query_vectors=np.load(arguments.scores / "dense_queries.npy").astype(np.float32),
        model=arguments.model,
        device=arguments.device or ("cuda:0" if torch.cuda.is_available() else "cpu"),
        max_item_tokens=arguments.max_item_tokens,
    )


def smoke_world(folder: Path) -> World:
    bench = gpu_search.smoke_bench(folder)
    rng = np.random.default_rng(0)
    items = [Item(str(at), bench.items.at([at % 60])[0].text + f" w{at % 40}") for at in range(150)]
    anchors = [Query(f"a{at}", f"w{at} w{at + 1}") for at in range(20)]
    queries = [Query(f"q{at}", f"w{at} w{(at * 7) % 40} w{at % 5}") for at in range(12)]
    scorer = bench.scorer
    return World(
        items=items,
        anchors=anchors,
        anchor_scores=scorer.score_grid(anchors, items),
        queries=queries,
        item_vectors=rng.normal(size=(150, 8)).astype(np.float32),
        query_vectors=rng.normal(size=(32, 8)).astype(np.float32),
        model=folder,
        device=str(bench.device),
        max_item_tokens=32,
        together=(5, 12),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--device")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    if not arguments.smoke and not (arguments.model and arguments.scores and arguments.data):
        parser.error("give --model, --scores and --data, or --smoke")
    with tempfile.TemporaryDirectory() as folder:
        world = smoke_world(Path(folder)) if arguments.smoke else real_world(arguments)
        rows: list[Row] = []
        for part in arguments.only.split(",") if arguments.only else PARTS:
            try:
                for row in PARTS[part](world):
                    rows.append(row)
                    print(
                        f"{row.part:10} {row.way:32} median {row.median_ms:9.2f} ms  p95 {row.p95_ms:9.2f}  "
                        f"{row.per_s:10.1f}/s  {row.note}",
                        flush=True,
                    )
            except Exception:
                # The machine is lent by the minute: the other parts go on.
                traceback.print_exc()
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
