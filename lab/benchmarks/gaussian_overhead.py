"""What a search with the Gaussian costs besides the scorer: whole and compressed. On a GPU: see `five_million.py`.

    python lab/benchmarks/gaussian_overhead.py [--items 100000] [--anchors 500] [--budget 200] [--rounds 10]

Compares seconds per query with the paper's algorithm written literally in numpy (the pseudo-inverse computed anew in
each round, in float64 as the paper's rule asks, and in float32), one query at a time, in turns in one process; looking
scores up is not counted, nor is what is done once per index.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adacur.model import GaussianModel
from adacur.protocols import ScorerCard
from adacur.records import Item, Query

sys.path.insert(0, str(Path(__file__).parents[2]))

Clock = Callable[[], float]


class ClockedLookup:
    """A scorer that looks its answer up and knows how long that took."""

    card = ScorerCard(name="lookup", backend="numpy")

    def __init__(self, scores: np.ndarray, clock: Clock) -> None:
        self.scores = scores
        self.clock = clock
        self.seconds = 0.0

    def score(self, pairs: Any) -> np.ndarray:
        return self.score_positions([int(item.id) for _, item in pairs])

    def score_positions(self, positions: Any) -> np.ndarray:
        started = self.clock()
        found = self.scores[positions]
        self.seconds += self.clock() - started
        return found


class FixedFirst:
    name = "fixed"

    def __init__(self, positions: np.ndarray) -> None:
        self.positions = positions

    def search(self, queries: Any, k: int) -> list[Any]:
        from adacur.results import Hits

        ids = tuple(str(position) for position in self.positions[:k])
        return [Hits(query=query, ids=ids, scores=np.zeros(len(ids))) for query in queries]


def measure(
    *, n_items: int, n_anchors: int, budget: int, rounds: int, dimensions: int, repeats: int, clock: Clock
) -> None:
    from adacur import AdaCUR, AnchorIndex
    from tests.reference import literal

    rng = np.random.default_rng(0)
    # Items are alike by their embeddings, queries by theirs, and no pair is quite as the two say.
    embeddings = rng.normal(size=(n_items, dimensions)).astype(np.float32)
    vectors = rng.normal(size=(n_anchors + 1, dimensions)).astype(np.float32)
    scores = vectors @ embeddings.T / np.float32(dimensions**0.5)
    for row in scores:
        row += rng.normal(size=n_items).astype(np.float32)
    anchor_queries = [Query(str(position), "anchor") for position in range(n_anchors)]
    index = AnchorIndex.from_arrays(
        items=[Item(str(position), "") for position in range(n_items)],
        anchor_queries=anchor_queries,
        scores=scores[:n_anchors],
    )
    index.items.keys  # noqa: B018  (computed once per index, not per query)
    query, exact = Query(str(n_anchors), "query"), scores[n_anchors].astype(np.float64)
    first = rng.permutation(n_items)

    def embed_queries(queries: Any) -> np.ndarray:
        return vectors[[int(query.id) for query in queries]]

    full = GaussianModel(embeddings=embeddings, embed_queries=embed_queries)
    approximators = {"full": (full, full.features_of(index))}
    for rank, storage in ((256, "float32"), (128, "int8")):
        features = full.compressed(index, rank=min(rank, n_anchors), storage=storage)
        approximators[f"rank {rank} {storage}"] = (
            GaussianModel(embed_queries=embed_queries, features=features),
            features,
        )

    def literally(matrix: np.ndarray) -> float:
        lookup = ClockedLookup(exact.astype(matrix.dtype), clock)
        started = clock()
        literal.adacur(
            matrix,
            lookup.score_positions,
            budget=budget,
            rounds=rounds,
            first=[int(position) for position in first[: budget // rounds]],
            final_scores=False,
        )
        return clock() - started - lookup.seconds

    def searched(approximator: GaussianModel) -> float:
        lookup = ClockedLookup(exact, clock)
        searched = AnchorIndex(index, scorer=lookup)
        method = AdaCUR(rounds=rounds, approximator=approximator)
        fixed = FixedFirst(first)
        started = clock()
        searched.search(query, k=min(100, budget), budget=budget, method=method, first=fixed)
        return clock() - started - lookup.seconds

    single, double = scores[:n_anchors], scores[:n_anchors].astype(np.float64)
    runs: dict[str, Callable[[], float]] = {
        "literal float64": lambda: literally(double),
        "literal float32": lambda: literally(single),
    }
    runs |= {name: lambda own=own: searched(own) for name, (own, _) in approximators.items()}
    # In turns, so that a noisy neighbour disturbs all alike.
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            seconds[name].append(run())
    # The best, since what else runs on a machine can only add.
    best = {name: min(own[1:]) for name, own in seconds.items()}
    print(
        f"{n_items:,} items, k_q = {n_anchors}, {dimensions} dimensions of embeddings, B = {budget}, {rounds} rounds, "
        f"{os.cpu_count()} cores, best of {repeats} runs"
    )
    unit = "CPU s" if clock is time.process_time else "seconds"
    print(f"{'':>20} {unit:>9} {'× less: f64':>12} {'f32':>6} {'bytes per item':>15}")
    for name, own in best.items():
        ratios = f"{best['literal float64'] / own:>12.1f} {best['literal float32'] / own:>6.1f}"
        size = f"{approximators[name][1].nbytes / n_items:>15,.0f}" if name in approximators else ""
        print(f"{name:>20} {own:>9.4f} {ratios} {size}".rstrip())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dimensions", type=int, default=384, help="of the embeddings")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="count processor time, which neighbours on a shared machine do not add to",
    )
    given = parser.parse_args(arguments)
    measure(
        n_items=given.items,
        n_anchors=given.anchors,
        budget=given.budget,
        rounds=given.rounds,
        dimensions=given.dimensions,
        repeats=given.repeats,
        clock=time.process_time if given.cpu_time else time.perf_counter,
    )


if __name__ == "__main__":
    main()
