"""What judgements choose: how many calls to spend, where to start, and how much the first stage counts in the order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import EmptyInput, InputError
from adacur.first_stages import as_hits
from adacur.first_stages.joined import SEPARATOR
from adacur.model.acquire import best_positions
from adacur.protocols import Scorer
from adacur.records import Pair, Query
from adacur.replay.held_out import check_anchors, check_exact, method_of, replay
from adacur.replay.means import mean_of
from adacur.replay.measures import judged_quality
from adacur.replay.replayed_settings import best_stage, gains, stages_of
from adacur.results import Hits
from adacur.scores import score_pairs
from adacur.search import AnchorIndex, Rerank
from adacur.search.finish import LISTED, fused, listed_by
from adacur.search.methods import Method
from adacur.search.planning import SearchOptions
from adacur.search.tuned import GaussianSettings, Judged, default_settings
from adacur.seeds import item_keys, stream_key, uniform

FEWEST_JUDGED = 20
Qrels = Mapping[str, Mapping[str, int]]
_MEASURE = "nDCG"
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0)
# In budgets: a pool of one is re-ranking.
_POOLS = (1, 2, 5)
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

    @classmethod
    def of(
        cls,
        index: AnchorIndex,
        qrels: Qrels,
        queries: Sequence[Query] | None,
        *,
        most: int | None = None,
        seed: int = 0,
    ) -> JudgedQueries:
        """Of these queries, or of the anchor queries, those that are judged; of more than `most`, a random draw."""
        check_anchors(index, "Choosing by judgements")
        if index.snapshot.default_first == "random":
            raise InputError(
                "Judgements choose how a first stage is used, and this index has none. Build it with one: --first bm25."
            )
        asked = list(index.anchor_queries if queries is None else queries)
        judged = [query for query in asked if query.id in qrels]
        if not judged:
            among = "an anchor query of this index" if queries is None else "among the queries given"
            such = f", such as {next(iter(qrels))!r}" if qrels else ""
            raise EmptyInput(
                f"None of the {len(qrels)} judged queries{such}, is {among}. Give the queries that were judged "
                "(--queries FILE, or queries=…), with the ids that the judgements have."
            )
        ids, unknown = set(index.items.ids), 0
        useful, kept = [], {}
        for query in judged:
            grades = {id_: grade for id_, grade in qrels[query.id].items() if id_ in ids}
            unknown += len(qrels[query.id]) - len(grades)
            if 0 < sum(grade > 0 for grade in grades.values()) < len(ids):
                useful.append(query)
                kept[query.id] = grades
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
        return cls(tuple(useful), kept, known, unknown, len(judged) - len(kept))

    def most_calls(self, index: AnchorIndex, *, k: int, budget: int) -> int:
        """Scorer calls that choosing by them makes at most."""
        per_query = (len(stages_of(index)) + 2) * budget + sum(_smaller_budgets(k, budget))
        return per_query * sum(query.text not in self.known for query in self.queries)


class Choice(NamedTuple):
    """How to search."""

    first: str
    budget: int
    fuse: float = 0.0
    pool: int | None = None


class JudgedSearches:
    """Searches for judged queries, each made once, and the quality of every order that what they scored can have.

    Anchor queries are replayed; for others the scorer is called, once for each pair.
    """

    def __init__(self, index: AnchorIndex, judged: JudgedQueries, *, k: int, budget: int, seed: int) -> None:
        self.judged = judged
        self.stages = {name: stage for name, stage in stages_of(index).items() if name and stage}
        self.largest = budget
        self.measure = f"{_MEASURE}@{k}"
        self.usual_fuse = {name: index.snapshot.usual_fuse(index.card, first=name) for name in self.stages}
        self._k = k
        self._seed = seed
        self._remembered: _Remembered | None = None
        self._index = index.with_scorer(self._remember)
        self._model = index.snapshot.gaussian_model()
        self._hits: dict[tuple[str, int, GaussianSettings | None], list[Hits]] = {}
        self._qualities: dict[tuple[Choice, GaussianSettings | None], FloatArray] = {}
        deepest = min(len(index), max(LISTED, k, max(_POOLS) * budget))
        self._first = {name: stage.search(judged.queries, deepest) for name, stage in self.stages.items()}

    @property
    def calls(self) -> int:
        """Pairs that were paid for."""
        return self._remembered.calls if self._remembered else 0

    def budgets(self, first: str) -> list[int]:
        """The budgets that were searched with from this first stage, smallest first."""
        return sorted({budget for name, budget, settings in self._hits if name == first and settings is not None})

    def has_reranked(self, first: str, budget: int) -> bool:
        """Whether this much of a first stage was re-ranked."""
        return (first, budget, None) in self._hits

    def quality(self, choice: Choice, settings: GaussianSettings | None) -> FloatArray:
        """Of each query; without settings, by re-ranking."""
        if choice.pool == choice.budget:
            choice, settings = choice._replace(pool=None), None
        if (choice, settings) not in self._qualities:
            self._qualities[choice, settings] = self._judge(self.answers(choice, settings))
        return self._qualities[choice, settings]

    def answers(self, choice: Choice, settings: GaussianSettings | None) -> list[Hits]:
        """The hits of each query, as a search with these choices orders what it scored."""
        first, budget, fuse, pool = choice
        every = np.ones(len(self._index), dtype=np.bool_)
        answers = []
        for hits, ranking in zip(self._searched(first, budget, settings), self._first[first], strict=True):
            positions = np.concatenate([round_.positions for round_ in hits.trace.rounds])
            exact = np.concatenate([round_.exact for round_ in hits.trace.rounds])
            listed, scores = listed_by(ranking, allowed=every)
            values = exact
            if fuse:
                values = fused(exact, positions, weight=fuse, listed=listed, listed_scores=scores)
            if pool is not None:
                values = np.where(np.isin(positions, listed[:pool]), values, -np.inf)
            answers.append(self._best(hits, positions, exact, values))
        return answers

    def alone(self, first: str) -> FloatArray:
        """Of each query, by the first stage's own order."""
        return self._judge(as_hits(self.judged.queries, self._first[first], self._index.items.ids))

    def _judge(self, answers: Sequence[Hits]) -> FloatArray:
        return judged_quality(answers, self.judged.qrels, measures=[self.measure])[self.measure]

    def _best(self, hits: Hits, positions: IntArray, exact: FloatArray, values: FloatArray) -> Hits:
        order = best_positions(values, len(hits), keys=self._index.items.keys[positions])
        ids = tuple(item.id for item in self._index.items.at(positions[order].tolist()))
        return Hits(query=hits.query, ids=ids, scores=exact[order], fused=values[order], trace=hits.trace)

    def _searched(self, first: str, budget: int, settings: GaussianSettings | None) -> list[Hits]:
        key = first, budget, settings
        if key not in self._hits:
            queries, stage = self.judged.queries, self.stages[first]
            method: Method = Rerank(seed=self._seed)
            if settings is not None:
                method = method_of(
                    settings,
                    self._model,
                    n_anchors=len(self._index.anchor_queries),
                    slopes=self._index.snapshot.rank_slopes(self.stages[first]),
                    seed=self._seed,
                )
            anchors = {query.text: query for query in self._index.anchor_queries if query.text in self.judged.known}
            known = list({query.text: anchors[query.text] for query in queries if query.text in anchors}.values())
            new = list({query.text: query for query in queries if query.text not in anchors}.values())
            options: SearchOptions = {"budget": budget, "method": method, "first": stage, "fuse": 0.0}
            found = replay(self._index, known, self._k, **options) if known else []
            found += self._index.search(new, self._k, **options) if new else []
            by_text = {hits.query.text: hits for hits in found}
            self._hits[key] = [replace(by_text[query.text], query=query) for query in queries]
        return self._hits[key]

    def _remember(self, scorer: Scorer) -> Scorer:
        self._remembered = _Remembered(scorer)
        return self._remembered


