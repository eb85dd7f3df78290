"""Requests to a rerank server: bounded, repeated where that may help, and without the key in any message."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import random
import weakref
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from adacur.core.errors import ScorerFailed
from adacur.core.extras import require
from adacur.scorers.event_loop import background_loop, run_in_background

__all__ = ["RerankClient"]

_log = logging.getLogger(__name__)

T = TypeVar("T")
# Only code of this module runs on this loop, so that no blocking function of a user can hold up a request's clock.
_THREAD = "adacur-http"
_LONGEST_WAIT = 60.0
# Beside the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}


class _NoAnswer(Exception):
    """A request without an answer."""


class _TryAgain(_NoAnswer):
    """One that is worth another attempt, after `wait` seconds where the server gave a number."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class _Connections:
    """A client with its slots and its end, which belong to the loop they were made on."""

    loop: asyncio.AbstractEventLoop
    client: Any
    slots: asyncio.Semaphore
    closing: asyncio.Event
    release: weakref.finalize[..., Any]

    async def pause(self, seconds: float) -> None:
        """Sleep, unless the scorer is closed meanwhile."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.closing.wait(), seconds)

    async def close(self) -> None:
        self.closing.set()
        await self.client.aclose()


class RerankClient:
    """An HTTP client on a loop of its own; its limits are those of `HttpScorer`, `name` is what errors call it."""

    def __init__(
        self, name: str, *, key: str | None, concurrency: int, timeout: float, attempts: int, backoff: float
    ) -> None:
        self.name = name
        self._key = key
        self._concurrency, self._timeout, self._attempts, self._backoff = concurrency, timeout, attempts, backoff
        # A generator for this client alone, so that waiting does not disturb seeded random numbers elsewhere.
        self._jitter = random.Random()
        self._connections: _Connections | None = None
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that sends requests, while this thread waits."""
        return run_in_background(coroutine, loop=background_loop(_THREAD))

    async def wait_for(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The same, while the caller's loop goes on: a client belongs to one loop, and its requests run there."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, background_loop(_THREAD)))

    async def get(self, url: str) -> Any:
        """The JSON at a URL, or None."""
        response = await self.send(url)
        if response.status_code == 401:
            raise ScorerFailed(self.refusal(response))
        try:
            return response.json() if response.is_success else None
        except ValueError:
            return None

    async def send(self, url: str, content: bytes | None = None, *, where: str = "") -> Any:
        """The server's answer to POST (or to GET), even a refusal; ScorerFailed, with `where` it was, if none comes."""
        tenacity = require("tenacity", extra="http")
        connections = self._connected()
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_TryAgain),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=self._wait,
            sleep=connections.pause,
            before_sleep=self._log_wait,
            reraise=True,
        )
        # The slot is kept while waiting, so that an overloaded server is sent less.
        async with connections.slots:
            try:
                return await retrying(self._attempt, connections, url, content)
            except _NoAnswer as failure:
                gave_up = f" Gave up after {self._attempts} attempts." if isinstance(failure, _TryAgain) else ""
                raise ScorerFailed(self.without_key(f"{failure}{gave_up}{where}")) from failure.__cause__

    def close(self) -> None:
        """Close the connections; requests in flight fail."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections.release.detach() and connections.loop is background_loop(_THREAD):
            self.run(connections.close())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": None}

    async def _attempt(self, connections: _Connections, url: str, content: bytes | None) -> Any:
        httpx2 = require("httpx2", extra="http")
        if connections.client.is_closed:
            raise self._has_been_closed()
        request: dict[str, Any] = {"method": "GET"}
        if content is not None:
            request = {"method": "POST", "content": content, "headers": {"Content-Type": "application/json"}}
        try:
            # The client's own timeouts start anew with every byte; a request's must not.
            async with asyncio.timeout(self._timeout):
                response = await connections.client.request(url=url, **request)
        except TimeoutError as error:
            raise _TryAgain(
                f"{url} gave no answer within {self._timeout:g} s. Is it overloaded? Raise timeout=, or lower "
                "batch_size= or concurrency=."
            ) from error
        except httpx2.ConnectError as error:
            raise _TryAgain(f"No server can be reached at {url}: {error}. Is it running?") from error
        except httpx2.RequestError as error:
            raise _TryAgain(f"{url} broke off: {type(error).__name__}: {error}.") from error
        if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
            return response
        wait = _retry_after(response)
        problem = f"{url} answered {self._in_words(response)}"
        if wait is not None and wait > _LONGEST_WAIT:
            raise _NoAnswer(f"{problem} It asks to wait for {wait:.0f} s. Try again then.")
        raise _TryAgain(problem, wait)

    def _wait(self, state: Any) -> float:
        wait: float | None = state.outcome.exception().wait
        if wait is not None:
            return wait + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - wait))
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** int(state.attempt_number - 1)) * self._jitter.uniform(0.5, 1.0)

    def _log_wait(self, state: Any) -> None:
        problem = self.without_key(str(state.outcome.exception()))
        attempt = state.attempt_number + 1
        _log.info("%s Attempt %d of %d in %.2f s.", problem, attempt, self._attempts, state.next_action.sleep)

    def _connected(self) -> _Connections:
        if self._closed:
            raise self._has_been_closed()
        loop = asyncio.get_running_loop()
        # After a fork there is another loop, and the parent's connections must be left to the parent.
        if self._connections is None or self._connections.loop is not loop:
            httpx2 = require("httpx2", extra="http")
            client = httpx2.AsyncClient(
                verify=_trusted_certificates(),
                timeout=None,
                limits=httpx2.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency),
                headers={"User-Agent": "adacur"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            )
            release = weakref.finalize(self, _close_later, client, loop, os.getpid())
            release.atexit = False
            slots = asyncio.Semaphore(self._concurrency)
            self._connections = _Connections(loop, client, slots, asyncio.Event(), release)
        return self._connections

    def refusal(self, response: Any) -> str:
        """What a server answered that refused a request, and what may help."""
        not_accepted = "The key given was not accepted." if self._key else "Give api_key=."
        not_there = "Is this the address for reranking, and the model known there?"
        advice = {
            401: not_accepted,
            403: not_accepted,
            404: not_there,
            405: not_there,
            413: "This pair alone is too large for the server: shorten its texts.",
        }.get(response.status_code, "")
        if place := response.headers.get("location"):
            advice = f"It points to {place}: give that address."
        return self.without_key(f"{response.request.url} answered {self._in_words(response)} {advice}")

    def _in_words(self, response: Any) -> str:
        status = f"{response.status_code} {response.reason_phrase}"
        return f"{status}: {self.quote(response.text)}" if response.text.strip() else f"{status}."

    def quote(self, said: object) -> str:
        """The beginning of what a server said, without the key."""
        # The key is hidden before the text is cut, which might leave half of it.
        text = " ".join(self.without_key(str(said)).split())
        return f"{text[:300]}…" if len(text) > 300 else f"{text.rstrip('.')}."

    def without_key(self, text: str) -> str:
        """The text with the key hidden."""
        # A server may repeat the key it was sent.
        return text.replace(self._key, "***") if self._key else text

    def _has_been_closed(self) -> ScorerFailed:
        return ScorerFailed(f"The scorer {self.name!r} has been closed. Open it again to score.")


def _retry_after(response: Any) -> float | None:
    """Seconds that Retry-After asks for: it holds a number, or a date."""
    text = response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text).replace(tzinfo=UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


@functools.cache
def _trusted_certificates() -> Any:
    # Reading the certificates takes longer than many a request.
    return require("httpx2", extra="http").create_ssl_context()


def _close_later(client: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    # In a forked child that loop does not run, and its sockets are the parent's.
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)
