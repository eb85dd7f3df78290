"""What a search found, as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from adacur.core.protocols import Items
from adacur.core.results import Hits, Round

__all__ = ["found", "hits_of", "plain", "round_event", "sse"]

_TITLE_CHARS = 80


def hits_of(hits: Hits) -> list[dict[str, Any]]:
    """The hits, best first."""
    return [
        {
            "id": hit.id,
            "score": hit.score,
            "rank": hit.rank,
            "round": hit.round,
            "text": hit.item.text if hit.item else None,
            "metadata": plain(hit.item.metadata) if hit.item else {},
            **({} if hit.fused is None else {"fused": hit.fused}),
        }
        for hit in hits
    ]


def found(hits: Hits, *, items: Items, trace: bool, stopped: str) -> dict[str, Any]:
    """One query's answer; `stopped` is what ended the search: itself, or the server."""
    rounds = hits.trace.rounds
    return {
        "query": hits.query.text,
        "hits": hits_of(hits),
        "calls": hits.trace.calls,
        "stopped": stopped,
        "seconds": hits.trace.seconds,
        "expected_recall": next((one.expected_recall for one in reversed(rounds) if one.expected_recall), None),
        **({"trace": traced(hits, items=items)} if trace else {}),
    }


def traced(hits: Hits, *, items: Items) -> list[dict[str, Any]]:
    """Every round, without the hits after it."""
    calls, told = 0, []
    for one in hits.trace.rounds:
        calls += len(one.positions)
        told.append(_round(one, calls=calls, items=items))
    return told


def round_event(hits: Hits, *, items: Items) -> dict[str, Any]:
    """The last round of a search under way, and the top k so far."""
    return _round(hits.trace.rounds[-1], calls=hits.trace.calls, items=items) | {"hits": hits_of(hits)}


def _round(one: Round, *, calls: int, items: Items) -> dict[str, Any]:
    predicted = [None] * len(one.positions) if one.predicted is None else np.asarray(one.predicted).tolist()
    scored = zip(items.at(one.positions.tolist()), predicted, np.asarray(one.exact).tolist(), strict=True)
    return {
        "number": one.number,
        "calls": calls,
        "items": [
            {
                "id": item.id,
                "title": str(item.metadata.get("title") or " ".join(item.text.split())[:_TITLE_CHARS]),
                "predicted": plain(guess),
                "exact": exact,
            }
            for item, guess, exact in scored
        ],
        "seconds": dict(one.seconds),
        "expected_recall": one.expected_recall,
    }


def plain(value: Any) -> Any:
    """A value that JSON has: metadata may hold anything that a file did, numbers that are none included."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    return str(value)


def sse(event: str, data: str) -> bytes:
    """One server-sent event; `data` is one line of JSON."""
    return f"event: {event}\ndata: {data}\n\n".encode(errors="replace")