def choose(searches: JudgedSearches, *, k: int) -> Choice:
    """The first stage, budget, weight and pool whose judged quality is best, each only for a gain that can be seen.

    The budget is the smallest that loses no more than the noise against the largest.
    """
    n_queries = len(searches.judged.queries)
    every = np.ones(n_queries, dtype=np.bool_)
    first, fuse = _started(searches, every, k=k)
    for budget in _smaller_budgets(k, searches.largest):
        searches.quality(Choice(first, budget, fuse), default_settings(k))
    # A pool of one budget is tried, which is re-ranking.
    searches.quality(_chosen(searches, every, k=k)._replace(pool=None), None)
    return _chosen(searches, every, k=k)


def measured(searches: JudgedSearches, chosen: Choice, settings: GaussianSettings, *, k: int) -> Judged:
    """What to expect of a choice, searched with these settings: each half of the queries as the other would choose."""
    halves = [np.arange(len(searches.judged.queries)) % 2 == half for half in (0, 1)]
    usual, unseen = default_settings(k), np.empty(len(searches.judged.queries))
    for half in halves:
        other = _chosen(searches, ~half, k=k)
        same_search = (other.first, other.budget) == (chosen.first, chosen.budget)
        unseen[half] = searches.quality(other, settings if same_search else usual)[half]
    first = next(iter(searches.stages))
    plain = searches.quality(Choice(first, searches.largest, searches.usual_fuse[first]), usual)
    # No choice was made by what calls are measured against.
    joined = max(searches.stages, key=lambda name: name.count(SEPARATOR))
    alone = searches.alone(joined)
    return Judged(
        measure=searches.measure,
        n_queries=len(unseen),
        largest=searches.largest,
        fuse=chosen.fuse,
        pool=chosen.pool,
        chosen=mean_of(unseen),
        plain=mean_of(plain),
        gain=mean_of(unseen - plain),
        rerank=mean_of(searches.quality(chosen._replace(pool=None), None)),
        alone=mean_of(alone),
        calls=searches.calls,
        worth=mean_of(unseen - alone),
        alone_first=joined,
    )


