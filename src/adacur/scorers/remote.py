"""Scorers behind HTTP: from a URL to a server, then batches, retries, a limit on requests in flight, a hidden key."""

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
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.records import Pair, check_texts
from adacur.requirements import require
from adacur.scorers.event_loop import all_at_once, background_loop, run_in_background, waits
from adacur.scorers.http_dialects import DIALECTS, JUDGE, JUDGE_KEYS
from adacur.scorers.wrapping import Closing, closed

# The endpoint of a language model.
CHAT = "/chat/completions"
_log = logging.getLogger("adacur.scorers.http")
# Only requests run on this loop, so that no blocking function of a user can hold up their clocks.
_THREAD = "adacur-http"
_LONGEST_WAIT = 60.0
# Besides the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}
# Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
_SPLIT = {413, 422}
# Of an answer, unpacked; the scores of a thousand texts that are sent back with them take a tenth of it.
_LONGEST_ANSWER = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Address:
    """A server and the rest of its URL.

    `kind` is known from the host of a service, from the path of a language model, or from `remembered`: what `source`
    wrote behind '#', which is never sent. `keys` are the environment variables meant for the host.
    """

    server: str
    path: str
    host: str
    kind: str | None
    keys: tuple[str, ...]
    remembered: Mapping[str, str]

    @classmethod
    def of(cls, url: str, kind: str | None = None) -> Address:
        """The address in a URL, of a server of this `kind` if that is known."""
        try:
            parts = urlsplit(str(url).strip())
            host, secret, _ = parts.hostname, parts.username or parts.password or parts.query, parts.port
        except ValueError as error:
            raise InputError(f"This is not the address of a server: {error}.") from None
        if secret:
            # They would be kept in every index built with this scorer; so they are not repeated here either.
            raise InputError(f"An address must not hold credentials or a '?' (for {host}). Give a key as api_key=.")
        if parts.scheme not in ("http", "https") or not host:
            raise InputError(f"An address must begin with http:// or https:// and a host; got {url!r}.")
        remembered, path = dict(parse_qsl(parts.fragment)), parts.path.rstrip("/")
        # Neither a look-alike nor a plain connection is a service.
        labels = host.split(".") if parts.scheme == "https" else []
        domains = {".".join(labels[at:]) for at in range(len(labels))}
        service = next((name for name, dialect in DIALECTS.items() if domains & set(dialect.hosts)), None)
        kind = kind or remembered.get("kind") or (JUDGE if path.endswith(CHAT) else service)
        if kind == JUDGE:
            keys = next((names for domain, names in JUDGE_KEYS.items() if domain in domains), ())
        else:
            keys = DIALECTS[service].key_variables if service else ()
        return cls(f"{parts.scheme}://{parts.netloc}", path, host, kind, keys, remembered)

    def endpoint(self, usual: str, *endings: str) -> str:
        """Where requests go: this address if it ends as one for requests does, else the `usual` path below it."""
        tail = re.split("/v[12](?=/)", usual)[-1]
        path = self.path + tail if self.path.endswith(("/v1", "/v2")) else self.path
        return self.server + (path if path.endswith((tail, *endings)) else path + usual)

    def key(self, api_key: str | None) -> str | None:
        """The key given, else that of the environment, which goes only to the service it is meant for."""
        # Any index folder can name any address.
        key = api_key or next((os.environ[variable] for variable in self.keys if os.environ.get(variable)), None)
        if key is None and self.keys:
            raise InputError(f"{self.host} needs a key. Set {self.keys[0]}, or give api_key=.")
        if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
            raise InputError("api_key must be printable ASCII without spaces (not shown). Strip it.")
        return key


def source(endpoint: str, **options: Any) -> str:
    """A URL that opens the same scorer again; empty options are left out, and those that are no text become JSON."""
    written = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        for name, value in options.items()
        if value
    }
    return f"{endpoint}#{urlencode(written, quote_via=quote, safe='/')}"


