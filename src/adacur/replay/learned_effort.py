"""When a search has done enough, learned from replayed anchor queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from adacur.arrays import FloatArray
from adacur.replay.means import chances, cross_fit, likeliest_weights
from adacur.results import Hits, Round
from adacur.search.effort import EffortPoint, EffortRule, new_in_top_k, stop_features

# The losses at which searches may stop: what a search stops at is chosen among these.
_LOSSES = np.geomspace(0.3, 0.0005, 40)
_RIDGE = 1e-3


class Course(NamedTuple):
    """A replayed search that spent its whole budget: after each round, what could be known and what it had found.

    `features` are those of `search.effort.stop_features`, `calls` and `recalls` are after the round. Rounds before k
    items were scored are left out: no search ends there.
    """

    features: FloatArray
    calls: FloatArray
    recalls: FloatArray


def courses_of(replayed: Sequence[Hits], *, k: int, budget: int, least: FloatArray) -> list[Course]:
    """The courses of searches, given the scores that the true top k of each have at least."""
    return [
        _course(hits.trace.rounds, k=k, budget=budget, threshold=threshold)
        for hits, threshold in zip(replayed, least.tolist(), strict=True)
    ]


def _course(rounds: Sequence[Round], *, k: int, budget: int, threshold: float) -> Course:
    exact = [round_.exact for round_ in rounds]
    calls = np.cumsum([len(scores) for scores in exact])
    found = np.cumsum([np.count_nonzero(scores >= threshold) for scores in exact])
    news = new_in_top_k(exact, k=k)
    told = [
        stop_features([round_.expected_recall or 0.0], news[: at + 1], k=k, spent=calls[at] / budget)
        for at, round_ in enumerate(rounds)
    ]
    late = np.flatnonzero(calls >= min(k, calls[-1]))
    return Course(np.array(told)[late], calls[late].astype(float), np.minimum(found, k)[late] / k)


def learned_effort(courses: Sequence[Course], *, whole: FloatArray) -> EffortRule | None:
    """The rule that these come to; `whole` are the recalls of searches that spend the budget as usual.

    None where every search has k items only at its end: there is nothing to stop.
    """
    if not all(any(len(course.calls) > 1 for course in courses[half::2]) for half in (0, 1)):
        return None
    weights = cross_fit(len(courses), lambda half: _fitted([courses[at] for at in np.flatnonzero(half).tolist()]))
    losses = [chances(course.features, own) for course, own in zip(courses, weights, strict=True)]
    curve = []
    for most in _LOSSES:
        ends = [_end(expected, most) for expected in losses]
        calls = np.mean([course.calls[end] for course, end in zip(courses, ends, strict=True)])
        recalls = np.array([course.recalls[end] for course, end in zip(courses, ends, strict=True)])
        error = float((recalls - whole).std(ddof=1)) / len(recalls) ** 0.5
        recall = float(recalls.mean())
        curve.append(EffortPoint(float(most), float(calls), recall, recall - error))
    return EffortRule(tuple(_fitted(courses).tolist()), _rising(curve), float(whole.mean()))


def _end(expected: FloatArray, most: float) -> int:
    """The round after which a search stops; the last if it never does."""
    enough = np.flatnonzero(expected[:-1] <= most)
    return int(enough[0]) if len(enough) else len(expected) - 1


def _fitted(courses: Sequence[Course]) -> FloatArray:
    """Weights of the loss, by logistic regression: the recall that ending after a round would have lost."""
    told = np.concatenate([course.features[:-1] for course in courses])
    lost = np.concatenate([course.recalls[-1] - course.recalls[:-1] for course in courses])
    scale = np.maximum(np.abs(told).max(axis=0), 1e-9)
    weights = likeliest_weights(told / scale, lost, prior=np.full(len(scale), _RIDGE * len(told)))
    return np.asarray(weights / scale)


def _rising(curve: Sequence[EffortPoint]) -> tuple[EffortPoint, ...]:
    """The points that no cheaper one beats, cheapest first; more expensive ones that find no more are left out."""
    best: list[EffortPoint] = []
    for point in sorted(curve, key=lambda one: (one.calls, -one.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return tuple(best)
