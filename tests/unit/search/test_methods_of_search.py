from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adacur import ANNCUR, AdaCUR, AnchorIndex, Budget, Dense, MatrixRetriever, Metered, Uniform
from adacur.approximation import EmbeddingRegression
from adacur.core.errors import BudgetError, InputError
from adacur.first_stages.encoders import EncoderCard
from adacur.search.methods import held_out_split, without_anchors


class KnownVectors:
    """An encoder that knows the vector of each query's text."""

    def __init__(self, queries, vectors: np.ndarray) -> None:
        self._vectors = {query.text: vector for query, vector in zip(queries, vectors, strict=True)}
        self.dimension = vectors.shape[1]
        self.card = EncoderCard(kind="known", dimension=self.dimension)

    def encode_queries(self, texts):
        return np.stack([self._vectors[text] for text in texts]).astype(np.float32)

    def encode_items(self, texts):
        return self.encode_queries(texts)


@pytest.fixture
def dense_index(world) -> AnchorIndex:
    vectors = np.random.default_rng(2).normal(size=(len(world.test), world.item_embeddings.shape[1]))
    # Items in another order than the index's: vectors belong to ids, not to rows.
    dense = Dense.from_embeddings(
        [item.id for item in reversed(world.items)],
        world.item_embeddings[::-1],
        encoder=KnownVectors(world.test, vectors),
    )
    return AnchorIndex(world.index, scorer=Metered(world.scorer), first={"dense": dense})


def test_axn_searches_with_the_dense_first_stage_s_vectors_and_no_anchor_scores(dense_index, world) -> None:
    hits = dense_index.search_batch(world.test, k=5, budget=40, method="axn", approximate_scores=True)
    dense = dense_index.first_stage("dense")
    by_hand = AdaCUR(
        index=without_anchors(dense_index),
        scorer=world.scorer,
        budget=Budget(calls=40),
        first=dense,
        approximator=EmbeddingRegression(world.item_embeddings.astype(np.float32), embed_queries=dense.embed_queries),
    ).search(world.test, 5)
    assert [found.ids for found in hits] == [found.ids for found in by_hand]
    assert dense_index.scorer.calls == 40 * len(world.test)
    settings = hits[0].trace.settings
    assert (settings["method"], settings["anchors"], settings["first"]) == ("axn", 0, "dense")
    assert settings["approximator"] == "EmbeddingRegression(blend=0.6, ridge=0.3)"
    assert hits[0].approximate_scores.shape == (len(world.items),)


def test_axn_takes_another_blend_as_an_object(dense_index, world) -> None:
    approximator = EmbeddingRegression(world.item_embeddings, blend=0)
    hits = dense_index.search(world.test[0], k=5, budget=40, method="axn", approximator=approximator)
    assert hits.trace.settings["approximator"] == "EmbeddingRegression(blend=0, ridge=0.3)"


def test_axn_without_a_dual_encoder_says_what_to_do(world) -> None:
    index = AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})
    with pytest.raises(InputError, match=r"first=\['dense'\]"):
        index.search(world.test[0], k=5, budget=40, method="axn", first="noisy")
    with pytest.raises(InputError, match="split"):
        index.search(world.test[0], k=5, budget=40, method="axn", split=0.3)


def test_uniform_rounds_are_a_uniform_sample_whatever_is_predicted(world) -> None:
    search = lambda seed: AdaCUR(  # noqa: E731
        index=world.index, scorer=world.scorer, budget=Budget(calls=60), acquisition=Uniform(), seed=seed
    ).search(world.test, 5)
    scored = np.zeros(len(world.items))
    for seed in range(100):
        for hits in search(seed):
            positions = np.concatenate([round_.positions for round_ in hits.trace.rounds])
            assert len(set(positions.tolist())) == 60
            scored[positions] += 1
    share = scored / (100 * len(world.test))
    # 60 of 200 items; five standard deviations of a share over 600 draws.
    assert np.abs(share - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 600)


@pytest.mark.parametrize("seed", range(4))
def test_the_held_out_split_is_the_one_that_wins_on_queries_like_the_anchor_queries(make_world, seed) -> None:
    """Few anchor items recover this world, so little is best spent on them, and the test queries agree."""
    world = make_world(n_items=400, n_anchors=80, n_test=60, rank=4, noise=0.3, seed=seed)
    budget = Budget(calls=40)
    chosen = held_out_split(world.index, budget=budget, k=20, n_held_out=40)

    def found(split: float) -> float:
        hits = ANNCUR(index=world.index, scorer=world.scorer, budget=budget, split=split).search(world.test, 20)
        worst = np.sort(world.test_scores, axis=1)[:, -20]
        return np.mean([(own.scores >= least).mean() for own, least in zip(hits, worst, strict=True)])

    recalls = {split: found(split) for split in (tenth / 10 for tenth in range(1, 10))}
    assert recalls[chosen] > max(recalls.values()) - 0.03
    assert recalls[chosen] > min(recalls.values()) + 0.1


def test_the_held_out_split_replays_the_same_for_any_order_of_anchor_queries_and_asks_the_first_stage(world) -> None:
    asked: list[str] = []

    class Listening:
        def search(self, queries, k):
            asked.extend(query.id for query in queries)
            everything = MatrixRetriever(queries=world.anchors, items=world.items, scores=world.anchor_scores)
            return everything.search(queries, k)

    options = {"budget": Budget(calls=40), "k": 5, "n_held_out": 10}
    split = held_out_split(world.index, first=Listening(), **options)
    assert split in {tenth / 10 for tenth in range(1, 10)}
    assert len(set(asked)) == 10
    first_asked = set(asked)
    asked.clear()
    backwards = dataclasses.replace(world, anchors=world.anchors[::-1], anchor_scores=world.anchor_scores[::-1])
    assert held_out_split(backwards.index, first=Listening(), **options) == split
    assert set(asked) == first_asked


def test_at_most_half_of_the_anchor_queries_are_held_out_and_one_is_too_few(make_world) -> None:
    assert 0 < held_out_split(make_world(n_anchors=3).index, budget=Budget(calls=20), k=2, n_held_out=100) < 1
    with pytest.raises(InputError, match="two anchor queries"):
        held_out_split(make_world(n_anchors=1).index, budget=Budget(calls=20), k=2)
    with pytest.raises(BudgetError, match="k must not exceed"):
        held_out_split(make_world().index, budget=Budget(calls=20), k=30)


def test_items_without_anchor_scores_are_a_collection_to_search(world) -> None:
    index = world.index
    bare = without_anchors(index)
    assert bare.items is index.items
    assert (len(bare.anchor_queries), bare.matrix.shape) == (0, (len(world.items), 0))
