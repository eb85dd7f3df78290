"""What a build would cost, before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.errors import EmptyInput, InputError
from adacur.core.protocols import Scorer
from adacur.core.records import Item, Query
from adacur.index.workforce import Workforce
from adacur.scorers.asking import asking
from adacur.scorers.grid import score_grid

__all__ = ["Encode", "Estimate", "Pace", "Timing", "estimate", "time_encoder", "time_scorer"]

_SECONDS = 4.0
_ENCODING_SECONDS = 2.0
# A grid that takes this share of the time is large enough: others like it are timed, and their spread is the range.
_LARGE_ENOUGH = 1 / 8
# Nothing is known better than this; less, where a range rests on one or two timings.
_LEAST_SPREAD, _FEW_TIMINGS, _SPREAD_OF_FEW = 1.15, 3, 1.5
_SLOWER = 0.7
_FEWEST_CALLS = 2

Encode = Callable[[Sequence[str]], Any]
"""From texts to their vectors."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of an index with `n_anchors` anchor queries. `bytes` counts the scores, not the texts.

    `seconds` lie between `low` and `high` if the machine stays as busy as it was while the sample was timed; they
    include the `encoding_seconds` of first stages. `pairs_per_second` is the pace of all `devices`, or workers,
    together, of which one was timed.

    `calls_used` is what the estimate itself cost in scorer calls; it was paid once for all anchor counts.
    """

    n_anchors: int
    pairs: int
    seconds: float
    bytes: int
    calls_used: int
    pairs_per_second: float
    devices: int = 1
    low: float = 0.0
    high: float = 0.0
    encoding_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How many pairs or texts a second, on the whole and at the slowest and fastest."""

    mean: float
    slowest: float
    fastest: float

    @classmethod
    def of(cls, timings: Sequence[tuple[int, float]]) -> Pace:
        """From (how many, in how many seconds)."""
        mean = sum(n for n, _ in timings) / sum(seconds for _, seconds in timings)
        spread = _LEAST_SPREAD if len(timings) >= _FEW_TIMINGS else _SPREAD_OF_FEW
        rates = [n / seconds for n, seconds in timings]
        return cls(mean, min(*rates, mean / spread), max(*rates, mean * spread))


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast a scorer is, and how many calls it took to find out."""

    pairs_per_second: float
    calls_used: int
    slowest: float
    fastest: float


def estimate(
    items_sample: Sequence[Item],
    queries_sample: Sequence[Query],
    *,
    scorer: Scorer,
    n_items: int,
    n_anchors: Sequence[int] = (50, 100, 250, 500),
    items_per_anchor: int | None = None,
    encode: Sequence[Encode] = (),
    dtype: str = "float32",
    seed: int = 0,
    most_calls: int | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
) -> list[Estimate]:
    """Time and space for several numbers of anchor queries, from a few seconds of scoring a sample.

    At most `most_calls` pairs are scored for it, if that is given. A sparse build scores `items_per_anchor` items per
    anchor query. `encode` are the encoders of first stages: all items and anchor queries go through each, and a few
    items are timed. `engine`, `address` and `workers` are those of the build; the scorer is timed here, and other
    machines are taken to be like this one.
    """
    workforce = Workforce(engine, address, workers)
    workforce.check(scorer)
    with workforce.at_hand():
        devices, speed = workforce.size(scorer), workforce.speed(scorer)
    timing = time_scorer(items_sample, queries_sample, scorer=scorer, seed=seed, most_calls=most_calls)
    encoding = [time_encoder(items_sample, one, seed=seed) for one in encode]

    def cost(anchors: int) -> Estimate:
        pairs, texts = (items_per_anchor or n_items) * anchors, n_items + anchors
        mean, low, high = (pairs / rate / speed for rate in (timing.pairs_per_second, timing.fastest, timing.slowest))
        encoded = sum(texts / pace.mean for pace in encoding)
        return Estimate(
            n_anchors=anchors,
            pairs=pairs,
            seconds=mean + encoded,
            bytes=n_items * anchors * np.dtype(dtype).itemsize,
            calls_used=timing.calls_used,
            pairs_per_second=timing.pairs_per_second * speed,
            devices=devices,
            low=low + sum(texts / pace.fastest for pace in encoding),
            high=high + sum(texts / pace.slowest for pace in encoding),
            encoding_seconds=encoded,
        )

    return [cost(anchors) for anchors in n_anchors]


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
    items = _shuffled(items, seed)
    calls, next_item = 1, min(1, len(items) - 1)

    def score(some_queries: Sequence[Query], some_items: Sequence[Item]) -> None:
        with asking(scorer):
            score_grid(scorer, some_queries, some_items)

    def grid(doublings: int, is_first: bool) -> tuple[int, Callable[[], object]] | None:
        nonlocal calls, next_item
        wide = min(len(queries), 2 ** -(-doublings // 2))
        high = 2**doublings // wide
        # New items each time, since a scorer may remember pairs; a smaller grid than the last says less than it.
        batch = items[next_item : next_item + high]
        n_pairs = wide * len(batch)
        if not is_first and (len(batch) < high or (most_calls is not None and calls + n_pairs > most_calls)):
            return None
        calls, next_item = calls + n_pairs, next_item + high
        return n_pairs, lambda: score(queries[:wide], batch)

    # Loading happens in the first call and says nothing about the rest.
    score(queries[:1], items[:1])
    pace = _pace(grid, seconds=seconds)
    return Timing(pairs_per_second=pace.mean, calls_used=calls, slowest=pace.slowest, fastest=pace.fastest)


def time_encoder(items: Sequence[Item], encode: Encode, *, seed: int = 0, seconds: float = _ENCODING_SECONDS) -> Pace:
    """Encode ever larger batches of a sample until `seconds` are used or the sample is."""
    texts = [item.text for item in _shuffled(items, seed)]
    at = min(1, len(texts) - 1)

    def batch(doublings: int, is_first: bool) -> tuple[int, Callable[[], object]] | None:
        nonlocal at
        some, at = texts[at : at + 2**doublings], at + 2**doublings
        return (len(some), lambda: encode(some)) if is_first or len(some) == 2**doublings else None

    encode(texts[:1])
    return _pace(batch, seconds=seconds)


def _shuffled(items: Sequence[Item], seed: int) -> list[Item]:
    # Collections often come sorted by length or topic; the first items would not be like the rest.
    return [items[position] for position in np.random.default_rng(seed).permutation(len(items))]


def _pace(work: Callable[[int, bool], tuple[int, Callable[[], object]] | None], *, seconds: float) -> Pace:
    """Time ever larger pieces of work, twice as large each time, until they are large enough; then others like them."""
    timings: list[tuple[int, float]] = []
    used, doublings, rate = 0.0, 0, 0.0
    settled = retimed = False
    while used < seconds and (piece := work(doublings, not timings)) is not None:
        n, do = piece
        started = time.perf_counter()
        do()
        elapsed = max(time.perf_counter() - started, 1e-9)
        # A larger piece is never slower by the pair: something was compiled for its shape, once. It is timed again.
        if not settled and n / elapsed < _SLOWER * rate and not retimed:
            retimed = True
            continue
        used, rate, retimed = used + elapsed, n / elapsed, False
        timings = [*timings, (n, elapsed)] if settled else [(n, elapsed)]
        settled = settled or elapsed >= _LARGE_ENOUGH * seconds
        doublings += not settled
    return Pace.of(timings)
