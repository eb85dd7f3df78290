"""When a search of one query has done enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.search.effort import EffortPoint, EffortRule, new_in_top_k, stop_features


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What a search for `k` items, of `planned` calls, knows after a round.

    - `exact`: the exact scores of each round; `best`: all of them, best first;
    - `chance_above(scores, ranks)`: the chances of the most promising unscored items to lie above the best scored of
      these ranks, shape (items, scores).
    """

    k: int
    planned: int
    exact: Sequence[FloatArray]
    best: FloatArray
    chance_above: Callable[[FloatArray, IntArray], FloatArray]


class StopRule(Protocol):
    """Says after each round whether a search of one query has done enough."""

    def after(self, now: Standing) -> tuple[float, bool]:
        """The expected recall, which the round notes, and whether to end here."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        ...


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends a search after the round by which its top k is expected to have this recall.

    `effort` replaces the recall: a rule, and the point of its curve at which to stop.
    """

    recall: float
    effort: tuple[EffortRule, EffortPoint] | None = None

    def after(self, now: Standing) -> tuple[float, bool]:
        """As for any rule; no search ends with fewer than k items."""
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
        """The choices that a result should name."""
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
