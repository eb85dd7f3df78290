"""What judgements choose (calls to spend, where to start, the first stage's weight) and say of the hits' relevance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.data import read_qrels, read_queries
from adacur.errors import EmptyInput, InputError
from adacur.first_stages.joined import SEPARATOR
from adacur.model.features import rows_at
from adacur.model.scale import KNOTS, ScoreScale
from adacur.protocols import AnchorScores, Items
from adacur.records import Query, as_queries
from adacur.replay.chosen_settings import best_stage, stages_of
from adacur.replay.measures import Qrels, chances, cross_fit, gains, likeliest_weights, mean_of, telling_queries, unseen
from adacur.replay.searches import Searches, Way, all_scored, check_anchors, check_exact
from adacur.results import Hits
from adacur.scorers import Cached
from adacur.search import AnchorIndex
from adacur.search.relevance import Calibration, Relevance
from adacur.search.tuned import GaussianSettings, Judged, default_settings
from adacur.seeds import item_keys, stream_key, uniform
from adacur.store import Drift

Queries = int | str | Path | Iterable[Query | str]
# Judged quality differs more from query to query than recall does.
FEWEST_JUDGED, MOST_JUDGED = 20, 300
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
# Of the largest budget.
_SHARES = (0.25, 0.5)
# A gain that is sure but smaller than this is not worth a setting.
_LEAST_GAIN = 0.002
# More is not given up for a smaller budget, however few the queries.
_MOST_LOST = 0.01


@dataclass(frozen=True, slots=True)
class JudgedQueries:
    """Queries to choose by, and what was judged of them among the items of an index.

    `known` are those whose text is an anchor query's: they cost no call. `unknown_items` counts the judgements of items
    that the index does not have, and `left_out` the judged queries without use: with nothing relevant in the index,
    or with every item relevant.
    """

    queries: tuple[Query, ...]
    qrels: Qrels
    known: frozenset[str]
    unknown_items: int
    left_out: int

    def most_calls(self, index: AnchorIndex, *, k: int, budget: int) -> int:
        """Scorer calls that choosing by them makes at most."""
        per_query = (len(stages_of(index)) + 1) * budget + sum(_budgets(k, budget))
        return per_query * sum(query.text not in self.known for query in self.queries)


def judged_queries(
    index: AnchorIndex, qrels: Qrels | str | Path, queries: Queries | None = None, *, seed: int = 0
) -> JudgedQueries:
    """The queries that `tune` chooses by, given the same options; refused where they are too few to choose by."""
    check_anchors(index, "Choosing by judgements")
    if index.snapshot.default_first == "random":
        raise InputError(
            "Judgements choose how a first stage is used, and this index has none. Build it with one: --first bm25."
        )
    most, given = (queries or MOST_JUDGED, None) if isinstance(queries, int | None) else (None, queries)
    if isinstance(given, str | Path):
        given = read_queries(given)
    asked = list(index.anchor_queries) if given is None else as_queries(list(given))
    qrels = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    judged = [query for query in asked if query.id in qrels]
    if not judged:
        among = "an anchor query of this index" if given is None else "among the queries given"
        such = f", such as {next(iter(qrels))!r}" if qrels else ""
        raise EmptyInput(
            f"None of the {len(qrels)} judged queries{such}, is {among}. Give the queries that were judged "
            "(--queries FILE, or queries=…), with the ids that the judgements have."
        )
    ids = set(index.items.ids)
    useful = list(telling_queries(judged, index.items, qrels))
    kept = {one.id: {id_: grade for id_, grade in qrels[one.id].items() if id_ in ids} for one in useful}
    unknown = sum(id_ not in ids for query in judged for id_ in qrels[query.id])
    if len(useful) < FEWEST_JUDGED:
        raise EmptyInput(
            f"Choosing by judgements needs at least {FEWEST_JUDGED} queries with something relevant in the index, "
            f"and not everything; got {len(useful)} of {len(judged)} that are judged, where {unknown} judgements "
            "name items that the index does not have. Judge more queries, or tune without judgements."
        )
    if most is not None and most < len(useful):
        draws = uniform(stream_key(seed, "judged"), item_keys(query.id for query in useful))
        useful = [useful[at] for at in np.sort(np.argsort(draws)[: max(most, FEWEST_JUDGED)]).tolist()]
    texts = {query.text for query in index.anchor_queries}
    known = frozenset(query.text for query in useful if query.text in texts)
    if known:
        check_exact(index, [query for query in index.anchor_queries if query.text in known])
    return JudgedQueries(tuple(useful), kept, known, unknown, len(judged) - len(kept))


class JudgedSearches:
    """The choice by judgements among searches for judged queries with at most `largest` calls."""

    def __init__(self, index: AnchorIndex, judged: JudgedQueries, *, k: int, largest: int, seed: int) -> None:
        self._index = index
        self._paid: Cached | None = None
        self._usual = default_settings(k)
        self._largest = largest
        self._usual_fuse = {name: index.snapshot.usual_fuse(index.card, first=str(name)) for name in stages_of(index)}
        self._searches = Searches(
            index.anchors,
            judged.queries,
            k=k,
            stages=stages_of(index),
            scorer=self._opened,
            model=index.snapshot.gaussian_model(),
            slopes=index.snapshot.rank_slopes,
            qrels=judged.qrels,
            measure=f"nDCG@{k}",
            seed=seed,
        )
        self._budgets = _budgets(k, largest)

    def choose(self) -> Way:
        """The first stage, budget and weight whose quality is best, each only for a gain that can be seen.

        The budget is the smallest that loses no more than the noise against the largest.
        """
        every = np.ones(len(self._searches.queries), dtype=np.bool_)
        start = self._started(every)
        for budget in self._budgets:
            self._searches.quality(start._replace(budget=budget))
        return self._chosen(every)

    def hits(self, chosen: Way, settings: GaussianSettings) -> list[Hits]:
        """The hits of each query by this choice."""
        return self._searches.hits(chosen._replace(method=settings))

    def measured(self, chosen: Way, settings: GaussianSettings) -> Judged:
        """What to expect of a choice, searched with these settings: each half as the other half would choose."""
        searches, n_queries = self._searches, len(self._searches.queries)

        def as_chosen(among: BoolArray) -> FloatArray:
            other = self._chosen(among)
            is_same = (other.first, other.budget) == (chosen.first, chosen.budget)
            return searches.quality(other._replace(method=settings) if is_same else other)

        values = unseen(n_queries, as_chosen)
        first = next(iter(searches.stages))
        plain = searches.quality(Way(self._usual, first, self._largest, self._usual_fuse[first]))
        # No choice was made by what calls are measured against.
        joined = max(map(str, searches.stages), key=lambda name: name.count(SEPARATOR))
        alone = searches.quality(Way("first", joined))
        reranked = searches.quality(chosen._replace(method="rerank"))
        return Judged(
            measure=searches.measure,
            n_queries=n_queries,
            largest=self._largest,
            fuse=chosen.fuse,
            chosen=mean_of(values),
            plain=mean_of(plain),
            gain=mean_of(values - plain),
            rerank=mean_of(reranked),
            alone=mean_of(alone),
            calls=self._paid.misses if self._paid else 0,
            worth=mean_of(values - alone),
            alone_first=joined,
        )

    def _opened(self) -> tuple[Cached, Drift | None]:
        # Searches for one query ask for much the same items: each is paid for once.
        self._paid = Cached(self._index.scorer)
        return self._paid, self._index.drift

    def _started(self, among: BoolArray) -> Way:
        """The first stage and its weight, with the largest budget."""
        best: dict[str | None, tuple[Way, FloatArray]] = {}
        for first, usual in self._usual_fuse.items():
            ways = {fuse: Way(self._usual, first, self._largest, fuse) for fuse in (usual, *WEIGHTS)}
            values = {fuse: self._searches.quality(way)[among] for fuse, way in ways.items()}
            fuse = max(WEIGHTS, key=lambda fuse: float(values[fuse].mean()))
            fuse = fuse if is_gain(values[fuse] - values[usual]) else usual
            best[first] = ways[fuse], values[fuse]
        return best[best_stage({first: values for first, (_, values) in best.items()})][0]

    def _chosen(self, among: BoolArray) -> Way:
        """The choice by some of the queries, among what has been searched."""

        def quality(way: Way) -> FloatArray:
            return self._searches.quality(way)[among]

        start = self._started(among)
        ways = [start._replace(budget=budget) for budget in self._budgets]
        return next(way for way in ways if self._searches.has(way) and loses_nothing(quality(way) - quality(start)))


def _budgets(k: int, largest: int) -> list[int]:
    """The calls that are tried, fewest first."""
    return sorted({*(max(k, round(share * largest)) for share in _SHARES), largest})


def is_gain(differences: FloatArray) -> bool:
    """Whether a gain of judged quality is worth a setting."""
    return gains(differences) and float(differences.mean()) > _LEAST_GAIN


def loses_nothing(differences: FloatArray) -> bool:
    """Whether fewer calls lose no more judged quality than the noise."""
    noise = float(differences.std(ddof=1)) / len(differences) ** 0.5
    return bool(differences.mean() >= -min(_MOST_LOST, max(noise, _LEAST_GAIN)))


# The few scores at the very top are those of hits, so they are distinguished as far as the anchor scores go.
_RAREST = 1e-6
_BINS = 10
_STORED_KNOTS = 64
# Of the constant, the rarity and the log rank. Without it, hits that are all relevant would have infinite weights.
_PRIOR = np.array([0.0, 1.0, 1.0])
_BOUNDS = np.array([-np.inf, 0.0, -np.inf]), np.array([np.inf, np.inf, 0.0])


def judged_relevance(answers: Sequence[Hits], qrels: Qrels, *, anchors: AnchorScores) -> Relevance:
    """By the hits of judged queries, as searches will return them, and by all else that these searches scored.

    The anchor scores of the index tell how rare a score is in it.
    """
    items = anchors.items
    sample = ScoreScale.sample(items.keys, n_anchors=len(anchors.anchor_queries))
    scale = _fewer_knots(ScoreScale.of(rows_at(anchors, sample), rarest=_RAREST))
    relevant = [np.array([qrels[hits.query.id].get(id_, 0) > 0 for id_ in hits.ids], bool) for hits in answers]
    signs = [
        np.stack([np.ones(len(hits)), scale.rarity(hits.scores), np.log(np.arange(1, len(hits) + 1))], axis=1)
        for hits in answers
    ]

    def fitted(half: BoolArray) -> FloatArray:
        features, came = (np.concatenate([own[at] for at in np.flatnonzero(half)]) for own in (signs, relevant))
        return likeliest_weights(features, came, prior=_PRIOR, within=_BOUNDS)

    of_others = cross_fit(len(answers), fitted)
    stated = [chances(own, weights) for own, weights in zip(signs, of_others, strict=True)]
    constant, per_rarity, per_log_rank = fitted(np.ones(len(answers), dtype=np.bool_)).tolist()
    calibration = Calibration(
        scores=tuple(scale.scores.tolist()),
        rarities=tuple(scale.rarities.tolist()),
        constant=constant,
        per_rarity=per_rarity,
        per_log_rank=per_log_rank,
        queries=len(answers),
        error=calibration_error(np.concatenate(stated), np.concatenate(relevant)),
    )
    best, without = zip(*(_best_with_and_without(hits, qrels[hits.query.id], items) for hits in answers), strict=True)
    return Relevance.by(best=np.array(best), without=np.array(without), calibration=calibration)


def calibration_error(stated: FloatArray, came: BoolArray) -> float:
    """Expected calibration error: |chance stated − share that came true| in ten bins of equal width, by their hits."""
    bins = np.minimum((np.asarray(stated) * _BINS).astype(int), _BINS - 1)
    gaps = [abs(float((stated[bins == at] - came[bins == at]).sum())) for at in range(_BINS)]
    return sum(gaps) / max(1, len(bins))


def _fewer_knots(scale: ScoreScale) -> ScoreScale:
    if len(scale.scores) <= _STORED_KNOTS:
        return scale
    assert len(scale.scores) <= 2 * KNOTS
    rarities = np.linspace(scale.rarities[0], scale.rarities[-1], _STORED_KNOTS)
    return ScoreScale(scale.score(rarities), rarities)


def _best_with_and_without(hits: Hits, grades: Mapping[str, int], items: Items) -> tuple[float, float]:
    """The best score of all that a search scored, and of what remains without the relevant items."""
    positions, exact = all_scored(hits)
    others = ~np.isin(positions, items.positions(id_ for id_, grade in grades.items() if grade > 0))
    best = float(exact.max())
    return best, float(exact[others].max()) if others.any() else best
