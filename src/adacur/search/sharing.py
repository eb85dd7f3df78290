"""How many pairs of each search go into the next scorer call: what deadlines afford, and fair shares of a full call."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adacur.search.rounds import JoinedSearch

_CALLS_THAT_COUNT = 8
_SHARE_OF_TIME_LEFT = 0.8
# A call of fewer pairs hardly takes less time on a model; no deadline makes the calls of others smaller than this.
_SMALL_CALL = 64
# The pairs of the first call, while the pace is unknown, where calls have a time limit.
_FIRST_CALL = 256


class Sharing:
    """Divides the next call between searches, by the pace of the last calls.

    A call holds at most `pairs`, and about as many as take `seconds`, so that no search waits long for the next.
    """

    def __init__(self, *, pairs: float = math.inf, seconds: float = math.inf) -> None:
        self._pairs = pairs
        self._seconds = seconds
        self._calls: deque[tuple[int, float]] = deque(maxlen=_CALLS_THAT_COUNT)

    def note(self, n_pairs: int, seconds: float) -> None:
        """A call of this many pairs took these seconds."""
        self._calls.append((n_pairs, seconds))

    def shares(self, searches: Sequence[JoinedSearch]) -> list[int]:
        """How many pairs of each search the next call scores; 0 for a search whose deadline affords no more.

        A deadline limits the whole call, since all of it is waited for, but never to less than a small call of the
        others' pairs: a search that cannot wait for that much ends with what it has.
        """
        # Seconds per pair of the last calls; None before the first.
        n_pairs = sum(n for n, _ in self._calls)
        pace = max(sum(seconds for _, seconds in self._calls) / n_pairs, 1e-9) if n_pairs else None
        in_time = max(_SMALL_CALL, self._seconds / pace) if pace else _FIRST_CALL
        limit = min(self._pairs, math.inf if math.isinf(self._seconds) else in_time)
        n_waiting = sum(search.n_waiting for search in searches)
        wanted = [search.n_waiting for search in searches]
        for at, search in enumerate(searches):
            if math.isinf(search.seconds_left):
                continue
            if pace is None:
                # One pair per query tells how fast the scorer is.
                limit = min(limit, search.n_queries)
                continue
            affordable = _SHARE_OF_TIME_LEFT * search.seconds_left / pace
            if affordable >= 1 + min(_SMALL_CALL, n_waiting - search.n_waiting):
                limit = min(limit, affordable)
            else:
                wanted[at] = min(search.n_waiting, search.least)
        return _fair(wanted, [max(1, search.least) for search in searches], limit)


def _fair(wanted: Sequence[int], least: Sequence[int], limit: float) -> list[int]:
    """Divide a limited number: each gets all that it wants, or no less than any other gets."""
    if sum(wanted) <= limit:
        return list(wanted)
    shares = [0] * len(wanted)
    for n_before, at in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[at] = min(wanted[at], max(least[at], int(limit / (len(wanted) - n_before))))
        limit = max(0.0, limit - shares[at])
    return shares
