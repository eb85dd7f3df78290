"""What the first search of a process costs, and what an index folder costs besides: build, open, warm search, edit.

    python lab/benchmarks/first_search.py [--sizes 10000x300,100000x300,400000x300] [--place FOLDER]

Scores come from a table of rank 16 and cost next to nothing. Each measurement is a process of its own, whose peak
memory, mapped files included, is reported less that of a process that only imports adacur. Of each step the seconds on
the clock and, in brackets, those of the processor, which other processes change less. The first search loads what it
needs, libraries too; the warm one is the median of five. An edit adds 100 items and removes 100; "search again" is a
process that opens what the edit left.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import adacur
from adacur import Item, Query
from adacur.protocols import ScorerCard

RANK, WORDS, K, BUDGET = 16, 2_000, 10, 100
PHASES = ("import", "build", "search", "edit", "search again")


class Numbers:
    """A scorer whose scores follow from the numbers in ids."""

    card = ScorerCard(name="numbers", backend="numpy")

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._items = rng.normal(size=(4_096, RANK)).astype(np.float32)
        self._scales = rng.uniform(0.5, 2.0, size=4_093).astype(np.float32)
        self._queries = rng.normal(size=(1_024, RANK)).astype(np.float32)

    def _rows(self, items: Sequence[Item]) -> Any:
        numbers = np.array([int(item.id[1:]) for item in items])
        return self._items[numbers % 4_096] * self._scales[numbers % 4_093, None]

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> Any:
        return self._queries[[int(query.id[1:]) % 1_024 for query in queries]] @ self._rows(items).T

    def score(self, pairs: Sequence[tuple[Query, Item]]) -> Any:
        queries = self._queries[[int(query.id[1:]) % 1_024 for query, _ in pairs]]
        return (queries * self._rows([item for _, item in pairs])).sum(axis=1)


def text(number: int) -> str:
    return " ".join(f"word{number * step % WORDS}" for step in (1, 3, 7, 11, 13, 17))


class Items:
    """Items made as they are read."""

    def __init__(self, n_items: int) -> None:
        self._n_items = n_items

    def __iter__(self) -> Iterator[Item]:
        return (Item(f"i{number}", text(number)) for number in range(self._n_items))


def timed(work: Callable[[], Any]) -> tuple[list[float], Any]:
    started = time.perf_counter(), time.process_time()
    came = work()
    return [time.perf_counter() - started[0], time.process_time() - started[1]], came


def phase(name: str, path: Path, n_items: int, n_anchors: int) -> dict[str, Any]:
    """One measurement, in this process."""
    scorer, told = Numbers(), {}
    if name == "build":
        queries = [Query(f"q{number}", text(7 * number + 3)) for number in range(n_anchors)]
        told["build"], index = timed(
            lambda: adacur.build(
                Items(n_items), queries, scorer=scorer, path=path, tune=False, progress=False, block_items=8_192
            )
        )
        index.close()
    elif name != "import":
        told["open"], index = timed(lambda: adacur.load(path, scorer=scorer, check=False))
        if name == "edit":

            def change() -> None:
                with index.edit(progress=False) as edit:
                    edit.add([Item(f"i{number}", text(number)) for number in range(n_items, n_items + 100)])
                    edit.remove([f"i{number}" for number in range(100)])

            told = {"edit": timed(change)[0]}
        else:
            seconds = []
            for number in range(6):
                asked = Query(f"q{900 + number}", text(5 * number + 1))
                seconds.append(timed(lambda asked=asked: index.search(asked, K, budget=BUDGET))[0])
            told |= {"first": seconds[0], "warm": np.median(seconds[1:], axis=0).tolist()}
    told["MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10000x300,100000x300,400000x300")
    parser.add_argument("--place", type=Path)
    parser.add_argument("--phase", nargs=4)
    given = parser.parse_args()
    if given.phase:
        name, path, n_items, n_anchors = given.phase
        print(json.dumps(phase(name, Path(path), int(n_items), int(n_anchors))))
        return
    print("     items anchors   phase          seconds (of the processor), and MB of memory", flush=True)
    for size in given.sizes.split(","):
        n_items, n_anchors = map(int, size.split("x"))
        with tempfile.TemporaryDirectory(dir=given.place) as place:
            path, idle = Path(place) / "index.adacur", 0.0
            for name in PHASES:
                # Without -P this folder would come first in the path, and hide modules of other packages.
                command = [sys.executable, "-P", __file__, "--phase", name, str(path), str(n_items), str(n_anchors)]
                told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                memory = told.pop("MB")
                idle = memory if name == "import" else idle
                shown = "  ".join(f"{what} {wall:.3f} ({cpu:.3f})" for what, (wall, cpu) in told.items())
                print(f"{n_items:>10,} {n_anchors:>7}   {name:12}   {shown}   {memory - idle:,.0f} MB", flush=True)
                if name in ("build", "edit"):
                    on_disk = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
                    print(f"{'':18}   {'':12}   on disk {on_disk / 1e6:,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
