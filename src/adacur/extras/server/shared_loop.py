"""One loop for all searches of a server with one scorer.

One thread calls the scorer, again and again, with the pairs of all searches that have some by then, or, where calls are
not shared, with those of one search after the other. First stages, predictions, choices and hits are computed in other
threads meanwhile, so that no search holds up another.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from functools import partial
from weakref import WeakValueDictionary

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError
from adacur.extras.server.sharing import Sharing
from adacur.model.device_posterior import compute_together
from adacur.protocols import Scorer
from adacur.records import Pair, Query
from adacur.results import Hits
from adacur.scorers.wrapping import can_batch_callers, runs_side_by_side
from adacur.scores import failure_of, joined_pairs, score_pairs
from adacur.search import AnchorIndex, rounds
from adacur.search.plan import Plan
from adacur.search.rounds import RunningSearch

# Limits of one call, because pairs that arrive meanwhile wait for its end.
_PAIRS_PER_CALL = 4096
_SECONDS_PER_CALL = 0.1
# As many as asyncio's default executor has.
_THREADS = min(32, (os.cpu_count() or 1) + 4)


async def stepped(
    index: AnchorIndex,
    plan: Plan,
    query: Query | str,
    k: int,
    *,
    started: float,
    every_round: bool = True,
    so_far: Callable[[Hits], None] | None = None,
) -> AsyncGenerator[Hits, None]:
    """The hits of a plan for one query after each round; closing the generator ends the search.

    In the loop of the scorer, unless it is awaited itself, and so serves several callers at once.

    - `started`: when its deadline began to run;
    - `every_round`: False makes hits only at the end, which saves some time;
    - `so_far`: called with the hits of a search that fails or is cancelled, if the reader has not had them.
    """

    def given_up(hits: Hits) -> None:
        answers[:] = [hits]
        if so_far is not None:
            so_far(hits)

    with index.searching(plan) as answers:
        if runs_side_by_side(plan.scorer) or plan.purse.by_call:
            steps = rounds.asearch_iter(plan, [query], k, started=started, every_round=every_round)
        else:
            loop = loop_of(plan.scorer)
            steps = loop.search_iter(plan, query, k, started=started, every_round=every_round, so_far=given_up)
        # Closed here, not by the garbage collector: a search whose client has gone must make no more calls.
        async with aclosing(steps):
            async for hits in steps:
                answers[:] = hits
                yield hits[0]


class SharedLoop:
    """Steps the searches of one scorer. They may join at any time, from any event loop, and leave at any time.

    A call holds pairs of all searches that wait when the last call ends; `Sharing` says how many of each. When such a
    call fails, the pairs of each search are sent again on their own, so that only the search at fault sees the error.
    No budget counts that, so a scorer that may charge for it is called for one search at a time (`can_batch_callers`).
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self._changed = threading.Condition()
        self._ready: list[_Stepped] = []
        self._n_computing = 0
        if can_batch_callers(self.scorer):
            self._sharing = Sharing(pairs=_PAIRS_PER_CALL, seconds=_SECONDS_PER_CALL)
        else:
            # A function or service may charge by the call: only deadlines make it smaller than a round.
            self._sharing = Sharing(apart=True)
        self._thread: threading.Thread | None = None
        self._workers: ThreadPoolExecutor | None = None

    async def search_iter(
        self,
        plan: Plan,
        query: Query | str,
        k: int,
        *,
        started: float,
        every_round: bool,
        so_far: Callable[[Hits], None],
    ) -> AsyncGenerator[list[Hits], None]:
        """As `stepped`."""
        joined = await asyncio.to_thread(RunningSearch, plan, [query], k, started=started)
        search = _Stepped(joined, every_round=every_round)
        try:
            await asyncio.to_thread(self._join, search)
            while (news := await search.news.get()) is not None:
                if isinstance(news, BaseException):
                    raise news
                yield news
        except BaseException as error:
            search.has_left = True
            # Whatever else fails, the reader gets the error that ended the search.
            with suppress(Exception):
                for hits in await asyncio.to_thread(search.unseen):
                    so_far(hits)
                if isinstance(error, AdacurError):
                    error.hits = await asyncio.to_thread(search.so_far, getattr(error, "scored", {}))
            raise

    def _join(self, search: _Stepped) -> None:
        """Make the next choice of a search, in the caller's thread, and see to it that a thread calls the scorer."""
        with self._changed:
            self._n_computing += 1
        self._go_on([(search, None)])
        with self._changed:
            if self._ready and self._thread is None:
                # It ends when there is no more work, so that nothing is left to stop when a loop or index closes.
                thread = threading.Thread(target=self._work, name="adacur-rounds")
                thread.start()
                self._thread = thread

    def _work(self) -> None:
        while searches := self._next():
            try:
                self._step(searches)
            except BaseException as error:
                for search in searches:
                    search.tell(error)

    def _next(self) -> list[_Stepped]:
        """All searches that have pairs to score; waits while searches compute. Empty when there are none left."""
        with self._changed:
            while not self._ready and self._n_computing:
                self._changed.wait()
            searches, self._ready = self._ready, []
            if not searches:
                self._thread = None
        return searches

    def _step(self, searches: Sequence[_Stepped]) -> None:
        searches = [search for search in searches if not search.has_left]
        shares = self._sharing.shares([search.joined for search in searches], n_others=self._n_computing)
        given = list(zip(searches, shares, strict=True))
        with self._changed:
            # Who waits for a later call stands first then.
            self._ready[:0] = [search for search, n in given if n == 0]
        self._compute([(search, None) for search, n in given if n is None])
        self._score([(search, n) for search, n in given if n])

    def _score(self, shares: Sequence[tuple[_Stepped, int]]) -> None:
        """Score the next n pairs of each search in one call."""
        shares = [(search, n) for search, n in shares if not search.has_left]
        pairs = joined_pairs([search.joined.pairs[:n] for search, n in shares])
        if not pairs:
            return
        started = time.monotonic()
        try:
            scores = score_pairs(self.scorer, pairs)
        except BaseException as error:
            if len(shares) == 1:
                # Raised in the reader's task, an exit or interrupt would end its event loop, and that of everybody.
                shares[0][0].tell(error if isinstance(error, Exception) else failure_of(self.scorer, error))
            else:
                for share in shares:
                    self._score([share])
            return
        self._sharing.pace.note(len(pairs), time.monotonic() - started)
        given = np.split(scores, np.cumsum([n for _, n in shares])[:-1])
        self._compute([(search, some) for (search, _), some in zip(shares, given, strict=True)])

    def _compute(self, scored: Sequence[_Scored]) -> None:
        """Let searches go on with these scores: in other threads, unless nothing waits for this one.

        Searches that choose on a device go on together, the others on their own.
        """
        together: list[_Scored] = []
        tasks: list[list[_Scored]] = []
        for search, scores in scored:
            if scores is not None and len(scores) < len(search.joined.pairs):
                search.accept(scores)
                with self._changed:
                    self._ready.append(search)
            elif search.joined.batch.computes_together:
                together.append((search, scores))
            else:
                tasks.append([(search, scores)])
        tasks += [together] if together else []
        with self._changed:
            self._n_computing += sum(map(len, tasks))
            is_alone = len(tasks) == 1 and self._n_computing == len(tasks[0]) and not self._ready
        for task in tasks:
            self._submit(task, here=is_alone)

    def _submit(self, task: Sequence[_Scored], *, here: bool) -> None:
        if not here:
            self._workers = self._workers or ThreadPoolExecutor(_THREADS, thread_name_prefix="adacur-round")
            # An interpreter that shuts down starts no more threads.
            with suppress(RuntimeError):
                self._workers.submit(self._go_on, task)
                return
        self._go_on(task)

    def _go_on(self, task: Sequence[_Scored]) -> None:
        waiting: list[_Stepped] = []
        try:
            taken = [search for search, scores in task if search.tries(partial(search.take, scores))]
            # On failure each search computes alone, and only the one at fault fails.
            with suppress(Exception):
                wanted = [one for search in taken if (one := search.joined.wanted()) is not None]
                if len(wanted) > 1:
                    compute_together(wanted)
            waiting = [search for search in taken if search.tries(search.choose)]
        finally:
            with self._changed:
                self._n_computing -= len(task)
                self._ready += waiting
                self._changed.notify()


