"""Anchor queries searched for as if they were new: each is left out of the predictions that it gets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, Unpack, runtime_checkable

from adacur.approximation import GaussianModel
from adacur.approximation.rank_slopes import RankSlopes
from adacur.core.arrays import IntArray
from adacur.core.errors import InputError
from adacur.core.protocols import AnchorScores, Approximation, Approximator
from adacur.core.records import Query
from adacur.core.results import Hits
from adacur.search import AnchorIndex
from adacur.search.methods import AdaCUR
from adacur.search.options import SearchOptions
from adacur.search.planning import plan_search
from adacur.search.rounds import search
from adacur.search.tuned import GaussianSettings, first_weight_of
from adacur.tuning.held_out import AnchorScorer, check_anchors, check_exact, columns_of


@runtime_checkable
class Replayable(Protocol):
    """An approximator that can leave an anchor query out."""

    def replay(self, anchors: AnchorScores, positions: IntArray, **ranks: Any) -> Approximation:
        """An approximation for the anchor queries at these positions, each as if it were new."""
        ...


def replay(index: AnchorIndex, queries: Sequence[Query], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
    """Search for anchor queries of an index, each as if it were new; no scorer is called.

    `options` are those of `AnchorIndex.search`.
    """
    started = time.monotonic()
    check_anchors(index, "Replaying")
    check_exact(index, queries)
    plan = plan_search(index, k, **options, scorer=AnchorScorer(index.anchors))
    approximator = None if plan.approximator is None else _LeavingOut(plan.approximator)
    # Recall is that of items, of which the index knows the true best.
    return search(replace(plan, approximator=approximator, documents=None), queries, k, started=started)


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
        first_share=settings.first_share,
        first_weight=first_weight_of(settings, n_anchors),
    )


def replayed(approximator: Approximator, anchors: AnchorScores, positions: IntArray, **ranks: Any) -> Approximation:
    """The approximation of these anchor queries, each left out; `ranks` go to one that takes them."""
    if not isinstance(approximator, Replayable):
        raise InputError(f"{approximator!r} cannot leave a query out, so anchor queries cannot be replayed.")
    return approximator.replay(anchors, positions, **ranks)


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
