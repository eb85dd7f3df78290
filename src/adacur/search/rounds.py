"""The loop of rounds: what a plan chooses is scored, round by round.

search = RunningSearch(plan, queries, k)
while search.step():
    ...                       # search.hits() are the hits so far
search.hits()
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.errors import AdacurError
from adacur.records import Pair, Query, as_queries
from adacur.results import Hits, Trace
from adacur.scorers.calling import ascore
from adacur.scorers.wrapping import in_turn
from adacur.scores import PairsAt, score_pairs
from adacur.search.asktell import QueryBatch
from adacur.search.finish import Answer
from adacur.search.plan import Plan
from adacur.search.spending import SHARE_OF_TIME_LEFT, Pace

# The most pairs of one scorer call.
_PAIRS_AT_ONCE = 200_000


def search(plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> list[Hits]:
    """Hits of every query, in order. How queries are grouped changes the speed, never the answer.

    `started`: as for `RunningSearch`.
    """
    *_, hits = search_iter(plan, queries, k, started=started, every_round=False)
    return hits


def search_iter(
    plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None, every_round: bool = True
) -> Iterator[list[Hits]]:
    """Hits of all queries after each round, or at the end only; the last are the answer."""
    running = RunningSearch(plan, queries, k, started=started)
    goes_on = True
    with running.failing():
        while goes_on:
            goes_on = running.step()
            if running.has_news if every_round else not goes_on:
                yield running.hits()


async def asearch_iter(
    plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None, every_round: bool = True
) -> AsyncGenerator[list[Hits], None]:
    """Like `search_iter`; the event loop goes on meanwhile."""
    running = await asyncio.to_thread(RunningSearch, plan, queries, k, started=started)
    goes_on = True
    with running.failing():
        while goes_on:
            goes_on = await running.astep()
            if running.has_news if every_round else not goes_on:
                yield await asyncio.to_thread(running.hits)


class RunningSearch:
    """The search of some queries, which move in groups that fit into memory, one after another.

    `started` is when the plan's deadline began to run, by its purse's clock: by default, now. `batch` are the searches
    of the current group, `pairs` what is still to score in this round: by rank, so that if time runs out, every query
    has had its most promising items scored. `has_news`: a round has ended since `hits` were last read.
    """

    def __init__(self, plan: Plan, queries: Sequence[Query | str], k: int, *, started: float | None = None) -> None:
        self._clock = plan.purse.clock
        self._started = self._clock() if started is None else started
        self._plan = plan
        self._k = k
        self._queries = everyone = as_queries(queries)
        self._place = plan.candidates
        self._by_position = self._place.by_position and hasattr(plan.scorer, "score_at")
        self._pace = Pace()
        calls = max(1, min(plan.purse.calls, len(plan.items)))
        together = max(1, min(self._place.together(plan), _PAIRS_AT_ONCE // calls))
        self._groups = deque(everyone[start : start + together] for start in range(0, len(everyone), together))
        self._has_ended = not everyone
        self._finished: list[Hits] = []
        self._hits: list[Hits] = []
        self.has_news = False
        self.pairs: Sequence[Pair] = []
        if everyone:
            self._begin(self._groups.popleft())

    def _begin(self, queries: list[Query]) -> None:
        """Ask the first stage for the candidates of a group, and begin its searches."""
        before = self._clock()
        # Later groups must find their share of the time.
        share = len(queries) / (len(queries) + sum(map(len, self._groups)))
        self._until = self._plan.purse.until(self._started, share=share)
        self.batch: QueryBatch = self._place.begin(self._plan, self._k, queries)
        self._counts_pairs = self.batch.searches[0].purse.counts_pairs
        # Nothing is expected of a price alone, and its audit stays as planned.
        if self._plan.purse.may_refuse and self._place.by_position:
            for search in self.batch.searches:
                search.expect(self.batch.items_at)
        self._first_seconds = self._clock() - before
        self._n_scored = 0
        self._shown_last = False
        # A search that scores nothing has an answer all the same.
        self.has_news = not self.batch.goes_on

    def step(self) -> bool:
        """Score the next pairs; False when the search has ended."""
        if not len(pairs := self._next_call()):
            return False
        started = self._clock()
        scores = score_pairs(self._plan.scorer, pairs)
        self.accept(scores, seconds=self._clock() - started)
        return True

    async def astep(self) -> bool:
        """Like `step`, without blocking the event loop."""
        scorer, asked = self._plan.scorer, self._clock()

        async def call() -> tuple[FloatArray, float]:
            waited = self._clock() - asked
            # In a thread: a round of a large collection takes many milliseconds.
            if not len(pairs := await asyncio.to_thread(self._next_call)):
                return np.empty(0), 0.0
            started = self._clock()
            scores = await ascore(scorer, pairs)
            # What others took counts too: by that pace, searches with a deadline leave each other time.
            return scores, waited + self._clock() - started

        scores, seconds = await in_turn(scorer, call)
        if not len(scores):
            return False
        await asyncio.to_thread(self.accept, scores, seconds=seconds)
        return True

    def _next_call(self) -> Sequence[Pair]:
        """The pairs of the next scorer call: all of the round, or what the deadline allows; none at the end."""
        while self.advance():
            if n := self._in_time():
                return self.pairs[:n]
            self.stop()
        return []

    def _in_time(self) -> int:
        """How many of the waiting pairs the deadline affords, by the pace of the last calls."""
        purse, pace = self._plan.purse, self._pace
        if purse.deadline is None:
            return len(self.pairs)
        # One pair per query tells how fast the scorer is.
        n = pace.pairs_in(SHARE_OF_TIME_LEFT * self.seconds_left) if pace.is_known else self.n_queries
        n = max(n, self.least)
        if n >= 1 and purse.by_call:
            # Where a pair's price depends on its call, a round that is split would cost more.
            return len(self.pairs)
        return max(0, int(min(n, len(self.pairs))))

    def hits(self) -> list[Hits]:
        """The best k of each query so far; queries of later groups are missing."""
        if self.has_news:
            self.has_news, self._shown_last = False, not self.batch.goes_on
            settings = self._plan.settings()
            predicted = self.batch.final_predictions() if self._plan.keeps else [None] * self.n_queries
            self._hits = [self._answer(at, settings, kept).hits() for at, kept in enumerate(predicted)]
        return self._finished + self._hits

    def _answer(self, at: int, settings: dict[str, Any], predicted: FloatArray | None) -> Answer:
        search, batch = self.batch.searches[at], self.batch
        positions, scores, rounds = search.best()
        answer = Answer(
            search.query,
            self._k,
            positions,
            scores,
            rounds,
            listed=search.candidates.found,
            listed_scores=batch.listed[at] if batch.listed else np.empty(0),
            items_at=batch.items_at,
            keys_of=search.candidates.keys,
            trace=search.trace(settings=settings, approximate_scores=predicted),
            # What cannot be paid is asked for no more, and has no score.
            n_left=search.candidates.n_left + search.purse.n_refused,
            goes_on=bool(search.remaining),
        )
        for step in self._plan.finish:
            answer = step(answer)
        return answer

    def advance(self) -> bool:
        """Choose the next round's items where the last round has ended; False when the search has ended."""
        while not self._has_ended:
            if not len(self.pairs):
                self._choose()
            if len(self.pairs):
                return True
            if self.batch.goes_on:
                # All items of this round are gone.
                continue
            # Those shown last may have been of a search that went on: then what was left paid for no more.
            self.has_news = self.has_news or not self._shown_last
            if not self._groups:
                return False
            self._finished, self._hits = self.hits(), []
            self._begin_next_group()
        return False

    def _choose(self) -> None:
        """Ask every search for the items of its next round: `pairs`, by position where scorer and items can."""
        batch, searches = self.batch, self.batch.searches
        # The batch shares this list: what cannot be paid is taken out in place.
        positions = batch.ask(seconds=self._first_seconds)
        paid: list[list[Pair]] = []
        if self._counts_pairs:
            for at, search in enumerate(searches):
                options = {"refuses": not self._finished, "seeks": self._place.by_position}
                positions[at], pairs = search.afford(positions[at], batch.items_at, **options)
                paid.append(pairs)
        self._scores: list[list[float]] = [[] for _ in positions]
        self._round_seconds = 0.0
        query_of = np.repeat(np.arange(len(positions)), [len(some) for some in positions])
        ranks = np.concatenate([np.arange(len(some)) for some in positions])
        order = np.lexsort((query_of, ranks))
        # Of each pair, the query that it belongs to.
        self._query_of: IntArray = query_of[order]
        if paid:
            self.pairs = [paid[query][rank] for query, rank in zip(self._query_of, ranks[order], strict=True)]
            return
        flat = np.concatenate(positions)[order]
        if self._by_position:
            self.pairs = PairsAt(self._plan.items, [search.query for search in searches], self._query_of, flat)
        else:
            items = batch.items_at(flat.tolist())
            self.pairs = [(searches[query].query, item) for query, item in zip(self._query_of, items, strict=True)]

    def wanted(self) -> Any:
        """What the next `advance` needs, if it can be computed with others'; None for nothing."""
        return None if self._has_ended or len(self.pairs) else self.batch.wanted()

    def _begin_next_group(self) -> None:
        queries = self._groups.popleft()
        try:
            self._begin(queries)
        except AdacurError as error:
            if (why := self._place.gave_up(error)) is None:
                raise
            self._finished += _nothing(why, [*queries, *(one for group in self._groups for one in group)], self._plan)
            self._has_ended = True

    def stop(self, why: str = "deadline") -> None:
        """End this group here, because its deadline affords no more, or by an "error"."""
        self.batch.stop(why)
        if len(self.pairs):
            self.pairs = []
            self.accept(np.empty(0), seconds=0.0)

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error that ends the search in this block carries the hits so far."""
        try:
            yield
        except Exception as error:
            # Of a first stage or an encoder it may be of any kind.
            with suppress(AttributeError):
                error.hits = self.so_far(getattr(error, "scored", {}))  # type: ignore[attr-defined]
            raise

    def so_far(self, scored: Mapping[Pair, float] | None = None) -> list[Hits]:
        """End here by an error: what each query has found, which for queries of later groups is nothing.

        `scored` has scores of pairs that wait for them; those up to the first without one are taken.
        """
        # Whatever else fails, the caller gets the error that ended the search.
        with suppress(Exception):
            if scored:
                scores = takewhile(lambda one: one is not None, map(scored.get, self.pairs))
                self.accept(np.array(list(scores)), seconds=0.0)
            self.stop("error")
            self.has_news = True
            self.hits()
        found = {hits.query: hits for hits in self._finished + self._hits}
        missing = [query for query in self._queries if query not in found]
        found |= {hits.query: hits for hits in _nothing("error", missing, self._plan)}
        return [found[query] for query in self._queries]

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
        return self._until - self._clock()

    def accept(self, scores: FloatArray, *, seconds: float) -> None:
        """Take the scores of the next pairs."""
        self._pace.note(len(scores), seconds)
        self._round_seconds += seconds
        self._n_scored += len(scores)
        now, self._query_of = self._query_of[: len(scores)].tolist(), self._query_of[len(scores) :]
        for at, n in Counter(now if self._counts_pairs else ()).items():
            self.batch.searches[at].purse.pay(n)
        for query, score in zip(now, scores.tolist(), strict=True):
            self._scores[query].append(score)
        self.pairs = self.pairs[len(scores) :]
        if not len(self.pairs):
            self.batch.tell([np.array(scores) for scores in self._scores], seconds=self._round_seconds)
            self.has_news = True


def _nothing(why: str, queries: Sequence[Query], plan: Plan) -> list[Hits]:
    """The answers of queries that were not searched."""
    trace = Trace(stopped=why, settings=plan.settings())
    return [Hits(query, ids=(), scores=np.empty(0), trace=trace) for query in queries]
