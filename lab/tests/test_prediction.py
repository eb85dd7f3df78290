from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from adacur import AdaCUR, AnchorIndex, Rerank
from adacur.errors import InputError, NonFiniteScore
from adacur_lab.measures import approximation_error, predictions

EXACT = np.array([[1.0, 9.0, 5.0, 7.0]])
APPROXIMATE = EXACT + np.array([1.0, -8.0, 4.0, 2.0])


def plain(values: dict[str, np.ndarray]) -> dict[str, float]:
    return {name: float(own[0]) for name, own in values.items()}


def test_errors_are_told_for_all_items_for_the_best_and_by_band() -> None:
    assert plain(approximation_error(APPROXIMATE, EXACT, top=(1, 2), band_ends=(1, 3))) == {
        "error.all": (8 + 2 + 4 + 1) / 4,
        "error.top@1": 8,
        "error.top@2": (8 + 2) / 2,
        "error.ranks@1-1": 8,
        "error.ranks@2-3": (2 + 4) / 2,
        "error.ranks@4-": 1,
    }


def test_items_with_equal_scores_share_their_ranks() -> None:
    exact = np.array([[5.0, 3.0, 3.0, 3.0, 1.0]])
    approximate = exact + np.array([0.0, 1.0, 2.0, 6.0, 0.0])
    values = plain(approximation_error(approximate, exact, top=(2, 4), band_ends=(3,)))
    assert values["error.top@2"] == (0 + 3) / 2
    assert values["error.top@4"] == (0 + 9) / 4
    assert values["error.ranks@1-3"] == (0 + 3 + 3) / 3
    assert values["error.ranks@4-"] == (3 + 0) / 2


def test_a_band_beyond_the_last_item_has_no_error_and_a_larger_k_means_all() -> None:
    values = plain(approximation_error(APPROXIMATE, EXACT))
    assert values["error.top@100"] == values["error.all"]
    assert values["error.ranks@1-10"] == values["error.all"]
    assert np.isnan([values["error.ranks@11-100"], values["error.ranks@1001-"]]).all()


@given(
    arrays.arrays(np.float64, (2, 12), elements=st.integers(-3, 3).map(float)),
    arrays.arrays(np.float64, (2, 12), elements=st.floats(-5, 5)),
    st.permutations(range(12)),
)
def test_the_order_of_the_items_changes_no_error(exact, approximate, order) -> None:
    values = approximation_error(approximate, exact, top=(1, 5), band_ends=(3, 7))
    shuffled = approximation_error(approximate[:, order], exact[:, order], top=(1, 5), band_ends=(3, 7))
    for name, own in values.items():
        assert shuffled[name] == pytest.approx(own)


@given(arrays.arrays(np.float32, (3, 9), elements=st.floats(-9, 9, width=16)))
def test_bands_weighted_by_their_size_make_up_the_whole(exact) -> None:
    values = approximation_error(np.zeros_like(exact), exact, top=(), band_ends=(2, 6))
    bands = [values["error.ranks@1-2"], values["error.ranks@3-6"], values["error.ranks@7-"]]
    assert np.average(bands, axis=0, weights=[2, 4, 3]) == pytest.approx(values["error.all"])


def test_the_predictions_of_a_search_are_measured(make_world) -> None:
    world = make_world(rank=5)
    index = AnchorIndex(world.index, scorer=world.scorer)
    hits = index.search(world.test, k=3, budget=20, method=AdaCUR(keep_predictions="last"))
    values = approximation_error(predictions(hits), world.test_scores)
    # Twenty items of a matrix of rank five tell everything.
    assert values["error.all"] == pytest.approx(0, abs=1e-9)


def test_hits_without_predictions_are_refused(world) -> None:
    index = AnchorIndex(world.index, scorer=world.scorer)
    hits = index.search(world.test, k=3, budget=5, method=Rerank(), first=world.noisy_first())
    with pytest.raises(InputError, match="keep_predictions"):
        predictions(hits)
    with pytest.raises(InputError, match="keep_predictions"):
        predictions([])


def test_scores_that_do_not_match_or_are_missing_are_refused() -> None:
    with pytest.raises(InputError, match="differ in shape"):
        approximation_error(APPROXIMATE[:, :3], EXACT)
    with pytest.raises(InputError, match="scores"):
        approximation_error(APPROXIMATE[0], EXACT)
    with pytest.raises(NonFiniteScore, match=r"query 0 and.*item 0"):
        approximation_error(np.where(EXACT == 1, np.nan, EXACT), EXACT)
