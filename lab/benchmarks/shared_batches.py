"""What shared batches save, and when they cost: eight callers, a scorer of 20 ms per call and 0.1 ms per pair.

    python -m lab.benchmarks.shared_batches

A device answers one call at a time; a service answers as many as come. Each caller makes `SEARCHES` searches of 100
calls in five rounds, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from adacur import AnchorIndex, Item, Query
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers import FunctionScorer
from adacur.scorers.shared_batches import SharedBatches

CALLERS = 8
SEARCHES = 5
SECONDS_PER_CALL = 0.020
SECONDS_PER_PAIR = 0.0001


def scorer(*, one_at_a_time: bool) -> FunctionScorer:
    """Lengths of texts, at a price."""
    turn: contextlib.AbstractContextManager[object] = threading.Lock() if one_at_a_time else contextlib.nullcontext()

    def lengths(pairs: list[tuple[str, str]]) -> list[float]:
        with turn:
            time.sleep(SECONDS_PER_CALL + SECONDS_PER_PAIR * len(pairs))
        return [float(hash_(query + item)) for query, item in pairs]

    return FunctionScorer(lengths)


def hash_(text: str) -> int:
    """A number that is the same in every process."""
    return sum(ord(sign) * (at + 1) for at, sign in enumerate(text)) % 1009


class Apart:
    """A scorer that everybody awaits in a thread of their own, as before there was a queue."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.card = scorer.card
        self.score = scorer.score

    async def ascore(self, pairs: list[Pair]) -> object:
        return await asyncio.to_thread(self.scorer.score, pairs)


def world() -> AnchorIndex:
    """Two thousand items, a hundred anchor queries."""
    rng = np.random.default_rng(0)
    items = [Item(f"i{number}", f"item number {number}") for number in range(2000)]
    anchors = [Query(f"a{number}", f"anchor {number}") for number in range(100)]
    return AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=rng.normal(size=(100, 2000)))


def in_threads(index: AnchorIndex) -> None:
    def work(caller: int) -> None:
        for number in range(SEARCHES):
            index.search(f"question {caller} {number}", k=10)

    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(work, range(CALLERS)))


def in_tasks(index: AnchorIndex) -> None:
    async def work(caller: int) -> None:
        for number in range(SEARCHES):
            await index.asearch(f"question {caller} {number}", k=10)

    async def together() -> None:
        await asyncio.gather(*(work(caller) for caller in range(CALLERS)))

    asyncio.run(together())


def searches_per_second(run: Callable[[AnchorIndex], None], index: AnchorIndex) -> float:
    start = time.perf_counter()
    run(index)
    return CALLERS * SEARCHES / (time.perf_counter() - start)


def main() -> None:
    table = world()
    print("| scorer | callers | apart | shared |\n|---|---|---|---|")
    for kind, one_at_a_time in (("device", True), ("service", False)):
        for callers, run in (("threads", in_threads), ("tasks", in_tasks)):
            cells = [
                searches_per_second(run, AnchorIndex(table, scorer=wrap(scorer(one_at_a_time=one_at_a_time))))
                for wrap in (Apart, SharedBatches)
            ]
            print(f"| {kind} | {callers} | {cells[0]:.1f}/s | {cells[1]:.1f}/s |")


if __name__ == "__main__":
    main()
