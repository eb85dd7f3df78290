"""What is measured of answers, and how certain its means over queries are.

How many of the scorer's own k best items a search found, and whether people call them relevant; choices and fits are
measured on queries that they have not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.budget import check_k
from adacur.errors import DuplicateId, EmptyInput, InputError, NonFiniteScore, UnknownName
from adacur.protocols import Items, Scorer
from adacur.records import Query, repeats
from adacur.requirements import require
from adacur.results import Hits
from adacur.scores import score_pairs
from adacur.search.methods import FirstOnly
from adacur.search.tuned import Mean

_Made = TypeVar("_Made")

# A smaller gain of nDCG@10 is not worth calls.
MATTERS = 0.01
# Fewer queries cannot tell a usual difference from none.
FEWEST_QUERIES = 20
# A change must gain more than this many standard errors of the gain.
_STANDARD_ERRORS = 1.0


def mean_of(values: FloatArray, *, level: float = 0.95, samples: int = 2000) -> Mean:
    """The mean over queries and its interval. NaN, a query without a value, is left out.

    Given differences between two methods, query by query, it is the paired interval: both see the same resamples.
    """
    present = np.asarray(values, dtype=np.float64)
    # What is zero but for the last bits of a sum must not lie above or below it.
    present = np.round(present[~np.isnan(present)], 9)
    low, high = bootstrap_interval(present, level=level, samples=samples)
    return Mean(float(present.mean()), round(low, 9), round(high, 9), len(present))


def bootstrap_interval(
    values: FloatArray, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries, of 95 %. NaN, a query without a value, is left out."""
    present = np.asarray(values, dtype=np.float64)
    present = present[~np.isnan(present)]
    if present.ndim != 1 or not len(present):
        raise EmptyInput("There is no value to average. Give at least one query that has one.")
    if samples < 1:
        raise InputError(f"samples must be at least 1, and 2000 are usual; got {samples}.")
    if not 0 < level < 1:
        raise InputError(f"level must be between 0 and 1, and 0.95 is usual; got {level}.")
    generator = np.random.default_rng(seed)
    means = present[generator.integers(len(present), size=(samples, len(present)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def cross_fit(n: int, make: Callable[[BoolArray], _Made]) -> list[_Made]:
    """For each of n queries, what is made of those of the other half: nothing of it is due to that query."""
    is_even = np.arange(n) % 2 == 0
    by_odd, by_even = make(~is_even), make(is_even)
    return [by_odd if one else by_even for one in is_even.tolist()]


def unseen(n: int, values: Callable[[BoolArray], FloatArray]) -> FloatArray:
    """The value of each of n queries, where those of the other half choose what is valued."""
    return np.array([of_query[at] for at, of_query in enumerate(cross_fit(n, values))])


def gains(differences: FloatArray) -> bool:
    """Whether a mean difference, query by query, is a gain of more than its standard error."""
    return bool(differences.mean() > _STANDARD_ERRORS * differences.std(ddof=1) / np.sqrt(len(differences)))


def chances(signs: FloatArray, weights: FloatArray) -> FloatArray:
    """Logistic in signs with these weights."""
    return np.asarray(1 / (1 + np.exp(-np.clip(signs @ weights, -500, 500))))


def likeliest_weights(
    signs: FloatArray,
    outcomes: FloatArray | BoolArray,
    *,
    prior: FloatArray,
    within: tuple[Any, Any] = (-np.inf, np.inf),
) -> FloatArray:
    """The weights by which `chances` come nearest to outcomes from 0 to 1, by Newton's method.

    Each weight stays `within` its bounds, and is drawn to 0 as if it had been seen there `prior` times.
    """
    weights = np.zeros(signs.shape[1])
    for _ in range(100):
        expected = chances(signs, weights)
        slope = signs.T @ (outcomes - expected) - prior * weights
        curve = (signs * (expected * (1 - expected))[:, None]).T @ signs + np.diag(prior + 1e-6)
        weights = np.clip(weights + np.clip(np.linalg.solve(curve, slope), -1, 1), *within)
    return weights


# Grades by query id and item id.
Qrels = Mapping[str, Mapping[str, int]]


def top_k_recall(found: Sequence[Hits], exact: FloatArray, *, k: int) -> FloatArray:
    """Recall per query, given the exact scores of all items (queries × items).

    An item counts if its exact score reaches the k-th best, and at most k count: among equal scores any will do.
    A k larger than the collection means all of it. Hits of method "first" must have been given `exact_scores`.
    """
    check_k(k)
    if any(hits.trace.settings.get("method") == FirstOnly.name for hits in found):
        raise InputError("Recall is measured by exact scores, and hits of method 'first' have none. Use exact_scores.")
    exact = check_score_matrix(exact, n_queries=len(found))
    k = min(k, exact.shape[1])
    return recall_above(found, kth_best(exact, k), k=k)


def recall_above(found: Sequence[Hits], least: FloatArray, *, k: int) -> FloatArray:
    """Recall per query, given the score that the true best k of each have at least."""
    right = [np.count_nonzero(hits.scores[:k] >= threshold) for hits, threshold in zip(found, least, strict=True)]
    return np.array(right, dtype=np.float64) / k


def exact_scores(hits: Hits, scorer: Scorer) -> Hits:
    """The same items in the same order with the scorer's scores, where a search by method "first" gave others."""
    if hits.trace.settings.get("method") != FirstOnly.name:
        return hits
    scores = score_pairs(scorer, [(hits.query, item) for item in hits.items]) if hits.items else hits.scores
    return Hits(hits.query, hits.ids, scores, items=hits.items)


def kth_best(exact: FloatArray, k: int) -> FloatArray:
    """The k-th highest score of each row."""
    cut = exact.shape[1] - k
    # Row by row: a row fits the cache, and the whole matrix is not copied.
    return np.array([np.partition(scores, cut)[cut] for scores in exact], dtype=exact.dtype)


def check_score_matrix(
    scores: FloatArray, *, n_queries: int, ids: Sequence[str] | None = None, kind: str = "exact"
) -> FloatArray:
    """Finite scores of shape (queries, items), at least one item; `ids` name the columns where they are needed."""
    scores = np.asarray(scores)
    if scores.ndim != 2 or len(scores) != n_queries or not scores.shape[1]:
        raise InputError(
            f"One row of {kind} scores per query and one column per item are needed; got shape {scores.shape} "
            f"for {n_queries} queries."
        )
    if ids is not None and len(ids) != scores.shape[1]:
        raise InputError(f"One id per column of {kind} scores is needed; got {len(ids)} for {scores.shape[1]} columns.")
    if not np.isfinite(scores).all():
        row, column = (int(at[0]) for at in np.nonzero(~np.isfinite(scores)))
        raise NonFiniteScore(
            f"The {kind} score of query {row} and item {column} (by position) is {scores[row, column]}. "
            "Every pair must be scored before anything is measured against it."
        )
    return scores


def can_judge() -> bool:
    """Whether judged quality can be computed here."""
    return find_spec("ir_measures") is not None


def judged_quality(
    found: Sequence[Hits], qrels: Qrels, *, measures: Sequence[str] = ("nDCG@10",)
) -> dict[str, FloatArray]:
    """Measures of ir_measures ("nDCG@10", "R@100", "RR@10", "AP") per query, in the order of the hits.

    NaN for queries that nobody judged. The hits are judged in the order in which they come, fused or not.
    """
    ir_measures = require("ir_measures", extra="evaluation")
    parsed = {name: _parse(ir_measures, name) for name in measures}
    ids = [hits.query.id for hits in found]
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Each query is judged once; {repeats(ids)} more than once among the answers.")
    # The measures' own providers break ties between scores in different ways, and in float32; ranks have no ties.
    ranked = {
        hits.query.id: {id_: -float(rank) for rank, id_ in enumerate(dict.fromkeys(hits.ids))}
        for hits in found
        if qrels.get(hits.query.id)
    }
    if not ranked:
        raise InputError("None of these queries is judged. Check that the judgements use the same query ids.")
    wanted = {id_: dict(qrels[id_]) for id_ in ranked}
    try:
        values = {
            (metric.measure, metric.query_id): metric.value
            for metric in ir_measures.iter_calc(list(parsed.values()), wanted, ranked)
        }
    except (ValueError, AssertionError) as error:
        raise InputError(f"ir_measures cannot compute {', '.join(measures)}: {error}") from error
    return {
        name: np.array([values.get((measure, id_), 0.0) if id_ in ranked else np.nan for id_ in ids])
        for name, measure in parsed.items()
    }


def telling_queries(queries: Sequence[Query], items: Items, qrels: Qrels) -> dict[Query, IntArray]:
    """The queries with relevant and other items, and the positions of the relevant ones."""
    known = {id_: position for position, id_ in enumerate(items.ids)}
    usable = {}
    for query in queries:
        grades = qrels.get(query.id, {})
        relevant = np.array([known[id_] for id_, grade in grades.items() if grade > 0 and id_ in known], dtype=np.intp)
        if 0 < len(relevant) < len(items):
            usable[query] = relevant
    return usable


def _parse(ir_measures: Any, name: str) -> Any:
    """The measure called "Name" or "Name@depth"; ir_measures' own parser fails on Python 3.14."""
    try:
        kind, has_depth, depth = name.partition("@")
        measure = ir_measures.measures.registry[kind]
        return measure(**{measure.AT_PARAM: int(depth)}) if has_depth else measure()
    except (KeyError, TypeError, ValueError) as error:
        raise UnknownName(
            f"ir_measures knows no measure {name!r}. Try 'nDCG@10', 'R@100', 'RR@10' or 'AP'; "
            "recall of the scorer's own top k is top_k_recall."
        ) from error
