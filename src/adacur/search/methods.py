"""The search methods: ADACUR, ANNCUR, re-ranking and exact search. Each is a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from adacur.approximation import PseudoInverse, TopK
from adacur.core.budget import Budget, check_k, even_split
from adacur.core.errors import BudgetError, InputError
from adacur.core.protocols import Acquisition, AnchorScores, Approximator, Collection, Retriever, Scorer
from adacur.core.ranking import best_positions
from adacur.core.records import Query
from adacur.core.results import Hits
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.index import AnchorTable
from adacur.scorers import MatrixScorer
from adacur.search.fusion import Fusion, as_fusion
from adacur.search.plan import Filter, Plan
from adacur.search.rounds import search

__all__ = ["ANNCUR", "AdaCUR", "Exact", "Rerank", "held_out_split", "held_out_splits", "without_anchors"]

_SPLITS = tuple(tenth / 10 for tenth in range(1, 10))


class AdaCUR:
    """Algorithm 1: score a batch, predict the rest, score the most promising next, over `budget.rounds` rounds.

    The first batch is the best of `first`, or a uniform sample where there is none, and takes a share `first_batch` of
    the budget where that is more than any other round's. A `first_share` of each later round
    goes to the first stage's next best, and `first_weight` raises the predictions of what it ranks high, by the
    logarithm of the rank; `stop_when` (`GaussianModel`) ends a query's search once its top k is expected to have that
    recall; `fuse` blends the first stage's scores into the final order (see `Fusion`). The paper does
    none of these.
    """

    name = "adacur"

    def __init__(
        self,
        *,
        index: AnchorScores,
        scorer: Scorer,
        budget: Budget,
        first: Retriever | None = None,
        approximator: Approximator | None = None,
        acquisition: Acquisition | None = None,
        first_batch: float | None = None,
        first_share: float = 0.0,
        first_weight: float = 0.0,
        fuse: float | Fusion | None = None,
        pool: int | None = None,
        filter: Filter | None = None,  # noqa: A002
        stop_when: float | None = None,
        seed: int = 0,
        approximate_scores: bool = False,
        keep_predictions: bool = False,
    ) -> None:
        if first_batch is not None and not 0 < first_batch < 1:
            raise BudgetError(f"first_batch is the first round's share of the budget, in (0, 1); got {first_batch}.")
        self.budget = budget
        self.plan = Plan(
            method=self.name,
            items=index.items,
            scorer=scorer,
            calls=budget.calls,
            batch_sizes=lambda affordable: _rounds(affordable, budget.rounds, first_batch),
            first=first,
            anchors=index,
            approximator=approximator or PseudoInverse(),
            acquisition=acquisition or TopK(),
            first_share=first_share,
            first_weight=first_weight,
            fuse=as_fusion(fuse, index),
            deadline=budget.deadline,
            pool=pool,
            filter=filter,
            stop_when=stop_when,
            seed=seed,
            approximate_scores=approximate_scores,
            keep_predictions=keep_predictions,
        )

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The best k scored items of each query, best first."""
        self.budget.check_k(k)
        return search(self.plan, queries, k)


class ANNCUR:
    """The one-shot baseline: score fixed anchor items, predict the rest once, score the best predicted.

    `split` is the share of the budget spent on anchor items (k_i / B). Without `first` the anchor items are one
    uniform sample for all queries; with it they are each query's best under the first stage. Items scored as
    anchors are not paid again: retrieval goes on until the budget is spent.
    """

    name = "anncur"

    def __init__(
        self,
        *,
        index: AnchorScores,
        scorer: Scorer,
        budget: Budget,
        first: Retriever | None = None,
        split: float = 0.5,
        approximator: Approximator | None = None,
        pool: int | None = None,
        filter: Filter | None = None,  # noqa: A002
        seed: int = 0,
        approximate_scores: bool = False,
        keep_predictions: bool = False,
    ) -> None:
        if not 0 < split < 1:
            raise BudgetError(f"split is the share of the budget spent on anchor items, between 0 and 1; got {split}.")
        self.budget = budget
        self.plan = Plan(
            method=self.name,
            items=index.items,
            scorer=scorer,
            calls=budget.calls,
            batch_sizes=lambda affordable: _anchors_then_rest(affordable, split),
            first=first,
            anchors=index,
            approximator=approximator or PseudoInverse(),
            acquisition=TopK(),
            deadline=budget.deadline,
            pool=pool,
            filter=filter,
            seed=seed,
            same_first_for_all=first is None,
            approximate_scores=approximate_scores,
            keep_predictions=keep_predictions,
        )

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The best k scored items of each query, best first."""
        self.budget.check_k(k)
        return search(self.plan, queries, k)


class Rerank:
    """The usual baseline: score the first stage's best `budget.calls` items. Rounds do not matter here."""

    name = "rerank"

    def __init__(
        self,
        *,
        index: Collection,
        scorer: Scorer,
        budget: Budget,
        first: Retriever | None,
        fuse: float | Fusion | None = None,
        pool: int | None = None,
        filter: Filter | None = None,  # noqa: A002
        seed: int = 0,
    ) -> None:
        self.budget = budget
        self.plan = Plan(
            method=self.name,
            items=index.items,
            scorer=scorer,
            calls=budget.calls,
            batch_sizes=lambda affordable: (affordable,),
            first=first,
            fuse=as_fusion(fuse, index),
            deadline=budget.deadline,
            pool=pool,
            filter=filter,
            seed=seed,
        )

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The best k scored items of each query, best first."""
        self.budget.check_k(k)
        return search(self.plan, queries, k)


class Exact:
    """The truth: score every item. `first` matters only to `fuse`, which blends its scores into the order."""

    name = "exact"

    def __init__(
        self,
        *,
        index: Collection,
        scorer: Scorer,
        filter: Filter | None = None,  # noqa: A002
        first: Retriever | None = None,
        fuse: float | Fusion | None = None,
    ) -> None:
        self.plan = Plan(
            method=self.name,
            items=index.items,
            scorer=scorer,
            calls=len(index.items),
            batch_sizes=lambda affordable: (affordable,),
            first=first if fuse else None,
            fuse=as_fusion(fuse, index),
            filter=filter,
        )

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The best k items of each query, best first."""
        check_k(k)
        return search(self.plan, queries, k)


