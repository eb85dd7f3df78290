"""What must hold for every search, whatever the world, the method and the budget."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacur import ANNCUR, AdaCUR, AnchorIndex, Exact, Rerank
from adacur.model import GaussianModel, Softmax, TopK, Uniform
from adacur.replay import top_k_recall
from adacur.scorers import MatrixScorer, Metered
from tests.conftest import World, make_world

METHODS = (
    "gaussian",
    "adacur",
    "adacur softmax",
    "adacur uniform",
    "adacur random",
    "anncur",
    "anncur random",
    "rerank",
)


def run(world: World, method: str, spent: tuple[int, int], *, k: int, queries=None, scorer=None, seed: int = 0):
    calls, rounds = spent
    index = AnchorIndex(world.index, scorer=scorer or world.scorer)
    first = None if "random" in method else world.noisy_first()
    if method.startswith("anncur"):
        chosen = ANNCUR(seed=seed)
    elif method == "rerank":
        chosen = Rerank(seed=seed)
    elif method == "gaussian":
        approximator = GaussianModel(embeddings=world.item_embeddings)
        chosen = AdaCUR(rounds=rounds, approximator=approximator, seed=seed)
    else:
        acquisition = Softmax(0.5) if "softmax" in method else Uniform() if "uniform" in method else TopK()
        chosen = AdaCUR(rounds=rounds, acquisition=acquisition, seed=seed)
    return index.search(world.test if queries is None else queries, k, budget=calls, method=chosen, first=first)


worlds = st.builds(
    make_world,
    n_items=st.integers(1, 60),
    n_anchors=st.integers(1, 15),
    n_test=st.integers(1, 4),
    rank=st.integers(1, 12),
    noise=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10_000),
)


@st.composite
def budgets(draw):
    calls = draw(st.integers(1, 80))
    return calls, draw(st.integers(1, calls))


@settings(max_examples=150, deadline=None)
@given(world=worlds, budget=budgets(), method=st.sampled_from(METHODS))
def test_the_budget_is_never_exceeded_and_nothing_is_scored_twice(world, budget, method) -> None:
    scorer = Metered(world.scorer)
    hits = run(world, method, budget, k=1, scorer=scorer)
    n_items = len(world.items)
    assert scorer.calls == sum(found.trace.calls for found in hits)
    for found in hits:
        scored = np.concatenate([round_.positions for round_ in found.trace.rounds])
        assert len(scored) == found.trace.calls == min(budget[0], n_items)
        assert max(Counter(scored.tolist()).values()) == 1
        assert len(found.trace.rounds) <= budget[1] or method.startswith("anncur")


@settings(max_examples=100, deadline=None)
@given(world=worlds, method=st.sampled_from(METHODS), rounds=st.integers(1, 5), extra=st.integers(0, 5))
def test_a_budget_that_covers_all_items_gives_the_exact_answer(world, method, rounds, extra) -> None:
    n_items = len(world.items)
    budget = (n_items + extra, rounds)
    k = min(10, n_items + extra)
    exact = AnchorIndex(world.index, scorer=world.scorer).search(world.test, k, method=Exact())
    for found, truth in zip(run(world, method, budget, k=k), exact, strict=True):
        assert found.ids == truth.ids
        assert found.scores.tolist() == truth.scores.tolist()


@settings(max_examples=60, deadline=None)
@given(world=worlds, budget=budgets(), method=st.sampled_from(METHODS), seed=st.integers(0, 5))
def test_an_answer_does_not_depend_on_its_batch(world, budget, method, seed) -> None:
    together = run(world, method, budget, k=1, seed=seed)
    backwards = run(world, method, budget, k=1, seed=seed, queries=world.test[::-1])[::-1]
    alone = [run(world, method, budget, k=1, seed=seed, queries=[query])[0] for query in world.test]
    for one, two, three in zip(together, backwards, alone, strict=True):
        rounds = [[round_.positions.tolist() for round_ in found.trace.rounds] for found in (one, two, three)]
        assert rounds[0] == rounds[1] == rounds[2]
        assert one.ids == two.ids == three.ids


@settings(max_examples=60, deadline=None)
@given(
    world=worlds,
    method=st.sampled_from(METHODS),
    calls=st.integers(1, 40),
    shuffle=st.randoms(use_true_random=False),
)
def test_the_order_of_the_items_changes_nothing(world, method, calls, shuffle) -> None:
    order = list(range(len(world.items)))
    shuffle.shuffle(order)
    shuffled = dataclasses.replace(
        world,
        items=[world.items[position] for position in order],
        anchor_scores=world.anchor_scores[:, order],
        test_scores=world.test_scores[:, order],
        item_embeddings=world.item_embeddings[order],
    )
    budget = (calls, 2)
    k = min(3, calls)
    # The blur of the first stage goes by position, so both worlds start from the scores themselves.
    for world_ in (world, shuffled):
        object.__setattr__(world_, "noisy_first", lambda world_=world_: _sharp_first(world_))
    for one, two in zip(run(world, method, budget, k=k), run(shuffled, method, budget, k=k), strict=True):
        assert one.ids == two.ids


def _sharp_first(world: World):
    from adacur.first_stages import Matrix

    return Matrix(queries=world.test, items=world.items, scores=np.round(world.test_scores, 1))


@settings(max_examples=60, deadline=None)
@given(rank=st.integers(1, 12), extra=st.integers(0, 10), seed=st.integers(0, 1000))
def test_a_matrix_of_rank_r_is_recovered_from_r_anchor_items(rank, extra, seed) -> None:
    world = make_world(n_items=80, n_anchors=rank + extra, rank=rank, seed=seed)
    hits = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, k=10, budget=rank + 10, method=ANNCUR(split=(rank + 0.01) / (rank + 10), keep_predictions="last")
    )
    assert top_k_recall(hits, world.test_scores, k=10).mean() == 1
    for found, exact in zip(hits, world.test_scores, strict=True):
        assert len(found.trace.rounds[0].positions) == rank
        assert found.trace.approximate_scores == pytest.approx(exact, abs=1e-5 * np.abs(exact).max())


@settings(max_examples=30, deadline=None)
@given(world=worlds, budget=budgets(), keep=st.integers(1, 5), method=st.sampled_from(METHODS))
def test_a_filtered_item_is_never_scored(world, budget, keep, method) -> None:
    allowed = {item.id for item in world.items[:: keep + 1]}
    index = AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})
    name = method.split()[0]
    for filter_ in (allowed, lambda item: item.id in allowed):
        for query in world.test:
            found = index.search(query, k=1, budget=budget[0], method=name, first="noisy", filter=filter_)
            scored = {world.items[p].id for round_ in found.trace.rounds for p in round_.positions}
            assert scored <= allowed
            assert len(scored) == min(budget[0], len(allowed))


def test_a_matrix_scorer_and_a_function_scorer_give_the_same_search(world) -> None:
    from adacur.scorers import FunctionScorer

    lookup = {
        (query.text, item.text): world.test_scores[row, column]
        for row, query in enumerate(world.test)
        for column, item in enumerate(world.items)
    }
    function = FunctionScorer(lambda pairs: [lookup[pair] for pair in pairs])
    budget = (40, 4)
    for one, two in zip(
        run(world, "adacur", budget, k=5), run(world, "adacur", budget, k=5, scorer=function), strict=True
    ):
        assert one.ids == two.ids


def test_more_budget_finds_more_on_average() -> None:
    world = make_world(n_items=500, n_anchors=60, n_test=30, rank=40, noise=0.5)
    recalls = [
        top_k_recall(run(world, "adacur", (calls, 5), k=10), world.test_scores, k=10).mean() for calls in (20, 60, 180)
    ]
    assert recalls[0] < recalls[1] < recalls[2]


def test_scores_of_another_type_are_kept_as_they_are(world) -> None:
    scorer = MatrixScorer(queries=world.test, items=world.items, scores=world.test_scores.astype(np.float32))
    (found,) = run(world, "adacur", (10, 2), k=5, scorer=scorer, queries=world.test[:1])
    assert found.scores.astype(np.float32).tolist() == found.scores.tolist()
