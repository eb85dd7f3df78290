"""A rerank server as a scorer: TEI, vLLM and Infinity, Cohere, Jina, and those that speak like them."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScoreCountError, ScorerFailed, UnknownName
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Pair, Query, check_texts
from adacur.core.scores import check_scores
from adacur.core.spelling import did_you_mean
from adacur.scorers.http_client import RerankClient
from adacur.scorers.http_dialects import DIALECTS
from adacur.scorers.http_servers import discover, read_address, read_key

__all__ = ["HttpScorer", "ProbabilityWarning"]

_log = logging.getLogger(__name__)

# TEI refuses bodies above 2,000,000 bytes, and larger ones gain nothing elsewhere.
_BODY_BYTES = 1_999_000
# Half a batch may fit where a whole one does not; and among texts it cannot read, halving finds the one.
_SPLIT = {413, 422}
_NEAREST_TO_CERTAIN = 1e-9
_ENOUGH_TO_SUSPECT = 100
_SCORES = ("auto", "raw", "probability")


class ProbabilityWarning(UserWarning):
    """A server answers with probabilities, which tie where they are rounded or saturated; logits do not."""


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
        key = read_key(api_key, address)
        self._client = RerankClient(
            address.host, key=key, concurrency=concurrency, timeout=timeout, attempts=attempts, backoff=backoff
        )
        try:
            server = self._client.run(discover(self._client.get, address, kind=kind, model=model))
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
        self._client.name = self.card.name
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
        return self._watched(self._client.run(self._score(pairs)))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; cancelling it cancels its requests."""
        return self._watched(await self._client.wait_for(self._score(pairs)))

    def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._client.close()

    def __enter__(self) -> HttpScorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
        body = self._body(batch[0][0].text, [item.text for _, item in batch])
        response = await self._client.send(self.url, body, where=_where(batch))
        if response.status_code in _SPLIT and len(batch) > 1:
            half = math.ceil(len(batch) / 2)
            _log.info("%s answered %d to %d texts; halving.", self.url, response.status_code, len(batch))
            await self._score_batch(batch[:half], scores)
            await self._score_batch(batch[half:], scores)
        elif response.is_success:
            for (query, item), score in zip(batch, self._read_scores(response, batch).tolist(), strict=True):
                scores[query.text, item.text] = score
        else:
            raise ScorerFailed(self._client.refusal(response) + _where(batch))

    def _read_scores(self, response: Any, batch: list[Pair]) -> FloatArray:
        field = self._dialect.score
        try:
            answers = [(result["index"], result[field]) for result in self._dialect.results_in(response.json())]
            # bool is a kind of int.
            if any(type(index) is not int or type(score) not in (int, float) for index, score in answers):
                raise TypeError
        except (LookupError, TypeError, ValueError) as error:
            raise ScorerFailed(
                f"A {self.kind} server answers with a JSON list of numbers 'index' and {field!r}; {self.url} answered: "
                f"{self._client.quote(response.text)} Is the kind right?{_where(batch)}"
            ) from error
        scores = dict(answers)
        if sorted(index for index, _ in answers) != list(range(len(batch))):
            lost = next((f"; none for text {at}" for at in range(len(batch)) if at not in scores), "")
            raise ScoreCountError(
                f"{self.url} returned {len(answers)} scores for {len(batch)} texts{lost}.{_where(batch)}"
            )
        values = check_scores(np.array([scores[at] for at in range(len(batch))], dtype=np.float64), batch)
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


def _where(batch: Sequence[Pair]) -> str:
    query, item = batch[0]
    first = f"query {query.id!r} and item {item.id!r}"
    return f" ({first})" if len(batch) == 1 else f" (On {len(batch)} pairs, the first of {first}.)"


def _json_bytes(kind: str, record: Query | Item) -> int:
    check_texts(kind, record.id, record.text)
    return len(json.dumps(record.text, ensure_ascii=False).encode())
