"""How certain a mean and a difference are, given the queries that were searched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import EmptyInput, InputError
from adacur.evaluation.runs import Run


def bootstrap_interval(
    values: FloatArray, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries, of 95 %. NaN, a query without a value, is left out.

    Given differences between two methods, query by query, it is the paired interval: both see the same resamples.
    """
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


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Left minus right over the queries that both runs have: the mean and its interval."""

    n_queries: int
    difference: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f})"


def paired_difference(left: Run, right: Run, measure: str) -> PairedDifference:
    """Compare two runs on one measure, matched by query id; queries without a value in either are left out."""
    pairs = np.array(list(paired_values(left, right, measure).values())).reshape(-1, 2)
    if not len(pairs):
        raise EmptyInput(
            f"The runs of {left.method!r} and {right.method!r} share no query with a value of {measure!r}. "
            "Were they searched with the same queries?"
        )
    differences = pairs[:, 0] - pairs[:, 1]
    return PairedDifference(len(pairs), float(differences.mean()), *bootstrap_interval(differences))


def paired_values(left: Run, right: Run, measure: str) -> dict[str, tuple[float, float]]:
    """The two values of each query that has both."""
    if left.collection != right.collection:
        raise InputError(
            f"Runs are compared query by query, on one collection; got {left.collection!r} and {right.collection!r}."
        )
    others = _by_query(right, measure)
    return {id_: (value, others[id_]) for id_, value in _by_query(left, measure).items() if id_ in others}


def _by_query(run: Run, measure: str) -> dict[str, float]:
    run.values(measure)  # names the measures that there are, where this one is missing
    values = np.asarray(run.measures[measure], dtype=np.float64).tolist()
    return {id_: value for id_, value in zip(run.query_ids, values, strict=True) if not np.isnan(value)}
