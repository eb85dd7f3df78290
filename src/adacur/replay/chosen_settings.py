"""Which settings of "gaussian" searches suit an index, when a search has done enough, and what recall to expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.first_stages import Placed
from adacur.first_stages.joined import SEPARATOR
from adacur.replay.measures import chances, cross_fit, gains, likeliest_weights, unseen
from adacur.replay.searches import Searches, Way, exact_anchors, held_out, some_anchors
from adacur.results import Hits, Round
from adacur.search import AnchorIndex
from adacur.search.stopping import EffortPoint, EffortRule, new_in_top_k, stop_features
from adacur.search.tuned import Gain, GaussianSettings, Prediction, TriedFirst, Tuning, default_settings

# In the order in which they are tried: what matters most, first.
_QUICK: Mapping[str, tuple[Any, ...]] = {
    "rounds": (None, 10),
    "first_batch": (None, 0.3),
}
_FULL: Mapping[str, tuple[Any, ...]] = {
    **_QUICK,
    "first_batch": (None, 0.3, 0.5),
}
_RIVALS = ("adacur", "anncur", "rerank")
_DRAWS = 20_000


def stages_of(index: AnchorIndex) -> dict[str | None, Placed | None]:
    """What searches of an index may start from, in order of preference: the default, the others, all together."""
    snapshot = index.snapshot
    names = dict.fromkeys((snapshot.default_first, *snapshot.named_stages, snapshot.all_joined))
    stages: dict[str | None, Placed | None] = {
        name: snapshot.ranked_by_all(snapshot.stage(name)) for name in names if name is not None and name != "random"
    }
    return stages or {None: None}


def replays(index: AnchorIndex, *, k: int, queries: int, seed: int = 0) -> Searches:
    """Searches of some anchor queries whose scores are all exact, from every first stage of the index."""
    exact = np.flatnonzero(exact_anchors(index))
    anchors, model = index.anchors, index.snapshot.gaussian_model()
    if len(exact) < len(index.anchor_queries):
        # Predicted scores have seen those of the queries replayed: anchor queries that have any are left out.
        anchors, model = some_anchors(anchors, exact), index.snapshot.uncompressed_model()
    held = [anchors.anchor_queries[at] for at in held_out(anchors, queries, seed=seed).tolist()]
    given: dict[str, Any] = {"stages": stages_of(index), "model": model, "slopes": index.snapshot.rank_slopes}
    return Searches(anchors, held, k=k, seed=seed, **given)


def prediction_of(method: str, recalls: FloatArray) -> Prediction:
    """The recall to expect of new queries, from the recalls of as many replayed."""
    mean, variance = float(recalls.mean()), float(recalls.var(ddof=1))
    # As if each query were several yes-or-no questions: their means are never outside 0 … 1, and a method that has not
    # failed yet may still fail.
    per_query = max(1.0, mean * (1 - mean) / variance) if variance else 1.0
    n = max(1, round(per_query * len(recalls)))
    draws = np.random.default_rng(0)
    chances = draws.beta(mean * n + 0.5, (1 - mean) * n + 0.5, size=_DRAWS)
    low, high = np.quantile(draws.binomial(n, chances) / n, [0.025, 0.975])
    return Prediction(method=method, recall=mean, low=float(low), high=float(high))


def choose_settings(
    searches: Searches, *, budget: int, first: str | None = None, seed: int = 0, quick: bool = False
) -> Tuning:
    """The tuning that these searches come to; `tune` says how. `first` is given where it is chosen already."""
    queries, k, stages = searches.queries, searches.k, list(searches.stages)
    tuning = Tuning(
        k=k,
        budget=min(budget, searches.n_items),
        settings=default_settings(k),
        first=first or stages[0],
        n_queries=len(queries),
        seed=seed,
        pseudo=sum(query.id.startswith("pq-") for query in queries) * 2 > len(queries),
    )
    if budget >= searches.n_items:
        certain = tuple(Prediction(method, 1.0, 1.0, 1.0) for method in ("gaussian", *_RIVALS))
        return replace(tuning, predictions=certain, gain=Gain(0.0, 0.0, 0.0))
    choices, passes = (_QUICK, 1) if quick else (_FULL, 2)
    usual = default_settings(k)

    def recalls(method: str | GaussianSettings, stage: str | None) -> FloatArray:
        return searches.recalls(Way(method, stage, budget))

    def best_first(method: str | GaussianSettings, among: BoolArray) -> str | None:
        return best_stage({stage: recalls(method, stage)[among] for stage in stages})

    def chosen(stage: str | None, among: BoolArray) -> GaussianSettings:
        """One setting after another is changed to its best value, until no change gains."""
        current = usual
        for _ in range(passes):
            before = current
            for name, values in choices.items():
                rivals = [replace(current, **{name: value}) for value in values if value != getattr(current, name)]
                best = max(rivals, key=lambda rival: float(recalls(rival, stage)[among].mean()))
                if gains(recalls(best, stage)[among] - recalls(current, stage)[among]):
                    current = best
            if current == before:
                break
        return current

    every = np.ones(len(queries), dtype=np.bool_)
    start, rerank_first = first or best_first(usual, every), best_first("rerank", every)
    settings = chosen(start, every)

    def as_chosen(among: BoolArray) -> FloatArray:
        """Recalls with what these queries choose; from another first stage, with the default settings."""
        stage = first or best_first(usual, among)
        return recalls(chosen(stage, among) if stage == start else usual, stage)

    found = {"gaussian": unseen(len(queries), as_chosen)}
    found |= {method: recalls(method, start) for method in _RIVALS}
    found["rerank"] = unseen(len(queries), lambda among: recalls("rerank", best_first("rerank", among)))
    tried = [(stage, recalls(usual, stage), recalls("rerank", stage)) for stage in stages if stage]
    effort = None
    if start is not None and not quick:
        way = Way(settings, start, budget)
        replayed = searches.scored(way, to_the_end=True)
        courses = courses_of(replayed, k=k, budget=budget, least=searches.least(min(k, searches.n_items)))
        effort = learned_effort(courses, whole=searches.recalls(way))
    return replace(
        tuning,
        settings=settings,
        first=start,
        rerank_first=rerank_first,
        tried=tuple(TriedFirst(stage, float(ours.mean()), float(theirs.mean())) for stage, ours, theirs in tried),
        predictions=tuple(prediction_of(name, values) for name, values in found.items()),
        gain=_gain(found["gaussian"] - found["rerank"]),
        effort=effort,
    )


def best_stage(values: Mapping[str | None, FloatArray]) -> str | None:
    """The first stage to take, given values per query of each, the default first.

    Another takes the default's place, and all together that of one, only for a gain that can be seen.
    """
    chosen, *others = values
    single = [other for other in others if SEPARATOR not in (other or "")]
    for rivals in (single, [other for other in others if other not in single]):
        best = max(rivals, key=lambda rival: float(values[rival].mean()), default=chosen)
        if gains(values[best] - values[chosen]):
            chosen = best
    return chosen


def _gain(differences: FloatArray) -> Gain:
    mean = float(differences.mean())
    reach = 1.96 * float(differences.std(ddof=1)) * float(np.sqrt(2 / len(differences)))
    return Gain(recall=mean, low=mean - reach, high=mean + reach)


# The losses at which searches may stop: what a search stops at is chosen among these.
_LOSSES = np.geomspace(0.3, 0.0005, 40)
_RIDGE = 1e-3


class Course(NamedTuple):
    """A replayed search that spent its whole budget: after each round, what could be known and what it had found.

    `features` are those of `search.stopping.stop_features`, `calls` and `recalls` are after the round. Rounds before k
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
    features = [
        stop_features([round_.expected_recall or 0.0], news[: at + 1], k=k, spent=calls[at] / budget)
        for at, round_ in enumerate(rounds)
    ]
    late = np.flatnonzero(calls >= min(k, calls[-1]))
    return Course(np.array(features)[late], calls[late].astype(float), np.minimum(found, k)[late] / k)


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
    features = np.concatenate([course.features[:-1] for course in courses])
    lost = np.concatenate([course.recalls[-1] - course.recalls[:-1] for course in courses])
    scale = np.maximum(np.abs(features).max(axis=0), 1e-9)
    weights = likeliest_weights(features / scale, lost, prior=np.full(len(scale), _RIDGE * len(features)))
    return np.asarray(weights / scale)


def _rising(curve: Sequence[EffortPoint]) -> tuple[EffortPoint, ...]:
    """The points that no cheaper one beats, cheapest first; more expensive ones that find no more are left out."""
    best: list[EffortPoint] = []
    for point in sorted(curve, key=lambda one: (one.calls, -one.recall)):
        if not best or point.recall > best[-1].recall:
            best.append(point)
    return tuple(best)
