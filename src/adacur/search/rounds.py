"""The loop of rounds: any number of searches step together, with one scorer call per step.

rounds = Rounds()
search = rounds.join(plan, queries, k)
while rounds.step():
    ...                       # search.hits() are the hits so far; others may join
search.hits()
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from adacur.approximation.acquisition import best_positions
from adacur.approximation.rank_slopes import RANKS_THAT_COUNT
from adacur.approximation.shared_posteriors import SharedPosteriors
from adacur.core.arrays import BoolArray, FloatArray, IntArray
from adacur.core.errors import BudgetError, EngineRefused, EngineUnavailable, InputError
from adacur.core.protocols import Ranking, Scorer
from adacur.core.records import Pair, Query, as_queries
from adacur.core.results import Hits, Trace
from adacur.core.scores import PairsAt, joined_pairs, score_pairs
from adacur.first_stages import Placed
from adacur.scorers.calling import ascore
from adacur.search.adaptive import LockStep
from adacur.search.device_search import DeviceLockStep, chooses_on_device, device_prospects
from adacur.search.engine_items import EngineWarning
from adacur.search.engine_search import begin_in_engine
from adacur.search.filters import allowed_by
from adacur.search.fusion import LISTED, listed_by
from adacur.search.methods import Plan
from adacur.search.prospects import memory_prospects
from adacur.search.relevance import above_floors, verdict_on
from adacur.search.sharing import Sharing
from adacur.search.spending import Payments

# Limits of what queries that move together hold in memory: predictions, the pairs of one scorer call, covariances of
# scored items, and the first stages' ranks.
_PREDICTIONS_AT_ONCE = 50_000_000
_PAIRS_AT_ONCE = 200_000
_SQUARES_AT_ONCE = 25_000_000
_RANKS_AT_ONCE = 5_000_000
# Half of fewer queries would not keep a device busy.
_WORTH_HALVING = 64


def search(plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> list[Hits]:
    """Hits of every query, in order. How queries are grouped changes the speed, never the answer.

    `started`: as for `Rounds.join`.
    """
    started = time.monotonic() if started is None else started
    queries = as_queries(queries)
    given_up = threading.Event()

    def answers(some: Sequence[Query | str]) -> list[Hits]:
        with _setting(given_up):
            rounds = Rounds()
            joined = rounds.join(plan, some, k, started=started)
            while not given_up.is_set() and rounds.step():
                pass
            return joined.hits()

    if len(queries) < _WORTH_HALVING or not getattr(plan.scorer, "works_aside", False):
        return answers(queries)
    # While the device scores one half's pairs, this processor chooses the other half's.
    half = len(queries) // 2
    with ThreadPoolExecutor(2) as threads, _setting(given_up):
        return [hits for some in threads.map(answers, (queries[:half], queries[half:])) for hits in some]


@contextmanager
def _setting(given_up: threading.Event) -> Iterator[None]:
    """An error or Ctrl-C ends the other half too: nobody would read its answer, and its calls cost."""
    try:
        yield
    except BaseException:
        given_up.set()
        raise


def search_iter(plan: Plan, query: Query | str, k: int, *, started: float | None = None) -> Iterator[Hits]:
    """Hits of one query after each round; the last are the answer."""
    rounds = Rounds()
    joined = rounds.join(plan, [query], k, started=started)
    goes_on = True
    while goes_on:
        goes_on = rounds.step()
        if joined.has_news:
            yield joined.hits()[0]


async def asearch(plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> list[Hits]:
    """Like `search`, without blocking the event loop. The trace's scorer seconds then count the wait for the scores."""
    rounds = Rounds()
    joined = await asyncio.to_thread(rounds.join, plan, queries, k, started=started)
    while await rounds.astep():
        pass
    return await asyncio.to_thread(joined.hits)


async def asearch_iter(
    plan: Plan, query: Query | str, k: int, *, started: float | None = None
) -> AsyncGenerator[Hits, None]:
    """Like `search_iter`, without blocking the event loop."""
    rounds = Rounds()
    joined = await asyncio.to_thread(rounds.join, plan, [query], k, started=started)
    goes_on = True
    while goes_on:
        goes_on = await rounds.astep()
        if joined.has_news:
            yield (await asyncio.to_thread(joined.hits))[0]


