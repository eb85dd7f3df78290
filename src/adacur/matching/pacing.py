"""Which chance is worth a call: by the recall that is asked for, and by what the calls left to spend allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from adacur.results import Trace

# A chance below which no call is made, and above which every call is.
_LEAST, _MOST = 1e-4, 0.5
# Rows before which nothing is known of what a chance costs.
_FEWEST_ROWS = 16
# A batch of rows moves the chance by no more than this factor.
_STEP = 2.0


@dataclass(slots=True, eq=False)
class Pace:
    """What rows have cost and brought, and from it the `least` chance that is worth a call; state of one match.

    `recall` is the share of all accepted pairs to find. What is expected to be missing says whether that is kept; each
    batch of rows moves the chance towards it, and no lower than the calls left for each row to come allow.
    """

    recall: float
    least: float = field(init=False)
    rows: int = 0
    calls: int = 0
    found: int = 0
    missing: float = 0.0

    def __post_init__(self) -> None:
        self.least = (1 - self.recall) / 2

    def note(self, traces: Sequence[Trace], found: Sequence[int]) -> None:
        """Take the rows of a batch; `found` are their pairs."""
        for trace, n in zip(traces, found, strict=True):
            expected = next((one.expected_recall for one in reversed(trace.rounds) if one.expected_recall), 1.0)
            self.missing += max(1, n) * (1 / expected - 1)
            self.rows, self.calls, self.found = self.rows + 1, self.calls + trace.calls, self.found + n

    @property
    def expected_recall(self) -> float:
        """The share found of the pairs that there are expected to be; 1 where none is expected."""
        return self.found / (self.found + self.missing) if self.found + self.missing else 1.0

    def settle(self, *, calls_left: int | None = None, rows_left: int = 0) -> None:
        """Move the chance that is worth a call from now on."""
        if self.rows < _FEWEST_ROWS:
            return
        factor = (1 - self.recall) / max(1 - self.expected_recall, _LEAST)
        if calls_left is not None and rows_left:
            factor = max(factor, self.calls / self.rows * rows_left / max(1, calls_left))
        self.least = min(_MOST, max(_LEAST, self.least * min(_STEP, max(1 / _STEP, factor))))
