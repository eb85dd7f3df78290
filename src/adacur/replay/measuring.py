"""What a trial scored, and what follows from it: quality and recall of every way to search within it.

Of each query the first stages' best are scored, what a search asks for, everything judged relevant, and a few hundred
random items, which stand for all that is in none of these. More judged queries are scored less deep, to tell what the
scorer is worth; their values are NaN where they were not scored.
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
from adacur.first_stages.placing import best_by_id
from adacur.protocols import FirstStage, Ranking, Scorer
from adacur.records import Query
from adacur.replay.comparison import JUDGED
from adacur.replay.material import Material
from adacur.replay.means import FEWEST_QUERIES
from adacur.replay.measures import can_judge, judged_quality, telling_queries
from adacur.replay.trial_sizes import TrialSizes
from adacur.results import Hits
from adacur.scorers import Cached, MatrixScorer
from adacur.search import AnchorIndex
from adacur.search.finish import LISTED, fused, listed_by
from adacur.store import AnchorTable

_SHOWN = 10
_PREDICTS = "gaussian"


@dataclass
class Measured:
    """The queries that were scored in time, and all that was scored of them, a row of `scores` each.

    `asked` are all queries, of which the first are `queries`: the random items, the first of all, are scored for these
    alone, and of the others the first stages' best `shallow`. `searched` has the positions that a search without anchor
    queries scored, and is empty where there was none.
    """

    material: Material
    plan: TrialSizes
    index: AnchorIndex
    asked: tuple[Query, ...]
    scores: FloatArray
    lists: Mapping[str, list[Ranking]]
    searched: list[IntArray]
    calls: int
    is_judged: bool = field(init=False)

    def __post_init__(self) -> None:
        judged = telling_queries(self.asked, self.material.items, self.material.qrels)
        self.is_judged = len(judged) >= min(FEWEST_QUERIES, len(self.queries)) and can_judge()
        self._qualities: dict[tuple[str, int, float], FloatArray] = {}
        self._weights = np.ones((len(self.queries), self.scores.shape[1]))
        drawn = np.arange(self.scores.shape[1]) < self.plan.grid
        if drawn.all():
            # With every item scored there is nothing to estimate.
            return
        for row, query in enumerate(self.queries):
            lists = [answers[row].positions[: self.plan.budget] for answers in self.lists.values()]
            looked_at = np.zeros(len(drawn), dtype=np.bool_)
            looked_at[np.concatenate([*lists, *self.searched[row : row + 1], judged.get(query, lists[0][:0])])] = True
            random = drawn & ~looked_at
            self._weights[row, random] = (~looked_at).sum() / max(1, random.sum())

    @property
    def queries(self) -> tuple[Query, ...]:
        """The queries that are scored to the whole depth."""
        return self.asked[: self.plan.n_queries]

    @property
    def stages(self) -> tuple[str, ...]:
        """What searches can start from: each first stage, then all together."""
        return tuple(self.lists)

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
        for of_query, weights, positions in zip(self.scores, self._weights, scored, strict=False):
            # NaN, what was not scored, comes last.
            order = np.argsort(-of_query, kind="stable")[: np.count_nonzero(~np.isnan(of_query))]
            last = min(int(np.searchsorted(np.cumsum(weights[order]), k - 1e-9)), len(order) - 1)
            # Among equal scores any will do.
            values.append(min(k, int(np.count_nonzero(of_query[positions] >= of_query[order[last]]))) / k)
        return np.array(values)

    def alone(self, first: str) -> FloatArray:
        """Judged quality of a first stage's own order; NaN for queries that nobody judged."""
        return self._quality([np.asarray(positions[:_SHOWN]) for positions, _ in self.lists[first]])

    def reranked(self, first: str, budget: int, fuse: float = 0.0) -> FloatArray:
        """Judged quality of re-ranking, with a weight of the first stage in the order."""
        if (key := (first, budget, fuse)) not in self._qualities:
            self._qualities[key] = self._ordered(self.scored_by(first, budget), first, fuse)
        return self._qualities[key]

    def found(self, fuse: float = 0.0) -> FloatArray:
        """Judged quality of what a search without anchor queries found, from all first stages."""
        return self._ordered(self.searched, self.stages[-1], fuse)

    def _ordered(self, scored: Sequence[IntArray], first: str, fuse: float) -> FloatArray:
        every, ids, best = np.ones(self.scores.shape[1], dtype=np.bool_), self.material.items.ids, []
        for row, positions in enumerate(scored):
            values = self.scores[row, positions].astype(np.float64)
            if fuse:
                listed, of_stage = listed_by(self.lists[first][row], allowed=every)
                values = fused(values, positions, weight=fuse, listed=listed, listed_scores=of_stage)
            best.append(positions[best_by_id(values, ids, _SHOWN, at=positions)])
        return self._quality(best)

    def _quality(self, best: Sequence[IntArray]) -> FloatArray:
        """Of each query; NaN for those that are not judged, or were not scored as deep."""
        values, ids = np.full(len(self.asked), np.nan), self.material.items.ids
        answers = [
            Hits(query, tuple(ids[at] for at in some.tolist()), self.scores[row, some])
            for row, (query, some) in enumerate(zip(self.asked, best, strict=False))
        ]
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
    known = MatrixScorer(queries, items.ids, np.full((len(queries), len(items)), np.nan, dtype=np.float32))
    asked = Cached(scorer, known)
    index = AnchorIndex(AnchorTable.of_items(items), scorer=asked, first=first)
    names = [name for name in (*first, index.snapshot.all_joined) if name]
    depth = min(len(items), max(plan.budget, LISTED))
    lists = {name: index.first_stage(name).search(queries, depth) for name in names}
    relevant = telling_queries(queries, items, material.qrels)
    grid, n_done = np.arange(plan.grid), 0
    predicts = index.snapshot.item_vectors() is not None
    options: dict[str, Any] = {"budget": plan.budget, "method": _PREDICTS, "first": names[-1], "fuse": 0}
    searched: list[IntArray] = []
    with tqdm(total=plan.pairs, desc="scoring", unit=" pairs", unit_scale=True, disable=not progress) as bar:
        for row, query in enumerate(queries):
            is_deep = row < plan.n_queries
            # The time promised holds even where the scorer has become slower than it was timed.
            if row >= min(FEWEST_QUERIES, plan.n_queries) and time.monotonic() - started > seconds:
                break
            parts = [answers[row].positions[: plan.budget if is_deep else plan.shallow] for answers in lists.values()]
            wanted = np.unique(np.concatenate([*parts, *((grid, relevant.get(query, grid)) if is_deep else ())]))
            if calls is not None and asked.misses + len(wanted) + plan.budget * (predicts and is_deep) > calls:
                break
            asked.score([(query, item) for item in items.at(wanted.tolist())])
            if predicts and is_deep:
                hits = index.search(query, min(_SHOWN, plan.budget), **options)
                searched.append(np.concatenate([round_.positions for round_ in hits.trace.rounds]))
            n_done = row + 1
            bar.update(asked.misses - bar.n)
        bar.total = bar.n
    if not n_done:
        raise InputError(f"{calls:,} calls are not enough for one query of this trial. Give more.")
    return Measured(
        material=material,
        plan=plan,
        index=index,
        asked=queries[:n_done],
        scores=known.matrix[:n_done],
        lists={name: answers[:n_done] for name, answers in lists.items()},
        searched=searched,
        calls=asked.misses,
    )
