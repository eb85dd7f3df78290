"""Choices from predictions on a device are those that numpy makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacur.approximation import Softmax, TopK
from adacur.approximation.on_device import DeviceRow
from adacur.core.seeds import item_keys

torch = pytest.importorskip("torch")
KEYS = item_keys(str(position) for position in range(60))
VALUES = st.sampled_from([0.0, 1.0, 2.5, -3.0, np.inf, -np.inf, np.nan])


def both(choice, values, unscored, n):
    given = {"unscored": unscored, "n": n, "keys": KEYS[: len(values)], "stream": 5}
    with np.errstate(invalid="ignore"):
        return (
            choice.choose(values, **given).tolist(),
            choice.choose(DeviceRow(torch.from_numpy(values.copy())), **given).tolist(),
        )


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(VALUES, st.booleans()), min_size=1, max_size=60), st.integers(0, 70))
def test_the_best_are_the_same_whatever_ties_or_cannot_be_compared(rows, n) -> None:
    values = np.array([value for value, _ in rows], dtype=np.float32)
    on_host, on_device = both(TopK(), values, np.array([free for _, free in rows]), n)
    assert on_device == on_host


def test_the_best_of_many_are_the_same() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=60).astype(np.float32)
    for scored in (0, 3, 50):
        unscored = np.ones(60, dtype=bool)
        unscored[np.argsort(-values)[:scored]] = False
        on_host, on_device = both(TopK(), values, unscored, 7)
        assert on_device == on_host
        assert len(on_host) == 7


def test_a_sample_is_the_same() -> None:
    values = np.random.default_rng(0).normal(size=60).astype(np.float32)
    on_host, on_device = both(Softmax(), values, np.ones(60, dtype=bool), 9)
    assert on_device == on_host


def test_a_row_is_read_raised_and_copied_like_an_array() -> None:
    values = np.random.default_rng(0).normal(size=60).astype(np.float32)
    row = DeviceRow(torch.from_numpy(values.copy()))
    raised = row.copy()
    at = np.array([3, 59, 0])
    raised[at] += np.float32(2)
    assert np.asarray(row).tolist() == values.tolist()
    assert raised[at].tolist() == (values[at] + 2).tolist()
    assert row.std() == pytest.approx(values.std())
    assert row.dtype == np.float32
    assert len(row) == 60


@pytest.mark.parametrize("n", [2, 7, 40, 300, 5000])
def test_the_largest_of_a_long_row_and_all_that_tie_are_found(n) -> None:
    rng = np.random.default_rng(n)
    # Rounded, so that many tie.
    values = np.round(rng.normal(size=100 * 1024 + 77), 2).astype(np.float32)
    values[[5, 50_000, -1]] = [np.nan, np.inf, 9.0]
    found = DeviceRow(torch.from_numpy(values)).among_largest(n)
    least = np.sort(np.where(np.isnan(values), np.inf, values))[-n]
    assert sorted(found.tolist()) == np.flatnonzero(~(values < least)).tolist()
