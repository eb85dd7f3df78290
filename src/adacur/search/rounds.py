"""The loop that drives a plan: one scorer call per round, for one query or for many in lock-step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import numpy as np

from adacur.approximation import Uniform
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import BudgetError, EmptyInput, InputError
from adacur.core.protocols import Items, Retriever
from adacur.core.ranking import best_positions
from adacur.core.records import Pair, Query, as_queries
from adacur.core.results import Hits
from adacur.core.scores import check_scores
from adacur.core.seeds import stream_key
from adacur.scorers.asking import asking
from adacur.scorers.grid import ascore
from adacur.search.adaptive import AdaptiveSearch
from adacur.search.fusion import LISTED, listed_by
from adacur.search.plan import Filter, Plan
from adacur.search.prospects import RANKS_THAT_COUNT, LocalProspects, Request

__all__ = ["asearch", "asearch_iter", "search", "search_iter"]

# Queries that move in lock-step share memory: their predictions, the pairs of one scorer call, and what an
# approximation keeps of the covariance of the scored items.
_PREDICTIONS_AT_ONCE = 50_000_000
_PAIRS_AT_ONCE = 200_000
_SQUARES_AT_ONCE = 25_000_000
_ITEMS_PER_FILTER_BLOCK = 4096
_SHARE_OF_TIME_LEFT = 0.8


def search(plan: Plan, queries: Sequence[Query | str], k: int) -> list[Hits]:
    """Hits of every query, in order. How queries are grouped changes the speed, never the answer."""
    found: list[Hits] = []
    for running in _start(plan, queries, k):
        while pairs := running.next_pairs():
            with asking(plan.scorer):
                scores = check_scores(plan.scorer.score(pairs), pairs)
            running.accept(scores)
        found += running.hits()
    return found


def search_iter(plan: Plan, query: Query | str, k: int) -> Iterator[Hits]:
    """Hits of one query after each round; the last are the answer."""
    (running,) = _start(plan, [query], k)
    while pairs := running.next_pairs():
        with asking(plan.scorer):
            scores = check_scores(plan.scorer.score(pairs), pairs)
        running.accept(scores)
        if running.has_news:
            yield running.hits()[0]
    # A deadline may end a round early, and a search that found nothing still has an answer.
    if running.has_news or not running.has_answered:
        yield running.hits()[0]


async def asearch(plan: Plan, queries: Sequence[Query | str], k: int) -> list[Hits]:
    """Like `search`, without holding up the event loop: all but waiting happens in threads.

    The trace's scorer seconds are then the time waited for the scores, in a batch shared with others too.
    """
    found: list[Hits] = []
    groups = _start(plan, queries, k)
    # A round of a large collection takes many milliseconds: it is never worth asking whether a hop to a thread pays.
    while running := await asyncio.to_thread(next, groups, None):
        pairs = await asyncio.to_thread(running.next_pairs)
        while pairs:
            pairs = await asyncio.to_thread(running.pairs_after, await _scores(plan, pairs))
        found += await asyncio.to_thread(running.hits)
    return found


async def asearch_iter(plan: Plan, query: Query | str, k: int) -> AsyncIterator[Hits]:
    """Like `search_iter`, without holding up the event loop."""
    (running,) = await asyncio.to_thread(list, _start(plan, [query], k))
    while pairs := await asyncio.to_thread(running.next_pairs):
        news = await asyncio.to_thread(running.news_after, await _scores(plan, pairs))
        if news:
            yield news[0]
    if running.has_news or not running.has_answered:
        yield (await asyncio.to_thread(running.hits))[0]


async def _scores(plan: Plan, pairs: Sequence[Pair]) -> FloatArray:
    with asking(plan.scorer):
        return await ascore(plan.scorer, pairs)


def _start(plan: Plan, queries: Sequence[Query | str], k: int) -> Iterator[_LockStep]:
    started = time.monotonic()
    asked = as_queries(queries)
    if plan.pool is not None and plan.pool < k:
        raise BudgetError(f"Only items of the pool are returned, so k must not exceed it; got k={k}, pool={plan.pool}.")
    allowed = _allowed_by(plan.filter, plan.items)
    n_items = len(plan.items)
    calls = min(plan.calls, n_items)
    together = min(_PAIRS_AT_ONCE // calls, _PREDICTIONS_AT_ONCE // n_items)
    together = max(1, min(together, _SQUARES_AT_ONCE // calls**2) if plan.approximator else together)
    for start in range(0, len(asked), together):
        yield _LockStep(plan, asked[start : start + together], k, allowed=allowed, started=started)


class _LockStep:
    """A group of queries on their way through the rounds of a plan."""

    def __init__(self, plan: Plan, queries: list[Query], k: int, *, allowed: BoolArray, started: float) -> None:
        self._started = started
        self._plan = plan
        self._queries = queries
        self._k = k
        self._approximation = (
            plan.approximator.begin(plan.anchors, queries) if plan.approximator and plan.anchors else None
        )
        asked_first_stage = time.monotonic()
        n_allowed = len(allowed) if plan.filter is None else int(np.count_nonzero(allowed))
        affordable = min(plan.calls, n_allowed)
        wanted = plan.pool or (affordable if plan.first_share else plan.batch_sizes(affordable)[0])
        if plan.first_weight:
            wanted = max(wanted, min(RANKS_THAT_COUNT, n_allowed))
        if plan.fuse:
            wanted = max(wanted, min(LISTED, n_allowed))
        self._first_scores: list[FloatArray] = []
        if plan.first is None:
            candidates = [np.empty(0, dtype=np.intp) for _ in queries]
        else:
            candidates, found = _candidates(plan.first, queries, wanted=wanted, items=plan.items, allowed=allowed)
            if plan.fuse:
                self._first_scores = [listed_by(hits, plan.items, allowed=allowed)[1] for hits in found]
        self._candidates = candidates
        first_stage_seconds = time.monotonic() - asked_first_stage
        self._prospects = prospects = LocalProspects(
            [allowed] * len(queries),
            keys=plan.items.keys,
            approximation=self._approximation,
            first_weight=plan.first_weight,
        )
        if plan.pool is not None:
            self._limit_to_pool(plan.pool)
        self._search = AdaptiveSearch(
            queries,
            candidates=candidates,
            prospects=prospects,
            batch_sizes=[
                plan.batch_sizes(affordable) if affordable else ()
                for affordable in (min(plan.calls, prospects.n_left(query)) for query in range(len(queries)))
            ],
            seed=plan.seed,
            approximation=self._approximation,
            acquisition=plan.acquisition,
            same_first_for_all=plan.same_first_for_all,
            first_share=plan.first_share,
            k=k,
            stop_when=plan.stop_when,
            keep_predictions=plan.keep_predictions,
            predicts_at_the_end=plan.approximate_scores,
            first_stage_seconds=first_stage_seconds,
        )
        self._asked: list[IntArray] = []
        self._waiting: list[tuple[int, int]] = []
        self._scores: list[list[float]] = []
        self._asked_at = 0.0
        self._scorer_seconds = 0.0
        self._scored = 0
        self._round_seconds = 0.0
        self._slice = 0
        self.has_news = False
        self.has_answered = False

    def next_pairs(self) -> list[Pair]:
        """Pairs for the next scorer call; none when the search has ended."""
        if not self._waiting:
            self._asked = self._search.ask()
            # By rank first: if time runs out, every query has had its most promising items scored.
            self._waiting = sorted(
                ((query, rank) for query, positions in enumerate(self._asked) for rank in range(len(positions))),
                key=lambda at: (at[1], at[0]),
            )
            self._scores = [[] for _ in self._asked]
            self._round_seconds = 0.0
            if not self._waiting:
                return []
        self._slice = self._affordable(len(self._waiting))
        if not self._slice:
            self._search.stop()
            self._waiting = []
            self._tell()
            return []
        self._asked_at = time.monotonic()
        now = self._waiting[: self._slice]
        items = self._plan.items.at(int(self._asked[query][rank]) for query, rank in now)
        return [(self._queries[query], item) for (query, _), item in zip(now, items, strict=True)]

    def accept(self, scores: FloatArray) -> None:
        """Scores of the pairs last handed out."""
        seconds = time.monotonic() - self._asked_at
        self._scorer_seconds += seconds
        self._round_seconds += seconds
        self._scored += len(scores)
        for (query, _), score in zip(self._waiting[: self._slice], scores.tolist(), strict=True):
            self._scores[query].append(score)
        self._waiting = self._waiting[self._slice :]
        if not self._waiting:
            self._tell()

    def pairs_after(self, scores: FloatArray) -> list[Pair]:
        """`accept`, then `next_pairs`: one hop to a thread instead of two."""
        self.accept(scores)
        return self.next_pairs()

    def news_after(self, scores: FloatArray) -> list[Hits]:
        """`accept`, then the hits if a round ended."""
        self.accept(scores)
        return self.hits() if self.has_news else []

    def hits(self) -> list[Hits]:
        """The best k of each query so far."""
        self.has_news = False
        self.has_answered = True
        precise = None
        if self._plan.approximate_scores and self._approximation is not None:
            precise = self._prospects.predict_precisely()
        settings = self._plan.settings()
        found = []
        for index, query in enumerate(self._queries):
            positions, scores, rounds, fused = self._best(index)
            items = tuple(self._plan.items.at(positions.tolist()))
            trace = self._search.trace(
                index, settings=settings, approximate_scores=None if precise is None else precise[index]
            )
            found.append(
                Hits(
                    query=query,
                    ids=tuple(item.id for item in items),
                    scores=scores,
                    rounds=tuple(rounds.tolist()),
                    items=items,
                    trace=trace,
                    fused=fused,
                )
            )
        return found

    def _best(self, index: int) -> tuple[IntArray, FloatArray, IntArray, FloatArray | None]:
        if self._plan.fuse is None:
            return (*self._search.best(index, self._k), None)
        positions, scores, rounds = self._search.best(index, len(self._plan.items))
        fused = self._plan.fuse.values(
            scores, positions, listed=self._candidates[index], listed_scores=self._first_scores[index]
        )
        order = best_positions(fused, self._k, keys=self._prospects.keys_at(positions))
        return positions[order], scores[order], rounds[order], fused[order]

    def _limit_to_pool(self, size: int) -> None:
        """The first stage's best, topped up at random like any first stage that returns too few."""
        pools = [found[:size] for found in self._candidates]
        requests = [
            Request(
                number,
                size - len(pool),
                acquisition=Uniform(),
                stream=stream_key(self._plan.seed, "pool", query.id),
                without=pool,
            )
            for number, (query, pool) in enumerate(zip(self._queries, pools, strict=True))
            if len(pool) < size
        ]
        for request, more in zip(requests, self._prospects.choose(requests) if requests else (), strict=True):
            pools[request.query] = np.concatenate([pools[request.query], more.positions])
        self._prospects.limit(pools)

    def _tell(self) -> None:
        self._search.tell([np.array(scores) for scores in self._scores], seconds=self._round_seconds)
        self.has_news = True

    def _affordable(self, waiting: int) -> int:
        if self._plan.deadline is None:
            return waiting
        if not self._scored:
            # One pair per query tells how fast the scorer is, and makes sure that there is an answer.
            return min(waiting, len(self._queries))
        left = self._plan.deadline - (time.monotonic() - self._started)
        per_pair = max(self._scorer_seconds / self._scored, 1e-9)
        return int(max(0.0, min(waiting, _SHARE_OF_TIME_LEFT * left / per_pair)))


