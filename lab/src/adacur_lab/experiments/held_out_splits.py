"""ANNCUR's split, chosen on held-out anchor queries."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.budget import Budget, check_k
from adacur.errors import InputError
from adacur.first_stages import AnyStage
from adacur.model import PseudoInverse
from adacur.model.acquire import best_positions
from adacur.protocols import AnchorScores, Approximator
from adacur.scorers import MatrixScorer
from adacur.search import ANNCUR, AnchorIndex
from adacur.seeds import item_keys, stream_key, uniform
from adacur.store import AnchorTable

__all__ = ["SPLITS", "held_out_splits"]

SPLITS = tuple(tenth / 10 for tenth in range(1, 10))


def held_out_splits(
    anchors: AnchorScores,
    *,
    budget: int,
    ks: Sequence[int],
    first: AnyStage | None = None,
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
        check_k(k, Budget(budget).calls)
    n_anchors = len(anchors.anchor_queries)
    if n_anchors < 2 or n_held_out < 1:
        raise InputError(
            f"Holding out needs two anchor queries or more, and n_held_out of at least 1; "
            f"got {n_anchors} anchor queries, n_held_out={n_held_out}."
        )
    keys = item_keys(query.id for query in anchors.anchor_queries)
    draws = uniform(stream_key(seed, "held out"), keys)
    held_out = np.sort(best_positions(draws, min(n_held_out, n_anchors // 2), keys=keys))
    others = np.setdiff1d(np.arange(n_anchors), held_out)
    rest = AnchorTable(
        anchors.items,
        tuple(anchors.anchor_queries[at] for at in others),
        np.ascontiguousarray(anchors.matrix[:, others]),
    )
    queries = [anchors.anchor_queries[at] for at in held_out]
    exact = np.ascontiguousarray(anchors.matrix[:, held_out].T)
    index = AnchorIndex(rest, scorer=MatrixScorer(queries, anchors.items.ids, exact))
    best_first = -np.sort(-exact, axis=1)
    worst = {k: best_first[:, min(k, exact.shape[1]) - 1] for k in ks}

    def n_best(split: float) -> dict[int, int]:
        method = ANNCUR(split=split, approximator=approximator or PseudoInverse(), seed=seed)
        hits = index.search(queries, max(ks), budget=budget, method=method, first=first)
        return {
            k: sum(int((one.scores[:k] >= least).sum()) for one, least in zip(hits, worst[k], strict=True)) for k in ks
        }

    counts = {split: n_best(split) for split in SPLITS}
    return {k: max(SPLITS, key=lambda split: counts[split][k]) for k in ks}