class _Stepped:
    """A search under way and its reader, who awaits `news`: hits after each round, then an error or None.

    A search that `has_left` takes no part in further calls.
    """

    def __init__(self, joined: RunningSearch, *, every_round: bool) -> None:
        self.joined = joined
        self.news: asyncio.Queue[list[Hits] | BaseException | None] = asyncio.Queue()
        self.has_left = False
        self._every_round = every_round
        self._events = asyncio.get_running_loop()
        self._since = 0.0
        # Held while the search computes, which is when it changes.
        self._computing = threading.Lock()

    def tell(self, news: list[Hits] | BaseException | None) -> None:
        """Pass news to the reader."""
        try:
            self._events.call_soon_threadsafe(self.news.put_nowait, news)
        except RuntimeError:
            # The reader's event loop has been closed.
            self.has_left = True

    def unseen(self) -> list[Hits]:
        """The hits so far, if the reader has not had them."""
        with self._computing:
            return self.joined.hits() if self.joined.has_news else []

    def so_far(self, scored: Mapping[Pair, float]) -> list[Hits]:
        """What each query has found when the search ends by an error, with what a failing call had scored."""
        with self._computing:
            return self.joined.so_far(scored)

    def accept(self, scores: FloatArray) -> None:
        """Take the scores of the first pairs. The trace counts the seconds waited for them, shared calls included."""
        now = time.monotonic()
        self.joined.accept(scores, seconds=now - self._since)
        self._since = now

    def take(self, scores: FloatArray | None) -> bool:
        """Take the last scores of a round, or stop without them; False if the search goes on later, or has left."""
        with self._computing:
            if self.has_left:
                return False
            joined = self.joined
            if scores is not None:
                self.accept(scores)
            elif len(joined.pairs):
                joined.stop()
            if joined.has_news and self._every_round:
                self.tell(joined.hits())
            return True

    def choose(self) -> bool:
        """Choose the next pairs; False at the end."""
        with self._computing:
            joined = self.joined
            if joined.advance():
                self._since = time.monotonic()
                return True
            if joined.has_news or not self._every_round:
                self.tell(joined.hits())
            self.tell(None)
            return False

    def tries(self, compute: Callable[[], bool]) -> bool:
        """The result of `compute`; False after an error, which the reader gets."""
        try:
            return compute()
        except BaseException as error:
            self.tell(error)
            return False


# A search, and the scores of its next pairs: None if its deadline affords no more, or it has just joined.
_Scored = tuple[_Stepped, FloatArray | None]


def loop_of(scorer: Scorer) -> SharedLoop:
    """The loop of all searches that are awaited with this scorer."""
    with _loops_lock:
        # A loop keeps its scorer alive, so no other object can have the same id meanwhile.
        return _loops.get(id(scorer)) or _loops.setdefault(id(scorer), SharedLoop(scorer))


_loops: WeakValueDictionary[int, SharedLoop] = WeakValueDictionary()
_loops_lock = threading.Lock()
