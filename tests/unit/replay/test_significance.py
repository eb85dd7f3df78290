from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import EmptyInput, InputError
from adacur.replay import Run, bootstrap_interval, paired_difference

NAN = float("nan")


def run(ids: str, *values: float, method: str = "m", collection: str = "c") -> Run:
    return Run(collection, method, {}, tuple(ids), {"recall@1": np.array(values)})


def test_the_interval_holds_the_mean_and_narrows_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.random(20), rng.random(2000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < high - low


def test_queries_without_a_value_are_left_out() -> None:
    assert bootstrap_interval(np.array([0.1, NAN, 0.9, 0.5])) == bootstrap_interval(np.array([0.1, 0.9, 0.5]))


@pytest.mark.parametrize("values", [[], [NAN, NAN]])
def test_no_value_at_all_is_refused(values) -> None:
    with pytest.raises(EmptyInput):
        bootstrap_interval(np.array(values))


def test_about_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    held = [
        low <= 0.5 <= high
        for low, high in (bootstrap_interval(rng.random(60), samples=500, seed=seed) for seed in range(300))
    ]
    assert 0.9 < np.mean(held) < 0.99


def test_runs_are_matched_by_query_id() -> None:
    compared = paired_difference(run("abcd", 1, 0.5, 0, NAN), run("edcba", 1, 0, 0, 0.25, 0.5), "recall@1")
    assert compared.n == 3
    assert compared.value == 0.25
    assert (compared.low, compared.high) == bootstrap_interval(np.array([0.5, 0.25, 0]))


def test_one_query_is_compared_and_proves_nothing() -> None:
    compared = paired_difference(run("a", 1), run("a", 0), "recall@1")
    assert (compared.value, compared.low, compared.high) == (1, 1, 1)


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(EmptyInput):
        paired_difference(run("a", 1), run("b", 1), "recall@1")
    with pytest.raises(EmptyInput):
        paired_difference(run("a", NAN), run("a", 1), "recall@1")
    with pytest.raises(InputError):
        paired_difference(run("a", 1), run("a", 1, collection="other"), "recall@1")
    with pytest.raises(InputError):
        paired_difference(run("a", 1), run("a", 1), "nDCG@10")
