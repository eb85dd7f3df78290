from __future__ import annotations

import numpy as np
import pytest

from adacur import Query
from adacur.errors import BudgetError, InputError, NonFiniteScore, UnknownName
from adacur.first_stages import Retriever
from adacur.model import Softmax, TopK, Uniform
from adacur_lab.oracle import Oracle


def make(world, **options) -> Oracle:
    return Oracle(queries=world.test, items=world.items, exact_scores=world.test_scores, **options)


@pytest.mark.parametrize("choice", [TopK(), Softmax(), Softmax(0.1), Uniform()], ids=repr)
@pytest.mark.parametrize("masked", [0, 7])
@pytest.mark.parametrize("random_share", [0.0, 0.5, 1.0])
def test_it_gives_k_different_items_best_first_and_none_of_the_masked(world, choice, masked, random_share) -> None:
    oracle = make(world, choice=choice, masked=masked, random_share=random_share)
    assert isinstance(oracle, Retriever)
    for hits, exact in zip(oracle.search(world.test, 20), world.test_scores, strict=True):
        found = [int(id_[1:]) for id_ in hits.ids]
        assert len(set(found)) == len(found) == 20
        assert hits.scores.tolist() == exact[found].tolist() == sorted(exact[found], reverse=True)
        assert not set(found) & set(np.argsort(-exact)[:masked].tolist())


def test_answers_depend_on_the_seed_and_the_query_and_on_nothing_else(world) -> None:
    options = {"choice": Softmax(), "masked": 3, "random_share": 0.5}
    together = [hits.ids for hits in make(world, **options).search(world.test, 12)]
    alone = [make(world, **options).search([query], 12)[0].ids for query in reversed(world.test)]
    assert together == alone[::-1]
    assert together != [hits.ids for hits in make(world, seed=1, **options).search(world.test, 12)]
    order = np.random.default_rng(0).permutation(len(world.items))
    mixed = Oracle(
        queries=world.test,
        items=[world.items[at] for at in order],
        exact_scores=world.test_scores[:, order],
        **options,
    )
    assert together == [hits.ids for hits in mixed.search(world.test, 12)]


def test_random_items_are_not_those_that_the_softmax_nearly_drew(world) -> None:
    """With equal scores a softmax is uniform too; drawn from one stream, its runners-up would be the random ones."""
    flat = np.zeros_like(world.test_scores)
    parts = {
        share: Oracle(
            queries=world.test, items=world.items, exact_scores=flat, choice=Softmax(), random_share=share
        ).search(world.test, 40)
        for share in (0.0, 0.5)
    }
    assert all(set(one.ids) != set(two.ids) for one, two in zip(parts[0.0], parts[0.5], strict=True))


def test_a_mask_that_leaves_too_few_items_gives_those_it_leaves(world) -> None:
    n_items = len(world.items)
    assert len(make(world, masked=n_items - 3).search(world.test, 10)[0]) == 3


def test_its_name_says_all_that_was_chosen(world) -> None:
    assert make(world, masked=10, random_share=0.25).name == "oracle(TopK(), masked=10, random_share=0.25)"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"masked": -1}, "masked"),
        ({"masked": 200}, "masked"),
        ({"masked": 1.5}, "masked"),
        ({"random_share": 1.2}, "random_share"),
        ({"random_share": float("nan")}, "random_share"),
    ],
)
def test_settings_that_mean_nothing_are_refused(world, options, message) -> None:
    with pytest.raises(InputError, match=message):
        make(world, **options)


def test_unknown_queries_repeated_queries_and_scores_that_are_no_numbers_are_refused(world) -> None:
    with pytest.raises(UnknownName, match="stranger"):
        make(world).search([Query("stranger", "who?")], 3)
    with pytest.raises(BudgetError, match="0"):
        make(world).search(world.test, 0)
    with pytest.raises(InputError, match="unique"):
        Oracle(queries=[world.test[0]] * 6, items=world.items, exact_scores=world.test_scores)
    with pytest.raises(NonFiniteScore):
        Oracle(queries=world.test, items=world.items, exact_scores=np.full_like(world.test_scores, np.nan))
