"""Turns: some requests run at a time, some more wait in a queue, and further ones are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from starlette.types import Receive

from adacur.extras.server.failures import ClientGone, Refusal

Answer = TypeVar("Answer")


class Turns:
    """`concurrency` requests at a time and `queue` waiting; further ones get 429."""

    def __init__(self, *, concurrency: int, queue: int) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._queue = queue
        self.waiting = 0
        self.running = 0

    async def run(self, work: Callable[[], Awaitable[Answer]], *, receive: Receive, seconds: float) -> Answer:
        """The result of some work, in its turn; the work is cancelled when the client disconnects.

        A request that waits for its turn for more than `seconds` is answered with 504.
        """
        working = asyncio.ensure_future(self._in_turn(work, seconds))
        leaving = asyncio.ensure_future(_hung_up(receive))
        try:
            await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGone
            return working.result()
        finally:
            for task in (working, leaving):
                task.cancel()
            await asyncio.gather(working, leaving, return_exceptions=True)

    async def _in_turn(self, work: Callable[[], Awaitable[Answer]], seconds: float) -> Answer:
        self.check()
        self.waiting += 1
        try:
            async with asyncio.timeout(seconds):
                await self._free.acquire()
        except TimeoutError as error:
            message = f"This request did not get its turn within {seconds:g} s. Try again later."
            raise Refusal(504, "out_of_time", message) from error
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            return await work()
        finally:
            self.running -= 1
            self._free.release()

    def check(self) -> None:
        """Refuse a request for which the queue has no place."""
        if self._free.locked() and self.waiting >= self._queue:
            message = f"{self.running} requests are running and {self.waiting} wait. Try again in a second."
            raise Refusal(429, "too_busy", message, headers={"Retry-After": "1"})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
