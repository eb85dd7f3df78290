"""Rows of int8 are multiplied as they are by NumKong, where it is installed: the numbers are those of the rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacur.model import int8_matmul as int8_products
from adacur.model import rows as packed_rows
from adacur.model.acquire import best_positions, nth_largest
from adacur.model.rows import ItemFactors, PackedRows

here = pytest.mark.skipif(not int8_products.multiplies_int8(), reason="NumKong is not installed (extra int8)")


def rows_of(seed: int, n_rows: int, width: int) -> PackedRows:
    rng = np.random.default_rng(seed)
    rows = PackedRows.unfilled((n_rows, width), storage="int8")
    rows.fill(0, rng.normal(size=(n_rows, width)) * np.geomspace(1, 0.01, width))
    return rows


def factors_of(seed: int, n_items: int, width: int) -> ItemFactors:
    parts = [rows_of(seed, n_items, width // 4), rows_of(seed + 1, n_items, width - width // 4)]
    return ItemFactors(parts, np.zeros(width), mixing=np.eye(width), leading=True)


@here
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 300), size=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]))
def test_products_of_bytes_are_closer_to_the_truth_than_float32_is(seed, width, size) -> None:
    rows, weights = rows_of(seed, 97, width), size * np.random.default_rng(seed).normal(size=width)
    some = np.random.default_rng(seed).permutation(97)[:31]
    exact = rows.rows(np.arange(97)) @ weights
    reach = np.abs(rows.rows(np.arange(97))) @ np.abs(weights)
    assert (np.abs(rows.product(weights) - exact) <= 2e-6 * reach).all()
    assert (np.abs(rows.product(weights, some) - exact[some]) <= 2e-6 * reach[some]).all()


@here
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_with_numkong_and_without_the_same_items_are_best_unless_they_are_as_good(seed) -> None:
    factors, rng = factors_of(seed, 20_000, 96), np.random.default_rng(seed)
    weights, keys = np.append(rng.normal(size=96), [1.0, 0.0])[None], np.arange(20_000)
    means = rng.normal(size=20_000).astype(np.float32)
    by_bytes = factors.predictions(weights, means)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "multiplies_int8", lambda: False)
        widened = factors.predictions(weights, means)[0]
    assert not np.array_equal(by_bytes, widened)
    ours, theirs = (best_positions(values, 100, keys=keys) for values in (by_bytes, widened))
    rounding = 1e-5 * float(np.abs(widened).max())
    for position in np.setxor1d(ours, theirs):
        assert abs(widened[position] - widened[theirs[-1]]) <= rounding


@here
def test_weights_that_are_no_numbers_make_predictions_that_are_none() -> None:
    rows = rows_of(0, 50, 20)
    assert np.isnan(rows.product(np.full(20, np.nan))).all()
    assert not rows.product(np.zeros(20)).any()


def test_a_processor_that_numkong_has_no_instructions_for_is_left_to_numpy(monkeypatch) -> None:
    class Serial:
        @staticmethod
        def get_capabilities() -> dict[str, bool]:
            return {"serial": True, "haswell": False}

    int8_products._numkong.cache_clear()
    try:
        monkeypatch.setitem(sys.modules, "numkong", Serial)
        assert not int8_products.multiplies_int8()
        int8_products._numkong.cache_clear()
        monkeypatch.setitem(sys.modules, "numkong", None)
        assert not int8_products.multiplies_int8()
    finally:
        int8_products._numkong.cache_clear()


@pytest.mark.parametrize("kind", ["floats", "ties", "few are finite", "one value", "periodic", "rising"])
@pytest.mark.parametrize("n", [1, 20, 12_345, 49_999])
def test_the_nth_largest_of_many_is_that_of_a_sort(kind, n) -> None:
    rng, size = np.random.default_rng(n), 200_003
    values = {
        "floats": lambda: rng.normal(size=size),
        "ties": lambda: rng.integers(0, 5, size=size),
        "few are finite": lambda: np.where(rng.random(size) < 1e-3, rng.normal(size=size), -np.inf),
        "one value": lambda: np.zeros(size),
        # The sample sees none of the large values, or nothing else.
        "periodic": lambda: np.where(np.arange(size) % 61 == n % 2, 1e3, 0) + rng.normal(size=size),
        "rising": lambda: np.arange(size),
    }[kind]()
    values = values.astype(np.float32)
    assert nth_largest(values, n) == np.sort(values)[-n]
