"""Scorers behind HTTP: batches, retries, a limit on requests in flight, and a key that nothing shows."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.records import Pair, check_texts
from adacur.requirements import require
from adacur.scorers.event_loop import all_at_once, background_loop, run_in_background
from adacur.scorers.wrapping import Closing, closed

_log = logging.getLogger("adacur.scorers.http")
# Only requests run on this loop, so that no blocking function of a user can hold up their clocks.
_THREAD = "adacur-http"
_LONGEST_WAIT = 60.0
# Beside the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}
# Of an answer, unpacked; the scores of a thousand texts that are sent back with them take a tenth of it.
_LONGEST_ANSWER = 64 * 2**20


class _NoAnswer(Exception):
    """A request without an answer; `wait` is what the server asks for, in seconds."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class RemoteScorer(Closing):
    """A scorer that sends batches of pairs to `url`, side by side, from any thread or event loop.

    Its subclasses say how pairs are put into batches, how a batch is asked for, and what its answer means.
    """

    url: str
    card: ScorerCard
    _extra: dict[str, Any]
    # Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
    _split: ClassVar[frozenset[int]] = frozenset({413, 422})

    def __init__(self, *, key: str | None, concurrency: int, timeout: float, attempts: int, backoff: float) -> None:
        require("httpx2", extra="http")
        at_least(1, concurrency=concurrency, attempts=attempts)
        if not (0 < timeout < math.inf and 0 <= backoff < math.inf):
            raise InputError(f"timeout must be above 0 seconds and backoff at least 0; got {timeout}, {backoff}.")
        self._key = key
        self._concurrency, self._timeout, self._attempts, self._backoff = concurrency, timeout, attempts, backoff
        # A generator for these requests alone, so that waiting does not disturb seeded random numbers elsewhere.
        self._jitter = random.Random()
        self._connections: tuple[asyncio.AbstractEventLoop, Any, asyncio.Semaphore] | None = None
        self._closed = False

    @abstractmethod
    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """The pairs of each request, none twice."""

    @abstractmethod
    def _body(self, batch: Sequence[Pair]) -> dict[str, Any]:
        """The request for a batch, without the `extra` fields."""

    @abstractmethod
    def _scores_in(self, answer: Any, batch: list[Pair]) -> list[float]:
        """The scores in the answer to a batch, which is JSON."""

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return run_in_background(self._score(pairs), loop=background_loop(_THREAD))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; cancelling it cancels its requests."""
        # The connections belong to one loop, and requests run there, whatever loop the caller has.
        work = asyncio.run_coroutine_threadsafe(self._score(pairs), background_loop(_THREAD))
        return await asyncio.wrap_future(work)

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections[0] is background_loop(_THREAD):
            run_in_background(connections[1].aclose(), loop=connections[0])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": None}

    async def _score(self, pairs: Sequence[Pair]) -> FloatArray:
        # By text, so that neither the order of requests nor of answers can attach a score to another pair.
        scores: dict[tuple[str, str], float] = {}
        await all_at_once(self._send(batch, scores) for batch in self._batches(pairs))
        return np.array([scores[query.text, item.text] for query, item in pairs])

    async def _send(self, batch: list[Pair], scores: dict[tuple[str, str], float]) -> None:
        response = await self._answered(self._body(batch) | self._extra, where(batch))
        if response.status_code in self._split and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            await self._send(batch[:half], scores)
            await self._send(batch[half:], scores)
        elif response.is_success:
            for (query, item), score in zip(batch, self._scores_in(_json_of(response), batch), strict=True):
                scores[query.text, item.text] = score
        else:
            raise self._refused(response, self._advice(response) + where(batch))

    async def _answered(self, body: Mapping[str, Any], where: str) -> Any:
        """The server's answer, even a refusal; ScorerFailed if none comes."""
        tenacity = require("tenacity", extra="http")
        client, slots = self._connected()
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(_may_pass),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=self._wait,
            before_sleep=tenacity.before_sleep_log(_log, logging.INFO),
            reraise=True,
        )
        # The slot is kept while waiting, so that an overloaded server is sent less.
        async with slots:
            try:
                return await retrying(self._attempt, client, content)
            except _NoAnswer as failure:
                attempts = retrying.statistics["attempt_number"]
                tried = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                raise self._failed(f"{failure} Gave up after {tried}.{where}") from failure.__cause__

    async def _attempt(self, client: Any, content: bytes) -> Any:
        httpx2 = require("httpx2", extra="http")
        if client.is_closed:
            raise closed(self.card.name)
        try:
            # The client's own timeouts start anew with every byte; a request's must not.
            async with asyncio.timeout(self._timeout), client.stream("POST", self.url, content=content) as coming:
                response = httpx2.Response(
                    coming.status_code,
                    headers=[pair for pair in coming.headers.multi_items() if pair[0] != "content-encoding"],
                    content=await self._bytes_of(coming),
                )
                # JSON is UTF-8, and a server may name any codec that Python has.
                response.encoding = "utf-8"
        except TimeoutError as error:
            advice = "Is it overloaded? Raise timeout=, or lower batch_size= or concurrency=."
            raise _NoAnswer(f"{self.url} gave no answer within {self._timeout:g} s. {advice}") from error
        except httpx2.ConnectError as error:
            raise _NoAnswer(f"No server can be reached at {self.url}: {error}. Is it running?") from error
        except httpx2.RequestError as error:
            raise _NoAnswer(f"{self.url} broke off: {type(error).__name__}: {error}.") from error
        if response.is_success and _breaks_off(response):
            raise _NoAnswer(f"{self.url} answered JSON that breaks off: {self._summary(response)}")
        if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
            return response
        wait = _retry_after(response)
        asks = f" It asks to wait for {wait:.0f} s." if wait and wait > _LONGEST_WAIT else ""
        raise _NoAnswer(f"{self.url} answered {self._summary(response)}{asks}", wait)

    async def _bytes_of(self, coming: Any) -> bytes:
        """The bytes of an answer, of which a few may unpack to more than the memory holds."""
        read = bytearray()
        async for part in coming.aiter_bytes():
            read += part
            if len(read) > _LONGEST_ANSWER:
                longest = f"{_LONGEST_ANSWER >> 20} MiB"
                raise self._failed(f"An answer may have up to {longest}; that of {self.url} is longer.")
        return bytes(read)

    def _wait(self, state: Any) -> float:
        wait: float | None = state.outcome.exception().wait
        if wait is not None:
            return wait + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - wait))
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** int(state.attempt_number - 1)) * self._jitter.uniform(0.5, 1.0)

    def _connected(self) -> tuple[Any, asyncio.Semaphore]:
        if self._closed:
            raise closed(self.card.name)
        loop = asyncio.get_running_loop()
        # After a fork there is another loop, and the parent's connections must be left to the parent.
        if self._connections is None or self._connections[0] is not loop:
            httpx2 = require("httpx2", extra="http")
            client = httpx2.AsyncClient(
                timeout=None,
                limits=httpx2.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency),
                headers={"User-Agent": "adacur", "Content-Type": "application/json"}
                | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            )
            weakref.finalize(self, _close_later, client, loop, os.getpid()).atexit = False
            self._connections = loop, client, asyncio.Semaphore(self._concurrency)
        return self._connections[1:]

    def _advice(self, response: Any) -> str:
        """What may help where a request was refused, beside what its status says."""
        return ""

    def _refused(self, response: Any, where: str) -> ScorerFailed:
        not_accepted = " The key given was not accepted." if self._key else " Give api_key=."
        not_there = " Is this the address for such requests, and the model known there? Or is the kind another one?"
        too_large = " This pair alone is too large for the server: shorten its texts."
        advice = {401: not_accepted, 403: not_accepted, 404: not_there, 405: not_there, 413: too_large}
        place = response.headers.get("location")
        points = f" It points to {place}: give that address." if place else ""
        says = f"{self._summary(response)}{advice.get(response.status_code, '')}"
        return self._failed(f"{self.url} answered {says}{points}{where}")

    def _summary(self, response: Any) -> str:
        """Its status and the beginning of its text."""
        return f"{response.status_code} {response.reason_phrase}: {self._shown(response.text)}."

    def _shown(self, text: str, n: int = 300) -> str:
        """The beginning of what a server says."""
        # The key is hidden before the text is cut, which might leave half of it.
        return " ".join(self._without_key(text).split())[:n]

    def _failed(self, message: str) -> ScorerFailed:
        return ScorerFailed(self._without_key(message))

    def _without_key(self, text: str) -> str:
        # A server may repeat the key that it was sent.
        return text.replace(self._key, "***") if self._key else text


