"""How many pairs of each search go into the next scorer call: what deadlines afford, and fair shares of a full call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from adacur.search.rounds import RunningSearch
from adacur.search.spending import SHARE_OF_TIME_LEFT, Pace

# The pairs of the first call, while the pace is unknown, where calls have a time limit.
_FIRST_CALL = 256
# Who has this much longer should not get tiny calls because of the last moments of others.
_MUCH_LONGER = 2


class Sharing:
    """Divides what the scorer can do before the searches' deadlines, by the pace of the last calls.

    A call holds at most `pairs`, and about as many as take `seconds`, so that no search waits long for the next. A call
    under way is never stopped. With `apart` a call holds the pairs of one search only, and the others wait for its end.
    """

    def __init__(self, *, pairs: float = math.inf, seconds: float = math.inf, apart: bool = False) -> None:
        self._pairs = pairs
        self._seconds = seconds
        self._apart = apart
        self.pace = Pace()

    def shares(self, searches: Sequence[RunningSearch], *, n_others: int = 0) -> list[int | None]:
        """How many pairs of each search the next call scores.

        0 for a search that waits for a later call; None for one whose deadline affords no more. Who has no answer yet
        comes first, then who stands first. `n_others` are about to ask again.
        """
        pace = self.pace if self.pace.is_known else None
        late = [pace is not None and self._is_late(one, searches, pace) for one in searches]
        shares: list[int | None] = [None if late[at] and not one.least else 0 for at, one in enumerate(searches)]
        turns = sorted((at for at, n in enumerate(shares) if n == 0), key=lambda at: not searches[at].least)
        if not turns:
            return shares
        in_time = [one for at, one in enumerate(searches) if not late[at] and math.isfinite(one.seconds_left)]
        n_turns = len(turns) + n_others
        turns = turns[:1] if self._apart else turns
        limit = self._limit(in_time, pace, n_calls=n_turns if self._apart else 1)
        if pace is None and in_time:
            # One pair per query tells how fast the scorer is.
            limit = min(limit, len(turns) * min(one.n_queries for one in in_time))
        elif pace is not None and self._apart:
            # Less would hardly take less time.
            own = pace.pairs_in(SHARE_OF_TIME_LEFT * searches[turns[0]].seconds_left)
            limit = max(limit, min(own, pace.call / pace.pair))
        least = [max(1, searches[at].least) for at in turns]
        n_in = max(1, sum(n <= limit for n in accumulate(least)))
        wanted = [searches[at].least if late[at] else len(searches[at].pairs) for at in turns[:n_in]]
        for at, n in zip(turns, _fair(wanted, least, limit), strict=False):
            shares[at] = n
        return shares

    def _is_late(self, search: RunningSearch, searches: Sequence[RunningSearch], pace: Pace) -> bool:
        """Whether this search's deadline affords no call that would be worth its while to the others in it."""
        patient = 0
        if not self._apart:
            patient = sum(len(one.pairs) for one in searches if one.seconds_left > _MUCH_LONGER * search.seconds_left)
        pairs_seconds = max(pace.pair, min(pace.call, patient * pace.pair))
        return SHARE_OF_TIME_LEFT * search.seconds_left < pace.call + pairs_seconds

    def _limit(self, in_time: Sequence[RunningSearch], pace: Pace | None, *, n_calls: int) -> float:
        """The most pairs of a call, if as many calls like it must end before any of these deadlines."""
        if pace is None:
            return min(self._pairs, math.inf if math.isinf(self._seconds) else _FIRST_CALL)
        # At least half of a call is spent on its pairs.
        most = max(self._seconds, 2 * pace.call)
        seconds = min([most, *(SHARE_OF_TIME_LEFT * one.seconds_left / n_calls for one in in_time)])
        return min(self._pairs, max(1.0, pace.pairs_in(seconds)))


def _fair(wanted: Sequence[int], least: Sequence[int], limit: float) -> list[int]:
    """Divide a limited number: each gets all that it wants, or no less than any other gets."""
    if sum(wanted) <= limit:
        return list(wanted)
    shares = [0] * len(wanted)
    for n_before, at in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[at] = min(wanted[at], max(least[at], int(limit / (len(wanted) - n_before))))
        limit = max(0.0, limit - shares[at])
    return shares