def without_anchors(collection: Collection) -> AnchorScores:
    """Items and no anchor query: what an approximator searches on that needs none, such as `EmbeddingRegression`."""
    return AnchorTable(collection.items, (), np.empty((len(collection.items), 0), dtype=np.float32))


def held_out_split(index: AnchorScores, *, budget: Budget, k: int, **options: Any) -> float:
    """`held_out_splits` for one k."""
    return held_out_splits(index, budget=budget, ks=(k,), **options)[k]


def held_out_splits(
    index: AnchorScores,
    *,
    budget: Budget,
    ks: Sequence[int],
    first: Retriever | None = None,
    approximator: Approximator | None = None,
    n_held_out: int = 100,
    seed: int = 0,
) -> dict[int, float]:
    """Per k, ANNCUR's split (0.1, 0.2 … 0.9) with the best mean Top-k-Recall on held-out anchor queries.

    At most half of the anchor queries are held out, by a seeded draw; they are replayed against the rest, and no
    scorer is called. `first` is asked for their anchor items. With fewer anchor queries than the real search has, a
    split near k_i = k_q is judged more harshly than it deserves.
    """
    for k in ks:
        budget.check_k(k)
    n_anchors = len(index.anchor_queries)
    if n_anchors < 2 or n_held_out < 1:
        raise InputError(
            f"Holding out needs two anchor queries or more, and n_held_out of at least 1; "
            f"got {n_anchors} anchor queries, n_held_out={n_held_out}."
        )
    keys = item_keys(query.id for query in index.anchor_queries)
    draws = uniform(stream_key(seed, "held out"), keys)
    held_out = np.sort(best_positions(draws, min(n_held_out, n_anchors // 2), keys=keys))
    kept = np.setdiff1d(np.arange(n_anchors), held_out)
    rest = AnchorTable(
        index.items, tuple(index.anchor_queries[at] for at in kept), np.ascontiguousarray(index.matrix[:, kept])
    )
    queries = [index.anchor_queries[at] for at in held_out]
    exact = np.ascontiguousarray(index.matrix[:, held_out].T)
    scorer = MatrixScorer(queries, index.items.ids, exact)
    best_first = -np.sort(-exact, axis=1)

    def found(split: float) -> dict[int, int]:
        anncur = ANNCUR(
            index=rest, scorer=scorer, budget=budget, first=first, split=split, approximator=approximator, seed=seed
        )
        hits = anncur.search(queries, max(ks))
        worst = {k: best_first[:, min(k, exact.shape[1]) - 1] for k in ks}
        return {
            k: sum(int((own.scores[:k] >= least).sum()) for own, least in zip(hits, worst[k], strict=True)) for k in ks
        }

    counts = {split: found(split) for split in _SPLITS}
    return {k: max(_SPLITS, key=lambda split: counts[split][k]) for k in ks}


def _rounds(affordable: int, rounds: int, first_batch: float | None) -> tuple[int, ...]:
    rounds = min(rounds, affordable)
    if first_batch is None or first_batch * rounds <= 1:
        return even_split(affordable, rounds)
    # Every round scores something.
    first = min(max(1, round(first_batch * affordable)), affordable - rounds + 1)
    return (first, *even_split(affordable - first, rounds - 1))


def _anchors_then_rest(affordable: int, split: float) -> tuple[int, ...]:
    anchors = min(max(1, round(split * affordable)), affordable)
    return (anchors, affordable - anchors) if anchors < affordable else (anchors,)
