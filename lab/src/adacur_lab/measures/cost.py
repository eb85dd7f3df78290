"""What searches cost: calls and seconds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.results import Hits

__all__ = ["search_cost"]


def search_cost(found: Sequence[Hits], *, index_calls: int = 0) -> dict[str, FloatArray]:
    """Calls and seconds per step of each query, from its trace: "calls", "index_calls", "seconds.score" and so on.

    `index_calls` is what the index cost once, for all queries together: anchor queries × items.
    """
    seconds = [hits.trace.seconds for hits in found]
    steps = dict.fromkeys(step for own in seconds for step in own)
    return {
        "calls": np.array([hits.trace.calls for hits in found], dtype=np.float64),
        "index_calls": np.full(len(found), float(index_calls)),
    } | {f"seconds.{step}": np.array([own.get(step, 0.0) for own in seconds]) for step in steps}
