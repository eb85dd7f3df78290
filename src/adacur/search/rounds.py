"""The loop of rounds: any number of searches step together, with one scorer call a step.

rounds = Rounds()
search = rounds.join(plan, queries, k)
while rounds.step():
    ...                       # search.hits() are the hits so far; others may join
search.hits()
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

import numpy as np

from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import BudgetError, EmptyInput, InputError
from adacur.core.protocols import Items, Ranking, Scorer
from adacur.core.ranking import best_positions
from adacur.core.records import Pair, Query, as_queries
from adacur.core.results import Hits, Trace
from adacur.core.scores import score_pairs
from adacur.first_stages import Placed
from adacur.scorers.calling import ascore
from adacur.search.adaptive import RANKS_THAT_COUNT, LockStep
from adacur.search.fusion import LISTED, listed_by
from adacur.search.plan import Filter, Plan

__all__ = ["JoinedSearch", "Rounds", "asearch", "asearch_iter", "search", "search_iter"]

# Queries that move together share memory: their predictions, the pairs of one scorer call, and what an
# approximation holds of the covariance of the scored items.
_PREDICTIONS_AT_ONCE = 50_000_000
_PAIRS_AT_ONCE = 200_000
_SQUARES_AT_ONCE = 25_000_000
_SHARE_OF_TIME_LEFT = 0.8
_ITEMS_PER_FILTER_BLOCK = 4096


def search(plan: Plan, queries: Sequence[Query | str], k: int) -> list[Hits]:
    """Hits of every query, in order. How queries are grouped changes the speed, never the answer."""
    rounds = Rounds()
    joined = rounds.join(plan, queries, k)
    while rounds.step():
        pass
    return joined.hits()


def search_iter(plan: Plan, query: Query | str, k: int) -> Iterator[Hits]:
    """Hits of one query after each round; the last are the answer."""
    rounds = Rounds()
    joined = rounds.join(plan, [query], k)
    goes_on = True
    while goes_on:
        goes_on = rounds.step()
        if joined.has_news:
            yield joined.hits()[0]


async def asearch(plan: Plan, queries: Sequence[Query | str], k: int) -> list[Hits]:
    """Like `search`, without holding up the event loop: all but waiting happens in threads.

    The trace's scorer seconds are then the time waited for the scores, in a batch shared with others too.
    """
    rounds = Rounds()
    joined = await asyncio.to_thread(rounds.join, plan, queries, k)
    while await rounds.astep():
        pass
    return await asyncio.to_thread(joined.hits)


async def asearch_iter(plan: Plan, query: Query | str, k: int) -> AsyncIterator[Hits]:
    """Like `search_iter`, without holding up the event loop."""
    rounds = Rounds()
    joined = await asyncio.to_thread(rounds.join, plan, [query], k)
    goes_on = True
    while goes_on:
        goes_on = await rounds.astep()
        if joined.has_news:
            yield (await asyncio.to_thread(joined.hits))[0]


class Rounds:
    """Searches that step together. They may join at any time, from any thread, and take part in the next step.

    All must have the same scorer. `step` and `astep` are called by one caller at a time.
    """

    def __init__(self) -> None:
        self._arriving: deque[JoinedSearch] = deque()
        self._under_way: list[JoinedSearch] = []
        self._scorer: Scorer | None = None

    def join(self, plan: Plan, queries: Sequence[Query | str], k: int) -> JoinedSearch:
        """Begin a search for these queries: asks the first stage, and calls no scorer."""
        if self._scorer is not None and plan.scorer is not self._scorer:
            raise InputError("Searches that step together must have the same scorer; this one has another.")
        joined = JoinedSearch(plan, queries, k)
        self._scorer = plan.scorer
        self._arriving.append(joined)
        return joined

    def step(self) -> bool:
        """Score the next pairs of every search in one call; False when all searches have ended."""
        shares = self._next_pairs()
        if not shares:
            return False
        assert self._scorer is not None
        started = time.monotonic()
        scores = score_pairs(self._scorer, [pair for _, pairs in shares for pair in pairs])
        self._accept(shares, scores, time.monotonic() - started)
        return True

    async def astep(self) -> bool:
        """Like `step`, without holding up the event loop."""
        # A round of a large collection takes many milliseconds: it never pays to ask whether a hop to a thread does.
        shares = await asyncio.to_thread(self._next_pairs)
        if not shares:
            return False
        assert self._scorer is not None
        started = time.monotonic()
        scores = await ascore(self._scorer, [pair for _, pairs in shares for pair in pairs])
        await asyncio.to_thread(self._accept, shares, scores, time.monotonic() - started)
        return True

    def _next_pairs(self) -> list[tuple[_Group, list[Pair]]]:
        """The pairs of the next call, by group: all that wait, or what the tightest deadline affords."""
        while self._arriving:
            self._under_way.append(self._arriving.popleft())
        self._under_way = [joined for joined in self._under_way if joined.advance()]
        groups = [joined.group for joined in self._under_way if joined.group is not None]
        n_waiting = sum(len(group.waiting) for group in groups)
        share = min(1.0, min((group.affordable for group in groups), default=0.0) / max(1, n_waiting))
        return [(group, group.next_pairs(max(1, int(share * len(group.waiting))))) for group in groups]

    def _accept(self, shares: Sequence[tuple[_Group, list[Pair]]], scores: FloatArray, seconds: float) -> None:
        start = 0
        for group, pairs in shares:
            end = start + len(pairs)
            group.accept(scores[start:end], seconds=seconds * len(pairs) / len(scores))
            start = end


class JoinedSearch:
    """A search that takes part in `Rounds`. Its queries move in groups that fit into memory, one after another."""

    def __init__(self, plan: Plan, queries: Sequence[Query | str], k: int) -> None:
        started = time.monotonic()
        if plan.pool is not None and plan.pool < k:
            raise BudgetError(
                f"Only items of the pool are returned, so k must not exceed it; got k={k}, pool={plan.pool}."
            )
        everyone = as_queries(queries)
        allowed = _allowed_by(plan.filter, plan.items)
        calls = min(plan.calls, len(plan.items))
        together = min(_PAIRS_AT_ONCE // calls, _PREDICTIONS_AT_ONCE // len(plan.items))
        together = max(1, min(together, _SQUARES_AT_ONCE // calls**2) if plan.approximator else together)
        self._groups = (
            _Group(plan, everyone[start : start + together], k, allowed=allowed, started=started)
            for start in range(0, len(everyone), together)
        )
        self.group = next(self._groups, None)
        self._finished: list[Hits] = []
        self._has_left = False

    @property
    def has_news(self) -> bool:
        """Whether a round has ended since `hits` were last read."""
        return self.group is not None and self.group.has_news

    def hits(self) -> list[Hits]:
        """The best k of each query so far; of queries in later groups none yet."""
        return self._finished + ([] if self.group is None else self.group.hits())

    def leave(self) -> None:
        """Take no part in further steps."""
        self._has_left = True

    def advance(self) -> bool:
        """Choose the next round's items where the last round has ended; False when the search has ended."""
        while self.group is not None and not self._has_left:
            if self.group.advance():
                return True
            following = next(self._groups, None)
            if following is None:
                break
            self._finished += self.group.hits()
            self.group = following
        return False


