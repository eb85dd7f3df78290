"""Anchor queries searched for as if they were new: their exact scores are in the index, so no scorer is called."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError, UnknownName
from adacur.model import GaussianModel
from adacur.model.acquire import best_positions
from adacur.model.rank_slopes import RankSlopes
from adacur.protocols import AnchorScores, Approximation, Approximator, ScorerCard
from adacur.records import Pair, Query
from adacur.replay.measures import exact_scores, kth_best
from adacur.results import Hits
from adacur.search import AnchorIndex
from adacur.search.finish import Documents
from adacur.search.methods import AdaCUR
from adacur.search.plan import Model, Plan
from adacur.search.planning import SearchOptions, plan_search
from adacur.search.rounds import search
from adacur.search.tuned import GaussianSettings, first_weight_of
from adacur.seeds import item_keys, stream_key, uniform
from adacur.store import AnchorTable, IndexFolder


class HeldOut:
    """Up to `queries` anchor queries of an index, by a seeded draw that does not depend on their order."""

    def __init__(self, anchors: AnchorScores, *, queries: int, seed: int = 0) -> None:
        keys = item_keys(query.id for query in anchors.anchor_queries)
        draws = uniform(stream_key(seed, "held out"), keys)
        self.anchors = anchors
        self.seed = seed
        self.positions: IntArray = np.sort(best_positions(draws, min(queries, len(keys)), keys=keys))
        self.queries: list[Query] = [anchors.anchor_queries[at] for at in self.positions.tolist()]
        self._thresholds: dict[int, FloatArray] = {}

    @cached_property
    def exact(self) -> FloatArray:
        """Their scores of all items, shape (queries, items)."""
        return np.ascontiguousarray(self.anchors.matrix[:, self.positions].T)

    def recalls(self, best: Sequence[FloatArray], *, k: int) -> FloatArray:
        """Top-k-Recall of each query, given the exact scores of the best k that a search found for it."""
        k = min(k, self.exact.shape[1])
        pairs = zip(best, self.least(k), strict=True)
        return np.array([np.count_nonzero(scores[:k] >= threshold) / k for scores, threshold in pairs])

    def least(self, k: int) -> FloatArray:
        """Of each query, the score that the true top k have at least."""
        k = min(k, self.exact.shape[1])
        if k not in self._thresholds:
            self._thresholds[k] = kth_best(self.exact, k)
        return self._thresholds[k]

    def rest(self) -> AnchorTable:
        """The index without them."""
        others = np.setdiff1d(np.arange(len(self.anchors.anchor_queries)), self.positions)
        return AnchorTable(
            self.anchors.items,
            tuple(self.anchors.anchor_queries[at] for at in others.tolist()),
            np.ascontiguousarray(self.anchors.matrix[:, others]),
        )


class AnchorScorer:
    """The scorer's scores of anchor queries, looked up in the index."""

    card = ScorerCard(name="anchor scores", backend="none")

    def __init__(self, anchors: AnchorScores) -> None:
        self._anchors = anchors

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        columns = columns_of(self._anchors, [query for query, _ in pairs])
        return np.asarray(self._anchors.matrix[self._anchors.items.positions(item.id for _, item in pairs), columns])


def columns_of(anchors: AnchorScores, queries: Sequence[Query]) -> IntArray:
    """The positions of these among the anchor queries."""
    columns = {query.id: column for column, query in enumerate(anchors.anchor_queries)}
    if unknown := [query.id for query in queries if query.id not in columns]:
        raise UnknownName(f"Only anchor queries can be replayed; {unknown[0]!r} is not one.")
    return np.array([columns[query.id] for query in queries], dtype=np.intp)


def exact_anchors(index: AnchorIndex) -> BoolArray:
    """For each anchor query, whether the scorer gave all its scores; of a logged search most are predicted."""
    anchors = index.anchors
    every = np.ones(len(index.anchor_queries), dtype=np.bool_)
    return anchors.exact_anchors() if isinstance(anchors, IndexFolder) else every


