"""A factor that grows by blocks is the factor of the whole."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model.posteriors import GrowingCholesky


def covariance(size: int, *, rank: int | None = None, noise: float = 0.1) -> np.ndarray:
    rows = np.random.default_rng(3).normal(size=(size, rank or size))
    return rows @ rows.T + noise * np.eye(size)


def grown(whole: np.ndarray, ends: list[int], targets: np.ndarray) -> tuple[np.ndarray, GrowingCholesky]:
    factor = GrowingCholesky()
    for start, end in zip([0, *ends], [*ends, len(whole)], strict=True):
        solution = factor.append(whole[start:end, :start], whole[start:end, start:end], targets[start:end])
    return solution, factor


@pytest.mark.parametrize("ends", [[], [1], [10, 20, 30], [5, 5, 49]], ids=str)
def test_however_it_grows_it_solves_the_whole(ends) -> None:
    whole = covariance(50)
    targets = np.random.default_rng(4).normal(size=50)
    solution, _ = grown(whole, ends, targets)
    assert solution == pytest.approx(np.linalg.solve(whole, targets), rel=1e-8)


def test_precisions_are_the_diagonal_of_the_inverse() -> None:
    whole = covariance(60)
    assert grown(whole, [7, 23], np.zeros(60))[1].precisions() == pytest.approx(np.diag(np.linalg.inv(whole)), rel=1e-9)


def test_many_rows_of_few_dimensions_with_little_noise_are_still_solved() -> None:
    whole = covariance(200, rank=20, noise=1e-6)
    targets = whole @ np.random.default_rng(5).normal(size=200)
    answer, _ = grown(whole, list(range(20, 200, 20)), targets)
    assert whole @ answer == pytest.approx(targets, rel=1e-4)
