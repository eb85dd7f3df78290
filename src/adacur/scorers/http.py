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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScoreCountError, ScorerError, ScorerFailed, UnknownName
from adacur.core.extras import require
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Pair, Query, check_texts
from adacur.core.scores import check_scores
from adacur.core.spelling import did_you_mean
from adacur.scorers.event_loop import background_loop, run_in_background

__all__ = ["HttpScorer", "ProbabilityWarning"]

_logger = logging.getLogger(__name__)

# Only code of this module runs on this loop, so that no user's blocking function can hold up a request's clock.
_THREAD = "adacur-http"
# TEI refuses bodies above 2,000,000 bytes; others allow more, and nobody needs more in one request.
_BODY_BYTES = 1_999_000
_LONGEST_WAIT = 60.0
# Beside the usual ones, TEI says 424 where others say 500.
_TRY_AGAIN = {408, 424, 425, 429}
# Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
_SPLIT = {413, 422}
_NEAREST_TO_CERTAIN = 1e-9
_ENOUGH_TO_SUSPECT = 100
_JSON = {"Content-Type": "application/json"}
_SCORES = ("auto", "raw", "probability")


class ProbabilityWarning(UserWarning):
    """A server answers with probabilities, which tie where they are rounded or saturated; logits do not."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How a kind of server is asked; `raw` are the fields that ask for logits, empty where none can be had."""

    path: str
    batch_size: int
    texts: str = "documents"
    score: str = "relevance_score"
    options: Mapping[str, Any] | None = None
    raw: Mapping[str, Any] | None = None


_DIALECTS = {
    "tei": _Dialect(
        "/rerank",
        32,
        texts="texts",
        score="score",
        options={"truncate": True, "return_text": False},
        raw={"raw_scores": True},
    ),
    "vllm": _Dialect("/v1/rerank", 100, options={"truncate_prompt_tokens": -1}, raw={"use_activation": False}),
    "infinity": _Dialect("/rerank", 100, options={"return_documents": False}, raw={"raw_scores": True}),
    # Cohere charges a query with up to 100 documents as one.
    "cohere": _Dialect("/v2/rerank", 100),
    "jina": _Dialect("/v1/rerank", 100, options={"return_documents": False}),
}
_PROVIDERS = {"cohere.com": "cohere", "cohere.ai": "cohere", "jina.ai": "jina"}
_KEY_VARIABLES = {"cohere": ("CO_API_KEY", "COHERE_API_KEY"), "jina": ("JINA_API_KEY",)}


@dataclass(frozen=True, slots=True)
class _Address:
    """`base` is where the server begins; `endpoint` the rerank address, where the URL names one."""

    base: str
    endpoint: str | None
    host: str
    provider: str | None
    remembered: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Server:
    """What was found at an address."""

    kind: str
    endpoint: str
    model: str | None = None
    batch_size: int | None = None
    dtype: str | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Connections:
    """A client, its slots and its end, which belong to the loop they were made on."""

    loop: asyncio.AbstractEventLoop
    client: Any
    slots: asyncio.Semaphore
    closing: asyncio.Event
    release: weakref.finalize[..., Any]


