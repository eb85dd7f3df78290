"""How much of a scorer's own rate is left in a whole index build, from items to a finished, verified folder.

    python lab/benchmarks/build_rate.py                                   # a simulated device of 40,000 pairs/s
    python lab/benchmarks/build_rate.py --scorer ms-marco-MiniLM-L-12-v2 --items corpus.jsonl --queries queries.jsonl \\
        --anchors 400 --max-item-tokens 160

The same scorer fills the grid inside `adacur.build`, then by itself, in one call; verifying counts as part of the
build. So does what the scorer loads and compiles on its first calls, unless `--warm` lets it do that before. Without
`--items`, texts are made up.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import adacur
from adacur import building
from adacur.data import read_items, read_queries
from adacur.protocols import ScorerCard
from adacur.scorers import score_grid
from adacur.store import build_scores as scoring
from adacur.store import read_manifest

STAGES = {
    "items into SQLite": (scoring, "load"),
    "choice of a block size": (scoring, "_cost"),
    "blocks": (scoring, "_score_blocks"),
    "probes and closing": (scoring, "_finish"),
    "first stages": (building.index_stages, "write_first_stages"),
    "verify": (adacur, "verify"),
}
WARM_ITEMS = 1000


class Simulated:
    """Sleeps as long as a device of this rate would work."""

    def __init__(self, pairs_per_second: float) -> None:
        self.card = ScorerCard(name="simulated", backend="sleep", weights=f"{pairs_per_second:g}")
        self._pace = pairs_per_second

    def score(self, pairs):
        return self._scores(len(pairs))

    def score_grid(self, queries, items):
        return self._scores(len(queries) * len(items)).reshape(len(queries), len(items))

    def _scores(self, n):
        began = time.perf_counter()
        scores = np.random.default_rng(n).normal(size=n).astype(np.float32)
        time.sleep(max(0.0, n / self._pace - (time.perf_counter() - began)))
        return scores


def made_up(n_items: int, n_anchors: int) -> tuple[list[adacur.Item], list[adacur.Query]]:
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(30_000)]

    def text(n_words: int) -> str:
        return " ".join(words[number % len(words)] for number in rng.zipf(1.3, size=n_words))

    items = [adacur.Item(f"i{number}", text(130)) for number in range(n_items)]
    return items, [adacur.Query(f"q{number}", text(8)) for number in range(n_anchors)]


@contextmanager
def stopwatches() -> Iterator[dict[str, float]]:
    """Seconds by stage."""
    seconds = dict.fromkeys(STAGES, 0.0)
    originals = {stage: getattr(room, name) for stage, (room, name) in STAGES.items()}

    def timed(stage, function):
        def call(*arguments, **options):
            began = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                seconds[stage] += time.perf_counter() - began

        return call

    for stage, (room, name) in STAGES.items():
        setattr(room, name, timed(stage, originals[stage]))
    try:
        yield seconds
    finally:
        for stage, (room, name) in STAGES.items():
            setattr(room, name, originals[stage])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scorer", help="what adacur.scorer opens; default: a simulated device")
    parser.add_argument("--rate", type=float, default=40_000, help="pairs/s of the simulated device")
    parser.add_argument("--items", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--n-items", type=int, default=15_809)
    parser.add_argument("--anchors", type=int, default=400)
    parser.add_argument("--max-item-tokens", type=int)
    parser.add_argument("--block-items", type=int)
    parser.add_argument("--warm", action="store_true")
    parser.add_argument("--path", type=Path, help="keep the index here")
    arguments = parser.parse_args()
    if arguments.items:
        items = list(read_items(arguments.items))[: arguments.n_items]
        given = (
            read_queries(arguments.queries) if arguments.queries else adacur.pseudo_queries(items, arguments.anchors)
        )
        anchors = list(given)[: arguments.anchors]
    else:
        items, anchors = made_up(arguments.n_items, arguments.anchors)
    options = {} if arguments.max_item_tokens is None else {"max_item_tokens": arguments.max_item_tokens}
    scorer = adacur.scorer(arguments.scorer, **options) if arguments.scorer else Simulated(arguments.rate)
    pairs = len(items) * len(anchors)
    print(f"{len(items):,} items × {len(anchors)} anchor queries = {pairs:,} pairs; scorer: {scorer.card}")

    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.path or Path(temporary) / "index"
        if arguments.warm:
            score_grid(scorer, anchors, items[:WARM_ITEMS])
        with stopwatches() as seconds:
            began = time.perf_counter()
            given = {"path": folder, "block_items": arguments.block_items, "progress": False, "tune": False}
            adacur.build(items, anchors, scorer=scorer, **given)
            report = adacur.store.verify(folder)
            whole = time.perf_counter() - began
        if not (report.ok and report.complete):
            raise SystemExit(f"The folder is damaged: {report.problems}")
        manifest = read_manifest(folder)
    began = time.perf_counter()
    score_grid(scorer, anchors, items)
    raw = time.perf_counter() - began
    print(f"{manifest.n_blocks} blocks of {manifest.block_items} items")
    print(f"raw score_grid:   {raw:7.1f} s  {pairs / raw:9,.0f} pairs/s")
    print(f"build and verify: {whole:7.1f} s  {pairs / whole:9,.0f} pairs/s  {raw / whole:.1%} of it")
    for stage, took in (seconds | {"else": whole - sum(seconds.values())}).items():
        print(f"    {stage:22} {took:7.2f} s")


if __name__ == "__main__":
    main()
