"""Background event loops: async work for callers that are not async, on connections that live on between calls."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

__all__ = ["background_loop", "run_in_background"]

T = TypeVar("T")

_loops: dict[str, asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def background_loop(thread: str = "adacur-async-scorers") -> asyncio.AbstractEventLoop:
    """The loop that runs in the daemon thread of this name, started on first use."""
    with _starting:
        if thread not in _loops:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name=thread, daemon=True).start()
            _loops[thread] = loop
        return _loops[thread]


def _forget_loops() -> None:
    global _starting
    _loops.clear()
    _starting = threading.Lock()


# A forked child inherits the loops but not the threads that run them, nor whoever held the lock.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loops)


@dataclass(frozen=True, slots=True)
class _Stop:
    exception: BaseException


def run_in_background(coroutine: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop | None = None) -> T:
    """What the coroutine returns or raises, run on a background loop while this thread waits."""

    async def outcome() -> T | _Stop:
        try:
            return await coroutine
        except (KeyboardInterrupt, SystemExit) as stop:
            # Raised through a task they would end the loop, and every later call would wait for ever.
            return _Stop(stop)

    loop = loop or background_loop()
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
