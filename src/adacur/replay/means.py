"""How certain means over queries, and differences between two methods, are, given the queries."""

from __future__ import annotations

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import EmptyInput, InputError
from adacur.search.tuned import Mean

# A smaller gain of nDCG@10 is not worth calls.
MATTERS = 0.01
# Fewer queries cannot tell a usual difference from none.
FEWEST_QUERIES = 20


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
