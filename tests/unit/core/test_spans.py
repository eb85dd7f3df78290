"""Sums over all items, made of sums that whoever holds a part can make."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.core.spans import span_length, span_moments, span_sums, standard_deviation


@pytest.mark.parametrize("n_items", [1, 64, 1501, 70_001])
def test_the_parts_have_the_sums_of_the_whole(n_items) -> None:
    values = (1000 + np.random.default_rng(0).normal(size=n_items)).astype(np.float32)
    length = span_length(n_items)
    cut = length * (n_items // length // 2)
    for summed in (span_sums, span_moments):
        parts = [summed(part, length) for part in (values[:cut], values[cut:]) if len(part)]
        assert np.array_equal(np.concatenate(parts), summed(values, length))
    assert standard_deviation(span_moments(values, length)) == pytest.approx(
        float(values.astype(float).std()), rel=1e-9
    )


def test_there_are_at_most_256_spans_whatever_the_number_of_items() -> None:
    for n_items in (1, 10_000, 16_385, 10**8, 10**9):
        assert -(-n_items // span_length(n_items)) <= 256
        assert span_length(n_items).bit_count() == 1


def test_what_is_no_number_has_no_spread() -> None:
    values = np.array([1.0, np.inf, 2.0], dtype=np.float32)
    with np.errstate(invalid="ignore"):
        assert np.isnan(standard_deviation(span_moments(values, 64)))