class _Group:
    """Queries of one plan in lock-step, and the pairs of their round that wait for scores."""

    def __init__(self, plan: Plan, queries: list[Query], k: int, *, allowed: BoolArray, started: float) -> None:
        self._plan = plan
        self._k = k
        self._started = started
        approximation = None
        if plan.approximator is not None and plan.anchors is not None:
            approximation = plan.approximator.begin(plan.anchors, queries)
        before = time.monotonic()
        self._candidates, answers = _candidates_of(plan.first, queries, n=_n_candidates(plan, allowed), allowed=allowed)
        self._first_scores = [listed_by(answer, allowed=allowed)[1] for answer in answers if plan.fuse]
        self._first_seconds = time.monotonic() - before
        self._steps = LockStep(
            plan, queries, k, candidates=self._candidates, allowed=allowed, approximation=approximation
        )
        self._asked: list[IntArray] = []
        self._scores: list[list[float]] = []
        self._handed_out = 0
        self._n_scored = 0
        self._scorer_seconds = 0.0
        self._round_seconds = 0.0
        self._hits: list[Hits] = []
        self.waiting: list[tuple[int, int]] = []
        self.affordable = math.inf
        # A search that scores nothing has an answer all the same.
        self.has_news = not self._steps.goes_on

    def advance(self) -> bool:
        """Choose the next round's items where the last round has ended; False when all searches have ended."""
        if not self.waiting:
            self._asked = self._steps.ask(seconds=self._first_seconds)
            self._scores = [[] for _ in self._asked]
            self._round_seconds = 0.0
            # By rank first: if time runs out, every query has had its most promising items scored.
            self.waiting = sorted(
                ((query, rank) for query, positions in enumerate(self._asked) for rank in range(len(positions))),
                key=lambda at: (at[1], at[0]),
            )
            if not self.waiting:
                return False
        if self._plan.deadline is not None and not self._n_scored:
            # One pair per query tells how fast the scorer is, and makes sure that there is an answer.
            self.affordable = len(self._steps.searches)
        elif self._plan.deadline is not None:
            left = self._plan.deadline - (time.monotonic() - self._started)
            per_pair = max(self._scorer_seconds / self._n_scored, 1e-9)
            self.affordable = min(len(self.waiting), _SHARE_OF_TIME_LEFT * left / per_pair)
        if self.affordable < 1:
            self._steps.stop()
            self.waiting = []
            self._tell()
            return False
        return True

    def next_pairs(self, n: int) -> list[Pair]:
        """The next n pairs to score."""
        self._handed_out = min(n, len(self.waiting))
        now = self.waiting[: self._handed_out]
        items = self._plan.items.at(int(self._asked[query][rank]) for query, rank in now)
        return [(self._steps.searches[query].query, item) for (query, _), item in zip(now, items, strict=True)]

    def accept(self, scores: FloatArray, *, seconds: float) -> None:
        """Scores of the pairs last handed out."""
        self._scorer_seconds += seconds
        self._round_seconds += seconds
        self._n_scored += len(scores)
        for (query, _), score in zip(self.waiting[: self._handed_out], scores.tolist(), strict=True):
            self._scores[query].append(score)
        self.waiting = self.waiting[self._handed_out :]
        if not self.waiting:
            self._tell()

    def hits(self) -> list[Hits]:
        """The best k of each query so far."""
        if self.has_news:
            self.has_news = False
            settings, predicted = self._plan.settings(), self._steps.final_predictions()
            self._hits = [
                self._hits_of(at, search.trace(settings=settings, approximate_scores=predicted[at]))
                for at, search in enumerate(self._steps.searches)
            ]
        return self._hits

    def _hits_of(self, at: int, trace: Trace) -> Hits:
        plan, search, fused = self._plan, self._steps.searches[at], None
        positions, scores, rounds = search.best(self._k if plan.fuse is None else len(plan.items))
        if plan.fuse is not None:
            values = plan.fuse.values(
                scores, positions, listed=self._candidates[at], listed_scores=self._first_scores[at]
            )
            order = best_positions(values, self._k, keys=search.keys[positions])
            positions, scores, rounds, fused = positions[order], scores[order], rounds[order], values[order]
        items = tuple(plan.items.at(positions.tolist()))
        return Hits(
            query=search.query,
            ids=tuple(item.id for item in items),
            scores=scores,
            rounds=tuple(rounds.tolist()),
            items=items,
            trace=trace,
            fused=fused,
        )

    def _tell(self) -> None:
        self._steps.tell([np.array(scores) for scores in self._scores], seconds=self._round_seconds)
        self.has_news = True


