"""Features of all items: whole, and from fewer numbers."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.approximation.item_factors import ItemFactors
from adacur.approximation.packed_rows import PackedRows

RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(500, 12)) + 2.0
# Anchor scores: what embeddings explain, and five directions of their own, each weaker than the one before.
OWN = RNG.normal(size=(500, 5)) * [5, 4, 3, 0.2, 0.1]
SCORES = (EMBEDDINGS - EMBEDDINGS.mean(axis=0)) @ RNG.normal(size=(12, 40)) + OWN @ RNG.normal(size=(5, 40))
FACTORS = ItemFactors(
    [PackedRows(SCORES.astype(np.float32)), PackedRows(EMBEDDINGS.astype(np.float32))],
    np.concatenate([np.zeros(40), EMBEDDINGS.mean(axis=0)]),
)
ALL = np.arange(500)


def off(factors: ItemFactors) -> float:
    """Root mean square difference of the features, in units of their spread."""
    whole = FACTORS.rows(ALL)
    return float(np.sqrt(np.square(factors.rows(ALL) - whole).mean() / np.square(whole).mean()))


def test_what_embeddings_explain_costs_no_rank() -> None:
    assert off(FACTORS.compressed(rank=5, storage="float32", spread=np.eye(40))) < 2e-3
    assert off(FACTORS.compressed(rank=3, storage="float32", spread=np.eye(40))) < 0.06
    assert off(FACTORS.compressed(rank=2, storage="float32", spread=np.eye(40))) > 0.2


def test_the_directions_that_are_spread_are_kept() -> None:
    queries = RNG.normal(size=(40, 40)) * 0.01
    wanted = RNG.normal(size=40)
    queries[:, 0] += 100 * wanted
    spread = np.linalg.cholesky(queries @ queries.T)
    plain = FACTORS.compressed(rank=1, storage="float32", spread=np.eye(40))
    towards = FACTORS.compressed(rank=1, storage="float32", spread=spread)
    weights = np.concatenate([wanted, np.zeros(12)])
    exact = FACTORS.product(weights)
    assert np.abs(towards.product(weights) - exact).max() < 0.05 * np.abs(plain.product(weights) - exact).max()


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_a_rank_of_all_dimensions_only_packs(storage) -> None:
    packed = FACTORS.compressed(rank=40, storage=storage, spread=np.eye(40))
    assert packed.mixing is None
    assert off(packed) < {"int8": 8e-3, "float16": 5e-4, "float32": 1e-6}[storage]


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_products_are_those_of_the_rows(storage) -> None:
    for factors in (FACTORS, FACTORS.compressed(rank=7, storage=storage, spread=np.eye(40))):
        weights = RNG.normal(size=(3, 52))
        exact = factors.rows(ALL) @ weights.T
        assert factors.n_features == 52
        assert factors.product(weights[0]) == pytest.approx(exact[:, 0], abs=2e-4)
        assert factors.products(weights) == pytest.approx(exact.T, abs=2e-4)
        assert factors.precise_product(weights[0]) == pytest.approx(exact[:, 0], abs=1e-9)


def test_compression_needs_no_embeddings() -> None:
    alone = ItemFactors([PackedRows(OWN @ RNG.normal(size=(5, 40)))], np.zeros(40))
    compressed = alone.compressed(rank=5, storage="float32", spread=np.eye(40))
    assert compressed.rows(ALL) == pytest.approx(alone.rows(ALL), abs=1e-4)
    assert compressed.nbytes == 500 * 5 * 4


def test_features_on_a_device_are_the_same() -> None:
    pytest.importorskip("torch")
    weights = RNG.normal(size=52)
    for factors in (FACTORS, FACTORS.compressed(rank=7, storage="int8", spread=np.eye(40))):
        moved = factors.on("cpu")
        assert moved.rows(ALL) == pytest.approx(factors.rows(ALL), abs=0.05)
        assert moved.product(weights).numpy() == pytest.approx(moved.rows(ALL) @ weights, abs=2e-4)
