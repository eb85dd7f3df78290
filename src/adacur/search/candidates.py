"""Where a search may look, and where it starts: the filter, and the first stage's candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import BoolArray, IntArray
from adacur.core.errors import EmptyInput, InputError
from adacur.core.protocols import Items, Ranking
from adacur.core.records import Query
from adacur.first_stages import Placed
from adacur.search.plan import Filter

__all__ = ["allowed_by", "candidates_of"]

_ITEMS_PER_FILTER_BLOCK = 4096


def candidates_of(
    first: Placed | None, queries: Sequence[Query], *, n: int, allowed: BoolArray
) -> tuple[list[IntArray], list[Ranking]]:
    """The first stage's best n allowed positions per query, best first, and its answers."""
    if first is None:
        return [np.empty(0, dtype=np.intp) for _ in queries], []
    k = n
    while True:
        answers = first.search(queries, k)
        candidates = [positions[allowed[positions]] for positions, _ in answers]
        short = any(
            len(some) < n and len(answer.positions) >= k for some, answer in zip(candidates, answers, strict=True)
        )
        if not short or k >= len(allowed):
            return candidates, answers
        # The filter has left too few: ask for more.
        k = min(4 * k, len(allowed))


def allowed_by(filter_: Filter | None, items: Items) -> BoolArray:
    """Which items may be scored."""
    if filter_ is None:
        # One value seen many times: it takes no memory.
        return np.broadcast_to(np.True_, len(items))
    if isinstance(filter_, str):
        raise InputError("A filter must be a function of an item or a collection of ids; got one text.")
    allowed = np.zeros(len(items), dtype=np.bool_)
    if callable(filter_):
        for start in range(0, len(items), _ITEMS_PER_FILTER_BLOCK):
            block = items.at(range(start, min(start + _ITEMS_PER_FILTER_BLOCK, len(items))))
            allowed[start : start + len(block)] = [bool(filter_(item)) for item in block]
    else:
        allowed[items.positions(filter_)] = True
    if not allowed.any():
        raise EmptyInput("The filter leaves no item to search. Widen it.")
    return allowed
