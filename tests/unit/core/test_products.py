"""A row's product is its own."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.core.products import blas_threads, row_products


@pytest.mark.parametrize("n_rows", [1, 3, 4, 65, 1501, 5003])
@pytest.mark.parametrize("width", [5, 32, 500])
def test_a_product_does_not_depend_on_the_rows_before_and_behind(n_rows, width) -> None:
    rng = np.random.default_rng(0)
    rows, weights = (rng.normal(size=shape).astype(np.float32) for shape in ((n_rows, width), width))
    whole = row_products(rows, weights)
    np.testing.assert_allclose(whole, rows @ weights, rtol=1e-4, atol=1e-4)
    for cut in (64, 192, 1024):
        if cut < n_rows:
            parts = [row_products(rows[:cut], weights), row_products(rows[cut:], weights)]
            assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"])
def test_cores_left_to_others_are_not_counted(monkeypatch, name) -> None:
    for either in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(either, raising=False)
    monkeypatch.setenv(name, "1")
    # Not what was found when it was first asked.
    assert blas_threads.__wrapped__() == 1
