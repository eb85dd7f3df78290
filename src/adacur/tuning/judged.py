"""How much to trust the first stage in the final order, chosen by judgements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adacur.approximation.acquisition import best_positions
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import EmptyInput, InputError
from adacur.core.records import Query
from adacur.core.results import Hits, Round
from adacur.evaluation.judged import judged_quality
from adacur.first_stages import as_hits
from adacur.search import AnchorIndex, Gaussian
from adacur.search.fusion import LISTED, Fusion, listed_by
from adacur.tuning.held_out import check_anchors
from adacur.tuning.replaying import replay

FEWEST_JUDGED = 20
_WEIGHTS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
# In budgets: a pool of one is re-ranking.
_POOLS = (1, 2, 5)
# The expected recall after each round is noted where a stop is set; none is as late as this.
_NEVER = 1 - 1e-9
_STOPS = (0.99, 0.95, 0.9)
# A gain that is sure but smaller than this is not worth a setting.
_LEAST_GAIN = 0.002


@dataclass(frozen=True, slots=True)
class JudgedChoice:
    """A weight, a pool and a stop, the mean judged quality they give, and how far that is from having none of them.

    `error` is the standard error of the mean `difference`, query by query; `calls` is what a query costs on average.
    """

    fuse: float
    pool: int | None
    stop_when: float | None
    quality: float
    difference: float
    error: float
    calls: float


@dataclass(frozen=True, slots=True)
class JudgedTuning:
    """What was chosen, by which measure, on how many queries, and all that was tried."""

    chosen: JudgedChoice
    tried: tuple[JudgedChoice, ...]
    first_alone: float
    measure: str
    n_queries: int
    calls: int

    @property
    def verdict(self) -> str:
        """What to do, in a sentence or two."""
        plain, best = self.tried[0], self.chosen
        settings = {"fuse": best.fuse or None, "pool": best.pool, "stop_when": best.stop_when}
        given = ", ".join(f"{name}={value:g}" for name, value in settings.items() if value is not None)
        seen = f"on {self.n_queries} judged queries"
        alone = f"the first stage alone reaches {self.first_alone:.3f}"
        if not given:
            return (
                f"Leave the order to the scorer: {self.measure} is {plain.quality:.3f} {seen}, and no weight of the "
                f"first stage gains more than one standard error; {alone}."
            )
        said = f"{given}: {self.measure} {plain.quality:.3f} → {best.quality:.3f} {seen} ({self._interval}); {alone}."
        if best.quality < self.first_alone:
            said += " That is more than the search reaches: the scorer may not be worth its calls here."
        return said

    @property
    def _interval(self) -> str:
        mean, reach = self.chosen.difference, 1.96 * self.chosen.error
        return f"difference {mean:+.3f}, 95 % interval {mean - reach:+.3f} to {mean + reach:+.3f}"


def calls_to_tune_fuse(index: AnchorIndex, queries: Sequence[Query], *, budget: int) -> int:
    """Scorer calls that `tune_fuse` makes at most: none for queries whose text is an anchor query's."""
    anchors = {query.text for query in index.anchor_queries}
    return budget * sum(query.text not in anchors for query in queries)


