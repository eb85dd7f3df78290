"""A queue in front of a scorer, so that callers who wait at the same time share a call."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, field
from weakref import WeakSet, WeakValueDictionary

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScorerFailed
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_scores

__all__ = ["SharedBatches", "queue_for", "shared_batches", "shares_calls"]

_PAIRS_PER_CALL = 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One caller's pairs; `around` are the queues that themselves wait until this caller has its answer."""

    pairs: Sequence[Pair]
    around: frozenset[int]
    answer: Future[FloatArray] = field(default_factory=Future)


class SharedBatches:
    """A scorer whose callers share calls: while one call runs, the pairs of all who wait gather for the next.

    Callers may be threads (`score`) and tasks of any event loop (`ascore`). Nobody waits for company: who comes alone
    is served at once. One thread asks the scorer, at most `max_pairs` pairs a call unless one caller brings more. A
    pair that several of them bring is scored once; nothing is remembered from call to call, which is what `Cached` is
    for. Who is cancelled before the call begins is not paid for. When a shared call fails, each caller's pairs are
    sent once more on their own, so that an error reaches only those it belongs to; no budget counts that, so wrap no
    scorer that charges. A model that pads its batches may round differently in other company; scores that never depend
    on it do not here either.
    """

    shares_calls = True

    def __init__(self, scorer: Scorer, *, max_pairs: int = _PAIRS_PER_CALL) -> None:
        if max_pairs < 1:
            raise InputError(f"max_pairs counts the pairs of a shared call and must be at least 1; got {max_pairs}.")
        self.scorer = scorer
        self._max_pairs = max_pairs
        self._start_afresh()
        _all_queues.add(self)

    @property
    def card(self) -> ScorerCard:
        return self.scorer.card

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; waits for its turn."""
        if id(self) in _serving.get():
            return self.scorer.score(pairs)
        answer = self._enqueued(pairs)
        try:
            return answer.result()
        finally:
            answer.cancel()

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        if id(self) in _serving.get():
            return await asyncio.to_thread(self.scorer.score, pairs)
        return await asyncio.wrap_future(self._enqueued(pairs))

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items), past the queue: a grid is a full batch already."""
        from adacur.scorers.grid import score_grid  # that module builds on this one

        return score_grid(self.scorer, queries, items)

    def close(self) -> None:
        """Close the scorer, if it can be closed."""
        if callable(close := getattr(self.scorer, "close", None)):
            close()

    def _start_afresh(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._is_working = False

    def _enqueued(self, pairs: Sequence[Pair]) -> Future[FloatArray]:
        request = _Request(pairs, around=_serving.get())
        with self._lock:
            if not self._is_working:
                # A thread per rush, not one kept for ever: nothing is left to stop when a loop or an index closes.
                threading.Thread(target=self._work, name="adacur-shared-batches").start()
                self._is_working = True
            self._waiting.append(request)
        return request.answer

    def _work(self) -> None:
        while requests := self._next_call():
            # A scorer that asks itself, perhaps by way of another scorer, must not wait in the line it holds up.
            _serving.set(frozenset({id(self)}).union(*(request.around for request in requests)))
            self._serve(requests)

    def _next_call(self) -> list[_Request]:
        taken: list[_Request] = []
        n_pairs = 0
        with self._lock:
            while self._waiting:
                if taken and n_pairs + len(self._waiting[0].pairs) > self._max_pairs:
                    break
                request = self._waiting.popleft()
                if request.answer.set_running_or_notify_cancel():
                    taken.append(request)
                    n_pairs += len(request.pairs)
            self._is_working = bool(taken)
        return taken

    def _scored_once(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, of which some may be the same: several ask one question at a time."""
        keys = [(query.id, query.text, item.id, item.text) for query, item in pairs]
        different = dict(zip(keys, pairs, strict=True))
        if len(different) == len(pairs):
            return self._scored(pairs)
        place = {key: at for at, key in enumerate(different)}
        return self._scored(list(different.values()))[[place[key] for key in keys]]

    def _scored(self, pairs: Sequence[Pair]) -> FloatArray:
        try:
            return check_scores(self.scorer.score(pairs), pairs)
        except StopIteration as error:
            # An asyncio future refuses to carry it, and its caller would wait for ever.
            raise ScorerFailed(f"Scorer {self.card.name!r} failed with StopIteration: {error}") from error

    def _serve(self, requests: Sequence[_Request]) -> None:
        try:
            scores = self._scored_once([pair for request in requests for pair in request.pairs])
        except Exception as error:
            if len(requests) > 1:
                for request in requests:
                    self._serve([request])
            else:
                requests[0].answer.set_exception(error)
        except BaseException as stop:
            for request in requests:
                request.answer.set_exception(stop)
        else:
            start = 0
            for request in requests:
                request.answer.set_result(scores[start : start + len(request.pairs)])
                start += len(request.pairs)


def shares_calls(scorer: Scorer) -> bool:
    """Whether callers may share a call of this scorer without asking: what it says of itself.

    True of models in this process, where a pair that is sent again after somebody else's failure costs time and
    nothing else. A function, a service or an object may charge for it.
    """
    return bool(getattr(scorer, "shares_calls", False))


def queue_for(scorer: Scorer, *, shared: bool) -> SharedBatches:
    """A queue in which callers share calls, or one in which each has calls of its own, one after another."""
    return SharedBatches(scorer, max_pairs=_PAIRS_PER_CALL if shared else 1)


def shared_batches(scorer: Scorer) -> SharedBatches:
    """The queue of everybody who awaits this scorer now."""
    with _queues_lock:
        # A queue keeps its scorer alive, so that while it is in use no other object can have the scorer's id.
        queue = _queues.get(id(scorer))
        if queue is None:
            queue = _queues[id(scorer)] = queue_for(scorer, shared=shares_calls(scorer))
        return queue


_serving: ContextVar[frozenset[int]] = ContextVar("adacur_serving", default=frozenset())
_queues: WeakValueDictionary[int, SharedBatches] = WeakValueDictionary()
_queues_lock = threading.Lock()
_all_queues: WeakSet[SharedBatches] = WeakSet()


def _start_afresh() -> None:
    global _queues_lock
    _queues_lock = threading.Lock()
    for queue in list(_all_queues):
        queue._start_afresh()


# A forked child inherits the queues but not the threads that work them off, nor who holds their locks.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
