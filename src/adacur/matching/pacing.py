"""Which chance is worth a call: by the recall that is asked for, and by what the calls left to spend allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from adacur.results import Trace

# A chance below which no call is made, and above which every call is.
_LEAST, _MOST = 1e-4, 0.5
# Rows before which nothing is known of what a chance costs.
_FEWEST_ROWS = 16
_STEP = 2.0


@dataclass(slots=True, eq=False)
class Pace:
    """What rows have cost and brought, by the chance of each call; state of one match.

    - `recall`: the share of all accepted pairs to find; of `starts` at a chance that is worth a call until rows tell.
    """

    recall: float
    least: float = field(init=False)
    rows: int = 0
    found: int = 0
    _chances: list[float] = field(default_factory=list)
    _barriers: list[float] = field(default_factory=list)
    _missing: float = 0.0

    def __post_init__(self) -> None:
        self.least = (1 - self.recall) / 2

    def note(self, traces: Sequence[Trace], found: Sequence[int]) -> None:
        """Take the rows of a batch; `found` are their pairs."""
        for trace, n in zip(traces, found, strict=True):
            barrier = 1.0
            for round_ in trace.rounds:
                for chance in [1.0] * len(round_.positions) if round_.predicted is None else round_.predicted.tolist():
                    # A call is made just where every call before it was worth it too.
                    barrier = min(barrier, chance)
                    self._chances.append(chance)
                    self._barriers.append(barrier)
            expected = next((one.expected_recall for one in reversed(trace.rounds) if one.expected_recall), 1.0)
            self._missing += max(1, n) * (1 / expected - 1)
            self.rows, self.found = self.rows + 1, self.found + n

    @property
    def expected_recall(self) -> float:
        """The share found of the pairs that there are expected to be; 1 before the first row."""
        return self.found / (self.found + self._missing) if self.found else float(not self._missing)

    def settle(self, *, calls_left: int | None = None, rows_left: int = 0) -> float:
        """The chance that is worth a call from now on."""
        if self.rows < _FEWEST_ROWS:
            return self.least
        self.least = self._for_recall()
        if calls_left is not None and rows_left:
            self.least = max(self.least, self._for_calls(calls_left / rows_left))
        return self.least

    def _for_recall(self) -> float:
        """The highest chance by which the expected recall is kept; lower than any tried where none is."""
        barriers, chances = np.array(self._barriers), np.array(self._chances)
        order = np.argsort(barriers, kind="stable")
        allowed = (1 - self.recall) * (self.found + self._missing)
        # Without the calls below a barrier, their chances are missing as well.
        missing = self._missing + np.cumsum(chances[order])
        n = int(np.searchsorted(missing, allowed, side="right"))
        if self._missing > allowed:
            return max(_LEAST, self.least / _STEP)
        return float(np.clip(barriers[order][min(n, len(order) - 1)], _LEAST, min(_MOST, self.least * _STEP)))

    def _for_calls(self, each: float) -> float:
        """The lowest chance by which a row takes so many calls on average."""
        barriers = -np.sort(-np.array(self._barriers))
        n = int(each * self.rows)
        return 0.0 if n >= len(barriers) else float(barriers[n])
