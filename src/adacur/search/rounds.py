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
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import AdacurError, InputError
from adacur.protocols import Scorer
from adacur.records import Pair, Query, as_queries
from adacur.results import Hits, Trace
from adacur.scorers.calling import ascore
from adacur.scores import PairsAt, joined_pairs, score_pairs
from adacur.search.asktell import AskTell, QueryBatch
from adacur.search.finish import Answer
from adacur.search.plan import Plan
from adacur.search.sharing import Sharing
from adacur.search.spending import Wallets

# The most pairs of one scorer call.
_PAIRS_AT_ONCE = 200_000
# Half of fewer queries would not keep another processor busy.
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
            with joined.failing():
                while not given_up.is_set() and rounds.step():
                    pass
            return joined.so_far() if given_up.is_set() else joined.hits()

    if len(queries) < _WORTH_HALVING or not getattr(plan.scorer, "runs_on_device", False):
        return answers(queries)
    # While one half's pairs are scored elsewhere, this processor chooses the other half's.
    half = len(queries) // 2
    with ThreadPoolExecutor(2) as threads, _setting(given_up):
        halves = [threads.submit(answers, some) for some in (queries[:half], queries[half:])]
        try:
            return [hits for one in halves for hits in one.result()]
        except AdacurError as error:
            error.hits = [hits for one in halves for hits in getattr(one.exception(), "hits", ()) or one.result()]
            raise


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
    with joined.failing():
        while goes_on:
            goes_on = rounds.step()
            if joined.has_news:
                yield joined.hits()[0]


async def asearch_iter(
    plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None, every_round: bool = True
) -> AsyncGenerator[list[Hits], None]:
    """Hits of all queries after each round, or at the end only; the event loop goes on meanwhile.

    The trace's scorer seconds then count the wait for the scores.
    """
    rounds = Rounds()
    joined = await asyncio.to_thread(rounds.join, plan, queries, k, started=started)
    goes_on = True
    with joined.failing():
        while goes_on:
            goes_on = await rounds.astep()
            if joined.has_news if every_round else not goes_on:
                yield await asyncio.to_thread(joined.hits)


@dataclass(slots=True, eq=False)
class Rounds:
    """Searches with one scorer that step together. They may join at any time, from any thread.

    `step` and `astep` must be called by one caller at a time.
    """

    _scorer: Scorer | None = None
    _arriving: deque[RunningSearch] = field(default_factory=deque)
    _under_way: list[RunningSearch] = field(default_factory=list)
    _sharing: Sharing = field(default_factory=Sharing)

    def join(
        self, plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None
    ) -> RunningSearch:
        """Begin a search for these queries: asks the first stage, and calls no scorer.

        `started` is the `time.monotonic()` at which the plan's deadline began to run: by default, now.
        """
        if self._scorer is not None and plan.scorer is not self._scorer:
            raise InputError("Searches that step together must have the same scorer; this one has another.")
        joined = RunningSearch(plan, queries, k, started=started)
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
        """The searches of the next call, and how many of their pairs: all that wait, or what deadlines afford."""
        while self._arriving:
            self._under_way.append(self._arriving.popleft())
        while True:
            self._under_way = [search for search in self._under_way if search.advance()]
            given = list(zip(self._under_way, self._sharing.shares(self._under_way), strict=True))
            late = [search for search, n in given if n is None]
            for search in late:
                search.stop()
            paid = [(search, search.payable(n)) for search, n in given if n]
            if not late and all(n for _, n in paid):
                # Who waits for a later call stands first then.
                self._under_way = [search for search, n in given if not n] + [search for search, _ in paid]
                return paid

    def _accept(self, shares: Sequence[_Share], scores: FloatArray, seconds: float) -> None:
        self._sharing.note(len(scores), seconds)
        parts = np.split(scores, np.cumsum([n for _, n in shares])[:-1])
        for (search, n), part in zip(shares, parts, strict=True):
            search.accept(part, seconds=seconds * n / len(scores))


