"""How much to spend on a question: many small rounds, until going on is expected to find little more.

How little is learned from replayed anchor queries by `replay/chosen_settings.py`, and stored in tunings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import InputError

# "auto", or the mean recall to reach.
Effort = float | Literal["auto"]
# Small rounds, so that a search can stop sooner.
ROUNDS = 20
FIRST_BATCH = 0.1
# The mean recall that "auto" may lose against the whole budget.
LOST = 0.005
# So near 1 that expected recall ends a search only where it cannot be wrong.
NEVER = 1 - 1e-15
_ROUNDS_THAT_TELL = 3


@dataclass(frozen=True, slots=True)
class EffortPoint:
    """The mean calls and recall of searches that end once they expect to lose no more than `loss`.

    `low` is the recall minus one standard error of its difference from that of the whole budget.
    """

    loss: float
    calls: float
    recall: float
    low: float


@dataclass(frozen=True, slots=True)
class EffortRule:
    """The recall that a search expects to lose by ending now: logistic in `stop_features`, with these weights.

    `curve` is measured on replayed anchor queries, cheapest point first, each half with weights of the other; `whole`
    is the recall of searches that spend the whole budget.
    """

    weights: tuple[float, ...]
    curve: tuple[EffortPoint, ...]
    whole: float

    def __post_init__(self) -> None:
        numbers = [self.whole, *(value for one in self.curve for value in (one.loss, one.calls, one.recall))]
        if len(self.weights) != 3 + _ROUNDS_THAT_TELL or not self.curve or min(numbers) < 0:
            raise ValueError(f"effort has {len(self.weights)} weights and {len(self.curve)} points")

    def point(self, effort: Effort) -> EffortPoint:
        """The cheapest point of the curve that is enough."""
        if effort == "auto":
            least = self.whole - LOST
            # The last point spends the whole budget, in small rounds.
            return next((one for one in self.curve if one.low >= least), self.curve[-1])
        found = next((one for one in self.curve if one.recall >= effort), None)
        if found is None:
            most = max(one.recall for one in self.curve)
            raise InputError(
                f"effort={effort} asks for more recall than this budget brings: replayed anchor queries reached at "
                f"most {most:.3f}. Raise the budget and tune for it, or ask for less."
            )
        return found

    def expected_loss(self, features: FloatArray) -> FloatArray:
        """The expected losses of searches with these `stop_features`, a row each."""
        return np.asarray(1 / (1 + np.exp(-np.clip(features @ np.array(self.weights), -500, 500))))


def stop_features(expected: Sequence[float], news: Sequence[int], *, k: int, spent: float) -> FloatArray:
    """The features, after a round, that tell how much a search would still find.

    1, the log-odds of the expected recall, the share of the top k that is new in each of the last rounds, and the
    logarithm of the share of the budget spent.
    """
    now = min(max(expected[-1], 1e-4), 1 - 1e-4)
    recent = [n / k for n in reversed(news[-_ROUNDS_THAT_TELL:])]
    recent += [1.0] * (_ROUNDS_THAT_TELL - len(recent))
    return np.array([1.0, np.log(now / (1 - now)), *recent, np.log(spent)])


def new_in_top_k(exact: Sequence[FloatArray], *, k: int) -> list[int]:
    """For each round, given its exact scores, how many of its items were among the best k after it."""
    counts, best = [], np.empty(0)
    for scores in exact:
        together = np.sort(np.concatenate([best, scores]))[::-1][:k]
        counts.append(int(np.count_nonzero(scores >= together[-1])) if len(together) else 0)
        best = together
    return counts


def check_effort(effort: object) -> None:
    """Refuse anything but "auto" or a recall."""
    is_share = isinstance(effort, int | float) and not isinstance(effort, bool) and 0 < effort < 1
    if effort != "auto" and not is_share:
        raise InputError(
            f"effort must be 'auto', or the mean recall to reach, between 0 and 1, such as 0.95; got {effort!r}."
        )
