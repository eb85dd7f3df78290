"""What a search found, as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.core.as_json import as_json, hit_rows
from adacur.core.protocols import Items
from adacur.core.results import Hits, Round

__all__ = ["found", "round_event", "sse"]

_TITLE_CHARS = 80


def found(hits: Hits, *, items: Items, trace: bool, stopped: str) -> dict[str, Any]:
    """One query's answer; `stopped` is what ended the search: itself, or the server."""
    rounds = hits.trace.rounds
    return {
        "query": hits.query.text,
        "hits": hit_rows(hits),
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
    return _round(hits.trace.rounds[-1], calls=hits.trace.calls, items=items) | {"hits": hit_rows(hits)}


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
                "predicted": as_json(guess),
                "exact": exact,
            }
            for item, guess, exact in scored
        ],
        "seconds": dict(one.seconds),
        "expected_recall": one.expected_recall,
    }


def sse(event: str, data: str) -> bytes:
    """One server-sent event; `data` is one line of JSON."""
    return f"event: {event}\ndata: {data}\n\n".encode(errors="replace")