def tune_fuse(
    index: AnchorIndex,
    queries: Sequence[Query],
    qrels: Mapping[str, Mapping[str, int]],
    *,
    k: int = 10,
    budget: int = 100,
    weights: Sequence[float] = _WEIGHTS,
    pools: Sequence[int] | None = None,
    stops: Sequence[float] = _STOPS,
    measure: str | None = None,
    seed: int = 0,
) -> JudgedTuning:
    """Choose `fuse`, `pool` and `stop_when` of "gaussian" searches by the judgements of these queries.

    Report on others. Each query is searched once, with real scorer calls unless its text is an anchor query's, whose
    scores are known; such a query is searched for as if it were new. A weight is chosen where it gains more than one
    standard error over none, query by query; a pool (by default one, two or five budgets) where it does so over the
    weight alone; the earliest stop that loses next to nothing. A pool is judged by leaving out what lies beyond it: a
    search inside it would spend the calls there instead. `measure` is by default nDCG of the k hits.
    """
    check_anchors(index, "Choosing by judgements")
    measure = measure or f"nDCG@{k}"
    judged = [query for query in queries if any(grade > 0 for grade in qrels.get(query.id, {}).values())]
    if len(judged) < FEWEST_JUDGED:
        raise EmptyInput(
            f"Choosing by judgements needs at least {FEWEST_JUDGED} queries with something relevant; "
            f"got {len(judged)} of {len(queries)}. Judge more, or search with fuse=0.5 untuned."
        )
    if index.snapshot.default_first == "random":
        raise InputError("fuse blends a first stage's scores in, and this index has none. Build it with one.")
    if pools is None:
        pools = [n * budget for n in _POOLS]
    pools = [pool for pool in pools if pool < len(index.items)]
    searched = _searched(index, judged, k=k, budget=budget, seed=seed)
    first = index.first_stage(index.snapshot.default_first).search(
        judged, min(len(index.items), max([LISTED, k, *pools]))
    )
    every = np.ones(len(index.items), dtype=np.bool_)
    lists = [listed_by(answer, allowed=every) for answer in first]
    scale = Fusion.fit(index, weight=1.0)
    qualities: dict[JudgedChoice, FloatArray] = {}
    plain: FloatArray | None = None

    def choice(fuse: float, pool: int | None = None, stop: float | None = None) -> JudgedChoice:
        nonlocal plain
        fusion = replace(scale, weight=fuse) if fuse else None
        rounds = [_until(hits, stop) for hits in searched]
        answers = [
            _best(index, hits, rounds_of, listed, fusion=fusion, pool=pool)
            for hits, rounds_of, listed in zip(searched, rounds, lists, strict=True)
        ]
        values = judged_quality(answers, qrels, measures=[measure])[measure]
        plain = values if plain is None else plain
        calls = float(np.mean([sum(len(round_.positions) for round_ in some) for some in rounds]))
        tried = JudgedChoice(fuse, pool, stop, float(values.mean()), *_paired(values, plain), calls)
        qualities[tried] = values
        return tried

    def gains(new: JudgedChoice, old: JudgedChoice) -> bool:
        difference, error = _paired(qualities[new], qualities[old])
        return difference > max(error, _LEAST_GAIN)

    def quality(tried: JudgedChoice) -> float:
        return tried.quality

    weighed = [choice(fuse) for fuse in (0.0, *weights)]
    chosen = max(weighed, key=quality)
    if not gains(chosen, weighed[0]):
        chosen = weighed[0]
    pooled = [choice(chosen.fuse, pool) for pool in pools]
    if pooled and gains(best := max(pooled, key=quality), chosen):
        chosen = best
    stopped = [choice(chosen.fuse, chosen.pool, stop) for stop in stops]
    harmless = [one for one in stopped if one.quality >= chosen.quality - _LEAST_GAIN and one.calls < chosen.calls]
    if harmless:
        chosen = min(harmless, key=lambda one: one.calls)
    alone = judged_quality(as_hits(judged, first, index.items.ids), qrels, measures=[measure])[measure]
    return JudgedTuning(
        chosen=chosen,
        tried=tuple(qualities),
        first_alone=float(alone.mean()),
        measure=measure,
        n_queries=len(judged),
        calls=calls_to_tune_fuse(index, judged, budget=budget),
    )


def _searched(index: AnchorIndex, queries: Sequence[Query], *, k: int, budget: int, seed: int) -> list[Hits]:
    anchors = {query.text: query for query in index.anchor_queries}
    known = list({query.text: anchors[query.text] for query in queries if query.text in anchors}.values())
    new = [query for query in queries if query.text not in anchors]
    answers: dict[str, Hits] = {}
    never = Gaussian(seed=seed, stop_when=_NEVER)
    if known:
        answers |= {hits.query.text: hits for hits in replay(index, known, k, budget=budget, method=never)}
    if new:
        answers |= {hits.query.text: hits for hits in index.search(new, k, budget=budget, method=never)}
    return [replace(answers[query.text], query=query) for query in queries]


def _until(hits: Hits, stop: float | None) -> tuple[Round, ...]:
    """The rounds that a search would have taken with this stop."""
    rounds = hits.trace.rounds
    settled = [
        number
        for number, round_ in enumerate(rounds, 1)
        if stop is not None and round_.expected_recall is not None and round_.expected_recall >= stop
    ]
    return rounds[: settled[0]] if settled else rounds


def _best(
    index: AnchorIndex,
    hits: Hits,
    rounds: Sequence[Round],
    listed: tuple[IntArray, FloatArray],
    *,
    fusion: Fusion | None,
    pool: int | None,
) -> Hits:
    """The best of all that was scored in these rounds, in the order that this fusion and pool would have given it."""
    positions = np.concatenate([round_.positions for round_ in rounds])
    exact = np.concatenate([round_.exact for round_ in rounds])
    ranked, scores = listed
    values = exact if fusion is None else fusion.values(exact, positions, listed=ranked, listed_scores=scores)
    if pool is not None:
        values = np.where(np.isin(positions, ranked[:pool]), values, -np.inf)
    order = best_positions(values, len(hits), keys=index.items.keys[positions])
    ids = tuple(item.id for item in index.items.at(positions[order].tolist()))
    return Hits(query=hits.query, ids=ids, scores=exact[order], fused=values[order])


def _paired(values: FloatArray, others: FloatArray) -> tuple[float, float]:
    differences = values - others
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))
