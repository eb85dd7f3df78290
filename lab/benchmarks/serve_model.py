"""The load of `serve_load.py --model` on a torch cross-encoder: by the default method and by re-ranking, in turns."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from lab.benchmarks.gpu_search import real_bench, smoke_bench
from lab.benchmarks.serve_load import Load, Server, busy, table

import adacur
from adacur.scorers import TorchCrossEncoder

K, BUDGET = 10, 100
WAYS: dict[str, dict[str, Any]] = {"default": {}, "rerank": {"method": "rerank", "first": "bm25"}}


def opened(model: Path, max_item_tokens: int) -> tuple[TorchCrossEncoder, str]:
    """A scorer on the GPU where there is one, and where predictions are made."""
    where = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = "float16" if where == "cuda" else "float32"
    return TorchCrossEncoder(model, device=where, dtype=dtype, max_item_tokens=max_item_tokens), where


async def with_a_model(given: argparse.Namespace, folder: Path) -> None:
    """Build an index, answer every question alone, then send all to a server."""
    if given.smoke:
        bench = smoke_bench(folder / "model")
        given.requests, given.clients, given.anchors, given.turns = 24, 6, 2, 2
    else:
        bench = real_bench(given)
    calls, k = min(BUDGET, len(bench.items) // 2), min(K, len(bench.items) // 4)
    asked = list(dict.fromkeys(query.text for query in bench.queries[: -given.anchors]))[: given.requests]
    questions = [asked[at % len(asked)] for at in range(given.requests)]
    scorer, where = opened(bench.model, bench.max_item_tokens)
    started = time.perf_counter()
    index, items = folder / "model.adacur", list(bench.items.at(range(len(bench.items))))
    adacur.build(items, bench.queries[-given.anchors :], scorer=scorer, path=index, progress=False, tune=False)
    print(f"{len(items):,} items × {given.anchors} anchor queries in {time.perf_counter() - started:.0f} s, {where}")
    truth: dict[str, dict[str, list[object]]] = {}
    # It closes the scorer, so that a server has the device for itself.
    with adacur.load(index, scorer=scorer, check=False, device=where) as alone:
        scorer.prepare(alone.items)
        for way, options in WAYS.items():
            started = time.perf_counter()
            truth[way] = {text: list(alone.search(text, k, budget=calls, **options).ids) for text in asked}
            pace = len(asked) / (time.perf_counter() - started)
            print(f"{way}: {pace:.1f}/s one after another in one process, first calls included ({busy()})", flush=True)
    row = ("--rows", "model", "--model", str(bench.model), "--max-item-tokens", str(bench.max_item_tokens))
    server = Server(index, "loop", *row, quiet=False)
    loads: dict[str, list[Load]] = {way: [] for way in WAYS}
    try:
        await server.ready()
        # The turn before the first records shapes, and is not part of the load.
        for turn in range(-1, given.turns):
            start, stop = (at * given.requests // given.turns for at in (max(0, turn), max(0, turn) + 1))
            for way in list(WAYS)[:: 1 if turn % 2 == 0 else -1]:
                load = await server.answer(
                    questions[start:stop],
                    clients=given.clients,
                    truth=truth[way],
                    seen=lambda hit: hit["id"],
                    **{"k": k, "budget": calls, **WAYS[way]},
                )
                loads[way] += [load] if turn >= 0 else []
    finally:
        server.stop()
    print(
        f"{given.requests} requests a way, {len(asked)} questions, {given.clients} clients, k={k}, budget={calls}; "
        "an answer is wrong where its ids are not those of the same question alone, in the same order"
    )
    table(loads)
