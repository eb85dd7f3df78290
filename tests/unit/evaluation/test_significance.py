from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adacur.core.errors import DuplicateId, EmptyInput, InputError
from adacur.evaluation import Run, bootstrap_interval, paired_difference

NAN = float("nan")


def run(ids: str, *values: float, method: str = "m", collection: str = "c") -> Run:
    return Run(collection, method, {}, tuple(ids), {"recall@1": np.array(values)})


def test_the_interval_holds_the_mean_and_narrows_with_more_queries() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.random(20), rng.random(2000)
    low, high = bootstrap_interval(few)
    assert low < few.mean() < high
    assert np.subtract(*bootstrap_interval(many)[::-1]) < high - low


def test_the_interval_of_one_query_is_its_value() -> None:
    assert bootstrap_interval(np.array([0.3])) == (0.3, 0.3)


def test_queries_without_a_value_are_left_out() -> None:
    assert bootstrap_interval(np.array([0.1, NAN, 0.9, 0.5])) == bootstrap_interval(np.array([0.1, 0.9, 0.5]))
    assert sign_flip_test(np.array([0.1, NAN, 0.9])) == sign_flip_test(np.array([0.1, 0.9]))


@pytest.mark.parametrize("values", [[], [NAN, NAN]])
def test_no_value_at_all_is_refused(values) -> None:
    with pytest.raises(EmptyInput):
        bootstrap_interval(np.array(values))
    with pytest.raises(EmptyInput):
        sign_flip_test(np.array(values))


def test_levels_and_samples_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="level"):
        bootstrap_interval(np.ones(3), level=95)
    with pytest.raises(InputError, match="samples=0"):
        bootstrap_interval(np.ones(3), samples=0)


def test_about_nineteen_of_twenty_intervals_hold_the_truth() -> None:
    rng = np.random.default_rng(0)
    held = [
        low <= 0.5 <= high
        for low, high in (bootstrap_interval(rng.random(60), samples=500, seed=seed) for seed in range(300))
    ]
    assert 0.9 < np.mean(held) < 0.99


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=8))
def test_few_differences_are_tested_by_every_choice_of_signs(tenths) -> None:
    # In whole numbers equal sums are equal, which sums of tenths need not be.
    sums = [abs(sum(sign * tenth for sign, tenth in zip(signs, tenths, strict=True)))
            for signs in product((-1, 1), repeat=len(tenths))]  # fmt: skip
    literal = sum(total >= abs(sum(tenths)) for total in sums) / len(sums)
    assert sign_flip_test(np.array(tenths) / 10) == pytest.approx(literal, rel=1e-12)


def test_many_differences_are_tested_by_a_draw_that_comes_near_the_exact_value() -> None:
    differences = np.random.default_rng(3).normal(0.3, 1, size=14)
    exact = sign_flip_test(differences, samples=2**14)
    assert sign_flip_test(differences, samples=2**14 - 1) == pytest.approx(exact, abs=0.02)
    assert 0.02 < exact < 0.98


def test_the_same_seed_gives_the_same_p_value_and_none_is_zero() -> None:
    differences = np.full(50, 0.1)
    assert sign_flip_test(differences) == sign_flip_test(differences) == 1 / 2001


def test_no_difference_anywhere_is_no_evidence() -> None:
    assert sign_flip_test(np.zeros(100)) == 1


def test_without_a_true_difference_one_test_in_twenty_errs() -> None:
    rng = np.random.default_rng(1)
    wrong = [sign_flip_test(rng.normal(size=25), samples=500, seed=seed) <= 0.05 for seed in range(400)]
    assert 0.02 < np.mean(wrong) < 0.09


def test_holm_multiplies_by_the_tests_left_and_never_turns_the_order() -> None:
    assert holm([0.01, 0.04, 0.03]).tolist() == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]).tolist() == [1, 1]
    assert holm([0.02]).tolist() == [0.02]
    assert holm([]).tolist() == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_is_the_step_down_procedure(p_values) -> None:
    adjusted = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
            if p_values[place] * (len(p_values) - step) > level:
                break
            rejected.add(place)
        assert {place for place, p in enumerate(adjusted) if p <= level} == rejected


@pytest.mark.parametrize("p_values", [[0.5, NAN], [1.1], [[0.5]]])
def test_what_is_no_p_value_is_refused(p_values) -> None:
    with pytest.raises(InputError, match="from 0 to 1"):
        holm(p_values)


def test_runs_are_matched_by_query_id() -> None:
    compared = paired_difference(run("abcd", 1, 0.5, 0, NAN), run("edcba", 1, 0, 0, 0.25, 0.5), "recall@1")
    assert (compared.n_queries, compared.higher, compared.lower) == (3, 2, 0)
    assert (compared.left, compared.right, compared.difference) == (0.5, 0.25, 0.25)
    assert compared.p_value == 0.5
    assert (compared.low, compared.high) == bootstrap_interval(np.array([0.5, 0.25, 0]))


def test_turning_the_runs_turns_the_difference() -> None:
    rng = np.random.default_rng(0)
    ids = "".join(map(chr, range(200, 240)))
    left, right = run(ids, *rng.random(40)), run(ids, *rng.random(40))
    one, other = paired_difference(left, right, "recall@1"), paired_difference(right, left, "recall@1")
    assert (one.difference, one.low, one.high) == pytest.approx((-other.difference, -other.high, -other.low))
    assert (one.p_value, one.higher) == (other.p_value, other.lower)


def test_one_query_is_compared_and_proves_nothing() -> None:
    compared = paired_difference(run("a", 1), run("a", 0), "recall@1")
    assert (compared.difference, compared.low, compared.high, compared.p_value) == (1, 1, 1, 1)


def test_runs_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(EmptyInput, match="share no query"):
        paired_difference(run("a", 1), run("b", 1), "recall@1")
    with pytest.raises(EmptyInput, match="share no query"):
        paired_difference(run("a", NAN), run("a", 1), "recall@1")
    with pytest.raises(InputError, match="on one collection"):
        paired_difference(run("a", 1), run("a", 1, collection="other"), "recall@1")
    with pytest.raises(InputError, match="has no 'nDCG@10'"):
        paired_difference(run("a", 1), run("a", 1), "nDCG@10")
    with pytest.raises(DuplicateId, match="'a'"):
        paired_difference(run("aa", 1, 0), run("a", 1), "recall@1")
