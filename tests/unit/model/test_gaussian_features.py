"""The Gaussian with features it was given, in less memory or on a device."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.model import GaussianModel
from adacur.model.device_posterior import DevicePosterior
from adacur.search import AdaCUR, AnchorIndex
from tests.conftest import make_world

WORLD = make_world(n_items=400, n_anchors=60, rank=12, noise=0.3)
VECTORS = np.random.default_rng(7).normal(size=(66, 8))


def embed_queries(queries):
    """Vectors by the number in the id."""
    return np.stack([VECTORS[int(query.id[1:]) + 60 * (query.id[0] == "t")] for query in queries])


def gaussian(**options) -> GaussianModel:
    return GaussianModel(embeddings=WORLD.item_embeddings.astype(np.float32), embed_queries=embed_queries, **options)


def told(approximator, anchors=None):
    state = approximator.begin(WORLD.index if anchors is None else anchors, WORLD.test)
    state.tell([np.arange(0, 400, 10)] * 6, [scores[::10] for scores in WORLD.test_scores])
    return state


def found(approximator, **options):
    method = AdaCUR(rounds=4, approximator=approximator, **options)
    index = AnchorIndex(WORLD.index.anchors, scorer=WORLD.scorer)
    hits = index.search(WORLD.test, 10, budget=60, method=method, first=WORLD.noisy_first(3.0))
    return [[round_.positions.tolist() for round_ in one.trace.rounds] for one in hits]


def test_features_of_full_rank_predict_what_the_scores_predict() -> None:
    full = gaussian().compressed(WORLD.index, rank=60, storage="float32")
    given = GaussianModel(embed_queries=embed_queries, features=full)
    assert told(given).predict() == pytest.approx(told(gaussian()).predict(), abs=1e-4)
    assert found(given) == found(gaussian())


def test_fewer_dimensions_than_the_scores_have_predict_worse_and_enough_predict_alike() -> None:
    exact = told(gaussian()).predict()

    def off(rank: int) -> float:
        features = gaussian().compressed(WORLD.index, rank=rank, storage="int8")
        return float(
            np.abs(told(GaussianModel(embed_queries=embed_queries, features=features)).predict() - exact).mean()
        )

    assert off(50) < off(20) < off(2)
    assert off(50) < 0.1 * exact.std()


def test_given_features_spare_the_scores_of_their_index_and_of_no_other() -> None:
    features = gaussian().compressed(WORLD.index, rank=30)
    given = GaussianModel(embed_queries=embed_queries, features=features)
    unread = SimpleNamespace(items=WORLD.index.items, anchor_queries=WORLD.index.anchor_queries)
    assert np.isfinite(told(given, unread).predict()).all()
    other = make_world(n_items=400, n_anchors=40, noise=0.3, seed=5)
    assert told(given, other.index).predict() == pytest.approx(
        told(GaussianModel(embed_queries=embed_queries), other.index).predict()
    )


def test_a_rank_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="rank"):
        gaussian().compressed(WORLD.index, rank=0)


def test_a_repr_names_columns_and_device() -> None:
    features = gaussian().compressed(WORLD.index, rank=30)
    assert "features: 11 + 31" in repr(GaussianModel(features=features))
    assert "no embeddings" not in repr(GaussianModel(features=features))


def test_a_search_on_a_device_scores_the_items_that_numpy_would() -> None:
    pytest.importorskip("torch")
    on_device = gaussian(device="cpu")
    assert found(on_device) == found(gaussian())
    assert isinstance(told(on_device), DevicePosterior)
    assert np.stack([np.asarray(row) for row in told(on_device).predict()]) == pytest.approx(
        told(gaussian()).predict(), abs=1e-4
    )


def test_compressed_features_search_on_a_device_too() -> None:
    pytest.importorskip("torch")
    features = gaussian().compressed(WORLD.index, rank=30, storage="float16")
    host = GaussianModel(embed_queries=embed_queries, features=features)
    device = GaussianModel(embed_queries=embed_queries, features=features, device="cpu")
    assert found(device) == found(host)
