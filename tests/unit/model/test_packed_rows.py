"""Rows in fewer bytes: what is lost is known, and products are those of the rows."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.model.on_device import DeviceRows
from adacur.model.rows import PackedRows

ROWS = np.random.default_rng(0).normal(size=(3000, 130)) * np.geomspace(1e-3, 1e3, 3000)[:, None]
WEIGHTS = np.random.default_rng(1).normal(size=(4, 130))


def packed(storage: str) -> PackedRows:
    rows, start = PackedRows.unfilled(ROWS.shape, storage=storage), 0
    for block in np.array_split(ROWS, 7):
        rows.fill(start, block)
        start += len(block)
    return rows


@pytest.mark.parametrize(("storage", "step"), [("int8", 0.5 / 127), ("float16", 2**-11), ("float32", 2**-24)])
def test_a_packed_row_is_off_by_half_a_step_of_its_own_largest_number(storage, step) -> None:
    rows = packed(storage).rows(np.arange(len(ROWS)))
    assert rows.dtype == np.float64
    assert (np.abs(rows - ROWS).max(axis=1) <= 1.001 * step * np.abs(ROWS).max(axis=1)).all()


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_products_are_those_of_the_rows_as_packed(storage) -> None:
    whole = packed(storage)
    exact = whole.rows(np.arange(len(ROWS))) @ WEIGHTS.T
    reach = np.abs(exact).max(axis=1)
    assert (np.abs(whole.product(WEIGHTS[0]) - exact[:, 0]) <= 1e-5 * reach).all()
    assert (np.abs(whole.products(WEIGHTS) - exact.T) <= 1e-5 * reach).all()
    assert whole.product(WEIGHTS[0]).dtype == np.float32


def test_a_row_of_zeros_stays_one() -> None:
    rows = PackedRows.unfilled((3, 5), storage="int8")
    rows.fill(0, np.zeros((3, 5)))
    assert not rows.rows(np.arange(3)).any()
    assert not rows.product(np.ones(5)).any()


def test_bytes_are_those_of_numbers_and_scales() -> None:
    assert packed("int8").nbytes == ROWS.size + 4 * len(ROWS)
    assert packed("float16").nbytes == 2 * ROWS.size


def test_an_unknown_storage_is_refused() -> None:
    with pytest.raises(InputError, match="int8"):
        packed("int4")


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_rows_on_a_device_give_the_same_products(storage) -> None:
    torch = pytest.importorskip("torch")
    host, device = packed(storage), DeviceRows.of(packed(storage), device="cpu")
    kept, weights = device.rows(torch.arange(len(ROWS))).numpy(), torch.from_numpy(WEIGHTS)
    assert (np.abs(kept - host.rows(np.arange(len(ROWS)))).max(axis=1) <= 2**-11 * np.abs(ROWS).max(axis=1)).all()
    exact = kept @ WEIGHTS.T
    reach = np.abs(exact).max(axis=1)
    assert (np.abs(device.products(weights[:1]).numpy() - exact.T[:1]) <= 1e-5 * reach).all()
    assert (np.abs(device.products(weights).numpy() - exact.T) <= 1e-5 * reach).all()
