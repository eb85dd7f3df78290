"""What every acquisition promises."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model import Softmax, TopK, Uniform
from adacur.seeds import item_keys, stream_key

ACQUISITIONS = [TopK(), Softmax(), Softmax(temperature=0.01), Uniform()]


@pytest.fixture(params=ACQUISITIONS, ids=repr)
def acquisition(request):
    return request.param


def make(n_items: int = 50, seed: int = 0, scale: float = 1.0):
    rng = np.random.default_rng(seed)
    unscored = rng.random(n_items) < 0.7
    return scale * rng.normal(size=n_items), unscored, item_keys(f"i{position}" for position in range(n_items))


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_it_chooses_n_different_unscored_positions(acquisition, scale) -> None:
    predicted, unscored, keys = make(scale=scale)
    chosen = acquisition.choose(predicted, unscored=unscored, n=10, keys=keys, stream=stream_key(0, "q"))
    assert len(set(chosen.tolist())) == len(chosen) == 10
    assert unscored[chosen].all()


def test_it_chooses_all_that_is_left_when_that_is_less(acquisition) -> None:
    predicted, unscored, keys = make()
    unscored[:] = False
    unscored[[3, 17]] = True
    chosen = acquisition.choose(predicted, unscored=unscored, n=10, keys=keys, stream=1)
    assert sorted(chosen.tolist()) == [3, 17]


def test_the_order_of_the_items_changes_nothing(acquisition) -> None:
    predicted, unscored, keys = make()
    predicted = np.round(predicted)
    order = np.random.default_rng(3).permutation(len(predicted))
    straight = acquisition.choose(predicted, unscored=unscored, n=10, keys=keys, stream=7)
    mixed = acquisition.choose(predicted[order], unscored=unscored[order], n=10, keys=keys[order], stream=7)
    assert order[mixed].tolist() == straight.tolist()


def test_the_same_stream_draws_the_same_items(acquisition) -> None:
    predicted, unscored, keys = make()
    draw = lambda stream: acquisition.choose(predicted, unscored=unscored, n=10, keys=keys, stream=stream).tolist()  # noqa: E731
    assert draw(5) == draw(5)


def test_softmax_and_uniform_draw_differently_for_another_query() -> None:
    predicted, unscored, keys = make()
    for acquisition in (Softmax(), Uniform()):
        draws = {
            tuple(acquisition.choose(predicted, unscored=unscored, n=10, keys=keys, stream=stream_key(0, f"q{q}")))
            for q in range(5)
        }
        assert len(draws) == 5


def test_top_k_takes_the_highest_predictions() -> None:
    predicted, unscored, keys = make()
    chosen = TopK().choose(predicted, unscored=unscored, n=5, keys=keys, stream=0)
    rest = [p for p in np.flatnonzero(unscored) if p not in set(chosen.tolist())]
    assert predicted[chosen].min() >= predicted[rest].max()
    assert np.all(np.diff(predicted[chosen]) <= 0)


def test_a_cold_softmax_is_greedy() -> None:
    predicted, unscored, keys = make()
    greedy = TopK().choose(predicted, unscored=unscored, n=5, keys=keys, stream=0)
    cold = Softmax(temperature=1e-6).choose(predicted, unscored=unscored, n=5, keys=keys, stream=0)
    assert cold.tolist() == greedy.tolist()
