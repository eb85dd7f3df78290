from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import InputError, NonFiniteScore
from adacur_lab.measures import anchor_spectrum, spectrum


@pytest.mark.parametrize("shape", [(300, 20), (20, 20), (7, 20), (1, 1)])
def test_blocks_of_items_have_the_singular_values_of_the_whole(shape, monkeypatch) -> None:
    monkeypatch.setattr(anchor_spectrum, "_ITEMS_AT_ONCE", 16)
    matrix = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    whole = np.linalg.svd(matrix.astype(np.float64), compute_uv=False)
    assert spectrum(matrix).singular_values == pytest.approx(whole)


def test_the_rank_of_a_small_world_is_seen(make_world) -> None:
    found = spectrum(make_world(rank=7).anchor_scores.T)
    assert found.rank_for(1) == 7
    assert 1 < found.effective_rank < 7


def test_equal_directions_count_in_full() -> None:
    found = spectrum(3 * np.eye(5, 4))
    assert found.effective_rank == pytest.approx(4)
    assert [found.rank_for(share) for share in (0.25, 0.5, 0.51, 1)] == [1, 2, 3, 4]


def test_centring_takes_out_what_every_query_says_alike() -> None:
    matrix = np.random.default_rng(0).normal(size=(200, 10)) - 50 * np.arange(1, 201)[:, None]
    assert spectrum(matrix).effective_rank < 1.1
    centred = spectrum(matrix, centred=True)
    assert centred.effective_rank > 8
    assert centred.rank_for(1) == 9


def test_a_matrix_of_zeros_has_no_direction() -> None:
    found = spectrum(np.zeros((4, 3)))
    assert (found.effective_rank, found.rank_for(0.9)) == (0, 0)


def test_what_is_no_matrix_of_scores_is_refused() -> None:
    with pytest.raises(NonFiniteScore, match="anchor score"):
        spectrum(np.array([[1.0, np.inf]]))
    with pytest.raises(InputError, match="squares"):
        spectrum(np.eye(2)).rank_for(99)
