"""How sure a mean and a difference are, given the queries that were asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DuplicateId, EmptyInput, InputError
from adacur.core.records import first_repeat
from adacur.evaluation.runs import Run

__all__ = ["PairedDifference", "bootstrap_interval", "holm", "paired_difference", "sign_flip_test"]


def bootstrap_interval(
    values: FloatArray, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over queries. NaN, a query without a value, is left out.

    Given differences between two methods, query by query, it is the paired interval: both see the same resamples.
    """
    values = _present(values)
    if not 0 < level < 1:
        raise InputError(f"A level lies between 0 and 1, such as 0.95; got {level}.")
    _check_samples(samples)
    generator = np.random.default_rng(seed)
    means = values[generator.integers(len(values), size=(samples, len(values)))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_test(differences: FloatArray, *, samples: int = 2000, seed: int = 0) -> float:
    """Two-sided p-value of a mean difference: how often random signs make it as far from zero.

    Exact where `samples` covers every choice of signs; otherwise a draw, in which what was seen counts as one.
    NaN is left out.
    """
    present = _present(differences)
    _check_samples(samples)
    # A difference of zero has no sign to flip. Without the zeros, more cases can be counted out.
    moving = present[present != 0]
    exhaustive = len(moving) <= int(samples).bit_length() - 1
    if exhaustive:
        flips = (np.arange(2 ** len(moving))[:, None] >> np.arange(len(moving))) & 1
    else:
        flips = np.random.default_rng(seed).integers(2, size=(samples, len(moving)), dtype=np.int8)
    # Sums of the same numbers differ in the last bits with the order of the terms: equal must stay equal.
    slack = 1e-12 * np.abs(moving).sum()
    total = moving.sum()
    extreme = int(np.count_nonzero(np.abs(total - 2 * (flips @ moving)) >= abs(total) - slack))
    return extreme / len(flips) if exhaustive else (extreme + 1) / (samples + 1)


def holm(p_values: Sequence[float] | FloatArray) -> FloatArray:
    """Holm's adjusted p-values, in the same order: all comparisons below 0.05 hold together at 0.05."""
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise InputError(f"p-values are a list of numbers from 0 to 1; got {p_values}.")
    order = np.argsort(p, kind="stable")
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)), 1.0)
    return adjusted


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """Left minus right over the queries that both runs have: means, interval, p-value.

    `higher` and `lower` count the queries where left's value is above and below right's.
    """

    measure: str
    n_queries: int
    left: float
    right: float
    difference: float
    low: float
    high: float
    p_value: float
    higher: int
    lower: int


def paired_difference(
    left: Run, right: Run, measure: str, *, level: float = 0.95, samples: int = 2000, seed: int = 0
) -> PairedDifference:
    """Compare two runs on one measure, matched by query id; queries without a value in either are left out."""
    if left.collection != right.collection:
        raise InputError(
            f"Runs are compared query by query, on one collection; got {left.collection!r} and {right.collection!r}."
        )
    values_of = _by_query(right, measure)
    pairs = np.array(
        [(value, values_of[id_]) for id_, value in _by_query(left, measure).items() if id_ in values_of]
    ).reshape(-1, 2)
    if not len(pairs):
        raise EmptyInput(
            f"The runs of {left.method!r} and {right.method!r} share no query with a value of {measure!r}. "
            "Were they searched with the same queries?"
        )
    differences = pairs[:, 0] - pairs[:, 1]
    low, high = bootstrap_interval(differences, level=level, samples=samples, seed=seed)
    left_mean, right_mean = pairs.mean(axis=0).tolist()
    return PairedDifference(
        measure=measure,
        n_queries=len(pairs),
        left=left_mean,
        right=right_mean,
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_value=sign_flip_test(differences, samples=samples, seed=seed),
        higher=int(np.count_nonzero(differences > 0)),
        lower=int(np.count_nonzero(differences < 0)),
    )


def _by_query(run: Run, measure: str) -> dict[str, float]:
    run.values(measure)  # names the measures that there are, where this one is missing
    by_query = dict(zip(run.query_ids, np.asarray(run.measures[measure], dtype=np.float64).tolist(), strict=True))
    if len(by_query) < len(run.query_ids):
        raise DuplicateId(
            f"Runs are matched by query id, so ids must be unique; {first_repeat(run.query_ids)!r} occurs more than "
            f"once in the run of {run.method!r}."
        )
    return {id_: value for id_, value in by_query.items() if not np.isnan(value)}


def _present(values: FloatArray) -> FloatArray:
    present = np.asarray(values, dtype=np.float64)
    present = present[~np.isnan(present)]
    if present.ndim != 1 or not len(present):
        raise EmptyInput("There is no value to average. Give at least one query that has one.")
    return present


def _check_samples(samples: int) -> None:
    if samples < 1:
        raise InputError(f"At least one resample is needed, and 2000 are usual; got samples={samples}.")
