"""Documents that a client sends, scored exactly, in the dialects of rerank services.

A new dialect is one entry of `DIALECTS`: its path and its answer. All read the same body, `bodies.rerank_request`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.extras.server.bodies import TOKEN_LIMITS
from adacur.extras.server.failures import Refusal
from adacur.extras.server.indexes import Served
from adacur.records import Item, Pair, as_query
from adacur.scorers.calling import ascore
from adacur.spelling import did_you_mean

Ranked = list[tuple[int, float]]


class Reranking:
    """Texts to be scored for a query by the scorer of an index; `body` has the fields of `rerank_request`."""

    def __init__(self, served: Mapping[str, Served], body: Mapping[str, Any]) -> None:
        self.served = _by_model(served, body["model"])
        self.query: str = body["query"]
        self.texts = [one if isinstance(one, str) else one["text"] for one in body["documents"]]
        self.returns_documents = body["return_documents"] is not False
        self._top_n = min((n for n in (body["top_n"], body["top_k"]) if n is not None), default=None)
        self._limits = {name: body[name] for name in TOKEN_LIMITS if body[name] is not None}
        self._is_raw = body["raw_scores"] or not body["use_activation"]

    async def ranked(self) -> Ranked:
        """Positions and relevance, best first; equal ones in the order given."""
        query = as_query(self.query)
        pairs: list[Pair] = [(query, Item(f"document-{at}", text)) for at, text in enumerate(self.texts)]
        # Opening a model takes a while.
        scorer = await asyncio.to_thread(lambda: self.served.index.scorer)
        _check_limits(self._limits, scorer.card.max_tokens)
        scores = await ascore(scorer, pairs)
        shown = scores if self._is_raw else _probabilities(scores)
        return [(int(at), float(shown[at])) for at in np.argsort(-scores, kind="stable")[: self._top_n]]


def _check_limits(asked: Mapping[str, int], longest: int | None) -> None:
    """Refuse limits of tokens below the scorer's own, at which it cuts documents whatever a request says."""
    for name, tokens in asked.items():
        if tokens != -1 and (longest is None or tokens < longest):
            own = "has no limit of tokens" if longest is None else f"cuts pairs at {longest} tokens"
            message = f"{name}: the scorer {own}, and takes no other limit; got {tokens}. Leave it out."
            raise Refusal(422, "invalid_request", message)


def _jina(reranking: Reranking, ranked: Ranked) -> dict[str, Any]:
    n_words = len(reranking.texts) * len(reranking.query.split()) + sum(len(text.split()) for text in reranking.texts)
    return {
        "id": str(uuid.uuid4()),
        "model": reranking.served.scorer_name,
        "results": [
            {"index": at, "relevance_score": score}
            | ({"document": {"text": reranking.texts[at]}} if reranking.returns_documents else {})
            for at, score in ranked
        ],
        "usage": {"total_tokens": n_words, "scored_pairs": len(reranking.texts)},
    }


def _cohere(reranking: Reranking, ranked: Ranked) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()),
        "results": [{"index": at, "relevance_score": score} for at, score in ranked],
        "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
    }


@dataclass(frozen=True, slots=True)
class Dialect:
    """The rerank route of a service; `answer` makes the body of its answer."""

    path: str
    service: str
    answer: Callable[[Reranking, Ranked], Any]


DIALECTS = (
    Dialect("/v1/rerank", "Jina, vLLM", _jina),
    Dialect("/rerank", "Infinity, vLLM", _jina),
    Dialect("/v2/rerank", "Cohere", _cohere),
)


def _by_model(served: Mapping[str, Served], model: str | None) -> Served:
    if model is None:
        return next(iter(served.values()))
    by_name = {one.scorer_name: one for one in reversed(list(served.values()))} | dict(served)
    if model not in by_name:
        near = did_you_mean(model, by_name)
        names = ", ".join(sorted(by_name, key=lambda name: name not in served))
        raise Refusal(404, "unknown_model", f"There is no index or scorer of this name.{near} Served: {names}.")
    return by_name[model]


def _probabilities(scores: FloatArray) -> FloatArray:
    """The logistic function of scores: clients of rerank services expect values between 0 and 1."""
    # exp of a large number would overflow; of minus its absolute value it cannot.
    small = np.exp(-np.abs(scores.astype(np.float64)))
    return np.asarray(np.where(scores >= 0, 1 / (1 + small), small / (1 + small)))