def _candidates(
    first: Retriever, queries: Sequence[Query], *, wanted: int, items: Items, allowed: BoolArray
) -> tuple[list[IntArray], list[Hits]]:
    """The first stage's positions per query, best first, and its answers; asks for more while a filter eats them."""
    k = wanted
    while True:
        found = first.search(queries, k)
        if len(found) != len(queries):
            raise InputError(f"A first stage answers every query; asked {len(queries)}, answered {len(found)}.")
        # A first stage may name an item twice (by its passages, say); it is scored once.
        ranked = [items.positions(dict.fromkeys(hits.ids)) for hits in found]
        kept = [positions[allowed[positions]] for positions in ranked]
        short = any(len(own) < wanted and len(hits.ids) >= k for own, hits in zip(kept, found, strict=True))
        if not short or k >= len(items):
            return kept, found
        k = min(4 * k, len(items))


def _allowed_by(filter_: Filter | None, items: Items) -> BoolArray:
    if filter_ is None:
        # One value seen many times: it takes no memory.
        return np.broadcast_to(np.True_, len(items))
    allowed = np.zeros(len(items), dtype=np.bool_)
    if isinstance(filter_, str):
        raise InputError("A filter is a function of an item or a collection of ids; got one text.")
    if callable(filter_):
        for start in range(0, len(items), _ITEMS_PER_FILTER_BLOCK):
            block = items.at(range(start, min(start + _ITEMS_PER_FILTER_BLOCK, len(items))))
            allowed[start : start + len(block)] = [bool(filter_(item)) for item in block]
    else:
        allowed[items.positions(filter_)] = True
    if not allowed.any():
        raise EmptyInput("The filter leaves no item to search. Widen it.")
    return allowed
