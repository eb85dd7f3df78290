"""What the first stage allows, and what only the scorer likes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import check_k
from adacur.errors import InputError, UnknownName
from adacur.replay.measures import check_score_matrix, kth_best
from adacur.results import Hits

__all__ = ["first_stage_ceiling", "phantom_share"]


def first_stage_ceiling(
    first: Sequence[Hits], exact: FloatArray, *, item_ids: Sequence[str], k: int, n: int
) -> FloatArray:
    """Share of the scorer's top k among the first stage's top n, per query: the recall of re-ranking all n.

    `exact` has one column per id of `item_ids`. Ties count as in `top_k_recall`. For judged relevance, the ceiling is
    the first stage's own "R@n".
    """
    check_k(k)
    check_k(n)
    exact = check_score_matrix(exact, n_queries=len(first), ids=item_ids)
    k = min(k, exact.shape[1])
    column_of = {id_: column for column, id_ in enumerate(item_ids)}
    shares = np.empty(len(first))
    for row, (hits, scores, threshold) in enumerate(zip(first, exact, kth_best(exact, k), strict=True)):
        try:
            # A first stage may name an item twice (by its passages, say); it is one item.
            reached = [column_of[id_] for id_ in dict.fromkeys(hits.ids[:n])]
        except KeyError as error:
            raise UnknownName(f"The first stage found {error.args[0]!r}, which has no exact scores.") from None
        shares[row] = min(int(np.count_nonzero(scores[reached] >= threshold)), k) / k
    return shares


def phantom_share(
    found: Sequence[Hits], first: Sequence[Hits], qrels: Mapping[str, Mapping[str, int]], *, k: int, n: int
) -> FloatArray:
    """Share of the best k hits that are neither judged relevant nor among the first stage's top n, per query.

    With hits of exact search these are the scorer's own phantoms. NaN for a query that nobody judged or that has no
    hits.
    """
    check_k(k)
    check_k(n)
    _check_same_queries(found, first)
    shares = np.full(len(found), np.nan)
    for row, (hits, reached) in enumerate(zip(found, first, strict=True)):
        judged = qrels.get(hits.query.id)
        best = hits.ids[:k]
        if judged and best:
            vouched = set(reached.ids[:n]).union(id_ for id_, grade in judged.items() if grade > 0)
            shares[row] = sum(id_ not in vouched for id_ in best) / len(best)
    return shares


def _check_same_queries(found: Sequence[Hits], first: Sequence[Hits]) -> None:
    """Refuse hits and first-stage hits of different queries."""
    if [hits.query.id for hits in found] != [hits.query.id for hits in first]:
        raise InputError(
            f"Hits and first-stage hits must answer the same queries in the same order; "
            f"got {len(found)} and {len(first)}. Search both with one list of queries."
        )