def by_query(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The first pair of each two texts, those of a query together; texts that cannot be sent are refused."""
    groups: dict[str, dict[str, Pair]] = {}
    for query, item in pairs:
        check_texts("Query", query.id, query.text)
        check_texts("Item", item.id, item.text)
        groups.setdefault(query.text, {}).setdefault(item.text, (query, item))
    return [list(group.values()) for group in groups.values()]


def where(batch: Sequence[Pair]) -> str:
    """The pairs of a request, in a few words for the end of an error."""
    query, item = batch[0]
    first = f"query {query.id!r} and item {item.id!r}"
    return f" ({first})" if len(batch) == 1 else f" (On {len(batch)} pairs, the first of {first}.)"


def checked_extra(
    extra: Mapping[str, Any] | None, remembered: Mapping[str, str], *, taken: frozenset[str]
) -> dict[str, Any]:
    """More fields for requests, given or remembered in a URL; none that is `taken`."""
    try:
        given = json.loads(remembered.get("extra", "{}")) if extra is None else extra
        fields: dict[str, Any] = json.loads(json.dumps(dict(given), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"extra must be a mapping from names of fields to values that JSON has: {error}.") from error
    if both := sorted(taken & fields.keys()):
        raise InputError(f"extra must not have fields that are set here; got {both[0]!r}. Is there an option for it?")
    return fields


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _NoAnswer) and (error.wait or 0.0) <= _LONGEST_WAIT


def _json_of(response: Any) -> Any:
    """The JSON of an answer; where it is something else, its text, which no server means as an answer."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        return str(response.text)


def _breaks_off(response: Any) -> bool:
    """Whether the text begins as JSON but cannot be read: something between here and there cut it."""
    if not response.text.lstrip().startswith(("{", "[")):
        return False
    try:
        response.json()
    except (ValueError, RecursionError) as error:
        return isinstance(error, json.JSONDecodeError)
    return False


def _retry_after(response: Any) -> float | None:
    """Seconds that Retry-After asks for; a date there counts as nothing said."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d*)?", text) else None


def _close_later(client: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    # In a forked child that loop does not run, and its sockets are the parent's.
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)
