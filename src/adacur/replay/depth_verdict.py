"""What quality by depth says to do: search deeper, stay at a depth, or mend the scorer first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adacur.arrays import FloatArray
from adacur.replay.comparison import FEWEST_QUERIES, JUDGED
from adacur.replay.runs import PairedDifference, bootstrap_interval

# Changes of nDCG@10: a smaller one is not worth a training or an index, and a larger one must not be overlooked.
_MATTERS, _OVERLOOKED = 0.01, 0.05
# As many calls as a search makes by default; who needs more of them re-ranking is better served by a search.
_USUAL_CALLS = 100
# Of an interval that tells a usual change from none.
_HALF_WIDTH = 0.03
# Ends that lie further out need more resamples; all of them are in memory at once.
_RESAMPLES, _DRAWS = 10_000, 10_000_000

Kind = Literal["deeper", "stay", "mend", "unclear"]
_IN_WORDS: dict[Kind, str] = {"deeper": "search deeper", "mend": "mend the scorer first", "unclear": "cannot tell"}


@dataclass(frozen=True, slots=True)
class DepthVerdict:
    """What to do, and why in a sentence or two.

    `depth` is the shallowest that no deeper one certainly improves on (None: all items); `changes` are the paired
    differences of the depths to it, None for itself. Their intervals hold 95 % together: each is widened for the number
    of depths. `enough` is about how many queries would tell, where these `n_queries` cannot.
    """

    kind: Kind
    depth: int | None
    why: str
    changes: tuple[PairedDifference | None, ...]
    n_queries: int
    enough: int | None = None

    def __str__(self) -> str:
        """The verdict in words."""
        return f"{_IN_WORDS.get(self.kind) or f'stay at {self.depth}'}. {self.why}"


def depth_verdict(depths: Sequence[int | None], values: Sequence[FloatArray], *, n_last: int = 0) -> DepthVerdict:
    """Read a verdict off nDCG@10 per query at each depth, from 0 (the first stage alone) on; None is all items.

    From the shallowest depth on, a deeper one is preferred only where the whole interval of the paired difference lies
    above 0. `n_last` queries have no relevant item in the better half of the scorer's ranking.
    """
    n = len(values[0])
    before = kept = 0
    while (better := next((at for at in range(kept + 1, len(values)) if _rises(values, at, kept)), None)) is not None:
        before, kept = kept, better
    changes = tuple(None if at == kept else _difference(values, at, kept) for at in range(len(values)))
    deeper = [(at, change) for at, change in enumerate(changes) if change is not None and at > kept]
    fallen = [(at, change) for at, change in deeper if change.high < 0 and change.difference <= -_MATTERS]
    here = _named(depths[kept])

    def so(kind: Kind, why: str, enough: int | None = None) -> DepthVerdict:
        return DepthVerdict(kind, depths[kept], why, changes, n, enough)

    if n < FEWEST_QUERIES:
        return so("unclear", f"{n} judged queries are too few; use at least {FEWEST_QUERIES}.", FEWEST_QUERIES)
    if fallen:
        at, change = min(fallen, key=lambda one: one[1].difference)
        why = f"{JUDGED} falls from {here} to {_named(depths[at])}: {_told(change)}."
        if n_last > n / 2:
            why += f" For {n_last} queries everything relevant is in the worse half: are higher scores the better ones?"
        return so("mend", why)
    open_to = max(deeper, key=lambda one: one[1].high, default=None)
    if open_to is not None and open_to[1].high > _OVERLOOKED:
        at, change = open_to
        # The width of an interval falls with the square root of the number of queries.
        enough = max(n + 10, math.ceil(n / 10 * ((change.high - change.difference) / _HALF_WIDTH) ** 2) * 10)
        why = f"The interval is too wide: from {here} to {_named(depths[at])} {JUDGED} changes by {_told(change)}."
        return so("unclear", f"{why} About {enough:,} judged queries would tell.", enough)
    if not kept:
        at, change = max(deeper, key=lambda one: one[1].difference)
        best = f"{_named(depths[at])} at best changes {JUDGED} by {_told(change)}"
        return so("mend", f"The scorer's order is at no depth certainly better than {here}: {best}.")
    if not deeper or (depths[kept] or math.inf) > _USUAL_CALLS:
        rise = _told(_difference(values, kept, before))
        return so("deeper", f"{JUDGED} rises from {_named(depths[before])} to {here}: {rise}.")
    at, change = deeper[-1]
    return so("stay", f"{JUDGED} does not rise for certain from {here} to {_named(depths[at])}: {_told(change)}.")


def _rises(values: Sequence[FloatArray], at: int, before: int) -> bool:
    change = _difference(values, at, before)
    return change.low > 0 and change.difference >= _MATTERS


def _difference(values: Sequence[FloatArray], at: int, before: int) -> PairedDifference:
    # What is zero but for the last bits of a sum must not lie above or below it.
    differences = np.round(values[at] - values[before], 9)
    level = 1 - 0.05 / max(1, len(values) - 1)
    samples = max(2000, min(_RESAMPLES, _DRAWS // len(differences)))
    low, high = bootstrap_interval(differences, level=level, samples=samples)
    return PairedDifference(len(differences), float(differences.mean()), low, high)


def _named(depth: int | None) -> str:
    return "all items" if depth is None else f"the best {depth:,}" if depth else "the first stage alone"


def _told(change: PairedDifference) -> str:
    return f"{change} on {change.n_queries:,} judged queries"