@dataclass(slots=True, eq=False)
class Rounds:
    """Searches with one scorer that step together. They may join at any time, from any thread.

    `step` and `astep` must be called by one caller at a time.
    """

    _scorer: Scorer | None = None
    _arriving: deque[JoinedSearch] = field(default_factory=deque)
    _under_way: list[JoinedSearch] = field(default_factory=list)
    _sharing: Sharing = field(default_factory=Sharing)

    def join(self, plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> JoinedSearch:
        """Begin a search for these queries: asks the first stage, and calls no scorer.

        `started` is the `time.monotonic()` at which the plan's deadline began to run: by default, now.
        """
        if self._scorer is not None and plan.scorer is not self._scorer:
            raise InputError("Searches that step together must have the same scorer; this one has another.")
        joined = JoinedSearch(plan, queries, k, started=started)
        self._scorer = plan.scorer
        self._arriving.append(joined)
        return joined

    def step(self) -> bool:
        """Score the next pairs of every search in one call; False when all searches have ended."""
        shares, pairs = self._next_pairs()
        if not shares:
            return False
        assert self._scorer is not None
        started = time.monotonic()
        scores = score_pairs(self._scorer, pairs)
        self._accept(shares, scores, time.monotonic() - started)
        return True

    async def astep(self) -> bool:
        """Like `step`, without blocking the event loop."""
        # Always in a thread: a round of a large collection takes many milliseconds.
        shares, pairs = await asyncio.to_thread(self._next_pairs)
        if not shares:
            return False
        assert self._scorer is not None
        started = time.monotonic()
        scores = await ascore(self._scorer, pairs)
        await asyncio.to_thread(self._accept, shares, scores, time.monotonic() - started)
        return True

    def _next_pairs(self) -> tuple[list[_Share], Sequence[Pair]]:
        shares, by_position = self._next_shares(), hasattr(self._scorer, "score_at")
        return shares, joined_pairs([search.next_pairs(n, by_position=by_position) for search, n in shares])

    def _next_shares(self) -> list[_Share]:
        """How many pairs of each search are in the next call: all that wait, or what the tightest deadline affords."""
        while self._arriving:
            self._under_way.append(self._arriving.popleft())
        while True:
            self._under_way = [search for search in self._under_way if search.advance()]
            shares = self._sharing.shares(self._under_way)
            paid = [search.payable(n) for search, n in zip(self._under_way, shares, strict=True)]
            if all(paid):
                return list(zip(self._under_way, paid, strict=True))
            for search, n in zip(self._under_way, shares, strict=True):
                if not n:
                    search.stop()

    def _accept(self, shares: Sequence[_Share], scores: FloatArray, seconds: float) -> None:
        self._sharing.note(len(scores), seconds)
        parts = np.split(scores, np.cumsum([n for _, n in shares])[:-1])
        for (search, n), part in zip(shares, parts, strict=True):
            search.accept(part, seconds=seconds * n / len(scores))


class JoinedSearch:
    """A search that takes part in `Rounds`. Its queries move in groups that fit into memory, one after another.

    `steps` are the searches of the current group. `waiting` are the unscored pairs of this round, as (query, rank).
    `has_news`: a round has ended since `hits` were last read.
    """

    def __init__(self, plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started
        if plan.pool is not None and plan.pool < k:
            raise BudgetError(
                f"Only items of the pool are returned, so k must not exceed it; got k={k}, pool={plan.pool}."
            )
        self._plan = plan
        self._k = k
        everyone, n_items = as_queries(queries), len(plan.items)
        # A broadcast value takes no memory. An engine filters by itself.
        self._allowed: BoolArray = np.broadcast_to(np.True_, n_items)
        if plan.filter is not None and plan.engine is None:
            self._allowed = allowed_by(plan.filter, plan.items)
        calls = min(plan.calls, n_items)
        limits = [_PAIRS_AT_ONCE // calls]
        if plan.engine is None:
            limits.append(_PREDICTIONS_AT_ONCE // n_items)
        if plan.approximator is not None:
            limits.append(_SQUARES_AT_ONCE // calls**2)
        if plan.first is not None and plan.uses_ranks:
            limits.append(_RANKS_AT_ONCE // (plan.first.n_stages * min(RANKS_THAT_COUNT, n_items)))
        together = max(1, min(limits))
        self._groups = deque(everyone[start : start + together] for start in range(0, len(everyone), together))
        self._has_ended = not everyone
        self._finished: list[Hits] = []
        self._hits: list[Hits] = []
        self.has_news = False
        if everyone:
            self._begin(self._groups.popleft())

    def _begin(self, queries: list[Query]) -> None:
        """Ask the first stage for the candidates of a group, and begin its searches."""
        before = time.monotonic()
        self.steps: LockStep
        if self._plan.engine is not None:
            self.steps, self._first_scores = begin_in_engine(self._plan, queries, self._k)
        else:
            self.steps, self._first_scores = _begin_in_memory(self._plan, queries, self._k, self._allowed)
        self._payments: Payments | None = None
        if self._plan.spending is not None:
            self._payments = Payments(self._plan, self.steps, refuses=not self._finished)
        self._first_seconds = time.monotonic() - before
        self._positions: list[IntArray] = []
        self._scores: list[list[float]] = []
        self._n_scored = 0
        self._round_seconds = 0.0
        self.waiting: list[tuple[int, int]] = []
        # A search that scores nothing has an answer all the same.
        self.has_news = not self.steps.goes_on

    def payable(self, n: int) -> int:
        """How many of the next n pairs can be paid if a call has only these; a query that cannot pay ends here."""
        if self._payments is not None and (ended := self._payments.unpaid(self.waiting[:n])):
            n -= sum(query in ended for query, _ in self.waiting[:n])
            self.waiting = [pair for pair in self.waiting if pair[0] not in ended]
            if not self.waiting:
                self.accept(np.empty(0), seconds=0.0)
        return n

    def hits(self) -> list[Hits]:
        """The best k of each query so far; queries of later groups are missing."""
        if not self.has_news:
            return self._finished + self._hits
        self.has_news = False
        plan, searches, settings = self._plan, self.steps.searches, self._plan.settings()
        predicted = self.steps.final_predictions() if plan.keep_predictions else None
        self._hits = []
        for at, search in enumerate(searches):
            positions, scores, rounds = search.best(self._k if plan.fuse is None else len(plan.items))
            fused = None
            if plan.fuse is not None:
                listed, listed_scores = search.prospects.candidates, self._first_scores[at]
                values = plan.fuse.values(scores, positions, listed=listed, listed_scores=listed_scores)
                order = best_positions(values, self._k, keys=search.prospects.keys(positions))
                positions, scores, rounds, fused = positions[order], scores[order], rounds[order], values[order]
            relevance = None if plan.relevance is None else plan.relevance.of(scores)
            kept = above_floors(scores, relevance, min_relevance=plan.min_relevance, min_score=plan.min_score)
            if not kept.all():
                positions, scores, rounds = positions[kept], scores[kept], rounds[kept]
                fused, relevance = (None if one is None else one[kept] for one in (fused, relevance))
            items = tuple(self.steps.items_at(positions.tolist()))
            self._hits.append(
                Hits(
                    query=search.query,
                    ids=tuple(item.id for item in items),
                    scores=scores,
                    rounds=tuple(rounds.tolist()),
                    items=items,
                    trace=search.trace(
                        settings=settings, approximate_scores=None if predicted is None else predicted[at]
                    ),
                    fused=fused,
                    relevance=relevance,
                    verdict=verdict_on(scores, plan.relevance),
                )
            )
        return self._finished + self._hits

    def advance(self) -> bool:
        """Choose the next round's items where the last round has ended; False when the search has ended."""
        while not self._has_ended:
            if not self.waiting:
                self._positions = self.steps.ask(seconds=self._first_seconds)
                if self._payments is not None:
                    # In place, because the steps share this list.
                    self._positions[:] = [self._payments.affordable(*one) for one in enumerate(self._positions)]
                self._scores = [[] for _ in self._positions]
                self._round_seconds = 0.0
                # By rank first: if time runs out, every query has had its most promising items scored.
                self.waiting = sorted(
                    ((query, rank) for query, batch in enumerate(self._positions) for rank in range(len(batch))),
                    key=lambda at: (at[1], at[0]),
                )
            if self.waiting:
                return True
            if self.steps.goes_on:
                # All items of this round have gone from an engine.
                continue
            if self.steps.ended_early or not any(search.rounds for search in self.steps.searches):
                self.has_news = True
            if not self._groups:
                return False
            self._finished, self._hits = self.hits(), []
            self._begin_next_group()
        return False

    def wanted(self) -> SharedPosteriors | None:
        """What the next `advance` needs from a device, so that it can be computed with others'; None for nothing."""
        return None if self.waiting else self.steps.wanted()

    def _begin_next_group(self) -> None:
        queries = self._groups.popleft()
        try:
            self._begin(queries)
        except (EngineRefused, EngineUnavailable) as error:
            warnings.warn(f"{error} The other queries have no hits.", EngineWarning, stacklevel=2)
            trace = Trace(stopped="engine", settings=self._plan.settings())
            left = [*queries, *(query for group in self._groups for query in group)]
            self._finished += [Hits(query, ids=(), scores=np.empty(0), trace=trace) for query in left]
            self._groups.clear()
            self._has_ended = True

    def stop(self) -> None:
        """End this group here, because its deadline affords no more."""
        self.steps.stop()
        self.waiting = []
        self.accept(np.empty(0), seconds=0.0)

    @property
    def n_waiting(self) -> int:
        """How many pairs of this round have no score yet."""
        return len(self.waiting)

    @property
    def n_queries(self) -> int:
        """How many queries move together now."""
        return len(self.steps.searches)

    @property
    def least(self) -> int:
        """Pairs to score even past the deadline: one per query, so that there is an answer; 0 once there is one."""
        return 0 if self._n_scored or self._plan.deadline is None else self.n_queries

    @property
    def seconds_left(self) -> float:
        """Seconds until the deadline; infinite without one."""
        if self._plan.deadline is None:
            return math.inf
        return self._plan.deadline - (time.monotonic() - self._started)

    def next_pairs(self, n: int, *, by_position: bool = False) -> Sequence[Pair]:
        """The next n pairs to score; `by_position` avoids looking up texts, where possible."""
        now, searches = self.waiting[:n], self.steps.searches
        positions = [int(self._positions[query][rank]) for query, rank in now]
        # In an engine, positions are numbers of this group alone.
        if by_position and self._plan.engine is None:
            query_of = np.array([query for query, _ in now], np.intp)
            queries = [search.query for search in searches]
            return PairsAt(self._plan.items, queries, query_of, np.array(positions, np.intp))
        items = self.steps.items_at(positions)
        return [(searches[query].query, item) for (query, _), item in zip(now, items, strict=True)]

    def accept(self, scores: FloatArray, *, seconds: float) -> None:
        """Take the scores of the next pairs."""
        self._round_seconds += seconds
        self._n_scored += len(scores)
        if self._payments is not None:
            self._payments.pay(self.waiting[: len(scores)])
        for (query, _), score in zip(self.waiting[: len(scores)], scores.tolist(), strict=True):
            self._scores[query].append(score)
        self.waiting = self.waiting[len(scores) :]
        if not self.waiting:
            self.steps.tell([np.array(scores) for scores in self._scores], seconds=self._round_seconds)
            self.has_news = True


# A search, and how many of its pairs take part in a call.
_Share = tuple[JoinedSearch, int]


def _begin_in_memory(plan: Plan, queries: list[Query], k: int, allowed: BoolArray) -> tuple[LockStep, list[FloatArray]]:
    """Ask the first stage, and begin a search of each query; also the first stage's scores, where these are fused."""
    candidates, answers, lists = _candidates(plan, queries, allowed)
    approximation = None
    if plan.approximator is not None and plan.anchors is not None:
        ranks = {"ranks": lists} if plan.uses_ranks else {}
        approximation = plan.approximator.begin(plan.anchors, queries, **ranks)
    steps: LockStep
    if chooses_on_device(plan, approximation):
        device = device_prospects(plan, candidates, allowed)
        steps = DeviceLockStep(plan, queries, k, prospects=device, approximation=approximation)
    else:
        memory = memory_prospects(plan, candidates, allowed)
        steps = LockStep(plan, queries, k, prospects=memory, approximation=approximation)
    return steps, [listed_by(answer, allowed=allowed)[1] for answer in answers if plan.fuse]


def _candidates(
    plan: Plan, queries: Sequence[Query], allowed: BoolArray
) -> tuple[list[IntArray], list[Ranking], list[list[IntArray]]]:
    """The first stage's best allowed positions per query, best first, as many as a search needs.

    Also its answers, and the answers of each of the stages that it joins, as positions.
    """
    if not isinstance(plan.first, Placed):
        return [np.empty(0, dtype=np.intp) for _ in queries], [], []
    n_allowed = len(allowed) if plan.filter is None else int(np.count_nonzero(allowed))
    affordable = min(plan.calls, n_allowed)
    n = plan.pool or (affordable if plan.first_share else plan.batch_sizes(affordable)[0])
    if plan.first_weight:
        n = max(n, min(RANKS_THAT_COUNT, n_allowed))
    if plan.fuse:
        n = max(n, min(LISTED, n_allowed))
    # Ranks are among all items, filtered or not.
    k = max(n, min(RANKS_THAT_COUNT, len(allowed))) if plan.uses_ranks else n
    while True:
        answers, lists = plan.first.search_parts(queries, k)
        candidates = [positions[allowed[positions]] for positions, _ in answers]
        short = any(
            len(some) < n and len(answer.positions) >= k for some, answer in zip(candidates, answers, strict=True)
        )
        if not short or k >= len(allowed):
            return candidates, answers, lists
        # The filter leaves too few: ask for more.
        k = min(4 * k, len(allowed))
