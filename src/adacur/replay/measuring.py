"""What a trial scored, and what follows from it: quality and recall of every way to search within it.

Of each query the first stages' best are scored, and what a search asks for. More judged queries are scored less deep,
to tell what the scorer is worth; their values are NaN where they were not scored.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from tqdm import tqdm

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.protocols import FirstStage, Scorer
from adacur.records import Query
from adacur.replay.known_scores import KnownScores
from adacur.replay.material import Material
from adacur.replay.means import FEWEST_QUERIES
from adacur.replay.measures import can_judge, telling_queries
from adacur.replay.searches import Asked, Searches, Way
from adacur.replay.trial_sizes import TrialSizes
from adacur.scorers import Cached, MatrixScorer
from adacur.search import AnchorIndex
from adacur.search.finish import LISTED
from adacur.store import AnchorTable

_SHOWN = 10


class Measured:
    """Searches for the queries that were scored in time, among what was scored of them, a row of `scores` each.

    `asked` are all queries, of which the first are `queries`; of others the first stages' best `shallow` are scored.
    """

    def __init__(
        self,
        material: Material,
        plan: TrialSizes,
        index: AnchorIndex,
        asked: tuple[Query, ...],
        *,
        scores: FloatArray,
        stages: Mapping[str, Asked],
        calls: int,
    ) -> None:
        self.material, self.plan, self.index, self.asked, self.calls = material, plan, index, asked, calls
        self.queries = asked[: plan.n_queries]
        self.stages = tuple(stages)
        self.predicts = index.snapshot.item_vectors() is not None
        n_judged = len(telling_queries(asked, material.items, material.qrels))
        self.is_judged = n_judged >= min(FEWEST_QUERIES, len(self.queries)) and can_judge()
        best = [np.sort(row[~np.isnan(row)])[::-1] for row in scores[: len(self.queries)]]
        given: dict[str, Any] = {"k": _SHOWN, "stages": stages, "qrels": material.qrels}
        given |= {"scorer": KnownScores(asked, material.items, scores.T)}
        given |= {"least": lambda k: np.array([of_query[min(k, len(of_query)) - 1] for of_query in best])}
        self._all, self._deep = (Searches(index.anchors, some, **given) for some in (asked, self.queries))

    def budgets(self) -> tuple[int, ...]:
        """The calls that are compared, fewest first."""
        return tuple(sorted({self.plan.shallow, max(self.plan.shallow, self.plan.budget // 2), self.plan.budget}))

    def searched(self) -> Way:
        """A search without anchor queries, from all first stages."""
        return Way("gaussian", self.stages[-1], self.plan.budget)

    def recalls(self, way: Way) -> FloatArray:
        """Of each query, the share of the best k of all that was scored for it: what no way found is not missed."""
        return self._deep.recalls(way, self.plan.k)

    def quality(self, way: Way) -> FloatArray:
        """Judged quality; NaN for queries that nobody judged, or that were not scored as deep."""
        is_deep = way.method == "gaussian" or way.budget > self.plan.shallow
        values = np.full(len(self.asked), np.nan)
        of_way = (self._deep if is_deep else self._all).quality(way)
        values[: len(of_way)] = of_way
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
    stages = {name: Asked(index.first_stage(name)) for name in names}
    lists = [stage.search(queries, depth) for stage in stages.values()]
    n_done = 0
    predicts = index.snapshot.item_vectors() is not None
    with tqdm(total=plan.pairs, desc="scoring", unit=" pairs", unit_scale=True, disable=not progress) as bar:
        for row, query in enumerate(queries):
            is_deep = row < plan.n_queries
            # The time promised holds even where the scorer has become slower than it was timed.
            if row >= min(FEWEST_QUERIES, plan.n_queries) and time.monotonic() - started > seconds:
                break
            budget = plan.budget if is_deep else plan.shallow
            parts = [answers[row].positions[:budget] for answers in lists]
            wanted = np.unique(np.concatenate(parts))
            # A list that is too short is topped up at random.
            short = [stage for stage, part in zip(stages.values(), parts, strict=True) if len(part) < budget]
            ways: list[dict[str, Any]] = [{"method": "rerank", "first": stage} for stage in short]
            if predicts and is_deep:
                ways.append({"method": "gaussian", "first": stages[names[-1]]})
            if calls is not None and asked.misses + len(wanted) + budget * len(ways) > calls:
                break
            asked.score([(query, item) for item in items.at(wanted.tolist())])
            for way in ways:
                index.search(query, min(_SHOWN, budget), budget=budget, fuse=0, **way)
            n_done = row + 1
            bar.update(asked.misses - bar.n)
        bar.total = bar.n
    if not n_done:
        raise InputError(f"{calls:,} calls are not enough for one query of this trial. Give more.")
    return Measured(
        material, plan, index, queries[:n_done], scores=known.matrix[:n_done], stages=stages, calls=asked.misses
    )
