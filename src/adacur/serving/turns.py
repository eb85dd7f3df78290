"""Whose turn it is: so many requests at a time, some more in line, and the rest are asked to come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from adacur.serving.failures import Refusal, stopping

__all__ = ["Turns"]


class Turns:
    """`concurrency` at a time, `queue` in line; 429 for whoever comes then, 503 for everybody once `stop` is called."""

    def __init__(self, *, concurrency: int, queue: int) -> None:
        self._free = asyncio.Semaphore(concurrency)
        self._most = queue
        self.waiting = 0
        self.running = 0
        self.is_stopping = False

    @asynccontextmanager
    async def one(self, *, within: float | None = None) -> AsyncIterator[None]:
        """A turn of one's own; 504 where it does not come within so many seconds."""
        self.check()
        self.waiting += 1
        try:
            async with asyncio.timeout(within):
                await self._free.acquire()
        except TimeoutError as error:
            raise Refusal(
                504, "out_of_time", f"It was not this request's turn within {within:g} s. Try again later."
            ) from error
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._free.release()

    def check(self) -> None:
        """Refuse whom there is no room for."""
        if self.is_stopping:
            raise stopping()
        if self._free.locked() and self.waiting >= self._most:
            raise Refusal(
                429,
                "too_busy",
                f"{self.running} requests are under way and {self.waiting} wait. Try again in a second.",
                headers={"Retry-After": "1"},
            )

    def stop(self) -> None:
        """Take nobody new."""
        self.is_stopping = True

    async def all_done(self) -> None:
        """Wait for those who were let in."""
        while self.running or self.waiting:
            await asyncio.sleep(0.02)