def check_exact(index: AnchorIndex, queries: Sequence[Query] | None = None) -> None:
    """Refuse to take predicted scores for the truth: of these anchor queries, or of any."""
    exact = exact_anchors(index)
    predicted = {index.anchor_queries[at].id for at in np.flatnonzero(~exact).tolist()}
    if predicted if queries is None else predicted & {query.id for query in queries}:
        raise InputError(
            f"Only {exact.sum()} of the {len(exact)} anchor queries were scored against every item; of the others "
            "most scores are predicted, and a search for them cannot be checked against the truth. Measure recall "
            "on queries of your own."
        )


def check_anchors(index: AnchorIndex, purpose: str, *, fewest: int = 1) -> None:
    """Refuse an index with fewer anchor queries than this purpose needs, and say how to add some."""
    if not index.snapshot.in_memory:
        raise InputError(f"{purpose} works on the folder of an index, and the items of this one are in an engine.")
    there = len(index.anchor_queries)
    if there < fewest:
        where = "INDEX" if index.path is None else str(index.path)
        raise InputError(
            f"{purpose} needs anchor queries, at least {fewest}; this index has {there}. Add some: adacur index "
            f"anchors {where} QUERIES, or edit.add_anchors(queries) in Python."
        )


def replay(index: AnchorIndex, queries: Sequence[Query], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
    """Search for anchor queries of an index, each as if it were new; no scorer is called.

    `options` are those of `AnchorIndex.search`, but for `fuse`: recall is that of the scorer's own top k.
    """
    started = time.monotonic()
    check_anchors(index, "Replaying")
    check_exact(index, queries)
    scorer = AnchorScorer(index.anchors)
    plan = plan_search(index, k, **options | {"fuse": 0.0}, scorer=scorer)
    if plan.model is not None:
        plan = replace(plan, model=leaving_out(plan.model))
    return [exact_scores(hits, scorer) for hits in search(by_items(plan), queries, k, started=started)]


def leaving_out(model: Model) -> Model:
    """The same model for anchor queries, each as if it were new."""
    return replace(model, approximator=_LeavingOut(model.approximator))


def by_items(plan: Plan) -> Plan:
    """The plan with k counting items, of which an index knows the true best, even where they are passages."""
    return replace(plan, finish=tuple(step for step in plan.finish if not isinstance(step, Documents)))


def method_of(
    settings: GaussianSettings,
    model: GaussianModel,
    *,
    n_anchors: int,
    slopes: RankSlopes | None = None,
    seed: int = 0,
) -> AdaCUR:
    """The method that searches with these settings of "gaussian" and this model."""
    return AdaCUR(
        rounds=settings.rounds,
        seed=seed,
        approximator=model.adjusted(
            noise=settings.noise,
            embedding_weight=settings.embedding_weight,
            locality=settings.locality,
            slopes=slopes,
        ),
        first_batch=settings.first_batch,
        first_weight=first_weight_of(settings, n_anchors),
    )


def replayed(approximator: Approximator, anchors: AnchorScores, positions: IntArray, **ranks: Any) -> Approximation:
    """The approximation of these anchor queries, each left out; `ranks` go to one that takes them."""
    replay: Callable[..., Approximation] | None = getattr(approximator, "replay", None)
    if replay is None:
        raise InputError(f"{approximator!r} cannot leave a query out, so anchor queries cannot be replayed.")
    return replay(anchors, positions, **ranks)


class _LeavingOut:
    """An approximator that leaves each anchor query out of its own predictions."""

    def __init__(self, approximator: Approximator) -> None:
        self._approximator: Any = approximator

    @property
    def slopes(self) -> RankSlopes | None:
        """What it makes of ranks."""
        return getattr(self._approximator, "slopes", None)

    def begin(self, anchors: AnchorScores, queries: Sequence[Query], **ranks: Any) -> Approximation:
        """A fresh approximation for these queries."""
        if not anchors.anchor_queries:
            approximation: Approximation = self._approximator.begin(anchors, queries, **ranks)
            return approximation
        return replayed(self._approximator, anchors, columns_of(anchors, queries), **ranks)

    def __repr__(self) -> str:
        return repr(self._approximator)