class Answer(NamedTuple):
    """A server's answer, even a refusal; `content` is its JSON, or its text where that is something else."""

    status: str
    text: str
    content: Any
    location: str | None

    @property
    def code(self) -> int:
        return int(self.status[:3])


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
    _extra: Mapping[str, Any]

    def __init__(
        self,
        address: Address,
        *,
        api_key: str | None,
        model: str | None,
        name: str | None,
        concurrency: int,
        timeout: float,
        attempts: int,
        backoff: float,
    ) -> None:
        require("httpx2", extra="http")
        at_least(1, concurrency=concurrency, attempts=attempts)
        if not (0 < timeout < math.inf and 0 <= backoff < math.inf):
            raise InputError(f"timeout must be above 0 seconds and backoff at least 0; got {timeout}, {backoff}.")
        self._key = address.key(api_key)
        self.model = model or address.remembered.get("model")
        self.is_named = bool(name or self.model)
        self._name = name or self.model or address.host
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
        answer = await self._answered({**self._body(batch), **self._extra}, where(batch))
        if answer.code in _SPLIT and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            await self._send(batch[:half], scores)
            await self._send(batch[half:], scores)
        elif 200 <= answer.code < 300:
            for (query, item), score in zip(batch, self._scores_in(answer.content, batch), strict=True):
                scores[query.text, item.text] = score
        else:
            raise self._refused(answer, self._advice(answer) + where(batch))

    async def _answered(self, body: Mapping[str, Any], where: str) -> Answer:
        """The server's answer; ScorerFailed if none comes."""
        client, slots = self._connected()
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        # The slot is kept while waiting, so that an overloaded server is sent less.
        async with slots:
            for tries, usual in enumerate(waits(self._attempts, self._backoff), 1):
                try:
                    return await self._attempt(client, content)
                except _NoAnswer as failure:
                    asked = failure.wait
                    if usual is None or (asked or 0.0) > _LONGEST_WAIT:
                        tried = "1 attempt" if tries == 1 else f"{tries} attempts"
                        raise self._failed(f"{failure} Gave up after {tried}.{where}") from failure.__cause__
                    _log.info("%s", self._without_key(str(failure)))
                if asked is None:
                    wait = min(_LONGEST_WAIT, usual) * self._jitter.uniform(0.5, 1.0)
                else:
                    wait = asked + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - asked))
                await asyncio.sleep(wait)
        raise AssertionError("the last try returns or raises")

    async def _attempt(self, client: Any, content: bytes) -> Answer:
        httpx2 = require("httpx2", extra="http")
        if client.is_closed:
            raise closed(self.card.name)
        try:
            # The client's own timeouts start anew with every byte; a request's must not.
            async with asyncio.timeout(self._timeout), client.stream("POST", self.url, content=content) as coming:
                # JSON is UTF-8, perhaps with a byte order mark, and a server may name any codec that Python has.
                text = (await self._bytes_of(coming)).decode("utf-8-sig", errors="replace")
        except TimeoutError as error:
            advice = "Is it overloaded? Raise timeout=, or lower batch_size= or concurrency=."
            raise _NoAnswer(f"{self.url} gave no answer within {self._timeout:g} s. {advice}") from error
        except httpx2.ConnectError as error:
            raise _NoAnswer(f"No server can be reached at {self.url}: {error}. Is it running?") from error
        except httpx2.RequestError as error:
            raise _NoAnswer(f"{self.url} broke off: {type(error).__name__}: {error}.") from error
        # Not the server's own phrase, which may be of any length.
        status = f"{coming.status_code} {httpx2.codes.get_reason_phrase(coming.status_code)}"
        says = f"{status}: {self._shown(text)}."
        if coming.status_code >= 500 or coming.status_code in _TRY_AGAIN:
            wait = _retry_after(coming.headers.get("retry-after", ""))
            asks = f" It asks to wait for {wait:.0f} s." if wait and wait > _LONGEST_WAIT else ""
            raise _NoAnswer(f"{self.url} answered {says}{asks}", wait)
        try:
            return Answer(status, text, _json_in(text), coming.headers.get("location"))
        except json.JSONDecodeError as error:
            if coming.is_success:
                raise _NoAnswer(f"{self.url} answered JSON that breaks off: {says}") from error
            return Answer(status, text, text, coming.headers.get("location"))

    async def _bytes_of(self, coming: Any) -> bytes:
        """The bytes of an answer, of which a few may unpack to more than the memory holds."""
        read = bytearray()
        async for part in coming.aiter_bytes():
            read += part
            if len(read) > _LONGEST_ANSWER:
                longest = f"{_LONGEST_ANSWER >> 20} MiB"
                raise self._failed(f"An answer may have up to {longest}; that of {self.url} is longer.")
        return bytes(read)

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

    def _advice(self, answer: Answer) -> str:
        """What may help where a request was refused, besides what its status says."""
        return ""

    def _refused(self, answer: Answer, where: str) -> ScorerFailed:
        not_accepted = " The key given was not accepted." if self._key else " Give api_key=."
        not_there = " Is this the address for such requests, and the model known there? Or is the kind another one?"
        too_large = " This pair alone is too large for the server: shorten its texts."
        advice = {401: not_accepted, 403: not_accepted, 404: not_there, 405: not_there, 413: too_large}
        points = f" It points to {answer.location}: give that address." if answer.location else ""
        says = f"{answer.status}: {self._shown(answer.text)}.{advice.get(answer.code, '')}"
        return self._failed(f"{self.url} answered {says}{points}{where}")

    def _shown(self, text: str, n: int = 300) -> str:
        """The beginning of a server's text."""
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
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"extra must be a mapping from names of fields to values that JSON has: {error}.") from error
    if both := sorted(taken & fields.keys()):
        raise InputError(f"extra must not have fields that are set here; got {both[0]!r}. Is there an option for it?")
    return fields


def _json_in(text: str) -> Any:
    """The JSON of an answer, or its text; JSONDecodeError where it begins as JSON and was cut on its way."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith(("{", "[")):
            raise
    except (ValueError, RecursionError):
        # No server means this as an answer.
        pass
    return text


def _retry_after(text: str) -> float | None:
    """Seconds that Retry-After asks for; a date there counts as nothing said."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d*)?", text) else None


def _close_later(client: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    # In a forked child that loop does not run, and its sockets are the parent's.
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)
