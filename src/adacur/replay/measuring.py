"""What a trial scored, and what follows from it: quality and recall of every way to search within it.

More judged queries are scored less deep, to tell what the scorer is worth; their values are NaN where they were not
scored. For each other query the scores of a few hundred items are known. Its pool is the first stages' best, what a
search found, and everything judged relevant; other items were drawn at random and stand for all that is not in the
pool. They show how many items beyond the pool the scorer would rank above one in it, without scoring them all. What
anchor queries save is measured on the random items alone, with each query left out of the anchors in turn.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.first_stages import BM25, Dense
from adacur.first_stages.placing import best_by_id
from adacur.protocols import FirstStage, Ranking, Scorer, ScorerCard
from adacur.records import Pair, Query
from adacur.replay.comparison import FEWEST_QUERIES, JUDGED
from adacur.replay.held_out import replay
from adacur.replay.material import Material
from adacur.replay.measures import can_judge, judged_quality, top_k_recall
from adacur.replay.searchability import telling_queries
from adacur.replay.trial_sizes import TrialSizes
from adacur.results import Hits
from adacur.scorers import MatrixScorer
from adacur.scores import score_pairs
from adacur.search import AnchorIndex
from adacur.search.finish import LISTED, fused, listed_by
from adacur.store import AnchorTable

_SHOWN = 10
_PREDICTS = "gaussian"
# The best k of the grid, and the calls to find them: fewer are closer to the top of all items, more are less noisy.
_GRID_SEARCHES = ((2, 10), (2, 20), (5, 25), (5, 50))
# A search that scores more of the grid than this share has nothing left to find.
_MOST_OF_GRID = 0.25
_FEWEST_TO_COMPARE = 10
# Compared with searches of whole collections, estimates from a grid were off by about this factor (docs/try.md).
_GRID_ERROR = 1.5
_MULTIPLES = (0.5, 1.0, 1.4, 2.0, 2.8, 4.0, 8.0)
_RESAMPLES = 400


class Remembering:
    """A scorer that keeps the scores of a trial, queries × items; those not asked for are NaN."""

    def __init__(self, scorer: Scorer, material: Material, *, bar: tqdm | None = None) -> None:
        self._scorer = scorer
        self._bar = bar
        self.calls = 0
        self._rows = {query.id: row for row, query in enumerate(material.queries)}
        self._columns = {id_: column for column, id_ in enumerate(material.items.ids)}
        self.scores: FloatArray = np.full((len(self._rows), len(self._columns)), np.nan, dtype=np.float32)

    @property
    def card(self) -> ScorerCard:
        return self._scorer.card

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        rows = [self._rows[query.id] for query, _ in pairs]
        columns = [self._columns[item.id] for _, item in pairs]
        new = np.flatnonzero(np.isnan(self.scores[rows, columns])).tolist()
        if new:
            self.calls += len(new)
            answers = score_pairs(self._scorer, [pairs[at] for at in new])
            self.scores[[rows[at] for at in new], [columns[at] for at in new]] = answers
            if self._bar is not None:
                self._bar.update(len(new))
        return self.scores[rows, columns]


@dataclass
class Measured:
    """The queries that were scored in time, and all that was scored of them.

    `grid` items, the first ones, were drawn at random and are scored for every one of the `queries`. `searched` has the
    positions that a search without anchor queries scored, and is empty where there was none. Of the judged queries
    `more` only the first stages' best `shallow` are scored; their rows follow those of `queries`.
    """

    material: Material
    plan: TrialSizes
    queries: tuple[Query, ...]
    index: AnchorIndex
    scores: FloatArray
    lists: Mapping[str, list[Ranking]]
    searched: list[IntArray]
    calls: int
    more: tuple[Query, ...] = ()
    table: AnchorTable = field(init=False)
    is_judged: bool = field(init=False)

    def __post_init__(self) -> None:
        grid = self.plan.grid
        some = [self.material.items[at] for at in range(grid)]
        self.table = AnchorTable.from_arrays(
            items=some, anchor_queries=self.queries, scores=self.scores[: len(self.queries), :grid]
        )
        judged = telling_queries(self.asked, self.material.items, self.material.qrels)
        self.is_judged = len(judged) >= min(FEWEST_QUERIES, len(self.queries)) and can_judge()
        self._qualities: dict[tuple[str, int, float], FloatArray] = {}
        drawn = np.arange(self.scores.shape[1]) < grid
        pools, levels, outside, weights = [], [], [], []
        self._known = []
        for row, query in enumerate(self.queries):
            pool = np.zeros(len(drawn), dtype=np.bool_)
            for answers in self.lists.values():
                pool[answers[row].positions[: self.plan.budget]] = True
            pool[self.searched[row] if self.searched else []] = True
            pool[judged.get(query, [])] = True
            # With every item scored there is nothing to estimate.
            pool |= drawn.all()
            of_pool = np.flatnonzero(pool)
            pools.append(of_pool[np.argsort(-self.scores[row, of_pool], kind="stable")])
            levels.append(float(self.scores[row, pools[-1][:_SHOWN][-1]]))
            outside.append(self.scores[row, drawn & ~pool] - levels[-1])
            stands_for = int((~pool).sum()) / max(1, len(outside[-1]))
            weights.append(np.full(len(outside[-1]), stands_for))
            known = np.flatnonzero(~np.isnan(self.scores[row]))
            known = known[np.argsort(-self.scores[row, known], kind="stable")]
            self._known.append((known, np.where(pool[known], 1.0, stands_for)))
        # One query's few random items hardly ever include one of its best. Pooled over all queries, with scores taken
        # relative to the tenth best of each query's pool, they show how many items beyond the pool lie above a score.
        scores = np.concatenate(outside)
        order = np.argsort(-scores, kind="stable")
        above = np.concatenate([[0.0], np.cumsum(np.concatenate(weights)[order])]) / len(self.queries)
        self._ranked = []
        for row, best in enumerate(pools):
            beyond = above[np.searchsorted(-scores[order], levels[row] - self.scores[row, best], side="left")]
            # Rounded up for as many queries as the fraction says.
            self._ranked.append((best, np.floor(beyond + (row + 0.5) / len(pools)).astype(np.intp)))

    @property
    def stages(self) -> tuple[str, ...]:
        """What searches can start from: each first stage, then all together."""
        return tuple(self.lists)

    @property
    def asked(self) -> tuple[Query, ...]:
        """All queries, a row of scores each."""
        return (*self.queries, *self.more)

    def budgets(self) -> tuple[int, ...]:
        """The calls that are compared, fewest first."""
        return tuple(sorted({self.plan.shallow, max(self.plan.shallow, self.plan.budget // 2), self.plan.budget}))

    def scored_by(self, first: str, budget: int) -> list[IntArray]:
        """The positions that re-ranking scores for each query that is scored as deep."""
        n = len(self.asked) if budget <= self.plan.shallow else len(self.queries)
        return [np.asarray(positions[:budget]) for positions, _ in self.lists[first][:n]]

    def recalls(self, scored: Sequence[IntArray]) -> FloatArray:
        """The share of the scorer's best k of all items that is among these positions, estimated query by query.

        A little too high: where a random item is among the best, all that it stands for count as k items at most.
        """
        k = self.plan.k
        values = []
        for row, positions in enumerate(scored[: len(self.queries)]):
            known, weights = self._known[row]
            last = min(int(np.searchsorted(np.cumsum(weights), k - 1e-9)), len(known) - 1)
            # Among equal scores any will do.
            n_found = int(np.count_nonzero(self.scores[row, positions] >= self.scores[row, known[last]]))
            values.append(min(k, n_found) / k)
        return np.array(values)

    def alone(self, first: str) -> FloatArray:
        """Judged quality of a first stage's own order; NaN for queries that nobody judged."""
        return self._judge([np.asarray(positions[:_SHOWN]) for positions, _ in self.lists[first]])

    def reranked(self, first: str, budget: int, fuse: float = 0.0) -> FloatArray:
        """Judged quality of re-ranking, with a weight of the first stage in the order."""
        if (key := (first, budget, fuse)) not in self._qualities:
            scored = self.scored_by(first, budget)
            self._qualities[key] = self._judge([self._best(row, at, first, fuse) for row, at in enumerate(scored)])
        return self._qualities[key]

    def found(self, fuse: float = 0.0) -> FloatArray:
        """Judged quality of what a search without anchor queries found, from all first stages."""
        first = self.stages[-1]
        return self._judge([self._best(row, at, first, fuse) for row, at in enumerate(self.searched)])

    def everything(self) -> FloatArray:
        """Judged quality if all items were scored: those beyond the pool push others down, and are not relevant."""
        answers = []
        for row, query in enumerate(self.queries):
            ids: list[str] = []
            best, beyond = (of_query[:_SHOWN].tolist() for of_query in self._ranked[row])
            for rank, (at, pushed) in enumerate(zip(best, beyond, strict=True)):
                ids += [f"\1{len(ids) + n}" for n in range(min(_SHOWN, rank + pushed - len(ids)))]
                ids.append(self.material.items.ids[at])
            answers.append(Hits(query, tuple(ids[:_SHOWN]), -np.arange(len(ids[:_SHOWN]), dtype=np.float64)))
        return self._quality(answers)

    def _best(self, row: int, positions: IntArray, first: str, fuse: float) -> IntArray:
        values = self.scores[row, positions].astype(np.float64)
        if fuse:
            every = np.ones(self.scores.shape[1], dtype=np.bool_)
            listed, of_stage = listed_by(self.lists[first][row], allowed=every)
            values = fused(values, positions, weight=fuse, listed=listed, listed_scores=of_stage)
        return positions[best_by_id(values, [self.material.items.ids[at] for at in positions.tolist()], _SHOWN)]

    def _judge(self, best: Sequence[IntArray]) -> FloatArray:
        answers = [
            Hits(query, tuple(self.material.items.ids[at] for at in some.tolist()), self.scores[row, some])
            for row, (query, some) in enumerate(zip(self.asked, best, strict=False))
        ]
        return self._quality(answers)

    def _quality(self, answers: Sequence[Hits]) -> FloatArray:
        """Of each query; NaN for those that are not judged, or were not scored as deep."""
        values = np.full(len(self.asked), np.nan)
        if answers:
            values[: len(answers)] = judged_quality(answers, self.material.qrels, measures=[JUDGED])[JUDGED]
        return values


