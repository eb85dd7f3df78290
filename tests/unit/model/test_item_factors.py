"""Features of all items: whole, and from fewer numbers."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model.compressed import packed
from adacur.model.rows import ItemFactors, PackedRows

RNG = np.random.default_rng(0)
EMBEDDINGS = RNG.normal(size=(500, 12)) + 2.0
# Anchor scores: what embeddings explain, and five directions of their own, the last two weak.
OWN = RNG.normal(size=(500, 5)) * [5, 4, 3, 0.2, 0.1]
SCORES = (EMBEDDINGS - EMBEDDINGS.mean(axis=0)) @ RNG.normal(size=(12, 40)) + OWN @ RNG.normal(size=(5, 40))
FACTORS = ItemFactors(
    [PackedRows(SCORES.astype(np.float32)), PackedRows(EMBEDDINGS.astype(np.float32))],
    np.concatenate([np.zeros(40), EMBEDDINGS.mean(axis=0)]),
)
ALL = np.arange(500)


def compressed(factors: ItemFactors, *, columns: int, storage: str, root: np.ndarray) -> ItemFactors:
    rows = factors.rows(np.arange(factors.n_items))
    return packed(
        lambda: iter(np.array_split(rows, 3)),
        n_items=len(rows),
        inner=rows.T @ rows,
        columns=columns,
        storage=storage,
        root=root,
    )


def products(factors: ItemFactors, weights: np.ndarray, means: np.ndarray | None = None) -> np.ndarray:
    """The features of all items, and means once, times the weights of one query or of several."""
    weights = np.atleast_2d(weights)
    last = np.repeat([[float(means is not None), 0.0]], len(weights), axis=0)
    return factors.predictions(np.hstack([weights, last]), np.zeros(factors.n_items) if means is None else means)


def off(factors: ItemFactors) -> float:
    """Root mean square difference of the features, in units of their spread."""
    whole = FACTORS.rows(ALL)
    return float(np.sqrt(np.square(factors.rows(ALL) - whole).mean() / np.square(whole).mean()))


def test_as_many_columns_as_there_are_directions_keep_everything() -> None:
    assert off(compressed(FACTORS, columns=17, storage="float32", root=np.eye(52))) < 1e-5
    assert off(compressed(FACTORS, columns=15, storage="float32", root=np.eye(52))) < 0.06
    assert off(compressed(FACTORS, columns=10, storage="float32", root=np.eye(52))) > 0.1


def test_the_directions_that_are_spread_are_kept() -> None:
    queries = RNG.normal(size=(52, 52)) * 0.01
    wanted = RNG.normal(size=52)
    queries[:, 0] += 100 * wanted
    root = np.linalg.cholesky(queries @ queries.T)
    plain = compressed(FACTORS, columns=1, storage="float32", root=np.eye(52))
    towards = compressed(FACTORS, columns=1, storage="float32", root=root)
    exact = products(FACTORS, wanted)[0]
    assert np.abs(products(towards, wanted) - exact).max() < 0.05 * np.abs(products(plain, wanted) - exact).max()


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_as_many_columns_as_features_are_only_packed(storage) -> None:
    packed = compressed(FACTORS, columns=52, storage=storage, root=np.eye(52))
    assert packed.mixing is None
    assert off(packed) < {"int8": 8e-3, "float16": 5e-4, "float32": 1e-6}[storage]


@pytest.mark.parametrize("storage", ["int8", "float16", "float32"])
def test_products_are_those_of_the_rows(storage) -> None:
    for factors in (FACTORS, compressed(FACTORS, columns=15, storage=storage, root=np.eye(52))):
        weights = RNG.normal(size=(3, 52))
        exact = factors.rows(ALL) @ weights.T
        assert factors.n_features == 52
        assert products(factors, weights[0])[0] == pytest.approx(exact[:, 0], abs=2e-4)
        assert products(factors, weights) == pytest.approx(exact.T, abs=2e-4)


def test_items_in_front_by_the_leading_columns_are_predicted_by_all_columns() -> None:
    rng = np.random.default_rng(3)
    whole = rng.normal(size=(9000, 24)) * np.geomspace(10, 0.001, 24)
    factors = compressed(ItemFactors([PackedRows(whole)], np.zeros(24)), columns=20, storage="float32", root=np.eye(24))
    weights, means = rng.normal(size=24), rng.normal(size=9000)
    predicted = products(factors, weights, means)[0]
    exact = factors.rows(np.arange(9000)) @ weights + means
    in_front = np.argsort(-exact)[:1000]
    assert predicted[in_front] == pytest.approx(exact[in_front], abs=1e-4)
    assert np.argsort(-predicted)[:1000].tolist() == in_front.tolist()
    assert np.abs(predicted - exact).max() > 0.01
    turned = np.roll(np.arange(9000), 1234)
    moved = ItemFactors(
        [PackedRows(part.values[turned]) for part in factors.parts],
        factors.centre,
        mixing=factors.mixing,
        leading=True,
    )
    assert products(moved, weights, means[turned])[0] == pytest.approx(predicted[turned], abs=1e-5)


def test_of_few_items_all_are_predicted_by_all_columns() -> None:
    factors = compressed(FACTORS, columns=15, storage="int8", root=np.eye(52))
    weights, means = RNG.normal(size=52), RNG.normal(size=500)
    assert products(factors, weights, means)[0] == pytest.approx(factors.rows(ALL) @ weights + means, abs=2e-4)


@pytest.mark.parametrize("n_queries", [1, 3])
def test_features_on_a_device_are_the_same(n_queries) -> None:
    torch = pytest.importorskip("torch")
    weights, means = RNG.normal(size=(n_queries, 54)), RNG.normal(size=500).astype(np.float32)
    for factors in (FACTORS, compressed(FACTORS, columns=15, storage="int8", root=np.eye(52))):
        moved = factors.on("cpu")
        rows = moved.rows(torch.from_numpy(ALL)).numpy()
        assert rows == pytest.approx(factors.rows(ALL), abs=0.05)
        exact = weights @ np.hstack([rows, means[:, None], np.ones((500, 1))]).T
        for given, of in ((weights, factors), (torch.from_numpy(weights), moved)):
            predicted = of.predictions(given, means if of is factors else torch.from_numpy(means))
            assert np.asarray(predicted) == pytest.approx(exact, abs=5e-4)
