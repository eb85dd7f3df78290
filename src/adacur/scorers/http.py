"""A rerank server as a scorer: TEI, vLLM and Infinity, Cohere, Jina, and those that speak like them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import os
import random
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScoreCountError, ScorerError, ScorerFailed, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Pair, Query, check_texts
from adacur.core.scores import check_scores
from adacur.core.spelling import did_you_mean
from adacur.scorers.event_loop import background_loop, run_in_background
from adacur.scorers.http_dialects import DIALECTS
from adacur.scorers.http_servers import discover, read_address, read_key

__all__ = ["HttpScorer", "ProbabilityWarning"]

_log = logging.getLogger(__name__)

# Only code of this module runs on this loop, so that no blocking function of a user can hold up a request's clock.
_THREAD = "adacur-http"
# TEI refuses bodies above 2,000,000 bytes, and larger ones gain nothing elsewhere.
_BODY_BYTES = 1_999_000
_LONGEST_WAIT = 60.0
# Beside the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}
# Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
_SPLIT = {413, 422}
_NEAREST_TO_CERTAIN = 1e-9
_ENOUGH_TO_SUSPECT = 100
_SCORES = ("auto", "raw", "probability")


class ProbabilityWarning(UserWarning):
    """A server answers with probabilities, which tie where they are rounded or saturated; logits do not."""


class _Unanswered(Exception):
    """A request that is worth another attempt, after `wait` seconds where the server gave a number."""

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


class HttpScorer:
    """A cross-encoder behind a rerank endpoint, called over HTTP with retries.

    - url: the root of the server, or its rerank address;
    - kind: "tei", "vllm", "infinity", "cohere" or "jina"; without it the server is asked, or the address says it;
    - model: its name, where the server has several;
    - api_key: sent as a bearer token. Without it, CO_API_KEY (or COHERE_API_KEY) and JINA_API_KEY are read, for the
      hosts of these two services only. No card, error or repr shows it; a pickle of the scorer holds it;
    - scores: "raw" are used as they come; of a "probability" the logit is taken; "auto" asks for raw scores where the
      kind offers them (TEI, vLLM, Infinity), and else takes logits, with a `ProbabilityWarning`;
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
        address = read_address(url)
        kind = kind or address.remembered.get("kind") or address.provider
        model = model or address.remembered.get("model")
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
        self._key = read_key(api_key, address)
        self._concurrency, self._timeout, self._attempts, self._backoff = concurrency, timeout, attempts, backoff
        # A generator for this scorer alone, so that waiting does not disturb seeded random numbers elsewhere.
        self._jitter = random.Random()
        self._connections: _Connections | None = None
        self._closed = False
        try:
            server = self._run(discover(self._get, address, kind=kind, model=model))
        except BaseException:
            self.close()
            raise
        self._dialect = DIALECTS[server.kind]
        allowed = server.batch_size or self._dialect.batch_size
        self.url, self.kind, self.model = server.endpoint, server.kind, server.model
        self.batch_size = allowed if batch_size is None else min(batch_size, server.batch_size or batch_size)
        self._takes_logits = scores == "probability" or (scores == "auto" and not self._dialect.raw)
        # How many scores looked like probabilities although raw ones were requested; None when that is settled.
        self._suspicious: int | None = 0 if scores == "auto" and self._dialect.raw else None
        self.card = ScorerCard(
            name=name or server.model or address.host,
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
        return self._watched(self._run(self._score(pairs)))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; cancelling it cancels its requests."""
        # A client belongs to one loop: the requests run on ours, while the caller's waits without blocking.
        future = asyncio.run_coroutine_threadsafe(self._score(pairs), background_loop(_THREAD))
        return self._watched(await asyncio.wrap_future(future))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections.release.detach() and connections.loop is background_loop(_THREAD):
            self._run(connections.close())

    def __enter__(self) -> HttpScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": None}

    def _run(self, coroutine: Any) -> Any:
        return run_in_background(coroutine, loop=background_loop(_THREAD))

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

    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Distinct texts of one query at a time, in batches that the server takes."""
        groups: dict[str, dict[str, Pair]] = {}
        for query, item in pairs:
            groups.setdefault(query.text, {}).setdefault(item.text, (query, item))
        batches: list[list[Pair]] = []
        for group in groups.values():
            # 33 texts at 32 a request are better sent as 17 and 16.
            even = math.ceil(len(group) / math.ceil(len(group) / self.batch_size))
            bytes_left = 0
            batch: list[Pair] = []
            for query, item in group.values():
                size = _json_bytes("Item", item) + 1
                if len(batch) == even or size > bytes_left or not batch:
                    batch = []
                    batches.append(batch)
                    bytes_left = _BODY_BYTES - _json_bytes("Query", query) - len(self._body("", []))
                batch.append((query, item))
                bytes_left -= size
        return batches

    def _body(self, query: str, texts: Sequence[str]) -> bytes:
        body = self._dialect.request(query, texts, model=self.model, raw=not self._takes_logits)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    async def _score_batch(self, batch: list[Pair], scores: dict[tuple[str, str], float]) -> None:
        response = await self._send(self.url, batch)
        if response.status_code in _SPLIT and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            _log.info("%s answered %d to %d texts; halving.", self.url, response.status_code, len(batch))
            await self._score_batch(batch[:half], scores)
            await self._score_batch(batch[half:], scores)
        elif response.is_success:
            for (query, item), score in zip(batch, self._read_scores(response, batch).tolist(), strict=True):
                scores[query.text, item.text] = score
        else:
            raise self._refused(response, batch)

    def _read_scores(self, response: Any, batch: list[Pair]) -> FloatArray:
        field = self._dialect.score
        try:
            answers = [(result["index"], result[field]) for result in self._dialect.results_in(response.json())]
            # bool is a kind of int.
            if any(type(index) is not int or type(score) not in (int, float) for index, score in answers):
                raise TypeError
        except (LookupError, TypeError, ValueError) as error:
            raise self._failed(
                f"A {self.kind} server answers with a JSON list of numbers 'index' and {field!r}; {self.url} answered: "
                f"{self._quote(response.text)} Is the kind right?",
                batch,
            ) from error
        scores = dict(answers)
        if sorted(index for index, _ in answers) != list(range(len(batch))):
            lost = next((f"; none for text {at}" for at in range(len(batch)) if at not in scores), "")
            message = f"{self.url} returned {len(answers)} scores for {len(batch)} texts{lost}."
            raise self._failed(message, batch, error=ScoreCountError)
        values = check_scores(np.array([scores[at] for at in range(len(batch))], dtype=np.float64), batch)
        return self._logits(values, batch) if self._takes_logits else values

    def _logits(self, values: FloatArray, batch: list[Pair]) -> FloatArray:
        # A single-precision 1 may be read as a little more.
        outside = np.flatnonzero((values < -1e-6) | (values > 1 + 1e-6))
        if outside.size:
            worst = int(outside[0])
            raise self._failed(
                f"Probabilities lie between 0 and 1; {self.url} returned {values[worst]}. If its scores are raw, "
                "open it with scores='raw'.",
                batch[worst : worst + 1],
            )
        inside = np.clip(values, _NEAREST_TO_CERTAIN, 1 - _NEAREST_TO_CERTAIN)
        logits: FloatArray = np.log(inside) - np.log1p(-inside)
        return logits

    def _watched(self, scores: FloatArray) -> FloatArray:
        """The scores, with a warning where the first hundred look like probabilities."""
        # Read once: another thread may settle it meanwhile.
        seen = self._suspicious
        if seen is None or not len(scores):
            return scores
        seen += len(scores)
        likely = bool(((scores >= 0) & (scores <= 1)).all())
        self._suspicious = seen if likely and seen < _ENOUGH_TO_SUSPECT else None
        if likely and seen >= _ENOUGH_TO_SUSPECT:
            warnings.warn(
                f"{self.url} was asked for raw scores, yet the first {seen} all lie between 0 and 1: an older "
                f"{self.kind} may not know how. Open it with scores='probability' or, if they are not, scores='raw'.",
                ProbabilityWarning,
                stacklevel=3,
            )
        return scores

    async def _get(self, url: str) -> Any:
        """The JSON at a URL, or None."""
        response = await self._send(url)
        if response.status_code == 401:
            raise self._refused(response, [])
        try:
            return response.json() if response.is_success else None
        except ValueError:
            return None

    async def _send(self, url: str, batch: Sequence[Pair] = ()) -> Any:
        """The server's answer to a batch (or to GET), even a refusal, after as many attempts as it takes."""
        tenacity = require("tenacity", extra="http")
        connections = self._connected()
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception_type(_Unanswered),
            stop=tenacity.stop_after_attempt(self._attempts),
            wait=self._wait,
            sleep=connections.pause,
            before_sleep=self._log_wait,
            reraise=True,
        )
        # The slot is kept while waiting, so that an overloaded server is sent less.
        async with connections.slots:
            try:
                return await retrying(self._attempt, connections, url, batch)
            except _Unanswered as failure:
                message = f"{failure} Gave up after {self._attempts} attempts."
                raise self._failed(message, batch) from failure.__cause__

    async def _attempt(self, connections: _Connections, url: str, batch: Sequence[Pair]) -> Any:
        httpx2 = require("httpx2", extra="http")
        if connections.client.is_closed:
            raise self._has_been_closed()
        request: dict[str, Any] = {"method": "GET"}
        if batch:
            body = self._body(batch[0][0].text, [item.text for _, item in batch])
            request = {"method": "POST", "content": body, "headers": {"Content-Type": "application/json"}}
        try:
            # The client's own timeouts start anew with every byte; a request's must not.
            async with asyncio.timeout(self._timeout):
                response = await connections.client.request(url=url, **request)
        except TimeoutError as error:
            raise _Unanswered(
                f"{url} gave no answer within {self._timeout:g} s. Is it overloaded? Raise timeout=, or lower "
                "batch_size= or concurrency=."
            ) from error
        except httpx2.ConnectError as error:
            raise _Unanswered(f"No server can be reached at {url}: {error}. Is it running?") from error
        except httpx2.RequestError as error:
            raise _Unanswered(f"{url} broke off: {type(error).__name__}: {error}.") from error
        if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
            return response
        wait = _retry_after(response)
        problem = f"{url} answered {self._in_words(response)}"
        if wait is not None and wait > _LONGEST_WAIT:
            raise self._failed(f"{problem} It asks to wait for {wait:.0f} s. Try again then.", batch)
        raise _Unanswered(problem, wait)

    def _wait(self, state: Any) -> float:
        wait: float | None = state.outcome.exception().wait
        if wait is not None:
            return wait + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - wait))
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** int(state.attempt_number - 1)) * self._jitter.uniform(0.5, 1.0)

    def _log_wait(self, state: Any) -> None:
        problem = self._without_key(str(state.outcome.exception()))
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

    def _refused(self, response: Any, batch: Sequence[Pair]) -> ScorerError:
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
        return self._failed(f"{response.request.url} answered {self._in_words(response)} {advice}", batch)

    def _failed(self, message: str, batch: Sequence[Pair], *, error: type[ScorerError] = ScorerFailed) -> ScorerError:
        if batch:
            query, item = batch[0]
            where = f"query {query.id!r} and item {item.id!r}"
            message += f" ({where})" if len(batch) == 1 else f" (On {len(batch)} pairs, the first of {where}.)"
        return error(self._without_key(message))

    def _in_words(self, response: Any) -> str:
        status = f"{response.status_code} {response.reason_phrase}"
        return f"{status}: {self._quote(response.text)}" if response.text.strip() else f"{status}."

    def _quote(self, said: object) -> str:
        # The key is hidden before the text is cut, which might leave half of it.
        text = " ".join(self._without_key(str(said)).split())
        return f"{text[:300]}…" if len(text) > 300 else f"{text.rstrip('.')}."

    def _without_key(self, text: str) -> str:
        # A server may repeat the key it was sent.
        return text.replace(self._key, "***") if self._key else text

    def _has_been_closed(self) -> ScorerError:
        return ScorerFailed(f"The scorer {self.card.name!r} has been closed. Open it again to score.")


def _json_bytes(kind: str, record: Query | Item) -> int:
    check_texts(kind, record.id, record.text)
    return len(json.dumps(record.text, ensure_ascii=False).encode())


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