class HttpScorer:
    """A cross-encoder behind a rerank endpoint, asked over HTTP with retries.

    `url` is the server's root or its rerank address; `kind` ("tei", "vllm", "infinity", "cohere", "jina") is asked
    of the server, or read off the address, where it is not given. `kind`, `url`, `model` and `batch_size` say what
    was taken, and `card.source` is a URL that opens the same again.

    `scores`: "raw" are used as they come; of a "probability" the logit is taken; "auto" asks for raw scores where
    the kind offers them (TEI, vLLM, Infinity), and else takes logits, with a `ProbabilityWarning`.

    At most `concurrency` requests are in flight, over all threads and event loops that use this scorer. A request
    that is dropped, times out or meets 408, 424, 425, 429 or 5xx is tried up to `attempts` times; waits double from
    `backoff` seconds, or are what Retry-After says, and never exceed a minute. So no request takes longer than
    `attempts` × `timeout` + (`attempts` − 1) minutes, and a call as many times that as it has rounds of requests.

    `api_key` is sent as a bearer token. Without it, CO_API_KEY (or COHERE_API_KEY) and JINA_API_KEY are read, for
    the hosts of these two services only. No card, error or repr shows it; a pickle of the scorer holds it.
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
        address = _read_address(url)
        kind = kind or address.remembered.get("kind") or address.provider
        model = model or address.remembered.get("model")
        scores = scores or address.remembered.get("scores") or "auto"
        if kind is not None and kind not in _DIALECTS:
            raise UnknownName(f"kind is one of {', '.join(_DIALECTS)}; got {kind!r}.{did_you_mean(kind, _DIALECTS)}")
        if scores not in _SCORES:
            raise InputError(f"scores is one of {', '.join(_SCORES)}; got {scores!r}.")
        for option, count in (("batch_size", batch_size), ("concurrency", concurrency), ("attempts", attempts)):
            if count is not None and count < 1:
                raise InputError(f"{option} must be at least 1; got {count}.")
        if not (0 < timeout < math.inf and 0 <= backoff < math.inf):
            raise InputError(f"timeout is a number of seconds above 0, backoff at least 0; got {timeout}, {backoff}.")
        self._key = _read_key(api_key, address)
        self._concurrency, self._timeout, self._attempts, self._backoff = concurrency, timeout, attempts, backoff
        # Of our own, so that waiting disturbs nobody's seeded random numbers.
        self._jitter = random.Random()
        self._connections: _Connections | None = None
        self._closed = False
        try:
            server = run_in_background(self._discover(address, kind, model), loop=background_loop(_THREAD))
        except BaseException:
            self.close()
            raise
        dialect = _DIALECTS[server.kind]
        allowed = server.batch_size or dialect.batch_size
        self.url, self.kind, self.model = server.endpoint, server.kind, server.model
        self.batch_size = allowed if batch_size is None else min(batch_size, server.batch_size or batch_size)
        self._takes_logits = scores == "probability" or (scores == "auto" and not dialect.raw)
        self._fields = {
            **({} if server.model is None or server.kind == "tei" else {"model": server.model}),
            **(dialect.options or {}),
            **({} if self._takes_logits else dialect.raw or {}),
        }
        # How many scores looked like probabilities although raw ones were asked for; None when that is settled.
        self._suspicious: int | None = 0 if scores == "auto" and dialect.raw else None
        self.card = ScorerCard(
            name=name or server.model or address.host,
            backend="http",
            dtype=server.dtype,
            max_tokens=server.max_tokens,
            source=_source(server, scores),
        )
        if scores == "auto" and self._takes_logits:
            warnings.warn(
                f"The {self.kind} server at {self.url} answers with probabilities, of which the logit is taken. "
                "Probabilities that are rounded, or saturated at 0 or 1, tie, and ties fall in any order. Prefer a "
                "server with raw scores (TEI, vLLM, Infinity); or settle it with scores='probability', or "
                "scores='raw' if the numbers are no probabilities.",
                ProbabilityWarning,
                stacklevel=2,
            )

    def __repr__(self) -> str:
        return f"HttpScorer({self.url!r}, kind={self.kind!r}, model={self.model!r}, batch_size={self.batch_size})"

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        if not len(pairs):
            return np.empty(0)
        return self._watched(run_in_background(self._score(pairs), loop=background_loop(_THREAD)))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; cancelling it cancels its requests."""
        if not len(pairs):
            return np.empty(0)
        # A client belongs to one loop: the requests run on ours, while the caller's waits without blocking.
        future = asyncio.run_coroutine_threadsafe(self._score(pairs), background_loop(_THREAD))
        return self._watched(await asyncio.wrap_future(future))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._closed = True
        connections, self._connections = self._connections, None
        if connections is not None and connections.release.detach() and not self._foreign(connections):
            run_in_background(_close(connections), loop=connections.loop)

    def __enter__(self) -> HttpScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connections": None}

    async def _score(self, pairs: Sequence[Pair]) -> FloatArray:
        batches = self._batches(pairs)
        # By text, so that neither the order of requests nor of answers can attach a score to another pair.
        found: dict[tuple[str, str], float] = {}
        try:
            async with asyncio.TaskGroup() as group:
                for batch in batches:
                    group.create_task(self._score_batch(batch, found))
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__
        return np.array([found[query.text, item.text] for query, item in pairs])

    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Different texts of one query at a time, in batches that the server takes."""
        groups: dict[str, dict[str, Pair]] = {}
        for query, item in pairs:
            groups.setdefault(query.text, {}).setdefault(item.text, (query, item))
        batches: list[list[Pair]] = []
        for group in groups.values():
            # 33 texts at 32 a request are better sent as 17 and 16.
            even = math.ceil(len(group) / math.ceil(len(group) / self.batch_size))
            room = 0
            batch: list[Pair] = []
            for query, item in group.values():
                size = _json_bytes("Item", item) + 1
                if len(batch) == even or size > room or not batch:
                    batch = []
                    batches.append(batch)
                    room = _BODY_BYTES - _json_bytes("Query", query) - len(self._body([]))
                batch.append((query, item))
                room -= size
        return batches

    def _body(self, batch: Sequence[Pair]) -> bytes:
        texts = [item.text for _, item in batch]
        body = {"query": batch[0][0].text if batch else "", _DIALECTS[self.kind].texts: texts, **self._fields}
        if self.kind != "tei":
            body["top_n"] = len(texts)
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()

    async def _score_batch(self, batch: list[Pair], found: dict[tuple[str, str], float]) -> None:
        response = await self._send(self.url, batch)
        if response.status_code in _SPLIT and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            _logger.info("%s answered %d to %d texts; halving.", self.url, response.status_code, len(batch))
            await self._score_batch(batch[:half], found)
            await self._score_batch(batch[half:], found)
        elif response.is_success:
            for (query, item), score in zip(batch, self._read_scores(response, batch).tolist(), strict=True):
                found[query.text, item.text] = score
        else:
            raise self._refused(response, batch)

    def _read_scores(self, response: Any, batch: list[Pair]) -> FloatArray:
        try:
            answer = response.json()
        except ValueError as error:
            raise self._failed(f"{self.url} answered what is not JSON: {self._quote(response.text)}", batch) from error
        results = answer.get("results") if isinstance(answer, dict) and self.kind != "tei" else answer
        if not isinstance(results, list):
            wanted = "a list of results" if self.kind == "tei" else "an object with a list 'results'"
            raise self._failed(
                f"A {self.kind} server answers with {wanted}; {self.url} answered {self._quote(answer)} "
                "Is the kind right?",
                batch,
            )
        scores: list[float | None] = [None] * len(batch)
        field = _DIALECTS[self.kind].score
        for result in results:
            index, score = (result.get("index"), result.get(field)) if isinstance(result, dict) else (None, None)
            # bool is a kind of int.
            if type(index) is not int or type(score) not in (int, float):
                raise self._failed(
                    f"A {self.kind} server answers with numbers 'index' and {field!r}; {self.url} answered "
                    f"{self._quote(result)}",
                    batch[index : index + 1] if type(index) is int and 0 <= index < len(batch) else batch,
                )
            if not 0 <= index < len(batch) or scores[index] is not None:
                what = "twice" if 0 <= index < len(batch) else "which was not sent"
                raise self._failed(
                    f"{self.url} scored text {index} of {len(batch)} {what}.", batch, error=ScoreCountError
                )
            scores[index] = score
        if None in scores:
            raise self._failed(
                f"{self.url} returned {len(results)} scores for {len(batch)} texts; none for text "
                f"{scores.index(None)}.",
                batch,
                error=ScoreCountError,
            )
        values = check_scores(np.array(scores, dtype=np.float64), batch)
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
        kept = np.clip(values, _NEAREST_TO_CERTAIN, 1 - _NEAREST_TO_CERTAIN)
        logits: FloatArray = np.log(kept) - np.log1p(-kept)
        return logits

    def _watched(self, scores: FloatArray) -> FloatArray:
        # Read once: another thread may settle it meanwhile.
        seen = self._suspicious
        if seen is not None:
            likely = bool(((scores >= 0) & (scores <= 1)).all())
            seen += len(scores)
            self._suspicious = seen if likely and seen < _ENOUGH_TO_SUSPECT else None
            if likely and seen >= _ENOUGH_TO_SUSPECT:
                warnings.warn(
                    f"{self.url} was asked for raw scores, yet the first {_ENOUGH_TO_SUSPECT} or more all lie between "
                    f"0 and 1: an older {self.kind} may not know how. If they are probabilities, open it with "
                    "scores='probability'; if not, with scores='raw'.",
                    ProbabilityWarning,
                    stacklevel=3,
                )
        return scores

    async def _discover(self, address: _Address, kind: str | None, model: str | None) -> _Server:
        if kind in (None, "tei"):
            info = await self._get(f"{address.base}/info")
            if isinstance(info, dict) and "max_client_batch_size" in info:
                return _tei_server(address, info, model)
        if kind is None or (kind in ("vllm", "infinity") and model is None):
            for root in (f"{address.base}/v1", address.base):
                listing = await self._get(f"{root}/models")
                entries = listing.get("data") if isinstance(listing, dict) else None
                models = [entry for entry in entries or [] if isinstance(entry, dict) and "id" in entry]
                owners = [owner for owner in ("vllm", "infinity") if any(m.get("owned_by") == owner for m in models)]
                if models and (kind is not None or owners):
                    name = _one_model([str(entry["id"]) for entry in models], model, address)
                    return _Server(kind or owners[0], address.endpoint or f"{root}/rerank", name)
        if kind is None:
            ends = {"/v1/rerank": "jina", "/v2/rerank": "cohere"}
            kind = next((ends[end] for end in ends if (address.endpoint or "").endswith(end)), None)
        if kind is None:
            raise InputError(
                f"Neither the address {address.endpoint or address.base} nor a server there says what kind of rerank "
                f"server it is (asked for: info, models). Give kind=, one of {', '.join(_DIALECTS)}."
            )
        return _Server(kind, address.endpoint or address.base + _DIALECTS[kind].path, model)

    async def _get(self, url: str) -> Any:
        """The JSON there, or None where there is none."""
        response = await self._send(url)
        if response.status_code == 401:
            raise self._refused(response, [])
        try:
            return response.json() if response.is_success else None
        except ValueError:
            return None

    async def _send(self, url: str, batch: Sequence[Pair] = ()) -> Any:
        """The server's answer to a batch (or to GET), be it a refusal, once it has one."""
        httpx2 = require("httpx2", extra="http")
        connections = self._connected()
        # The slot is kept while waiting, so that an overloaded server is sent less.
        async with connections.slots:
            request: dict[str, Any] = {"method": "GET"}
            if batch:
                request = {"method": "POST", "content": self._body(batch), "headers": _JSON}
            for attempt in range(1, self._attempts + 1):
                if connections.client.is_closed:
                    raise self._has_been_closed()
                cause: Exception | None = None
                asked: float | None = None
                try:
                    # The client's own timeouts start anew with every byte; a request's must not.
                    async with asyncio.timeout(self._timeout):
                        response = await connections.client.request(url=url, **request)
                except TimeoutError as error:
                    cause = error
                    problem = (
                        f"{url} gave no answer within {self._timeout:g} s. Is it overloaded? Raise timeout=, or lower "
                        "batch_size= or concurrency=."
                    )
                except httpx2.ConnectError as error:
                    cause = error
                    problem = f"No server can be reached at {url}: {error}. Is it running, and the address right?"
                except httpx2.RequestError as error:
                    cause = error
                    problem = f"{url} broke off: {type(error).__name__}: {error}."
                else:
                    if response.status_code < 500 and response.status_code not in _TRY_AGAIN:
                        return response
                    asked = _asked_to_wait(response)
                    problem = f"{url} answered {self._in_words(response)}"
                    if asked is not None and asked > _LONGEST_WAIT:
                        raise self._failed(f"{problem} It asks to wait for {asked:.0f} s. Try again then.", batch)
                if attempt < self._attempts:
                    wait = self._wait(attempt, asked)
                    _logger.info("%s Attempt %d of %d in %.2f s.", problem, attempt + 1, self._attempts, wait)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(connections.closing.wait(), wait)
        raise self._failed(f"{problem} Gave up after {self._attempts} attempts.", batch) from cause

    def _wait(self, attempt: int, asked: float | None) -> float:
        if asked is not None:
            return asked + self._jitter.uniform(0, min(self._backoff, _LONGEST_WAIT - asked))
        return min(_LONGEST_WAIT, self._backoff * 2.0 ** (attempt - 1)) * self._jitter.uniform(0.5, 1.0)

    def _connected(self) -> _Connections:
        if self._closed:
            raise self._has_been_closed()
        # After a fork there is another loop, and the parent's connections must be left to the parent.
        if self._connections is None or self._foreign(self._connections):
            httpx2 = require("httpx2", extra="http")
            client = httpx2.AsyncClient(
                verify=_trusted(),
                timeout=None,
                limits=httpx2.Limits(max_connections=self._concurrency, max_keepalive_connections=self._concurrency),
                headers={"User-Agent": "adacur"} | ({"Authorization": f"Bearer {self._key}"} if self._key else {}),
            )
            loop = asyncio.get_running_loop()
            release = weakref.finalize(self, _close_later, client, loop, os.getpid())
            release.atexit = False
            slots = asyncio.Semaphore(self._concurrency)
            self._connections = _Connections(loop, client, slots, asyncio.Event(), release)
        return self._connections

    def _foreign(self, connections: _Connections) -> bool:
        return connections.loop is not background_loop(_THREAD)

    def _refused(self, response: Any, batch: Sequence[Pair]) -> ScorerError:
        advice = ""
        status = response.status_code
        if status in (401, 403):
            advice = " The key given was not accepted." if self._key else " Give api_key=."
        elif status in (404, 405):
            advice = " Is this the address for reranking, and the model known there?"
        elif status == 413:
            advice = " This pair alone is too large for the server: shorten its texts."
        elif "location" in response.headers:
            advice = f" It points to {response.headers['location']}: give that address."
        return self._failed(f"{response.request.url} answered {self._in_words(response)}{advice}", batch)

    def _failed(self, message: str, batch: Sequence[Pair], *, error: type[ScorerError] = ScorerFailed) -> ScorerError:
        if batch:
            query, item = batch[0]
            where = f"query {query.id!r} and item {item.id!r}"
            message += f" ({where})" if len(batch) == 1 else f" (On {len(batch)} pairs, the first of {where}.)"
        return error(self._hiding_key(message))

    def _in_words(self, response: Any) -> str:
        status = f"{response.status_code} {response.reason_phrase}"
        return f"{status}: {self._quote(response.text)}" if response.text.strip() else f"{status}."

    def _quote(self, said: object) -> str:
        # Hidden before it is cut: half a key is a key's half too many.
        text = " ".join(self._hiding_key(str(said)).split())
        return f"{text[:300]}…" if len(text) > 300 else f"{text.rstrip('.')}."

    def _hiding_key(self, text: str) -> str:
        # A server may repeat the key it was sent.
        return text.replace(self._key, "***") if self._key else text

    def _has_been_closed(self) -> ScorerError:
        return ScorerFailed(f"The scorer {self.card.name!r} has been closed. Open it again to score.")


