from __future__ import annotations

import numpy as np
import pytest

from adacur.model import cur as pseudo_inverse
from adacur.model.cur import GrowingLeastSquares


def grown(rows: np.ndarray, targets: np.ndarray, batch: int) -> GrowingLeastSquares:
    solver = GrowingLeastSquares(rows.shape[1])
    for start in range(0, len(rows), batch):
        solver.append(rows[start : start + batch], targets[start : start + batch])
    return solver


def error(solver: GrowingLeastSquares, rows: np.ndarray, targets: np.ndarray, everything: np.ndarray) -> float:
    """Relative error of the predictions that follow from the solution, against numpy's pseudo-inverse.

    Its own cut, 1e-15, takes the rounding of some builds of BLAS for a direction.
    """
    expected = everything @ (np.linalg.pinv(rows, rcond=1e-13) @ targets)
    return float(np.linalg.norm(everything @ solver.solution - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(
    ("columns", "rank", "batch"),
    [(10, 5, 3), (10, 5, 1), (14, 5, 5), (20, 8, 4), (50, 10, 6), (100, 20, 20), (30, 30, 7), (30, 30, 30)],
)
def test_a_system_of_any_rank_is_solved_as_pinv_solves_it_after_every_batch(columns, rank, batch) -> None:
    """Targets are not consistent with the rows, so that a direction too many would show."""
    for seed in range(15):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(3 * columns, rank)) @ rng.normal(size=(rank, columns))
        targets = rng.normal(size=len(rows))
        solver = GrowingLeastSquares(columns)
        for start in range(0, len(rows), batch):
            solver.append(rows[start : start + batch], targets[start : start + batch])
            seen = slice(0, start + batch)
            assert error(solver, rows[seen], targets[seen], rows) < 1e-6
        assert solver.rank == rank


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e20])
def test_the_scale_of_the_rows_does_not_matter(scale) -> None:
    rng = np.random.default_rng(0)
    rows, targets = scale * rng.normal(size=(40, 12)), rng.normal(size=40)
    assert error(grown(rows, targets, 5), rows, targets, rows) < 1e-9


@pytest.mark.parametrize("odd", [np.zeros((6, 9)), np.ones((6, 9)), np.repeat(np.eye(9)[:2], 3, axis=0)])
def test_rows_that_say_nothing_new_are_averaged(odd) -> None:
    targets = np.arange(6.0)
    solver = grown(odd, targets, 2)
    assert solver.solution == pytest.approx(np.linalg.pinv(odd) @ targets, abs=1e-12)


def test_nothing_told_means_nothing_predicted() -> None:
    solver = GrowingLeastSquares(4)
    solver.append(np.empty((0, 4)), np.empty(0))
    assert solver.solution.tolist() == [0, 0, 0, 0]


def test_nearly_equal_rows_of_float32_agree_with_pinv() -> None:
    rng = np.random.default_rng(1)
    rows = np.repeat(rng.normal(size=(20, 30)), 2, axis=0)
    rows[1::2] += 1e-5 * rng.normal(size=(20, 30))
    rows = rows.astype(np.float32).astype(np.float64)
    targets = rng.normal(size=40)
    assert error(grown(rows, targets, 8), rows, targets, rows) < 1e-6


def test_a_decomposition_that_gives_up_is_tried_on_the_transpose(monkeypatch) -> None:
    # LAPACK fails on a few finite matrices only, none of them small.
    decompose, asked = np.linalg.svd, []

    def failing(matrix, **options):
        asked.append(matrix.shape)
        if len(asked) == 1:
            raise np.linalg.LinAlgError("SVD did not converge")
        return decompose(matrix, **options)

    matrix = np.random.default_rng(0).normal(size=(7, 4))
    monkeypatch.setattr(np.linalg, "svd", failing)
    left, sizes, right = pseudo_inverse._singular(matrix)
    assert asked == [(7, 4), (4, 7)]
    np.testing.assert_allclose(left * sizes @ right, matrix, atol=1e-12)
