"""What a warm search costs besides the scorer: ours against the paper's algorithm written literally in numpy.

    python lab/benchmarks/search_overhead.py [--items 10000,100000,1000000] [--rounds 5,20] [--anchors 500]

Both sides see the same scores and the same first batch, one query at a time, in the same process; the time spent
looking scores up is subtracted. The index is opened, and searched once, before anything is timed: first_search.py
measures that. The literal version runs in float64, as the paper's rule asks, and in float32.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from adacur import AdaCUR, AnchorIndex, Item, Query
from adacur.protocols import ScorerCard
from adacur.results import Hits

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.reference import literal


class ClockedLookup:
    """A scorer that looks its answer up and knows how long that took."""

    card = ScorerCard(name="lookup", backend="numpy")

    def __init__(self, scores: np.ndarray) -> None:
        self.scores = scores
        self.seconds = 0.0

    def score(self, pairs):
        started = time.perf_counter()
        found = self.scores[[int(item.id) for _, item in pairs]]
        self.seconds += time.perf_counter() - started
        return found

    def score_positions(self, positions):
        started = time.perf_counter()
        found = self.scores[positions]
        self.seconds += time.perf_counter() - started
        return found


class FixedFirst:
    name = "fixed"

    def __init__(self, positions: np.ndarray) -> None:
        self.positions = positions

    def search(self, queries, k):
        ids = tuple(str(position) for position in self.positions[:k])
        return [Hits(query=query, ids=ids, scores=np.zeros(len(ids))) for query in queries]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    whole = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser.add_argument("--items", type=whole, default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=whole, default=[5, 20])
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--budget", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(f"k_q = {arguments.anchors}, B = {arguments.budget}, median of {arguments.repeats} runs")
    print("warm searches, by adacur's AdaCUR in an index that was searched before: first_search.py measures the first")
    print("seconds per query besides the scorer, and how many times less than the literal algorithm ours takes")
    print("     items rounds    adacur  literal f64  ratio  literal f32  ratio  same items chosen")
    for n_items in arguments.items:
        rng = np.random.default_rng(0)
        scores = rng.normal(size=(arguments.anchors, 64)).astype(np.float32) @ rng.normal(size=(64, n_items)).astype(
            np.float32
        )
        for start in range(0, n_items, 100_000):
            block = scores[:, start : start + 100_000]
            block += rng.normal(size=block.shape).astype(np.float32)
        weights = rng.normal(size=arguments.anchors).astype(np.float32) / arguments.anchors**0.5
        exact = (weights @ scores + rng.normal(size=n_items).astype(np.float32)).astype(np.float64)
        index = AnchorIndex.from_arrays(
            items=[Item(str(position), "") for position in range(n_items)],
            anchor_queries=[Query(f"a{position}", "anchor") for position in range(arguments.anchors)],
            scores=scores,
        )
        index.items.keys  # noqa: B018  (computed once per index, not per query)
        scores64 = scores.astype(np.float64)
        first = rng.permutation(n_items)
        for rounds in arguments.rounds:
            ours, slow64, slow32 = [], [], []
            same = 0.0
            looked_up, options = ClockedLookup(exact), {"method": AdaCUR(rounds=rounds), "first": FixedFirst(first)}
            searched = AnchorIndex(index.anchors, scorer=looked_up)
            searched.search(Query("q", "query"), 100, budget=arguments.budget, **options)
            for _ in range(arguments.repeats):
                looked_up.seconds = 0.0
                started = time.perf_counter()
                hits = searched.search(Query("q", "query"), 100, budget=arguments.budget, **options)
                ours.append(time.perf_counter() - started - looked_up.seconds)
                for matrix, seconds in ((scores64, slow64), (scores, slow32)):
                    lookup = ClockedLookup(exact.astype(matrix.dtype))
                    started = time.perf_counter()
                    _, chosen, _ = literal.adacur(
                        matrix,
                        lookup.score_positions,
                        budget=arguments.budget,
                        rounds=rounds,
                        first=[int(position) for position in first[: arguments.budget // rounds]],
                        final_scores=False,
                    )
                    seconds.append(time.perf_counter() - started - lookup.seconds)
                    if matrix is scores64:
                        found = {int(p) for round_ in hits.trace.rounds for p in round_.positions}
                        same = len(found.intersection(chosen)) / arguments.budget
            mine, f64, f32 = (float(np.median(seconds)) for seconds in (ours, slow64, slow32))
            literal_cells = "".join(f" {seconds:>12.4f} {seconds / mine:>5.1f}×" for seconds in (f64, f32))
            print(f"{n_items:>10,} {rounds:>6} {mine:>9.4f}{literal_cells}  {same:.0%}", flush=True)


if __name__ == "__main__":
    main()
