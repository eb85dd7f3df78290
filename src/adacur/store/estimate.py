"""What a build would cost, before it begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput, InputError
from adacur.money import Money, Price
from adacur.protocols import Items, Scorer
from adacur.records import Item, Query
from adacur.scorers.calling import score_grid
from adacur.scorers.metered import count_tokens, counts_exactly, price_of, units_per_pair
from adacur.store.executor import On, check_workers, connected_to, workers_and_speed
from adacur.units import duration, duration_range, megabytes, pace

_SECONDS = 4.0
_ENCODING_SECONDS = 2.0
# A grid that takes this share of the time is large enough: others like it are timed, and their spread is the range.
_LARGE_ENOUGH = 1 / 8
# Nothing is known better than this; less, where a range rests on one or two timings.
_LEAST_SPREAD, _FEW_TIMINGS, _SPREAD_OF_FEW = 1.15, 3, 1.5
_SLOWER = 0.7
_FEWEST_CALLS = 2
_COUNTED_QUERIES = 4
MOST_LOOKED_AT, _TEXTS_AT_ONCE = 50_000, 1024
_USUAL_QUERY = Query("usual", "what is the usual length of a question?")

Encode = Callable[[Sequence[str]], Any]
"""From texts to their vectors."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The cost of an index of `n_items` items with `n_anchors` anchor queries.

    `pairs` are the scorer calls of the whole build, `pairs_done` those that an earlier run has paid for; `status` is
    None, "building" or "complete". `bytes` counts the scores, not the texts. `seconds` is for what is left to do, and
    lies between `low` and `high` if the machine stays as busy as while the sample was timed; it includes the
    `encoding_seconds` of first stages. `pairs_per_second` is the pace of all `workers` together, of which one was
    timed, at the price of `calls_used` scorer calls. `tokens` and `cost` are those of what is left to score, by the
    sample: an upper bound where the scorer cannot count its tokens (`tokens_are_bound`). `price` is None where unknown.
    """

    n_items: int
    n_anchors: int
    pairs: int
    bytes: int
    seconds: float = 0.0
    low: float = 0.0
    high: float = 0.0
    encoding_seconds: float = 0.0
    pairs_per_second: float = 0.0
    workers: int = 1
    calls_used: int = 0
    pairs_done: int = 0
    status: str | None = None
    tokens: int = 0
    tokens_are_bound: bool = False
    cost: Money | None = None
    price: Price | None = None

    def summary(self) -> str:
        """One sentence: what is scored, in what time and space."""
        anchors = "1 anchor query" if self.n_anchors == 1 else f"{self.n_anchors:,} anchor queries"
        if not self.pairs:
            encoding = f"; {duration_range(self.low, self.high)} to encode the items" if self.encoding_seconds else ""
            return f"{self.n_items:,} items and no anchor queries: nothing is scored{encoding}."
        parts = [f"{self.n_items:,} items × {anchors} = {self.pairs:,} pairs"]
        if self.pairs_done:
            parts.append(f"{self.pairs_done:,} of them are scored already")
        if self.calls_used:
            workers = f" by {self.workers} workers" if self.workers > 1 else ""
            encoding = f", {duration(self.encoding_seconds)} of it to encode the items" if self.encoding_seconds else ""
            parts.append(
                f"estimated time {duration_range(self.low, self.high)} at {pace(self.pairs_per_second)}{workers}"
                f"{encoding} (timed on {self.calls_used:,} pairs, not counted above)"
            )
        if self.tokens:
            tokens = f"{'at most' if self.tokens_are_bound else 'about'} {self.tokens:,} tokens"
            money = f", {self.cost} (at {self.price})" if self.cost else ""
            parts.append(f"{tokens}{money}")
        return f"{'; '.join(parts)}; {megabytes(self.bytes)} of scores."

    def left_to_do(self, share: float) -> Estimate:
        """The same where only a share is left to score."""
        money = self.cost and Money(self.cost.amount * Decimal(share), self.cost.currency)
        times = {name: getattr(self, name) * share for name in ("seconds", "low", "high")}
        return replace(self, tokens=round(self.tokens * share), cost=money, **times)


@dataclass(frozen=True, slots=True)
class Pace:
    """Pairs or texts a second: on the whole, at the fastest and at the slowest; `calls_used` is what timing cost."""

    mean: float
    fastest: float
    slowest: float
    calls_used: int = 0

    @classmethod
    def of(cls, timings: Sequence[tuple[int, float]], *, calls_used: int = 0) -> Pace:
        """From (how many, in how many seconds)."""
        mean = sum(n for n, _ in timings) / sum(seconds for _, seconds in timings)
        spread = _LEAST_SPREAD if len(timings) >= _FEW_TIMINGS else _SPREAD_OF_FEW
        rates = [n / seconds for n, seconds in timings]
        return cls(mean, max(*rates, mean * spread), min(*rates, mean / spread), calls_used)

    def times(self, n: int) -> FloatArray:
        """Seconds for n of them: on the whole, at the least and at the most."""
        return n / np.array([self.mean, self.fastest, self.slowest])


def estimate(
    items_sample: Sequence[Item],
    queries_sample: Sequence[Query],
    *,
    scorer: Scorer,
    n_items: int,
    n_anchors: int,
    encode: Sequence[Encode] = (),
    dtype: str = "float32",
    seed: int = 0,
    seconds: float = _SECONDS,
    most_calls: int | None = None,
    executor: On = None,
    price: Price | str | None = None,
) -> Estimate:
    """Time, space, tokens and money of an index, from a few seconds of scoring a sample.

    - encode: encoders of first stages; all items and anchor queries go through each, and a few items are timed.
    - seconds, most_calls: limits of the timing.
    - executor: where the build is to run; the scorer is timed here, and other machines are taken to be like this one.
    - price: what the scorer costs; by default as `price_of` knows it.
    """
    check_workers(executor, scorer)
    pairs = n_items * n_anchors
    texts = n_items + n_anchors
    encoding = sum((time_encoder(items_sample, one, seed=seed).times(texts) for one in encode), np.zeros(3))
    timing, workers, faster = Pace(np.inf, np.inf, np.inf), 1, 1.0
    if pairs:
        with connected_to(executor):
            workers, faster = workers_and_speed(executor, scorer)
        limits: dict[str, Any] = {"seconds": seconds, "most_calls": most_calls}
        timing = time_scorer(items_sample, queries_sample, scorer=scorer, seed=seed, **limits)
    known = price_of(scorer) if price is None else Price.of(price)
    charged: dict[str, Any] = {"price": known}
    if pairs and items_sample and queries_sample:
        some = [(query, item) for query in queries_sample[:_COUNTED_QUERIES] for item in items_sample]
        counts = count_tokens(scorer, some)
        charged |= {"tokens": round(float(counts.mean()) * pairs), "tokens_are_bound": not counts_exactly(scorer)}
        if known is not None:
            charged["cost"] = known.cost(max(n_anchors, round(units_per_pair(known, scorer, counts) * pairs)))
    expected, low, high = (timing.times(pairs) / faster + encoding).tolist()
    return Estimate(
        n_items,
        n_anchors,
        pairs,
        bytes=n_items * n_anchors * np.dtype(dtype).itemsize,
        seconds=expected,
        low=low,
        high=high,
        encoding_seconds=float(encoding[0]),
        pairs_per_second=timing.mean * faster if pairs else 0.0,
        workers=workers,
        calls_used=timing.calls_used,
        **charged,
    )


def count_cut(scorer: Scorer, queries: Sequence[Query], items: Items) -> int | None:
    """How many items are longer than the scorer takes beside a usual query; None where it cannot tell.

    Of more than 50,000 items as many are looked at, from all over, and stand for the rest.
    """
    layer: Any = scorer
    while layer is not None and not callable(getattr(layer, "cut", None)):
        layer = getattr(layer, "scorer", None)
    if layer is None:
        return None
    query = sorted(queries, key=lambda one: len(one.text))[len(queries) // 2] if queries else _USUAL_QUERY
    n_items = len(items)
    looked_at = np.unique(np.linspace(0, n_items - 1, min(n_items, MOST_LOOKED_AT)).astype(int)).tolist()
    n_cut = 0
    for start in range(0, len(looked_at), _TEXTS_AT_ONCE):
        n_cut += int(np.count_nonzero(layer.cut(query, items.at(looked_at[start : start + _TEXTS_AT_ONCE]))))
    return round(n_cut * n_items / len(looked_at))


def time_scorer(
    items: Sequence[Item],
    queries: Sequence[Query],
    *,
    scorer: Scorer,
    seed: int = 0,
    seconds: float = _SECONDS,
    most_calls: int | None = None,
) -> Pace:
    """Score ever larger grids of a sample until `seconds` are used, or `most_calls`, or the sample is."""
    if not items or not queries:
        raise EmptyInput(f"A sample needs items and queries; got {len(items)} items and {len(queries)} queries.")
    if most_calls is not None and most_calls < _FEWEST_CALLS:
        raise InputError(f"Timing a scorer takes at least {_FEWEST_CALLS} calls of it; got most_calls={most_calls}.")

    def score(n_queries: int, some: Sequence[Item]) -> object:
        return score_grid(scorer, queries[:n_queries], some)

    return _timed(score, items, widest=len(queries), seed=seed, seconds=seconds, most_calls=most_calls)


def time_encoder(items: Sequence[Item], encode: Encode, *, seed: int = 0, seconds: float = _ENCODING_SECONDS) -> Pace:
    """Encode ever larger batches of a sample until `seconds` are used or the sample is."""
    return _timed(lambda _, some: encode([item.text for item in some]), items, widest=1, seed=seed, seconds=seconds)


def _timed(
    work: Callable[[int, Sequence[Item]], object],
    items: Sequence[Item],
    *,
    widest: int,
    seed: int,
    seconds: float,
    most_calls: int | None = None,
) -> Pace:
    """Time grids of queries and items, twice as large each time, until they are large enough; then others like them.

    `work` takes a number of queries, at most `widest`, and the items.
    """
    # Collections often come sorted by length or topic; the first items would not be like the rest.
    items = [items[position] for position in np.random.default_rng(seed).permutation(len(items))]
    # Loading happens in the first call and says nothing about the rest.
    work(1, items[:1])
    calls, next_item = 1, min(1, len(items) - 1)
    timings: list[tuple[int, float]] = []
    used, doublings, rate = 0.0, 0, 0.0
    settled = retimed = False
    while used < seconds:
        wide = min(widest, 2 ** -(-doublings // 2))
        high = 2**doublings // wide
        # New items each time, since a scorer may remember pairs; a smaller grid than the last says less than it.
        batch = items[next_item : next_item + high]
        n = wide * len(batch)
        if timings and (len(batch) < high or (most_calls is not None and calls + n > most_calls)):
            break
        calls, next_item = calls + n, next_item + high
        started = time.perf_counter()
        work(wide, batch)
        elapsed = max(time.perf_counter() - started, 1e-9)
        # A larger grid is never slower by the pair: something was compiled for its shape, once. It is timed again.
        if not settled and n / elapsed < _SLOWER * rate and not retimed:
            retimed = True
            continue
        used, rate, retimed = used + elapsed, n / elapsed, False
        timings = [*timings, (n, elapsed)] if settled else [(n, elapsed)]
        settled = settled or elapsed >= _LARGE_ENOUGH * seconds
        doublings += not settled
    return Pace.of(timings, calls_used=calls)
