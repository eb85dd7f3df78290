"""Background event loops, on which connections live on between calls, and the waits between attempts."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

# By process too: a forked child inherits the loops but not the threads that run them.
_loops: dict[tuple[str, int], asyncio.AbstractEventLoop] = {}
_starting = threading.Lock()


def background_loop(thread: str = "adacur-async-scorers") -> asyncio.AbstractEventLoop:
    """The loop that runs in the daemon thread of this name, started on first use."""
    key = thread, os.getpid()
    with _starting:
        if key not in _loops:
            _loops[key] = asyncio.new_event_loop()
            threading.Thread(target=_loops[key].run_forever, name=thread, daemon=True).start()
        return _loops[key]


def run_in_background(coroutine: Coroutine[Any, Any, T], *, loop: asyncio.AbstractEventLoop | None = None) -> T:
    """What the coroutine returns or raises, run on a background loop while this thread waits.

    It must not raise KeyboardInterrupt or SystemExit, which would end the loop.
    """
    loop = loop or background_loop()
    if asyncio._get_running_loop() is loop:
        # A scorer called from inside an async scorer must not wait for the loop that its caller holds.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, coroutine).result()
    future = asyncio.run_coroutine_threadsafe(coroutine, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def all_at_once(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of this work returns, done side by side; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise first from first.__cause__
    return [task.result() for task in tasks]


async def in_thread(work: Callable[..., T], *given: Any) -> T:
    """As `asyncio.to_thread`, but who is cancelled waits for the end of the thread, which cannot be stopped."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *given))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        # Or asyncio would say that nobody asked for it.
        _ = running.cancelled() or running.exception()
        raise


def waits(attempts: int, first: float) -> Iterator[float | None]:
    """For each attempt, the seconds to wait if it fails, which double from `first`; None for the last."""
    yield from (first * 2.0**tried for tried in range(attempts - 1))
    yield None
