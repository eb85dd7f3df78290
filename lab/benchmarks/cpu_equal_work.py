"""Whether searches on the CPU are as fast as in another checkout: the same searches in both, in alternation.

    git worktree add --detach /tmp/before COMMIT
    python lab/benchmarks/cpu_equal_work.py --before /tmp/before [--items 10000 100000] [--questions 1 64]

Two processes hold the same random low-rank anchor scores (100 anchor queries) and a scorer that looks scores up, and
take turns: k = 10, 100 calls, 5 rounds. Told are the least processor seconds and the least seconds by the clock of a
turn on either side, the ratio of both (below 1: faster than before), and whether all answers are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

N_ANCHORS, RANK, K, BUDGET = 100, 20, 10, 100


def serve(n_items: int, n_questions: int) -> None:
    """A turn per line read: its seconds, and what was found."""
    import adacur
    from adacur import AnchorIndex, Gaussian, Item, Query
    from adacur.scorers import MatrixScorer

    rng = np.random.default_rng(0)
    of_items, queries = rng.normal(size=(n_items, RANK)), [Query(f"q{at}", f"q{at}") for at in range(n_questions)]
    items = [Item(f"i{at}", f"item {at}") for at in range(n_items)]

    def scores(n: int) -> np.ndarray:
        made = rng.normal(size=(n, RANK)) @ of_items.T + 0.5 * rng.standard_normal((n, n_items), dtype=np.float32)
        return made.astype(np.float32)

    anchors = [Query(f"a{at}", f"a{at}") for at in range(N_ANCHORS)]
    of_anchors, of_queries = scores(N_ANCHORS), scores(n_questions)
    scorer = MatrixScorer(queries=queries, items=items, scores=of_queries)
    index = AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=of_anchors, scorer=scorer)
    print(adacur.__file__, flush=True)
    for _ in sys.stdin:
        started = time.perf_counter(), time.process_time()
        found = index.search(queries, K, budget=BUDGET, method=Gaussian(rounds=5))
        ended = time.perf_counter(), time.process_time()
        ids = [list(hits.ids) for hits in found]
        print(json.dumps({"clock": ended[0] - started[0], "processor": ended[1] - started[1], "ids": ids}), flush=True)


class Side:
    """A process that searches with one checkout."""

    def __init__(self, checkout: Path, n_items: int, n_questions: int) -> None:
        paths = os.pathsep.join([str(checkout / "src"), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, __file__, "--serve", str(n_items), str(n_questions)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline().startswith(str(checkout / "src")):
            raise SystemExit(f"the process does not search with {checkout}")

    def turn(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout")
    parser.add_argument("--items", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--serve", type=int, nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    if given.before is None:
        parser.error("give --before, another checkout")
    print("| items | questions | before, ms | now, ms | ratio | by the clock | answers that differ |")
    print("|---|---|---|---|---|---|---|")
    for n_items in given.items:
        for n_questions in given.questions:
            sides = [Side(path.resolve(), n_items, n_questions) for path in (given.before, Path(__file__).parents[2])]
            turns: list[list[dict[str, Any]]] = [[], []]
            for at in range(given.turns + 1):
                for side in (0, 1) if at % 2 else (1, 0):
                    turns[side].append(sides[side].turn())
            for side in sides:
                side.end()
            # The first turn made the features.
            least = {what: [min(one[what] for one in some[1:]) for some in turns] for what in ("processor", "clock")}
            differ = sum(one != other for one, other in zip(turns[0][-1]["ids"], turns[1][-1]["ids"], strict=True))
            before, now = least["processor"]
            print(
                f"| {n_items:,} | {n_questions} | {1000 * before:.1f} | {1000 * now:.1f} | {now / before:.2f} | "
                f"{least['clock'][1] / least['clock'][0]:.2f} | {differ} of {n_questions} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
