"""Which run a run is compared with, and by how much they differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from adacur.errors import EmptyInput
from adacur.replay import Mean, Run, paired_difference
from adacur_lab.report.lines import estimate, setting
from adacur_lab.report.measures import JUDGED, recall_measures

__all__ = ["difference", "is_ahead", "is_behind", "is_bound", "rival_of"]


def rival_of(run: Run, runs: Sequence[Run], rival: str) -> Run | None:
    """The rival's best run at the same budget, of those with the same first stage and kind of anchors if there are."""
    there = [other for other in runs if other.method == rival and setting(other, "budget") == setting(run, "budget")]
    if run.method == rival or not there:
        return None
    for name in ("first", "anchor_kind"):
        there = [other for other in there if setting(other, name) == setting(run, name)] or there
    measures = [*recall_measures(runs), JUDGED]

    def found(other: Run) -> float:
        return sum(one.mean for measure in measures if (one := estimate(other, measure)))

    return max(there, key=found)


@lru_cache(maxsize=8192)
def difference(left: Run, right: Run, measure: str) -> Mean | None:
    """Left minus right over the queries that both have; None where they share none with the measure."""
    if measure not in left.measures or measure not in right.measures:
        return None
    try:
        return paired_difference(left, right, measure)
    except EmptyInput:
        return None


def is_ahead(found: Mean) -> bool:
    """Whether the queries tell that left is better: what the words and the marks of the tables go by alike."""
    return found.low > 0


def is_behind(found: Mean) -> bool:
    """Whether the queries tell that left is worse."""
    return found.high < 0


def is_bound(method: str) -> bool:
    """Whether a method looks at what no search can know: it is a bound to draw, not a rival to beat."""
    return method == "exact" or "oracle" in method or "best_split" in method
