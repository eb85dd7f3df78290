"""Predictions for the most promising lists of items only."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.approximation import ItemFactors, ItemLists, PackedRows, TopK
from adacur.core.errors import InputError

RNG = np.random.default_rng(0)
CENTRES = RNG.normal(size=(30, 16)) * 3
WHOLE = CENTRES[RNG.integers(30, size=6000)] + RNG.normal(size=(6000, 16))
MEANS = RNG.normal(size=6000).astype(np.float32)
FACTORS = ItemFactors([PackedRows(WHOLE)], np.zeros(16)).compressed(columns=12, storage="int8", spread=np.eye(16))
LISTS = ItemLists.of(FACTORS, MEANS, n_lists=30)
WEIGHTS = RNG.normal(size=16)
EXACT = FACTORS.product(WEIGHTS) + MEANS + 0.5
KEYS = RNG.integers(0, 2**63, size=6000, dtype=np.uint64)


def row(probe):
    return LISTS.row(FACTORS, WEIGHTS, means=MEANS, level=0.5, probe=probe)


def test_every_item_is_in_one_list() -> None:
    assert np.sort(LISTS.positions).tolist() == list(range(6000))
    assert (LISTS.starts[0], LISTS.starts[-1], len(LISTS.starts)) == (0, 6000, 31)


def test_all_lists_hold_what_a_product_with_all_items_gives() -> None:
    whole = np.asarray(row(30))
    in_front = np.argsort(-EXACT)[:500]
    assert whole[in_front] == pytest.approx(EXACT[in_front], abs=1e-3)
    unscored = np.ones(6000, dtype=np.bool_)
    unscored[in_front[:5]] = False
    chosen = TopK().choose(row(30), unscored=unscored, n=50, keys=KEYS, stream=0)
    assert chosen.tolist() == TopK().choose(EXACT, unscored=unscored, n=50, keys=KEYS, stream=0).tolist()


def test_a_few_lists_hold_most_of_the_best_items_and_few_others() -> None:
    found = row(6).among_largest(6000)
    assert len(found) < 2000
    assert np.isin(np.argsort(-EXACT)[:50], found).mean() > 0.9


def test_an_item_outside_the_lists_is_predicted_when_asked_for() -> None:
    near = row(1)
    outside = np.setdiff1d(np.arange(6000), near.among_largest(6000))[:3]
    assert near[outside] == pytest.approx(EXACT[outside], abs=1e-3)
    assert np.isneginf(np.asarray(near)[outside]).all()
    near[outside] = np.array([100.0, 99.0, 98.0], dtype=np.float32)
    assert near.among_largest(3).tolist() == outside.tolist()
    assert np.asarray(near)[outside].tolist() == [100, 99, 98]


def test_a_copy_is_a_row_of_its_own() -> None:
    near = row(4)
    best = near.among_largest(1)
    other = near.copy()
    other[best] = np.array([-50.0], dtype=np.float32)
    assert near.among_largest(1).tolist() == best.tolist()
    assert other.among_largest(1).tolist() != best.tolist()


def test_the_spread_is_that_of_all_items() -> None:
    assert row(2).std() == pytest.approx(EXACT.std(), rel=0.1)


def test_as_many_lists_as_the_root_of_the_items_unless_said() -> None:
    assert len(ItemLists.of(FACTORS, MEANS)) == 77
    with pytest.raises(InputError, match="6000; got 7000"):
        ItemLists.of(FACTORS, MEANS, n_lists=7000)


def test_an_empty_list_is_not_looked_into_while_others_hold_items() -> None:
    alike = ItemFactors([PackedRows(np.ones((300, 8)))], np.zeros(8)).compressed(
        columns=6, storage="int8", spread=np.eye(8)
    )
    means = np.zeros(300, dtype=np.float32)
    lists = ItemLists.of(alike, means, n_lists=10)
    assert np.count_nonzero(np.diff(lists.starts)) == 1
    assert len(lists.row(alike, np.ones(8), means=means, level=0.0, probe=1).among_largest(300)) == 300


@pytest.mark.parametrize("seed", [-1, 2**31, 2**40])
def test_any_whole_number_is_a_seed(seed) -> None:
    assert len(ItemLists.of(FACTORS, MEANS, n_lists=5, seed=seed)) == 5