def _n_candidates(plan: Plan, allowed: BoolArray) -> int:
    """How many of the first stage's best a search needs."""
    n_allowed = len(allowed) if plan.filter is None else int(np.count_nonzero(allowed))
    affordable = min(plan.calls, n_allowed)
    n = plan.pool or (affordable if plan.first_share else plan.batch_sizes(affordable)[0])
    if plan.first_weight:
        n = max(n, min(RANKS_THAT_COUNT, n_allowed))
    return max(n, min(LISTED, n_allowed)) if plan.fuse else n


def _candidates_of(
    first: Placed | None, queries: Sequence[Query], *, n: int, allowed: BoolArray
) -> tuple[list[IntArray], list[Ranking]]:
    """The first stage's best n allowed positions per query, best first, and its answers."""
    if first is None:
        return [np.empty(0, dtype=np.intp) for _ in queries], []
    k = n
    while True:
        answers = first.search(queries, k)
        candidates = [positions[allowed[positions]] for positions, _ in answers]
        short = any(
            len(some) < n and len(answer.positions) >= k for some, answer in zip(candidates, answers, strict=True)
        )
        if not short or k >= len(allowed):
            return candidates, answers
        # The filter has left too few: ask for more.
        k = min(4 * k, len(allowed))


def _allowed_by(filter_: Filter | None, items: Items) -> BoolArray:
    """Which items may be scored."""
    if filter_ is None:
        # One value seen many times: it takes no memory.
        return np.broadcast_to(np.True_, len(items))
    if isinstance(filter_, str):
        raise InputError("A filter must be a function of an item or a collection of ids; got one text.")
    allowed = np.zeros(len(items), dtype=np.bool_)
    if callable(filter_):
        for start in range(0, len(items), _ITEMS_PER_FILTER_BLOCK):
            block = items.at(range(start, min(start + _ITEMS_PER_FILTER_BLOCK, len(items))))
            allowed[start : start + len(block)] = [bool(filter_(item)) for item in block]
    else:
        allowed[items.positions(filter_)] = True
    if not allowed.any():
        raise EmptyInput("The filter leaves no item to search. Widen it.")
    return allowed
