"""AXN, the rival."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Dense
from adacur.errors import InputError
from adacur.scorers import Metered
from adacur.store import AnchorTable
from adacur_lab.axn import AXN, EmbeddingRegression
from adacur_lab.known_vectors import KnownVectors


@pytest.fixture
def linear(make_world):
    """A world whose scores are the product of query and item embeddings, plus a constant."""
    world = make_world(n_items=200, rank=8)
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(len(world.test), 8))
    object.__setattr__(world, "test_scores", queries @ world.item_embeddings.T - 11.0)
    return world, queries


def begin(world, queries, **options):
    of = {query.id: vector for query, vector in zip(world.test, queries, strict=True)}
    approximator = EmbeddingRegression(
        world.item_embeddings, embed_queries=lambda asked: np.stack([of[query.id] for query in asked]), **options
    )
    return approximator.begin(AnchorTable(world.index.items, (), np.empty((len(world.items), 0))), world.test)


def told(state, world, n: int):
    state.tell([np.arange(n)] * len(world.test), [scores[:n] for scores in world.test_scores])
    return state


def test_as_many_scores_as_dimensions_and_one_recover_linear_scores_and_their_constant(linear) -> None:
    world, queries = linear
    state = told(begin(world, queries, blend=0, ridge=1e-12), world, 9)
    assert state.predict() == pytest.approx(world.test_scores, abs=1e-6)


@pytest.mark.parametrize("blend", [0.3, 1.0])
def test_a_dual_encoder_that_points_right_helps_whatever_its_scale(linear, blend) -> None:
    world, queries = linear
    errors = {}
    for scale in (0.0, 1e-3, 1e3):
        state = told(begin(world, scale * queries, blend=blend if scale else 0), world, 4)
        predicted = state.predict()
        errors[scale] = 1 - np.mean(
            [np.corrcoef(*rows)[0, 1] for rows in zip(predicted, world.test_scores, strict=True)]
        )
    assert errors[1e-3] == pytest.approx(errors[1e3], abs=1e-6)
    assert errors[1e3] < errors[0.0]


def test_before_any_score_the_dual_encoder_ranks(linear) -> None:
    world, queries = linear
    predicted = begin(world, queries).predict()
    expected = queries @ world.item_embeddings.T
    assert np.argsort(predicted, axis=1).tolist() == np.argsort(expected, axis=1).tolist()


@pytest.mark.parametrize("n", [1, 3])
def test_equal_scores_point_nowhere_and_leave_the_lead_to_the_dual_encoder(linear, n) -> None:
    world, queries = linear
    state = begin(world, queries)
    state.tell([np.arange(n)] * len(world.test), [np.full(n, -11.0)] * len(world.test))
    expected = queries @ world.item_embeddings.T
    assert np.argsort(state.predict(), axis=1).tolist() == np.argsort(expected, axis=1).tolist()
    assert state.predict()[:, :n].mean(axis=1) == pytest.approx(-11.0)


def test_items_that_embed_alike_and_a_query_without_a_vector_can_be_predicted(linear) -> None:
    world, queries = linear
    object.__setattr__(world, "item_embeddings", np.ones_like(world.item_embeddings))
    assert np.isfinite(told(begin(world, 0 * queries), world, 5).predict()).all()


def test_a_constant_added_to_all_scores_is_added_to_all_predictions(linear) -> None:
    world, queries = linear
    plain = told(begin(world, queries), world, 6).predict()
    object.__setattr__(world, "test_scores", world.test_scores + 100.0)
    assert told(begin(world, queries), world, 6).predict() == pytest.approx(plain + 100.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blend": 1.5}, "blend"),
        ({"blend": 0.5}, "embed_queries"),
        ({"blend": 0, "ridge": 0}, "ridge"),
        ({"blend": 0, "ridge": float("nan")}, "ridge"),
    ],
)
def test_settings_that_mean_nothing_are_refused(options, message) -> None:
    with pytest.raises(InputError, match=message):
        EmbeddingRegression(np.ones((3, 2)), **options)


def test_embeddings_of_other_items_or_of_another_dimension_are_refused(world) -> None:
    with pytest.raises(InputError, match="finite"):
        EmbeddingRegression(np.full((3, 2), np.nan), blend=0)
    with pytest.raises(InputError, match="3 for 200"):
        EmbeddingRegression(np.ones((3, 2)), blend=0).begin(world.index, world.test)
    with pytest.raises(InputError, match=r"\(6, 2\)"):
        EmbeddingRegression(np.ones((200, 2)), embed_queries=lambda queries: np.ones((6, 3))).begin(
            world.index, world.test
        )


def test_axn_searches_with_the_dense_first_stage_s_vectors_and_no_anchor_scores(world) -> None:
    vectors = np.random.default_rng(2).normal(size=(len(world.test), world.item_embeddings.shape[1]))
    known = KnownVectors(world.test, vectors.astype(np.float32))
    # Items in another order than the index's: vectors belong to ids, not to rows.
    ids = [item.id for item in reversed(world.items)]
    dense_stage = Dense.from_embeddings(ids, world.item_embeddings[::-1], encoder=known)
    dense_index = AnchorIndex(world.index, scorer=Metered(world.scorer), first={"dense": dense_stage})
    hits = dense_index.search(world.test, k=5, budget=40, method=AXN(keep_predictions="last"))
    dense = dense_index.first_stage("dense")
    by_hand = AnchorIndex(dense_index.anchors, scorer=world.scorer).search(
        world.test,
        5,
        budget=40,
        method=AdaCUR(
            approximator=EmbeddingRegression(
                world.item_embeddings.astype(np.float32), embed_queries=dense.vectors().embed_queries
            )
        ),
        first=dense,
    )
    assert [found.ids for found in hits] == [found.ids for found in by_hand]
    assert dense_index.scorer.calls == 40 * len(world.test)
    settings = hits[0].trace.settings
    assert (settings["method"], settings["anchors"], settings["first"]) == ("axn", 0, "dense")
    assert settings["approximator"] == "EmbeddingRegression(blend=0.6, ridge=0.3)"
    assert hits[0].trace.approximate_scores.shape == (len(world.items),)


def test_axn_without_a_dual_encoder_is_refused(world) -> None:
    index = AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})
    with pytest.raises(InputError):
        index.search(world.test[0], k=5, budget=40, method=AXN(), first="noisy")
