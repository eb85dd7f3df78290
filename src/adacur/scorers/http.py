"""A rerank server or service as a scorer: the kinds in http_dialects.py, and those that speak like them."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError, ScoreCountError, ScorerFailed, UnknownName
from adacur.protocols import ScorerCard
from adacur.records import Pair
from adacur.scorers.http_dialects import DIALECTS, JUDGE
from adacur.scorers.remote import Address, RemoteScorer, by_query, checked_extra, source, where
from adacur.spelling import did_you_mean

_NEAREST_TO_CERTAIN = 1e-9
_SCORES = ("auto", "raw", "probability")
# Logits of that many pairs hardly all lie between 0 and 1 by chance.
_ENOUGH_TO_TELL = 64


class ProbabilityWarning(UserWarning):
    """A server answers with probabilities, which tie where they are rounded or saturated; logits do not."""


class HttpScorer(RemoteScorer):
    """A cross-encoder behind a rerank endpoint, called over HTTP with retries.

    - url: the root of the server, or its rerank address;
    - kind: one of `DIALECTS`, such as "tei" or "cohere"; the host of a service says it;
    - model: its name, where the server has several or a cache is to recognise it;
    - api_key: sent as a bearer token. Without it, the service's environment variable (CO_API_KEY, JINA_API_KEY,
      VOYAGE_API_KEY, …) is read, for the hosts of that service only. No card, error or repr shows it; a pickle of the
      scorer holds it;
    - scores: "raw" are used as they come; of a "probability" the logit is taken; "auto" asks for raw scores where the
      kind offers them, else takes logits, with a `ProbabilityWarning`. It also warns when scores that should be raw
      look like probabilities: the first 64 all between 0 and 1;
    - instruction: the task, for the models of kinds that have a place for it;
    - extra: more fields for every request, such as {"latency": "slow"}; an index stores them, so no secrets here;
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
        instruction: str | None = None,
        extra: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        concurrency: int = 8,
        timeout: float = 30.0,
        attempts: int = 5,
        backoff: float = 0.5,
        name: str | None = None,
    ) -> None:
        address = Address.of(url, kind)
        remembered, kind = address.remembered, address.kind
        if kind not in DIALECTS:
            near = did_you_mean(kind, [*DIALECTS, JUDGE]) if kind else ""
            raise UnknownName(
                f"The kind= of the server at {address.host} must be one of {', '.join(DIALECTS)}, or {JUDGE} for a "
                f"language model, which JudgeScorer opens; got {kind!r}.{near}"
            )
        scores = scores or remembered.get("scores") or "auto"
        if scores not in _SCORES:
            raise InputError(f"scores must be one of {', '.join(_SCORES)}; got {scores!r}.")
        at_least(1, batch_size=batch_size)
        limits: dict[str, Any] = {"concurrency": concurrency, "timeout": timeout}
        limits |= {"attempts": attempts, "backoff": backoff}
        super().__init__(address, api_key=api_key, model=model, name=name, **limits)
        self.kind, self._dialect = kind, DIALECTS[kind]
        self.url = address.endpoint(self._dialect.path, *self._dialect.endings)
        size = batch_size or self._dialect.batch_size
        self.batch_size = min(size, self._dialect.limit or size)
        self.instruction = instruction or remembered.get("instruction")
        if self.instruction is not None and self._dialect.instruction is None:
            able = ", ".join(name for name, dialect in DIALECTS.items() if dialect.instruction)
            raise InputError(
                f"Requests to a {kind} server have no place for an instruction; those to {able} have. Or write it into "
                "the queries."
            )
        self._extra = checked_extra(extra, remembered, taken=self._dialect.fields)
        self._takes_logits = scores == "probability" or (scores == "auto" and self._dialect.raw is None)
        self._promised_raw = scores == "auto" and not self._takes_logits
        self._n_like_probabilities = 0
        self.card = ScorerCard(
            name=self._name,
            backend="http",
            source=source(
                self.url,
                kind=self.kind,
                model=self.model,
                scores=None if scores == "auto" else scores,
                instruction=self.instruction,
                extra=self._extra,
            ),
        )
        if scores == "auto" and self._takes_logits:
            warnings.warn(
                f"The {self.kind} server at {self.url} answers with probabilities, of which the logit is taken; "
                "rounded or saturated ones tie. Prefer a server with raw scores (TEI, vLLM, Infinity), or settle it "
                "with scores='probability', or scores='raw' if they are not probabilities.",
                ProbabilityWarning,
                stacklevel=2,
            )

    def _batches(self, pairs: Sequence[Pair]) -> list[list[Pair]]:
        """Distinct texts of one query at a time, in batches that the server takes."""
        batches: list[list[Pair]] = []
        for distinct in by_query(pairs):
            # 33 texts at 32 a request are better sent as 17 and 16.
            even = math.ceil(len(distinct) / math.ceil(len(distinct) / self.batch_size))
            batches += [distinct[start : start + even] for start in range(0, len(distinct), even)]
        return batches

    def _body(self, batch: Sequence[Pair]) -> dict[str, Any]:
        texts = [item.text for _, item in batch]
        raw = not self._takes_logits
        return self._dialect.request(batch[0][0].text, texts, model=self.model, raw=raw, instruction=self.instruction)

    def _scores_in(self, answer: Any, batch: list[Pair]) -> list[float]:
        try:
            answers = self._dialect.scores_in(answer)
            # bool is a kind of int.
            if any(type(index) is not int or type(score) not in (int, float) for index, score in answers):
                raise TypeError
            scores = {index: float(score) for index, score in answers}
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise self._failed(
                f"A {self.kind} server answers with a JSON list of 'index' and {self._dialect.score!r}; {self.url} "
                f"answered {self._shown(json.dumps(answer))}. Is the kind right?{where(batch)}"
            ) from error
        if sorted(index for index, _ in answers) != list(range(len(batch))):
            lost = next((f"; none for text {at}" for at in range(len(batch)) if at not in scores), "")
            n_scores = f"{len(answers)} scores for {len(batch)} texts{lost}"
            raise ScoreCountError(f"{self.url} returned {n_scores}.{where(batch)}")
        values = np.array([scores[at] for at in range(len(batch))], dtype=np.float64)
        if self._promised_raw:
            self._look_at(values)
        given: list[float] = (self._logits(values, batch) if self._takes_logits else values).tolist()
        return given

    def _logits(self, values: FloatArray, batch: list[Pair]) -> FloatArray:
        # A single-precision 1 may be read as a little more.
        outside = np.flatnonzero((values < -1e-6) | (values > 1 + 1e-6))
        if outside.size:
            worst = int(outside[0])
            raise ScorerFailed(
                f"Probabilities lie between 0 and 1; {self.url} returned {values[worst]}. If its scores are raw, "
                f"open it with scores='raw'.{where(batch[worst : worst + 1])}"
            )
        inside = np.clip(values, _NEAREST_TO_CERTAIN, 1 - _NEAREST_TO_CERTAIN)
        logits: FloatArray = np.log(inside) - np.log1p(-inside)
        return logits

    def _look_at(self, scores: FloatArray) -> None:
        """Warn, once, when scores that were promised raw have all been between 0 and 1."""
        self._n_like_probabilities += scores.size
        if not ((scores >= 0) & (scores <= 1)).all():
            self._promised_raw = False
        elif self._n_like_probabilities >= _ENOUGH_TO_TELL:
            self._promised_raw = False
            warnings.warn(
                f"A {self.kind} server should answer with logits, but the first {self._n_like_probabilities} "
                f"scores of {self.url} all lie between 0 and 1, as probabilities do. Open it with "
                "scores='probability' to search by their logits, or with scores='raw' if they are raw.",
                ProbabilityWarning,
                stacklevel=2,
            )
