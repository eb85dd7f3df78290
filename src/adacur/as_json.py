"""Records, arrays and hits as values that JSON has: the same from the shell and from the server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from adacur.results import Hits, Trace


def as_json(value: Any) -> Any:
    """A plain JSON value; NaN and infinities become null, objects that JSON does not know their text."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Hits):
        return {
            "query": as_json(value.query),
            "verdict": value.verdict,
            "hits": hit_rows(value),
            "calls": value.trace.calls,
            "stopped": value.trace.stopped,
            **certified(value),
            **spent(value.trace),
            "seconds": as_json(value.trace.seconds),
            "settings": as_json(value.trace.settings),
        }
    if is_dataclass(value) and not isinstance(value, type):
        return as_json(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_json(value.tolist())
    return str(value)


def certified(hits: Hits) -> dict[str, Any]:
    """The certificate of a `find`, and what it says."""
    certificate = hits.certificate
    return {} if certificate is None else {"certificate": as_json(certificate) | {"text": str(certificate)}}


def spent(trace: Trace) -> dict[str, Any]:
    """Tokens and cost of a search, where its budget counts them."""
    tokens = {} if trace.tokens is None else {"tokens": trace.tokens}
    return tokens if trace.cost is None else {**tokens, "cost": str(trace.cost)}


def hit_rows(hits: Hits) -> list[dict[str, Any]]:
    """The hits, best first: id, score, rank, round, text, metadata and, where there are any, relevance and fused."""
    return [
        {
            "id": hit.id,
            "score": hit.score,
            "rank": hit.rank,
            "round": hit.round,
            "text": hit.item.text if hit.item else None,
            "metadata": as_json(hit.item.metadata) if hit.item else {},
            **({} if hit.document == hit.id else {"document": hit.document}),
            **({} if hit.relevance is None else {"relevance": hit.relevance}),
            **({} if hit.fused is None else {"fused": hit.fused}),
        }
        for hit in hits
    ]
