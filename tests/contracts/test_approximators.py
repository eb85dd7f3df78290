"""What every approximator promises."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model import GaussianModel, PseudoInverse
from tests.conftest import make_world

EMBEDDINGS = np.random.default_rng(9).normal(size=(200, 16)).astype(np.float32)


def embed_queries(queries):
    """A vector that belongs to the query's id."""
    return np.stack([np.random.default_rng(list(query.id.encode())).normal(size=16) for query in queries])


APPROXIMATORS = [
    PseudoInverse(),
    GaussianModel(),
    GaussianModel(embeddings=EMBEDDINGS),
    GaussianModel(embeddings=EMBEDDINGS, embed_queries=embed_queries),
    GaussianModel(embed_queries=embed_queries, rescale=False),
    GaussianModel(noise=1e-5, rescale=False, centre=False),
    GaussianModel(embeddings=(100 * EMBEDDINGS).astype(np.int8)),
]


@pytest.fixture(params=APPROXIMATORS, ids=repr)
def approximator(request):
    return request.param


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_have_one_row_per_query_and_one_column_per_item(approximator, dtype) -> None:
    world = make_world(noise=0.2)
    object.__setattr__(world, "anchor_scores", world.anchor_scores.astype(dtype))
    state = approximator.begin(world.index, world.test)
    state.tell([np.arange(5)] * len(world.test), [scores[:5] for scores in world.test_scores])
    assert state.predict().shape == (len(world.test), len(world.items))
    assert np.isfinite(state.predict()).all()
    assert np.isfinite(state.in_scores(0, state.predict())).all()


def test_a_query_s_prediction_does_not_depend_on_the_others(approximator) -> None:
    world = make_world(noise=0.2)
    rng = np.random.default_rng(0)
    told = [rng.permutation(len(world.items))[:12] for _ in world.test]
    batch = approximator.begin(world.index, world.test)
    batch.tell(told, [scores[where] for scores, where in zip(world.test_scores, told, strict=True)])
    for row, query in enumerate(world.test):
        alone = approximator.begin(world.index, [query])
        alone.tell([told[row]], [world.test_scores[row][told[row]]])
        assert alone.predict()[0].tolist() == batch.predict()[row].tolist()


def test_telling_in_parts_equals_telling_at_once(approximator) -> None:
    world = make_world(noise=0.2)
    order = np.random.default_rng(1).permutation(len(world.items))[:45]
    at_once = approximator.begin(world.index, world.test)
    at_once.tell([order] * len(world.test), [scores[order] for scores in world.test_scores])
    in_parts = approximator.begin(world.index, world.test)
    for part in np.split(order, [1, 7, 29, 30, 31]):
        in_parts.tell([part] * len(world.test), [scores[part] for scores in world.test_scores])
    assert in_parts.predict() == pytest.approx(at_once.predict(), rel=1e-6, abs=1e-6)


def test_queries_may_be_told_different_numbers_of_scores(approximator) -> None:
    world = make_world(n_test=3, noise=0.2)
    state = approximator.begin(world.index, world.test)
    told = [np.arange(4), np.arange(0), np.arange(9)]
    state.tell(told, [scores[where] for scores, where in zip(world.test_scores, told, strict=True)])
    assert np.isfinite(state.predict()).all()


@pytest.mark.parametrize(
    "approximator", [PseudoInverse(), GaussianModel(noise=0, rescale=False, centre=False)], ids=repr
)
def test_enough_exact_scores_recover_a_low_rank_matrix(approximator) -> None:
    world = make_world(rank=8, n_anchors=20)
    state = approximator.begin(world.index, world.test)
    state.tell([np.arange(8)] * len(world.test), [scores[:8] for scores in world.test_scores])
    assert state.predict() == pytest.approx(world.test_scores, abs=1e-6)


def test_a_query_that_nothing_is_known_of_can_be_predicted(approximator) -> None:
    world = make_world(noise=0.2)
    assert np.isfinite(approximator.begin(world.index, world.test).predict()).all()