def _started(searches: JudgedSearches, among: BoolArray, *, k: int) -> tuple[str, float]:
    """The first stage and its weight, with the largest budget."""

    def quality(first: str, fuse: float) -> FloatArray:
        return searches.quality(Choice(first, searches.largest, fuse), default_settings(k))[among]

    weights: dict[str, float] = {}
    for first in searches.stages:
        best = max(WEIGHTS, key=lambda fuse: float(quality(first, fuse).mean()))
        usual = searches.usual_fuse[first]
        weights[first] = best if is_gain(quality(first, best) - quality(first, usual)) else usual
    chosen = best_stage({name: quality(name, fuse) for name, fuse in weights.items()})
    assert chosen is not None
    return chosen, weights[chosen]


def _chosen(searches: JudgedSearches, among: BoolArray, *, k: int) -> Choice:
    """The choice by some of the queries, among what has been searched."""

    def quality(choice: Choice) -> FloatArray:
        return searches.quality(choice, default_settings(k))[among]

    first, fuse = _started(searches, among, k=k)
    largest = quality(Choice(first, searches.largest, fuse))
    enough = [
        budget for budget in searches.budgets(first) if loses_nothing(quality(Choice(first, budget, fuse)) - largest)
    ]
    chosen = Choice(first, enough[0], fuse)
    pools = [n * chosen.budget for n in _POOLS if n > 1 or searches.has_reranked(first, chosen.budget)]
    best = max((chosen._replace(pool=pool) for pool in pools), key=lambda one: float(quality(one).mean()))
    return best if is_gain(quality(best) - quality(chosen)) else chosen


def _smaller_budgets(k: int, largest: int) -> list[int]:
    return sorted({max(k, round(share * largest)) for share in _SHARES} - {largest})


def is_gain(differences: FloatArray) -> bool:
    """Whether a gain of judged quality is worth a setting."""
    return gains(differences) and float(differences.mean()) > _LEAST_GAIN


def loses_nothing(differences: FloatArray) -> bool:
    """Whether fewer calls lose no more judged quality than the noise."""
    noise = float(differences.std(ddof=1)) / len(differences) ** 0.5
    return bool(differences.mean() >= -min(_MOST_LOST, max(noise, _LEAST_GAIN)))


class _Remembered:
    """A scorer that is called for each pair once: searches for one query ask for much the same items."""

    def __init__(self, scorer: Scorer) -> None:
        self.card = scorer.card
        self.calls = 0
        self._scorer = scorer
        self._scores: dict[tuple[str, str], float] = {}

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        keys = [(query.text, item.id) for query, item in pairs]
        if new := {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._scores}:
            self._scores |= zip(new, score_pairs(self._scorer, list(new.values())).tolist(), strict=True)
            self.calls += len(new)
        return np.array([self._scores[key] for key in keys])
