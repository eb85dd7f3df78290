"""What ranks of first stages tell of scores, as anchor queries show it."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model import GaussianModel
from adacur.model.constants import NOISE, SLOPE_DEVIATION
from adacur.model.rank_slopes import RISE, RankSlopes, rises
from adacur.protocols import Ranking
from tests.conftest import World, make_world


def ranked_world(
    slopes: list[tuple[float, float]], *, n_anchors: int = 40, n_items: int = 500, seed: int = 0
) -> tuple[World, list[list[np.ndarray]]]:
    """A world whose scores rise with the ranks in random lists, by slopes of this mean and deviation per stage."""
    world = make_world(n_items=n_items, n_anchors=n_anchors, rank=4, noise=0.3, seed=seed)
    random = np.random.default_rng(seed)
    lists = [[random.permutation(n_items) for _ in slopes] for _ in range(n_anchors)]
    for scores, of_query in zip(world.anchor_scores, lists, strict=True):
        for (mean, deviation), listed in zip(slopes, of_query, strict=True):
            scores[listed] += random.normal(mean, deviation) * RISE[:n_items]
    return world, lists


def fitted(world: World, lists: list[list[np.ndarray]], **given) -> RankSlopes:
    model = GaussianModel(rescale=False, **given)
    index = world.index
    columns = np.arange(len(lists))
    features = model.features_of(index)
    return RankSlopes.fitted(features, columns, lists, keys=index.items.keys)


def embed_queries(queries):
    return np.stack([np.random.default_rng(list(query.id.encode())).normal(size=6) for query in queries])


def test_rises_are_logarithms_of_ranks_and_nothing_beyond_the_list() -> None:
    lists = [np.array([4, 0, 9]), np.array([], dtype=np.intp), np.array([7])]
    found = rises(lists, np.array([0, 4, 7, 8]))
    expected = np.zeros((4, 3))
    expected[[0, 1], 0] = np.log(1010 / 11), np.log(1010 / 10)
    expected[2, 2] = np.log(1010 / 10)
    assert found == pytest.approx(expected)
    many = np.arange(1500)[::-1]
    assert rises([many], np.array([1499, 500, 499]))[:, 0] == pytest.approx([RISE[0], RISE[999], 0])


@pytest.mark.parametrize("given", [{}, {"embed_queries": embed_queries}], ids=["plain", "with query vectors"])
def test_slopes_are_those_of_the_anchor_queries(given) -> None:
    strong, noise = (fitted(*ranked_world([slope]), **given) for slope in ((2.0, 0.6), (0.0, 0.0)))
    assert strong.means[0] == pytest.approx(2, abs=0.3)
    assert strong.covariance[0, 0] ** 0.5 == pytest.approx(0.6, abs=0.2)
    assert abs(noise.means[0]) < 0.15
    assert noise.covariance[0, 0] < strong.covariance[0, 0] / 2


def test_each_of_two_stages_has_its_own_slope() -> None:
    both = fitted(*ranked_world([(1.5, 0.4), (0.0, 0.0)]))
    assert both.means == pytest.approx([1.5, 0.0], abs=0.25)
    assert both.covariance[0, 0] > both.covariance[1, 1]


def test_the_fewer_anchor_queries_the_more_is_assumed() -> None:
    assumed = RankSlopes.assumed(1)
    away = [abs(fitted(*ranked_world([(3.0, 0.0)], n_anchors=n)).means[0] - assumed.means[0]) for n in (2, 6, 60)]
    assert away[0] < away[1] < away[2]
    # Ten are as if they had been seen.
    assert away[0] == pytest.approx(2.5 * 2 / 12, abs=0.6)


def test_a_stage_that_found_nothing_is_assumed() -> None:
    world, lists = ranked_world([(1.5, 0.4)])
    nothing = np.empty(0, dtype=np.intp)
    both = fitted(world, [[listed, nothing] for (listed,) in lists])
    assert np.isfinite(both.covariance).all()
    assert both.means == pytest.approx([1.5, 0.25], abs=0.25)


def test_an_anchor_query_s_own_scores_do_not_explain_it() -> None:
    """What is left of each query is what a model without it leaves, up to a constant."""
    from adacur import AnchorIndex
    from adacur.model.features import query_kernel
    from adacur.model.rank_slopes import _unexplained

    world = make_world(n_items=60, n_anchors=9, noise=0.5)
    world.anchor_scores[:] += 3000 * np.random.default_rng(1).normal(size=60)
    model = GaussianModel(rescale=False, embed_queries=embed_queries)
    features = model.features_of(world.index)
    assert features.trust > 0.99
    kernel = query_kernel(features.anchor_vectors, features.anchor_vectors) + NOISE * np.eye(9)
    sums = np.linalg.solve(kernel, np.ones(9))
    for column in (0, 5):
        rest = [at for at in range(9) if at != column]
        others = AnchorIndex.from_arrays(
            items=world.items, anchor_queries=[world.anchors[at] for at in rest], scores=world.anchor_scores[rest]
        )
        predicted = GaussianModel(rescale=False, embed_queries=embed_queries).begin(others, [world.anchors[column]])
        wanted = world.anchor_scores[column] - predicted.predict()[0]
        left = _unexplained(features, column, np.arange(60), kernel, sums)
        # How far means are shrunk has seen the query.
        assert left - left.mean() == pytest.approx(wanted - wanted.mean(), abs=1e-3)


def test_words_are_features_beside_ranks_whose_slopes_are_learned() -> None:
    slopes = RankSlopes(np.array([0.5]), np.array([[0.04]]))
    terms = [Ranking(np.array([9, 2]), np.array([1.5, 3.0])), Ranking(np.array([4]), np.array([2.0]))]
    listed = slopes.features([np.array([4, 2])], terms)
    assert listed.positions.tolist() == [2, 4, 9]
    assert listed.values[:, 1:].tolist() == [[3.0, 0.0], [0.0, 2.0], [1.5, 0.0]]
    assert listed.values[:, 0].tolist() == [RISE[1], RISE[0], 0.0]
    assert listed.means.tolist() == [0.5, 0.0, 0.0]
    assert np.diag(listed.covariance) == pytest.approx([0.04, SLOPE_DEVIATION**2, SLOPE_DEVIATION**2])
