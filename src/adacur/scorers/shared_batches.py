"""A queue in front of a scorer, so that callers who wait at the same time share a call."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from weakref import WeakValueDictionary

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import ScorerFailed
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers.wrapping import Wrapping, can_batch_callers
from adacur.scores import check_scores, joined_pairs, scores_of

_PAIRS_PER_CALL = 1024


# One caller's pairs, and where the answer goes.
_Request = tuple[Sequence[Pair], Future[FloatArray]]


class SharedBatches(Wrapping):
    """A scorer whose callers share calls: while one call runs, the pairs of all who wait gather for the next.

    Callers may be threads (`score`) and tasks of any event loop (`ascore`). A caller that comes alone is served at
    once. One thread calls the scorer, with at most `max_pairs` pairs unless one caller brings more. The pairs of a
    caller that is cancelled before the call begins are not paid for. When a shared call fails, each caller's pairs are
    sent once more on their own, so that an error reaches only the caller it belongs to; no budget counts that, so do
    not wrap a scorer that charges. A model that pads its batches may round differently in another batch.
    """

    can_batch_callers = True

    def __init__(self, scorer: Scorer, *, max_pairs: int = _PAIRS_PER_CALL) -> None:
        at_least(1, max_pairs=max_pairs)
        self.scorer = scorer
        self._max_pairs = max_pairs
        self._begin()

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; waits for its turn."""
        # A scorer that calls itself must not wait in the queue that it holds up.
        if threading.current_thread() is self._worker:
            return scores_of(self.scorer, pairs)
        answer = self._enqueued(pairs)
        try:
            return answer.result()
        finally:
            answer.cancel()

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; the event loop goes on meanwhile."""
        if threading.current_thread() is self._worker:
            return scores_of(self.scorer, pairs)
        return await asyncio.wrap_future(self._enqueued(pairs))

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[_Request] = deque()
        self._worker: threading.Thread | None = None

    def _enqueued(self, pairs: Sequence[Pair]) -> Future[FloatArray]:
        if self._process != os.getpid():
            # A forked child inherits the queue but not the thread that works it off.
            self._begin()
        answer: Future[FloatArray] = Future()
        with self._lock:
            self._waiting.append((pairs, answer))
            if self._worker is None:
                # A thread while there is work, not one for ever: nothing is left to stop when a loop or index closes.
                self._worker = threading.Thread(target=self._work, name="adacur-shared-batches")
                self._worker.start()
        return answer

    def _work(self) -> None:
        while requests := self._next_call():
            self._serve(requests)

    def _next_call(self) -> list[_Request]:
        requests: list[_Request] = []
        n_pairs = 0
        with self._lock:
            while self._waiting:
                if requests and n_pairs + len(self._waiting[0][0]) > self._max_pairs:
                    break
                pairs, answer = self._waiting.popleft()
                if answer.set_running_or_notify_cancel():
                    requests.append((pairs, answer))
                    n_pairs += len(pairs)
            if not requests:
                self._worker = None
        return requests

    def _serve(self, requests: Sequence[_Request]) -> None:
        everyone = joined_pairs([pairs for pairs, _ in requests])
        try:
            scores = check_scores(scores_of(self.scorer, everyone), everyone)
        except Exception as error:
            if len(requests) > 1:
                for request in requests:
                    self._serve([request])
                return
            # An asyncio future refuses to carry a StopIteration, and its caller would wait for ever.
            is_stop = isinstance(error, StopIteration)
            failure = ScorerFailed(f"Scorer {self.card.name!r} raised StopIteration.") if is_stop else error
            requests[0][1].set_exception(failure)
        except BaseException as stop:
            for _, answer in requests:
                answer.set_exception(stop)
        else:
            ends = np.cumsum([len(pairs) for pairs, _ in requests])
            for (_, answer), share in zip(requests, np.split(scores, ends[:-1]), strict=True):
                answer.set_result(share)


def shared_batches(scorer: Scorer) -> SharedBatches:
    """The queue of all who await this scorer now; one call after another where they may not share them."""
    with _queues_lock:
        # A queue keeps its scorer alive, so that while it is in use no other object can have the scorer's id.
        queue = _queues.get(id(scorer))
        if queue is None:
            queue = _queues[id(scorer)] = SharedBatches(
                scorer, max_pairs=_PAIRS_PER_CALL if can_batch_callers(scorer) else 1
            )
        return queue


_queues: WeakValueDictionary[int, SharedBatches] = WeakValueDictionary()
_queues_lock = threading.Lock()
