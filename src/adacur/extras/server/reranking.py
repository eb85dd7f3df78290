"""Documents that a client sends, scored exactly by the scorer of an index: so one machine holds the model of others."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from adacur.arrays import FloatArray
from adacur.extras.server.failures import Refusal
from adacur.extras.server.indexes import Served
from adacur.extras.server.scoring import Counted
from adacur.records import Item, Pair, as_query
from adacur.spelling import did_you_mean


def by_model(served: Mapping[str, Served], model: str | None) -> Served:
    """The index of this name, or of this scorer; the first if none is named."""
    if model is None:
        return next(iter(served.values()))
    by_name = {one.scorer_name: one for one in reversed(list(served.values()))} | dict(served)
    if model not in by_name:
        near = did_you_mean(model, by_name)
        names = ", ".join(sorted(by_name, key=lambda name: name not in served))
        raise Refusal(404, "unknown_model", f"There is no index or scorer of this name.{near} Served: {names}.")
    return by_name[model]


async def reranked(served: Served, body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a body of `rerank_request`, as Jina's clients read it: best first, equal ones as they came."""
    texts = [one if isinstance(one, str) else one["text"] for one in body["documents"]]
    query = as_query(body["query"])
    pairs: list[Pair] = [(query, Item(f"document-{at}", text)) for at, text in enumerate(texts)]
    # Opening a model takes a while.
    scorer = await asyncio.to_thread(lambda: served.index.scorer)
    scores = await cast(Counted, scorer).in_turn(pairs)
    shown = scores if body["raw_scores"] else _probabilities(scores)
    results = [
        {"index": at, "relevance_score": float(shown[at])}
        | ({"document": {"text": texts[at]}} if body["return_documents"] else {})
        for at in np.argsort(-scores, kind="stable")[: body["top_n"]].tolist()
    ]
    return {"model": served.scorer_name, "results": results, "usage": {"scored_pairs": len(texts)}}


def _probabilities(scores: FloatArray) -> FloatArray:
    """The logistic function of scores: clients of rerank services expect values between 0 and 1."""
    # exp of a large number would overflow; of minus its absolute value it cannot.
    small = np.exp(-np.abs(scores.astype(np.float64)))
    return np.asarray(np.where(scores >= 0, 1 / (1 + small), small / (1 + small)))
