"""How certain means over queries and their differences are; choices and fits on queries that they have not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import EmptyInput, InputError
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