def _read_address(url: str) -> _Address:
    httpx2 = require("httpx2", extra="http")
    try:
        parts = urlsplit(str(url).strip())
        host, secret = parts.hostname, parts.username or parts.password or parts.query
        httpx2.URL(urlunsplit(parts))
    except (ValueError, httpx2.InvalidURL) as error:
        raise InputError(f"This is no address of a server: {error}.") from None
    if secret:
        # They would be kept in every index built with this scorer; so they are not repeated here either.
        raise InputError(f"An address holds no credentials and no '?' (for {host}). Give a key as api_key=.")
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"An address begins with http:// or https:// and a host; got {url!r}.")
    path = parts.path.rstrip("/")
    if path.endswith(("/v1", "/v2")):
        path += "/rerank"
    base = path.removesuffix("/rerank")
    if base != path:
        base = base.removesuffix("/v1").removesuffix("/v2")
    server = (parts.scheme, parts.netloc)
    named = (kind for domain, kind in _PROVIDERS.items() if host == domain or host.endswith(f".{domain}"))
    return _Address(
        base=urlunsplit((*server, base, "", "")),
        endpoint=urlunsplit((*server, path, "", "")) if path.endswith("/rerank") else None,
        host=host,
        provider=next(named, None) if parts.scheme == "https" else None,
        remembered=dict(parse_qsl(parts.fragment)),
    )


