"""Any function of texts as a scorer."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScorerFailed
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair
from adacur.core.scores import check_scores

__all__ = ["FunctionScorer"]

TextPairs = list[tuple[str, str]]
T = TypeVar("T")


class FunctionScorer:
    """A callable from a list of (query text, item text) to as many numbers, plain or async.

    An async function asked through `score` runs on one background event loop that all such scorers share
    and that lives on between calls, so that an HTTP client may keep its connections.
    """

    def __init__(
        self,
        function: Callable[[TextPairs], Sequence[float] | FloatArray | Awaitable[Sequence[float] | FloatArray]],
        *,
        name: str | None = None,
        batch_size: int | None = None,
        source: str | None = None,
    ) -> None:
        if not callable(function):
            raise InputError(f"A scorer function must be callable; got {type(function).__name__}.")
        if batch_size is not None and batch_size < 1:
            raise InputError(f"batch_size counts the pairs per call and must be at least 1; got {batch_size}.")
        self._function: Callable[[TextPairs], Any] = function
        self._batch_size = batch_size
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004
        )
        self.card = ScorerCard(
            name=name or str(getattr(function, "__qualname__", type(function).__name__)),
            backend="function",
            source=source or _importable_name(function),
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if self._is_async:
            return _run_in_background(self.ascore(pairs))
        return _joined([self._checked(self._call(batch), batch) for batch in self._batches(pairs)])

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; a plain function runs in a thread."""
        scores = []
        for batch in self._batches(pairs):
            if self._is_async:
                answer = self._call(batch)
            else:
                answer = await asyncio.to_thread(self._call, batch)
            scores.append(self._checked(await self._settled(answer, batch), batch))
        return _joined(scores)

    def _batches(self, pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
        size = self._batch_size or max(1, len(pairs))
        return (pairs[start : start + size] for start in range(0, len(pairs), size))

    def _call(self, batch: Sequence[Pair]) -> Any:
        try:
            return self._function([(query.text, item.text) for query, item in batch])
        except Exception as error:
            raise self._failed(error, batch) from error

    async def _settled(self, answer: Any, batch: Sequence[Pair]) -> Any:
        try:
            return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            raise self._failed(error, batch) from error

    def _checked(self, answer: Any, batch: Sequence[Pair]) -> FloatArray:
        if inspect.isawaitable(answer):
            answer = _run_in_background(self._settled(answer, batch))
        return check_scores(answer, batch)

    def _failed(self, error: Exception, batch: Sequence[Pair]) -> ScorerFailed:
        return ScorerFailed(
            f"The scorer function {self.card.name!r} raised {type(error).__name__}: {error} "
            f"(on {len(batch)} pairs, the first of query {batch[0][0].id!r} and item {batch[0][1].id!r})."
        )


def _joined(scores: list[FloatArray]) -> FloatArray:
    return np.concatenate(scores) if scores else np.empty(0)


def _importable_name(function: Any) -> str | None:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not name or module == "__main__" or "<" in name:
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else None


@functools.cache
def _background_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="adacur-async-scorers", daemon=True).start()
    return loop


# A forked child inherits the loop but not the thread that runs it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background_loop.cache_clear)


@dataclass(frozen=True, slots=True)
class _Stop:
    exception: BaseException


def _run_in_background(coroutine: Coroutine[Any, Any, T]) -> T:
    async def outcome() -> T | _Stop:
        try:
            return await coroutine
        except (KeyboardInterrupt, SystemExit) as stop:
            # Raised through a task they would end the loop, and every later call would wait for ever.
            return _Stop(stop)

    loop = _background_loop()
    if _running_loop() is loop:
        # A scorer called from inside an async scorer must not wait for the loop that its caller holds.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result()
    future = asyncio.run_coroutine_threadsafe(outcome(), loop)
    try:
        answer = future.result()
    except BaseException:
        future.cancel()
        raise
    if isinstance(answer, _Stop):
        raise answer.exception
    return answer


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