class RunningSearch:
    """A search that takes part in `Rounds`. Its queries move in groups that fit into memory, one after another.

    `batch` are the searches of the current group. `waiting` are the unscored pairs of this round, as (query, rank).
    `has_news`: a round has ended since `hits` were last read.
    """

    def __init__(self, plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> None:
        self._started = time.monotonic() if started is None else started
        self._until = math.inf
        self._plan = plan
        self._k = k
        self._queries = everyone = as_queries(queries)
        self._place = plan.candidates.open(plan, k)
        calls = max(1, min(plan.purse.calls, len(plan.items)))
        together = max(1, min(self._place.together, _PAIRS_AT_ONCE // calls))
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
        if (deadline := self._plan.purse.deadline) is not None:
            # Later groups must find their share of the time.
            left = self._started + deadline - before
            self._until = before + left * len(queries) / (len(queries) + sum(map(len, self._groups)))
        self.batch: QueryBatch = self._place.begin(queries)
        self._wallets: Wallets | None = None
        if self.batch.searches[0].purse.sees_pairs:
            knows_items = self._place.by_position
            self._wallets = Wallets(self.batch, refuses=not self._finished, knows_items=knows_items)
        self._first_seconds = time.monotonic() - before
        self._positions: list[IntArray] = []
        self._scores: list[list[float]] = []
        self._n_scored = 0
        self._round_seconds = 0.0
        self.waiting: list[tuple[int, int]] = []
        # A search that scores nothing has an answer all the same.
        self.has_news = not self.batch.goes_on

    def payable(self, n: int) -> int:
        """How many of the next n pairs can be paid if a call has only these; a query that cannot pay ends here."""
        if self._wallets is not None and self._plan.purse.by_call and (ended := self._wallets.unpaid(self.waiting[:n])):
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
        settings = self._plan.settings()
        predicted = self.batch.final_predictions() if self._plan.keeps else None
        self._hits = []
        for at, search in enumerate(self.batch.searches):
            answer = self._answer(at, search)
            for step in self._plan.finish:
                answer = step(answer)
            kept = None if predicted is None else predicted[at]
            self._hits.append(answer.hits(search.trace(settings=settings, approximate_scores=kept)))
        return self._finished + self._hits

    def _answer(self, at: int, search: AskTell) -> Answer:
        positions, scores, rounds = search.best()
        return Answer(
            search.query,
            self._k,
            positions,
            scores,
            rounds,
            listed=search.candidates.found,
            listed_scores=self.batch.listed[at] if self.batch.listed else np.empty(0),
            items_at=self.batch.items_at,
            keys_of=search.candidates.keys,
        )

    def advance(self) -> bool:
        """Choose the next round's items where the last round has ended; False when the search has ended."""
        while not self._has_ended:
            if not self.waiting:
                self._positions = self.batch.ask(seconds=self._first_seconds)
                if self._wallets is not None:
                    # In place, because the batch shares this list.
                    self._positions[:] = [self._wallets.afforded(*one) for one in enumerate(self._positions)]
                self._scores = [[] for _ in self._positions]
                self._round_seconds = 0.0
                # By rank first: if time runs out, every query has had its most promising items scored.
                self.waiting = sorted(
                    ((query, rank) for query, batch in enumerate(self._positions) for rank in range(len(batch))),
                    key=lambda at: (at[1], at[0]),
                )
            if self.waiting:
                return True
            if self.batch.goes_on:
                # All items of this round are gone.
                continue
            if self.batch.ended_early or not (self._hits or any(search.rounds for search in self.batch.searches)):
                self.has_news = True
            if not self._groups:
                return False
            self._finished, self._hits = self.hits(), []
            self._begin_next_group()
        return False

    def wanted(self) -> Any:
        """What the next `advance` needs, if it can be computed with others'; None for nothing."""
        return None if self._has_ended or self.waiting else self.batch.wanted()

    def _begin_next_group(self) -> None:
        queries = self._groups.popleft()
        try:
            self._begin(queries)
        except AdacurError as error:
            if (why := self._place.gave_up(error)) is None:
                raise
            trace = Trace(stopped=why, settings=self._plan.settings())
            left = [*queries, *(query for group in self._groups for query in group)]
            self._finished += [Hits(query, ids=(), scores=np.empty(0), trace=trace) for query in left]
            self._groups.clear()
            self._has_ended = True

    def stop(self, why: str = "deadline") -> None:
        """End this group here, because its deadline affords no more, or by an "error"."""
        self.batch.stop(why)
        if self.waiting:
            self.waiting = []
            self.accept(np.empty(0), seconds=0.0)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error that ends the search in this block carries the hits so far."""
        try:
            yield
        except AdacurError as error:
            error.hits = self.so_far(getattr(error, "scored", {}))
            raise

    def so_far(self, scored: Mapping[Pair, float] | None = None) -> list[Hits]:
        """End here by an error: what each query has found, which for queries of later groups is nothing.

        `scored` has scores of pairs that wait for them; those up to the first without one are taken.
        """
        # Whatever else fails, the caller gets the error that ended the search.
        with suppress(Exception):
            if scored:
                scores = takewhile(lambda one: one is not None, map(scored.get, self.next_pairs(self.n_waiting)))
                self.accept(np.array(list(scores)), seconds=0.0)
            self.stop("error")
            self.has_news = True
            self.hits()
        found = {hits.query: hits for hits in self._finished + self._hits}
        nothing = Trace(stopped="error", settings=self._plan.settings())
        return [found[one] if one in found else Hits(one, (), np.empty(0), trace=nothing) for one in self._queries]

    @property
    def n_waiting(self) -> int:
        """How many pairs of this round have no score yet."""
        return len(self.waiting)

    @property
    def n_queries(self) -> int:
        """How many queries move together now."""
        return len(self.batch.searches)

    @property
    def least(self) -> int:
        """Pairs to score even past the deadline: one per query, so that there is an answer; 0 once there is one."""
        return 0 if self._n_scored or self._plan.purse.deadline is None else self.n_queries

    @property
    def seconds_left(self) -> float:
        """Seconds until this group's part of the deadline is over; infinite without one."""
        return self._until - time.monotonic()

    def next_pairs(self, n: int, *, by_position: bool = False) -> Sequence[Pair]:
        """The next n pairs to score; `by_position` avoids looking up texts, where possible."""
        now, searches = self.waiting[:n], self.batch.searches
        if self._wallets is not None:
            # Read once, when they were priced.
            return [(searches[at].query, self._wallets.item(at, rank)) for at, rank in now]
        positions = [int(self._positions[query][rank]) for query, rank in now]
        if by_position and self._place.by_position:
            query_of = np.array([query for query, _ in now], np.intp)
            queries = [search.query for search in searches]
            return PairsAt(self._plan.items, queries, query_of, np.array(positions, np.intp))
        items = self.batch.items_at(positions)
        return [(searches[query].query, item) for (query, _), item in zip(now, items, strict=True)]

    def accept(self, scores: FloatArray, *, seconds: float) -> None:
        """Take the scores of the next pairs."""
        self._round_seconds += seconds
        self._n_scored += len(scores)
        if self._wallets is not None:
            self._wallets.pay(self.waiting[: len(scores)])
        for (query, _), score in zip(self.waiting[: len(scores)], scores.tolist(), strict=True):
            self._scores[query].append(score)
        self.waiting = self.waiting[len(scores) :]
        if not self.waiting:
            self.batch.tell([np.array(scores) for scores in self._scores], seconds=self._round_seconds)
            self.has_news = True


# A search, and how many of its pairs take part in a call.
_Share = tuple[RunningSearch, int]