def _read_key(api_key: str | None, address: _Address) -> str | None:
    # Any index folder can name any address: a key from the environment goes only to the host it is meant for.
    variables = _KEY_VARIABLES.get(address.provider or "", ())
    key = api_key or next((os.environ[variable] for variable in variables if os.environ.get(variable)), None)
    if key is None and variables:
        raise InputError(f"{address.host} wants a key. Set {variables[0]}, or give api_key=.")
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise InputError("api_key holds a space, a line break or a letter that no key has (not shown). Strip it.")
    return key


def _tei_server(address: _Address, info: dict[str, Any], model: str | None) -> _Server:
    task, limit = info.get("model_type"), info["max_client_batch_size"]
    if isinstance(task, dict) and "reranker" not in task:
        raise InputError(
            f"{address.base} serves {info.get('model_id')!r} for {', '.join(task)}. Start the server with a reranker."
        )
    return _Server(
        "tei",
        address.endpoint or f"{address.base}/rerank",
        model=_one_model([str(info.get("model_id"))], model, address),
        batch_size=limit if isinstance(limit, int) and limit > 0 else None,
        dtype=info.get("model_dtype"),
        max_tokens=info.get("max_input_length"),
    )


def _one_model(served: list[str], model: str | None, address: _Address) -> str:
    if model is None and len(served) == 1:
        return served[0]
    if model is None or model not in served:
        asked = "Give model=" if model is None else f"There is no {model!r}"
        raise UnknownName(f"{address.base} serves {', '.join(map(repr, served))}. {asked}.")
    return model


