"""What a build would cost, before it begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.core.errors import EmptyInput, InputError
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Query
from adacur.index.workforce import Workforce
from adacur.scorers.asking import asking
from adacur.scorers.grid import score_grid

__all__ = ["Estimate", "Timing", "estimate", "time_scorer"]

_SECONDS = 2.0
_SLOWER = 0.7
_FEWEST_CALLS = 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of an index with `n_anchors` anchor queries. `bytes` counts the scores, not the texts.

    `pairs_per_second` is the pace of all `devices`, or workers, together, of which one was timed.

    `calls_used` is what the estimate itself cost in scorer calls; it was paid once for all anchor counts.
    """

    n_anchors: int
    pairs: int
    seconds: float
    bytes: int
    calls_used: int
    pairs_per_second: float
    devices: int = 1


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast a scorer is, and how many calls it took to find out."""

    pairs_per_second: float
    calls_used: int


def estimate(
    items_sample: Sequence[Item],
    queries_sample: Sequence[Query],
    *,
    scorer: Scorer,
    n_items: int,
    n_anchors: Sequence[int] = (50, 100, 200, 500),
    dtype: str = "float32",
    seed: int = 0,
    most_calls: int | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
) -> list[Estimate]:
    """Time and space for several numbers of anchor queries, from a few seconds of scoring a sample.

    At most `most_calls` pairs are scored for it, if that is given. `engine`, `address` and `workers` are those of the
    build; the scorer is timed here, and other machines are taken to be like this one.
    """
    workforce = Workforce(engine, address, workers)
    workforce.check(scorer)
    with workforce.at_hand():
        devices, speed = workforce.size(scorer), workforce.speed(scorer)
    timing = time_scorer(items_sample, queries_sample, scorer=scorer, seed=seed, most_calls=most_calls)
    pace = timing.pairs_per_second * speed
    return [
        Estimate(
            n_anchors=anchors,
            pairs=n_items * anchors,
            seconds=n_items * anchors / pace,
            bytes=n_items * anchors * np.dtype(dtype).itemsize,
            calls_used=timing.calls_used,
            pairs_per_second=pace,
            devices=devices,
        )
        for anchors in n_anchors
    ]


def time_scorer(
    items: Sequence[Item],
    queries: Sequence[Query],
    *,
    scorer: Scorer,
    seed: int = 0,
    seconds: float = _SECONDS,
    most_calls: int | None = None,
) -> Timing:
    """Score ever larger grids of a sample until `seconds` are used, or `most_calls`, or the sample is."""
    if not items or not queries:
        raise EmptyInput(f"A sample needs items and queries; got {len(items)} items and {len(queries)} queries.")
    if most_calls is not None and most_calls < _FEWEST_CALLS:
        raise InputError(f"Timing a scorer takes at least {_FEWEST_CALLS} calls of it; got most_calls={most_calls}.")
    # Collections often come sorted by length or topic; the first items would not be like the rest.
    items = [items[position] for position in np.random.default_rng(seed).permutation(len(items))]

    def took(some_queries: Sequence[Query], some_items: Sequence[Item]) -> float:
        started = time.perf_counter()
        with asking(scorer):
            score_grid(scorer, some_queries, some_items)
        return max(time.perf_counter() - started, 1e-9)

    # Loading happens in the first call and says nothing about the rest.
    took(queries[:1], items[:1])
    calls, used, next_item, doublings, rate = 1, 0.0, min(1, len(items) - 1), 0, 0.0
    retimed = False
    while used < seconds:
        wide = min(len(queries), 2 ** -(-doublings // 2))
        high = 2**doublings // wide
        # New items each time, since a scorer may remember pairs; a smaller grid than the last says less than it.
        batch = items[next_item : next_item + high]
        if rate and len(batch) < high:
            break
        if rate and most_calls is not None and calls + wide * len(batch) > most_calls:
            break
        elapsed = took(queries[:wide], batch)
        calls += wide * len(batch)
        next_item += high
        # A larger grid is never slower by the pair: something was compiled for its shape, once. It is timed again.
        if wide * len(batch) / elapsed < _SLOWER * rate and not retimed:
            retimed = True
            continue
        rate = wide * len(batch) / elapsed
        used += elapsed
        doublings += 1
        retimed = False
    return Timing(pairs_per_second=rate, calls_used=calls)
