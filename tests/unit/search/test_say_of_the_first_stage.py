"""How much the first stage has to say after the first round, and searches without anchor queries."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Dense, Gaussian
from adacur.errors import BudgetError, InputError
from adacur.first_stages import Matrix
from adacur.model import TopK
from adacur.model.rank_slopes import RISE
from adacur.replay import top_k_recall
from adacur.scorers import MatrixScorer
from adacur.search.candidates import CandidatesInMemory
from tests.conftest import make_world


def batches(world, **options) -> list[list[int]]:
    (hits,) = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test[:1], 5, budget=40, method=AdaCUR(rounds=4, **options), first=world.noisy_first()
    )
    return [round_.positions.tolist() for round_ in hits.trace.rounds]


def test_a_heavy_first_stage_decides_every_round(world) -> None:
    (ranked,) = world.noisy_first().search(world.test[:1], 40)
    in_order = ranked.positions.tolist()
    followed = [
        len(set(in_order) & set(chain(*batches(world, first_weight=weight)))) for weight in (0.0, 0.5, 4.0, 1e6)
    ]
    assert followed == sorted(followed)
    assert followed[0] + 10 <= followed[-1] <= 40


def test_a_light_first_stage_changes_some_of_the_choices(world) -> None:
    alone, led = batches(world), batches(world, first_weight=0.5)
    assert alone[0] == led[0]
    assert alone[1:] != led[1:]


def test_its_weight_fades_with_the_scores_of_the_query() -> None:
    predicted = np.linspace(-1, 1, 1000)
    spread = predicted.std()

    def raised(weight: float, n_scored: int) -> float:
        free = np.ones(1000, dtype=bool)
        candidates = CandidatesInMemory(free, np.zeros(1000, dtype=np.uint64), np.array([7]), weight, n_scored)
        (_, scores) = candidates.best(1000, acquisition=TopK(), stream=0, predicted=predicted)
        return float(np.sort(scores).sum() - predicted.sum())

    assert raised(1.0, 0) == pytest.approx(spread * RISE[0])
    assert raised(1.0, 300) == pytest.approx(raised(1.0, 0) / 2)
    assert raised(3.0, 100) == pytest.approx(raised(3.0, 0) / 2)
    # A small weight hardly fades: anchor queries have told what the ranks are worth.
    assert raised(0.1, 300) == pytest.approx(raised(0.1, 0) / 1.1)


def test_the_first_round_takes_its_share_of_the_budget_and_never_less_than_the_others(world) -> None:
    assert [len(batch) for batch in batches(world, first_batch=0.4)] == [16, 8, 8, 8]
    assert [len(batch) for batch in batches(world, first_batch=0.99)] == [37, 1, 1, 1]
    assert [len(batch) for batch in batches(world, first_batch=0.001)] == [10, 10, 10, 10]


@pytest.mark.parametrize("wrong", [{"first_batch": 0}, {"first_batch": 1}, {"first_weight": -1}], ids=str)
def test_shares_and_weights_that_make_no_sense_are_refused(world, wrong) -> None:
    with pytest.raises(BudgetError, match=next(iter(wrong))):
        batches(world, **wrong)


def test_the_trace_names_what_the_first_stage_had_to_say(world) -> None:
    index = AnchorIndex.from_arrays(
        items=world.items,
        anchor_queries=world.anchors,
        scores=world.anchor_scores,
        scorer=world.scorer,
        first={"dense": world.noisy_first()},
    )
    one = index.search(world.test[0], 1, budget=40).trace.settings
    ten = index.search(world.test[0], 10, budget=40).trace.settings
    # Predictions know the ranks.
    assert one["first_weight"] == ten["first_weight"] == 0
    assert ten["batch_sizes"][0] == 12
    assert (
        index.search(world.test[0], 10, budget=40, method=Gaussian(first_weight=0.0)).trace.settings["first_weight"]
        == 0.0
    )


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
        world.test, 5, budget=30, method=AdaCUR(rounds=3, first_weight=0.3), first=few
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