def _source(server: _Server, scores: str) -> str:
    # Behind '#', which is never sent, stands what opening the same scorer again needs.
    remembered = {"kind": server.kind}
    if server.model is not None and server.kind != "tei":
        remembered["model"] = server.model
    if scores != "auto":
        remembered["scores"] = scores
    return f"{server.endpoint}#{urlencode(remembered, quote_via=quote, safe='/')}"


def _json_bytes(kind: str, record: Query | Item) -> int:
    check_texts(kind, record.id, record.text)
    return len(json.dumps(record.text, ensure_ascii=False).encode())


def _asked_to_wait(response: Any) -> float | None:
    """Seconds that Retry-After asks for: it holds a number, or a date by the server's clock."""
    text = response.headers.get("retry-after", "")
    try:
        seconds = float(text)
    except ValueError:
        then = _http_date(text)
        if then is None:
            return None
        seconds = (then - (_http_date(response.headers.get("date", "")) or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _http_date(text: str) -> datetime | None:
    try:
        return parsedate_to_datetime(text).replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


@functools.cache
def _trusted() -> Any:
    # Reading the certificates takes longer than many a request.
    return require("httpx2", extra="http").create_ssl_context()


async def _close(connections: _Connections) -> None:
    # Those who wait before they try again would otherwise wait to the end.
    connections.closing.set()
    await connections.client.aclose()


def _close_later(client: Any, loop: asyncio.AbstractEventLoop, process: int) -> None:
    # In a forked child nobody runs that loop, and its sockets are the parent's.
    if os.getpid() == process:
        asyncio.run_coroutine_threadsafe(client.aclose(), loop)
