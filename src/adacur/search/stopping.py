"""When a search of one query has done enough: how much is missing, and how much more it would find.

With `effort` a search takes many small rounds, until going on is expected to find little more. How little is learned
from replayed anchor queries by `replay/chosen_settings.py`, and stored in tunings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

import numpy as np

from adacur.arrays import FloatArray, IntArray
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


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What a search for `k` items, of `planned` calls, knows after a round.

    - `exact`: the exact scores of each round; `best`: all of them, best first; `n_left`: how many items have none;
    - `chance_above(scores, ranks)`: the chances of the most promising unscored items to lie above the best scored of
      these ranks, shape (items, scores).
    """

    k: int
    planned: int
    exact: Sequence[FloatArray]
    best: FloatArray
    n_left: int
    chance_above: Callable[[FloatArray, IntArray], FloatArray]


class StopRule(Protocol):
    """Says after each round whether a search of one query has done enough."""

    def after(self, now: Standing) -> tuple[float, bool]:
        """The expected recall, which the round notes, and whether to end here."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        return {}


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


@dataclass(frozen=True, slots=True)
class Stop(StopRule):
    """Ends a search after the round by which its top k is expected to have this recall.

    `effort` replaces the recall: a rule, and the point of its curve at which to stop.
    """

    recall: float
    effort: tuple[EffortRule, EffortPoint] | None = None

    def after(self, now: Standing) -> tuple[float, bool]:
        # No search ends with fewer than k items.
        if len(now.best) < now.k:
            return 0.0, False
        recall = expected_recall(now.chance_above, now.best[: now.k])
        if self.effort is None:
            return recall, recall >= self.recall
        rule, point = self.effort
        spent = sum(map(len, now.exact)) / now.planned
        values = stop_features([recall], new_in_top_k(now.exact, k=now.k), k=now.k, spent=spent)
        return recall, bool(rule.expected_loss(values) <= point.loss)

    def settings(self) -> Mapping[str, Any]:
        return {} if self.effort is None else {"effort": asdict(self.effort[1])}


def expected_recall(chance_above: Callable[[FloatArray, IntArray], FloatArray], best: FloatArray) -> float:
    """The expected share of the true top k among the k best scored, whose scores are `best`, best first.

    Let N(s) be the number of unscored items above a score s, and s_1 ≥ s_2 ≥ … ≥ s_k the best scored. Of these, D are
    not in the true top k, where D ≥ d just when at least d unscored items lie above the d-th from their end:

        E[D] = Σ_d P(N(s_{k−d+1}) ≥ d),    expected recall = 1 − E[D] / k

    The first term alone, with N's mean in place of its probability, would count every unscored item above s_k as a
    miss, though each that comes in raises the bar for the next. N is a sum of rare, nearly independent events, so it is
    taken as Poisson.

    `chance_above(scores, ranks)` gives the chances of unscored items to lie above the best scored of these ranks, shape
    (items, scores). Ties with the last of them are not misses.
    """
    k = len(best)
    most = float(chance_above(best[-1:], np.array([k])).sum())
    if not math.isfinite(most):
        return 0.0
    # At greater depth P(N ≥ d) is nothing: N's mean is largest at the lowest score.
    depth = min(k, math.ceil(most + 8 * math.sqrt(most)) + 8)
    ranks = np.arange(k, k - depth, -1)
    means = chance_above(best[ranks - 1], ranks).sum(axis=0)
    return float(1 - _at_least(means).sum() / k)


def _at_least(means: FloatArray) -> FloatArray:
    """P(N_d ≥ d) for d = 1, 2, …, where N_d is Poisson with the d-th mean."""
    fewer = np.arange(len(means))
    log_factorials = np.cumsum(np.log(np.maximum(fewer, 1)))
    logs = fewer * np.log(np.maximum(means, 1e-300))[:, None] - means[:, None] - log_factorials
    return np.asarray(np.maximum(0.0, 1 - np.tril(np.exp(logs)).sum(axis=1)))


def check_effort(effort: object) -> None:
    """Refuse anything but "auto" or a recall."""
    is_share = isinstance(effort, int | float) and not isinstance(effort, bool) and 0 < effort < 1
    if effort != "auto" and not is_share:
        raise InputError(
            f"effort must be 'auto', or the mean recall to reach, between 0 and 1, such as 0.95; got {effort!r}."
        )
