from __future__ import annotations

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Budget, Dense, Gaussian
from adacur.errors import BudgetError, InputError, UnknownName
from adacur.first_stages.encoders import EncoderCard
from adacur.model import Uniform
from adacur.scorers import Metered
from adacur.search import METHODS, method_named, plan_search, search_options


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


@pytest.mark.parametrize("name", METHODS)
def test_a_name_is_short_for_the_method_with_its_defaults(name) -> None:
    assert method_named(name) == METHODS[name]()
    assert METHODS[name].name == name


@pytest.mark.parametrize(("name", "option"), [("rerank", "rounds"), ("anncur", "rounds"), ("exact", "seed")])
def test_an_option_that_a_method_does_not_take_cannot_be_written(name, option) -> None:
    with pytest.raises(InputError, match=f"{name}.*{option}"):
        method_named(name, **{option: 1})
    with pytest.raises(TypeError, match=option):
        METHODS[name](**{option: 1})


def test_a_method_that_there_is_not_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="adacur"):
        method_named("adacurr")


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("gaussian", "rounds", 0),
        ("adacur", "rounds", 2.5),
        ("adacur", "first_batch", -1),
        ("anncur", "split", 0.0),
        ("gaussian", "first_batch", 1.0),
        ("rerank", "seed", 0.5),
        ("gaussian", "keep_predictions", "none"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_their_value(name, option, value) -> None:
    with pytest.raises(BudgetError, match=rf"{option}.*{value}"):
        method_named(name, **{option: value})


def test_more_rounds_than_calls_are_as_many_rounds_as_calls(dense_index, world) -> None:
    plan = plan_search(dense_index, 2, budget=3, method=AdaCUR(rounds=7))
    assert plan.settings()["batch_sizes"] == (1, 1, 1)


def test_single_values_make_the_same_options_as_objects(dense_index) -> None:
    flat = search_options(
        dense_index, method="adacur", rounds=3, seed=None, first="dense", fuse=0.5, budget=40, deadline=9.0
    )
    assert flat["method"] == AdaCUR(rounds=3)
    assert (flat["first"], flat["fuse"]) == ("dense", 0.5)
    assert flat["budget"] == Budget(40, deadline=9.0)
    assert search_options(dense_index, first_batch=0.9)["method"] == Gaussian(first_batch=0.9)
    assert set(search_options(dense_index).values()) == {None}


def test_uniform_rounds_are_a_uniform_sample_whatever_is_predicted(world) -> None:
    index = AnchorIndex(world.index, scorer=world.scorer)
    scored = np.zeros(len(world.items))
    for seed in range(100):
        for hits in index.search(world.test, 5, budget=60, method=AdaCUR(acquisition=Uniform(), seed=seed)):
            positions = np.concatenate([round_.positions for round_ in hits.trace.rounds])
            assert len(set(positions.tolist())) == 60
            scored[positions] += 1
    share = scored / (100 * len(world.test))
    # 60 of 200 items; five standard deviations of a share over 600 draws.
    assert np.abs(share - 0.3).max() < 5 * np.sqrt(0.3 * 0.7 / 600)
