"""A rerank server as a scorer: TEI, vLLM and Infinity, Cohere, Jina, and those that speak like them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import random
import re
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScoreCountError, ScorerFailed, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import ScorerCard
from adacur.core.records import Pair, check_texts
from adacur.core.spelling import did_you_mean
from adacur.scorers.event_loop import background_loop, run_in_background
from adacur.scorers.http_dialects import DIALECTS, Address, find_server

_log = logging.getLogger(__name__)
# Only code of this module runs on this loop, so that no blocking function of a user can hold up a request's clock.
_THREAD = "adacur-http"
_LONGEST_WAIT = 60.0
# Beside the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}
# Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
_SPLIT = {413, 422}
_NEAREST_TO_CERTAIN = 1e-9
_SCORES = ("auto", "raw", "probability")


class ProbabilityWarning(UserWarning):
    """A server answers with probabilities, which tie where they are rounded or saturated; logits do not."""


class _NoAnswer(Exception):
    """A request without an answer; `wait` is what the server asks for, in seconds."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, _NoAnswer) and (error.wait or 0.0) <= _LONGEST_WAIT


class HttpScorer:
    """A cross-encoder behind a rerank endpoint, called over HTTP with retries.

    - url: the root of the server, or its rerank address;
    - kind: one of `DIALECTS`, such as "tei" or "cohere"; without it the server is asked, or its host says it;
    - model: its name, where the server has several;
    - api_key: sent as a bearer token. Without it, CO_API_KEY (or COHERE_API_KEY) and JINA_API_KEY are read, for the
      hosts of these two services only. No card, error or repr shows it; a pickle of the scorer holds it;
    - scores: "raw" are used as they come; of a "probability" the logit is taken; "auto" asks for raw scores where the
      kind offers them (TEI, vLLM, Infinity), else takes logits, with a `ProbabilityWarning`;
    - batch_size: texts per request, at most what the server allows;
    - concurrency: requests in flight at most, over all threads and event loops that use this scorer;
    - timeout, attempts, backoff: a request that is dropped, takes longer than `timeout` seconds or meets 408, 424, 425,
      429 or 5xx is tried up to `attempts` times; waits double from `backoff` seconds, or are what Retry-After says,
      and never exceed a minute;
    - name: what the card says, by default the model.

    `kind`, `url`, `model` and `batch_size` say what was taken, and `card.source` is a URL that opens the same again.
    """

    def __init__(
        self,
        url: str,
        *,
        kind: str | None = None,
        model: str | None = None,
        api_key: str | None = None,
        scores: str | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        timeout: float = 30.0,
        attempts: int = 5,
        backoff: float = 0.5,
        name: str | None = None,
    ) -> None:
        require("httpx2", extra="http")
        address = Address.of(url, kind)
        kind = kind or address.remembered.get("kind") or address.service
        scores = scores or address.remembered.get("scores") or "auto"
        if kind is not None and kind not in DIALECTS:
            raise UnknownName(f"kind must be one of {', '.join(DIALECTS)}; got {kind!r}.{did_you_mean(kind, DIALECTS)}")
        if scores not in _SCORES:
            raise InputError(f"scores must be one of {', '.join(_SCORES)}; got {scores!r}.")
        for option, count in (("batch_size", batch_size), ("concurrency", concurrency), ("attempts", attempts)):
            if count is not None and count < 1:
                raise InputError(f"{option} must be at least 1; got {count}.")
        if not (0 < timeout < math.inf and 0 <= backoff < math.inf):
            raise InputError(f"timeout must be above 0 seconds and backoff at least 0; got {timeout}, {backoff}.")
        self._key = address.key(api_key)
        self._concurrency, self._timeout, self._attempts, self._backoff = concurrency, timeout, attempts, backoff
        # A generator for this scorer alone, so that waiting does not disturb seeded random numbers elsewhere.
        self._jitter = random.Random()
        self._connections: tuple[asyncio.AbstractEventLoop, Any, asyncio.Semaphore] | None = None
        self._closed = False
        self.url, self._name = address.root, name or address.host
        finding = find_server(self._get, address, kind=kind, model=model or address.remembered.get("model"))
        server = run_in_background(finding, loop=background_loop(_THREAD))
        self._dialect = DIALECTS[server.kind]
        self.url, self.kind, self.model = server.endpoint, server.kind, server.model
        limits = [size for size in (batch_size, server.batch_size) if size]
        self.batch_size = min(limits, default=self._dialect.batch_size)
        self._name = name or server.model or address.host
        self._takes_logits = scores == "probability" or (scores == "auto" and self._dialect.raw is None)
        self.card = ScorerCard(
            name=self._name,
            backend="http",
            dtype=server.dtype,
            max_tokens=server.max_tokens,
            source=server.source(scores),
        )
        if scores == "auto" and self._takes_logits:
            warnings.warn(
                f"The {self.kind} server at {self.url} answers with probabilities, of which the logit is taken; "
                "rounded or saturated ones tie. Prefer a server with raw scores (TEI, vLLM, Infinity), or settle it "
                "with scores='probability', or scores='raw' if they are not probabilities.",
                ProbabilityWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"HttpScorer({self.url!r}, kind={self.kind!r}, model={self.model!r}, batch_size={self.batch_size})"

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return run_in_background(self._score(pairs), loop=background_loop(_THREAD))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; cancelling it cancels its requests."""
        # The connections belong to one loop, and requests run there, whatever loop the caller has.
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._score(pairs), background_loop(_THREAD)))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections[0] is background_loop(_THREAD):
            run_in_background(connections[1].aclose(), loop=connections[0])

    def __enter__(self) -> HttpScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": None}

    async def _score(self, pairs: Sequence[Pair]) -> FloatArray:
        # By text, so that neither the order of requests nor of answers can attach a score to another pair.
        scores: dict[tuple[str, str], float] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for batch in self._batches(pairs):
                    group.create_task(self._score_batch(batch, scores))
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        return np.array([scores[query.text, item.text] for query, item in pairs])

    def requests(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """The pairs of each request that a call with these makes: what a price by the request counts."""
        return self._batches(pairs)

    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Distinct texts of one query at a time, in batches that the server takes."""
        groups: dict[str, dict[str, Pair]] = {}
        for query, item in pairs:
            check_texts("Query", query.id, query.text)
            check_texts("Item", item.id, item.text)
            groups.setdefault(query.text, {}).setdefault(item.text, (query, item))
        batches: list[list[Pair]] = []
        for group in groups.values():
            distinct = list(group.values())
            # 33 texts at 32 a request are better sent as 17 and 16.
            even = math.ceil(len(distinct) / math.ceil(len(distinct) / self.batch_size))
            batches += [distinct[start : start + even] for start in range(0, len(distinct), even)]
        return batches

    async def _score_batch(self, batch: list[Pair], scores: dict[tuple[str, str], float]) -> None:
        texts = [item.text for _, item in batch]
        body = self._dialect.request(batch[0][0].text, texts, model=self.model, raw=not self._takes_logits)
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        response = await self._send(self.url, content, where=_where(batch))
        if response.status_code in _SPLIT and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            await self._score_batch(batch[:half], scores)
            await self._score_batch(batch[half:], scores)
        elif response.is_success:
            for (query, item), score in zip(batch, self._read_scores(response, batch).tolist(), strict=True):
                scores[query.text, item.text] = score
        else:
            raise self._refused(response, _where(batch))

    def _read_scores(self, response: Any, batch: list[Pair]) -> FloatArray:
        place, field = self._dialect.index, self._dialect.score
        try:
            answers = [(result[place], result[field]) for result in self._dialect.results_in(response.json())]
            # bool is a kind of int.
            if any(type(index) is not int or type(score) not in (int, float) for index, score in answers):
                raise TypeError
        except (LookupError, TypeError, ValueError) as error:
            raise self._failed(
                f"A {self.kind} server answers with a JSON list of numbers {place!r} and {field!r}; {self.url} "
                f"answered {self._in_words(response)} Is the kind right?{_where(batch)}"
            ) from error
        scores = dict(answers)
        if sorted(index for index, _ in answers) != list(range(len(batch))):
            lost = next((f"; none for text {at}" for at in range(len(batch)) if at not in scores), "")
            n_scores = f"{len(answers)} scores for {len(batch)} texts{lost}"
            raise ScoreCountError(f"{self.url} returned {n_scores}.{_where(batch)}")
        values = np.array([scores[at] for at in range(len(batch))], dtype=np.float64)
        return self._logits(values, batch) if self._takes_logits else values

    def _logits(self, values: FloatArray, batch: list[Pair]) -> FloatArray:
        # A single-precision 1 may be read as a little more.
        outside = np.flatnonzero((values < -1e-6) | (values > 1 + 1e-6))
        if outside.size:
            worst = int(outside[0])
            raise ScorerFailed(
                f"Probabilities lie between 0 and 1; {self.url} returned {values[worst]}. If its scores are raw, "
                f"open it with scores='raw'.{_where(batch[worst : worst + 1])}"
            )
        inside = np.clip(values, _NEAREST_TO_CERTAIN, 1 - _NEAREST_TO_CERTAIN)
        logits: FloatArray = np.log(inside) - np.log1p(-inside)
        return logits

    async def _get(self, url: str) -> Any:
        """The JSON at a URL, or None."""
        response = await self._send(url)
        if response.status_code == 401:
            raise self._refused(response)
        try:
            return response.json() if response.is_success else None
        except ValueError:
            return None

    async def _send(self, url: str, content: bytes | None = None, *, where: str = "") -> Any:
        """The server's answer to POST (or to GET), even a refusal; ScorerFailed, with `where` it was, if none comes."""
        tenacity = require("tenacity", extra="http")
        client, slots = self._connected()
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
                return await retrying(self._attempt, client, url, content)
            except _NoAnswer as failure:
                attempts = retrying.statistics["attempt_number"]
                raise self._failed(f"{failure} Gave up after {attempts} attempts.{where}") from failure.__cause__

    async def _attempt(self, client: Any, url: str, content: bytes | None) -> Any:
        httpx2 = require("httpx2", extra="http")
        if client.is_closed:
            raise self._has_been_closed()
        method, headers = ("POST", {"Content-Type": "application/json"}) if content else ("GET", {})
        try:
            # The client's own timeouts start anew with every byte; a request's must not.
            async with asyncio.timeout(self._timeout):
                response = await client.request(method, url, content=content, headers=headers)
        except TimeoutError as error:
            advice = "Is it overloaded? Raise timeout=, or lower batch_size= or concurrency=."
            raise _NoAnswer(f"{url} gave no answer within {self._timeout:g} s. {advice}") from error
        except httpx2.ConnectError as error:
            raise _NoAnswer(f"No server can be reached at {url}: {error}. Is it running?") from error
        except httpx2.RequestError as error:
            raise _NoAnswer(f"{url} broke off: {type(error).__name__}: {error}.") from error
        if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
            return response
        wait = _retry_after(response)
        asks = f" It asks to wait for {wait:.0f} s." if wait and wait > _LONGEST_WAIT else ""
        raise _NoAnswer(f"{url} answered {self._in_words(response)}{asks}", wait)

    def _wait(self, state: Any) -> float:
        wait: float | None = state.outcome.exception().wait
        if wait is not None:
            return wait + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - wait))
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** int(state.attempt_number - 1)) * self._jitter.uniform(0.5, 1.0)

    def _connected(self) -> tuple[Any, asyncio.Semaphore]:
        if self._closed:
            raise self._has_been_closed()
        loop = asyncio.get_running_loop()
        # After a fork there is another loop, and the parent's connections must be left to the parent.
        if self._connections is None or self._connections[0] is not loop:
            httpx2 = require("httpx2", extra="http")
            client = httpx2.AsyncClient(
                timeout=None,
                limits=httpx2.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency),
                headers={"User-Agent": "adacur"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            )
            weakref.finalize(self, _close_later, client, loop, os.getpid()).atexit = False
            self._connections = loop, client, asyncio.Semaphore(self._concurrency)
        return self._connections[1:]

    def _refused(self, response: Any, where: str = "") -> ScorerFailed:
        """What a server answered that refused a request, and what may help."""
        not_accepted = " The key given was not accepted." if self._key else " Give api_key=."
        not_there = " Is this the address for reranking, and the model known there?"
        too_large = " This pair alone is too large for the server: shorten its texts."
        advice = {401: not_accepted, 403: not_accepted, 404: not_there, 405: not_there, 413: too_large}
        if place := response.headers.get("location"):
            where = f" It points to {place}: give that address.{where}"
        says = f"{self._in_words(response)}{advice.get(response.status_code, '')}"
        return self._failed(f"{response.request.url} answered {says}{where}")

    def _in_words(self, response: Any) -> str:
        # The key is hidden before the text is cut, which might leave half of it.
        text = " ".join(self._without_key(response.text).split())
        return f"{response.status_code} {response.reason_phrase}: {text[:300]}."

    def _failed(self, message: str) -> ScorerFailed:
        return ScorerFailed(self._without_key(message))

    def _without_key(self, text: str) -> str:
        # A server may repeat the key it was sent.
        return text.replace(self._key, "***") if self._key else text

    def _has_been_closed(self) -> ScorerFailed:
        return ScorerFailed(f"The scorer {self._name!r} has been closed. Open it again to score.")


def _where(batch: Sequence[Pair]) -> str:
    query, item = batch[0]
    first = f"query {query.id!r} and item {item.id!r}"
    return f" ({first})" if len(batch) == 1 else f" (On {len(batch)} pairs, the first of {first}.)"


def _retry_after(response: Any) -> float | None:
    """Seconds that Retry-After asks for; a date there counts as nothing said."""
    text = response.headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d*)?", text) else None


def _close_later(client: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    # In a forked child that loop does not run, and its sockets are the parent's.
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)
