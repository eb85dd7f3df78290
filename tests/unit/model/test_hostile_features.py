"""Predictions from features that say nothing, or the same thing twice."""

import numpy as np
import pytest

from adacur.model import GaussianModel
from adacur.model.rank_slopes import RankSlopes
from adacur.store import AnchorTable
from tests.conftest import World, make_world

NOTHING = np.empty(0, dtype=np.intp)


def without_anchors(world: World) -> AnchorTable:
    return AnchorTable.of_items(world.index.items)


def predicted(model: GaussianModel, anchors, world: World, *ranks, told: int = 5) -> np.ndarray:
    """Predictions for one query after a few of its scores."""
    state = model.begin(anchors, world.test[:1], *([[list(ranks)]] if ranks else []))
    positions = np.arange(told)
    state.tell([positions], [world.test_scores[0][positions]])
    return state.predict()[0]


@pytest.mark.parametrize("n_anchors", [0, 8])
def test_stages_that_found_nothing_leave_predictions_as_without_ranks(n_anchors) -> None:
    world = make_world(n_items=50, n_anchors=8, noise=0.5)
    anchors = world.index.anchors if n_anchors else without_anchors(world)
    embeddings = world.item_embeddings
    ranked = predicted(
        GaussianModel(embeddings=embeddings, slopes=RankSlopes.assumed(2)), anchors, world, NOTHING, NOTHING
    )
    assert np.array_equal(ranked, predicted(GaussianModel(embeddings=embeddings), anchors, world))


@pytest.mark.parametrize("n_anchors", [0, 8])
def test_two_stages_that_say_the_same_are_as_good_as_one_of_twice_the_slope(n_anchors) -> None:
    world = make_world(n_items=50, n_anchors=8, noise=0.5)
    anchors = world.index.anchors if n_anchors else without_anchors(world)
    embeddings, ranks = world.item_embeddings, np.arange(10, 40)
    # The sum of two slopes has the sum of their means and of their variances.
    assumed = RankSlopes.assumed(2)
    one = RankSlopes(assumed.means[:1] * 2, assumed.covariance[:1, :1] * 2)
    twice, once = (
        predicted(GaussianModel(embeddings=embeddings, slopes=slopes), anchors, world, *[ranks] * n_stages, told=20)
        for slopes, n_stages in ((assumed, 2), (one, 1))
    )
    assert twice == pytest.approx(once, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("told", [1, 5, 20])
@pytest.mark.parametrize("score", [0.0, -1e200, 1e200])
def test_equal_scores_and_equal_embeddings_are_predicted_as_finite_numbers(told, score) -> None:
    world = make_world(n_items=30, n_anchors=4)
    world.test_scores[:] = score
    model = GaussianModel(embeddings=np.ones((30, 4)), slopes=RankSlopes.assumed(1), noise=0)
    found = predicted(model, without_anchors(world), world, np.arange(30), told=told)
    assert np.isfinite(found).all()


def test_an_index_of_one_item_is_predicted_as_a_finite_number() -> None:
    world = make_world(n_items=1, n_anchors=2)
    model = GaussianModel(slopes=RankSlopes.assumed(1))
    found = predicted(model, without_anchors(world), world, np.array([0]), told=1)
    assert found.shape == (1,)
    assert np.isfinite(found).all()
