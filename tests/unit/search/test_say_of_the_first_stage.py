"""How much the first stage has to say after the first round, and searches without anchor queries."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Dense
from adacur.errors import BudgetError, InputError
from adacur.first_stages import Matrix
from adacur.replay import top_k_recall
from adacur.scorers import MatrixScorer
from tests.conftest import make_world


def batches(world, **options) -> list[list[int]]:
    (hits,) = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test[:1], 5, budget=40, method=AdaCUR(rounds=4, **options), first=world.noisy_first()
    )
    return [round_.positions.tolist() for round_ in hits.trace.rounds]


def test_the_first_round_takes_its_share_of_the_budget_and_never_less_than_the_others(world) -> None:
    assert [len(batch) for batch in batches(world, first_batch=0.4)] == [16, 8, 8, 8]
    assert [len(batch) for batch in batches(world, first_batch=0.99)] == [37, 1, 1, 1]
    assert [len(batch) for batch in batches(world, first_batch=0.001)] == [10, 10, 10, 10]


@pytest.mark.parametrize("wrong", [{"first_batch": 0}, {"first_batch": 1}], ids=str)
def test_shares_and_weights_that_make_no_sense_are_refused(world, wrong) -> None:
    with pytest.raises(BudgetError, match=next(iter(wrong))):
        batches(world, **wrong)


def test_without_anchor_queries_a_search_follows_the_item_vectors() -> None:
    world = make_world(n_items=400, n_test=20, rank=6)
    # The encoder is not asked: queries start from a first stage that knows little.
    dense = Dense.from_embeddings([item.id for item in world.items], world.item_embeddings)
    blurred = world.noisy_first(noise=8.0)
    index = AnchorIndex.from_items(world.items, scorer=world.scorer, first={"dense": dense})
    assert len(index.anchor_queries) == 0
    found = top_k_recall(index.search(world.test, 10, budget=80, first=blurred), world.test_scores, k=10)
    reranked = index.search(world.test, 10, budget=80, method="rerank", first=blurred)
    assert found.mean() > top_k_recall(reranked, world.test_scores, k=10).mean() + 0.1


def test_methods_that_need_anchor_queries_say_so(world) -> None:
    index = AnchorIndex.from_items(world.items, scorer=world.scorer)
    with pytest.raises(InputError, match="this index has none"):
        index.search(world.test[0], method="adacur")
    assert len(index.search(world.test[0], 3, budget=20)) == 3


def test_a_first_stage_that_knows_few_items_still_leads(world) -> None:
    known = world.items[:7]
    few = Matrix(queries=world.test, items=known, scores=world.test_scores[:, :7])
    hits = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, 5, budget=30, method=AdaCUR(rounds=3), first=few
    )
    assert all(hit.trace.calls == 30 for hit in hits)
    assert all(np.isin(np.arange(7), hit.trace.rounds[0].positions).all() for hit in hits)


def test_where_there_is_nothing_to_predict_from_the_first_stage_alone_leads(world) -> None:
    first = world.noisy_first()
    index = AnchorIndex.from_items(world.items, scorer=world.scorer, first={"bm25": first})
    (ranked,) = first.search(world.test[:1], 40)
    (hits,) = index.search(world.test[:1], 10, budget=40)
    in_order = [position for round_ in hits.trace.rounds for position in round_.positions.tolist()]
    assert in_order == ranked.positions.tolist()


def test_scores_whose_spread_no_float_holds_are_searched_all_the_same(world) -> None:
    scorer = MatrixScorer(world.test, [item.id for item in world.items], world.test_scores.astype(np.float64) * 1e30)
    index = AnchorIndex.from_items(world.items, scorer=scorer, first={"bm25": world.noisy_first()})
    assert index.search(world.test[0], 5, budget=40).trace.calls == 40