def measure(
    material: Material,
    plan: TrialSizes,
    *,
    scorer: Scorer,
    first: Mapping[str, FirstStage],
    seconds: float,
    calls: int | None = None,
    progress: bool = False,
) -> Measured:
    """Score what the plan says, query by query, until `seconds` have passed or the next one could exceed `calls`."""
    started = time.monotonic()
    items, queries = material.items, material.queries
    with tqdm(total=plan.pairs, desc="scoring", unit=" pairs", unit_scale=True, disable=not progress) as bar:
        asked = Remembering(scorer, material, bar=bar)
        index = AnchorIndex(AnchorTable.of_items(items), scorer=asked, first=first)
        names = [name for name in (*first, index.snapshot.all_joined) if name]
        depth = min(len(items), max(plan.budget, LISTED))
        lists = {name: index.first_stage(name).search(queries, depth) for name in names}
        relevant = telling_queries(queries, items, material.qrels)
        deep, more = queries[: plan.n_queries], queries[plan.n_queries :]
        grid, done, n_more = np.arange(plan.grid), 0, 0
        predicts = index.snapshot.item_vectors() is not None
        options: dict[str, Any] = {"budget": plan.budget, "method": _PREDICTS, "first": names[-1], "fuse": 0}
        searched: list[IntArray] = []
        for row, query in enumerate(deep):
            parts = [answers[row].positions[: plan.budget] for answers in lists.values()]
            wanted = np.unique(np.concatenate([grid, *parts, relevant.get(query, grid)]))
            if calls is not None and asked.calls + len(wanted) + plan.budget * predicts > calls:
                break
            asked.score([(query, item) for item in items.at(wanted.tolist())])
            if predicts:
                hits = index.search(query, min(_SHOWN, plan.budget), **options)
                searched.append(np.concatenate([round_.positions for round_ in hits.trace.rounds]))
            done = row + 1
            # The time promised holds even where the scorer has become slower than it was timed.
            if time.monotonic() - started > seconds and done >= min(FEWEST_QUERIES, len(deep)):
                break
        if not done:
            raise InputError(f"{calls:,} calls are not enough for one query of this trial. Give more.")
        for query, *of_query in zip(more, *(answers[len(deep) :] for answers in lists.values()), strict=True):
            wanted = np.unique(np.concatenate([answer.positions[: plan.shallow] for answer in of_query]))
            too_many = calls is not None and asked.calls + len(wanted) > calls
            if done < len(deep) or too_many or time.monotonic() - started > seconds:
                break
            asked.score([(query, item) for item in items.at(wanted.tolist())])
            n_more += 1
        bar.total = bar.n
    rows = [*range(done), *range(len(deep), len(deep) + n_more)]
    return Measured(
        material=material,
        plan=plan,
        queries=deep[:done],
        index=index,
        scores=asked.scores[rows],
        lists={name: [answers[row] for row in rows] for name, answers in lists.items()},
        searched=searched,
        calls=asked.calls,
        more=more[:n_more],
    )


@dataclass(frozen=True, slots=True)
class Saving:
    """With `n_anchors` anchor queries a search needs 1 / `ratio` of the calls for the same recall; and its interval.

    `recall` and `without` are the means at equal calls, with anchor queries and without.
    """

    n_anchors: int
    ratio: float
    low: float
    high: float
    recall: float
    without: float


def saving(measured: Measured, first: str) -> Saving | None:
    """How many times the calls searches without anchor queries need; None where there are too few queries or items."""
    grid, queries = measured.plan.grid, measured.queries
    tried = [(k, budget) for k, budget in _GRID_SEARCHES if budget <= _MOST_OF_GRID * grid]
    if len(queries) < _FEWEST_TO_COMPARE or not tried:
        return None
    items, scores = list(measured.table.items), measured.scores[: len(queries), :grid]
    stages: dict[str, Any] = {"bm25": BM25.build(items)}
    vectors = measured.index.snapshot.item_vectors()
    if vectors is not None:
        encoder = measured.index.first_stage("dense").source.open_encoder()
        rows = np.asarray(vectors.rows(np.arange(grid)), dtype=np.float32)
        stages["dense"] = Dense.from_embeddings([item.id for item in items], rows, encoder=encoder)
    without = AnchorIndex.from_items(items, scorer=MatrixScorer(queries, items, scores), first=stages)
    with_anchors = AnchorIndex(measured.table, first=stages)
    methods = ("rerank", "gaussian") if vectors is not None else ("rerank",)
    cells = []
    for k, budget in tried:
        steps = sorted({max(k, round(budget * times)) for times in _MULTIPLES if budget * times < grid})
        by_query = top_k_recall(replay(with_anchors, queries, k, budget=budget, first=first), scores, k=k)
        curves = []
        for method in methods:
            hits = [without.search(queries, k, budget=step, method=method, first=first, fuse=0) for step in steps]
            # Scoring everything finds everything.
            curves.append([*(top_k_recall(one, scores, k=k) for one in hits), np.ones(len(queries))])
        cells.append((budget, [*steps, grid], np.array(curves), by_query))
    draws = np.random.default_rng(0).integers(len(queries), size=(_RESAMPLES, len(queries)))
    ratios = [_ratio(cells, draw) for draw in draws]
    off = 1.0 if grid == measured.plan.n_items else _GRID_ERROR
    low, high = np.quantile(ratios, [0.025, 0.975]) * (1 / off, off)
    found = np.mean([cell[3] for cell in cells])
    free = np.mean([curves[:, steps.index(budget)].mean(axis=1).max() for budget, steps, curves, _ in cells])
    every = np.arange(len(queries))
    return Saving(len(queries) - 1, _ratio(cells, every), float(low), float(high), float(found), float(free))


def _ratio(cells: list[tuple[int, list[int], FloatArray, FloatArray]], queries: Any) -> float:
    """The geometric mean of calls without anchor queries to calls with them, at equal mean recall of these queries."""
    logs = []
    for budget, steps, curves, found in cells:
        free = np.maximum.accumulate(curves[:, :, queries].mean(axis=2).max(axis=0))
        # Recall rises with the logarithm of the calls, nearly on a line.
        needed = np.interp(found[queries].mean(), free + 1e-9 * np.arange(len(free)), np.log(steps))
        logs.append(needed - np.log(budget))
    return float(np.exp(np.mean(logs)))
