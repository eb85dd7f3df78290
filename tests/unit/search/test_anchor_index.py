from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

import adacur
from adacur import BM25, AnchorIndex, Budget, Gaussian, Item, Query
from adacur.errors import (
    BudgetError,
    EmptyInput,
    InputError,
    NonFiniteScore,
    ScoreCountError,
    ScorerFailed,
    UnknownName,
)
from adacur.first_stages import Matrix
from adacur.model import TopK
from adacur.protocols import Ranking
from adacur.scorers import FunctionScorer, MatrixScorer, Metered
from adacur.search import method_named, plan_search, search_options
from adacur.search.rounds import search_iter


@pytest.fixture
def index(world) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=Metered(world.scorer), first={"noisy": world.noisy_first()})


def test_search_returns_the_best_of_what_it_scored_with_texts_and_rounds(index, world) -> None:
    hits = index.search(world.test[0], k=7, budget=50, first="noisy")
    assert len(hits) == 7
    assert hits.trace.calls == index.scorer.calls == 50
    assert list(hits.scores) == sorted(hits.scores, reverse=True)
    assert hits[0].item.text == world.items[int(hits[0].id[1:])].text
    assert set(hits.rounds) <= {1, 2, 3, 4, 5}
    scored = np.concatenate([round_.exact for round_ in hits.trace.rounds])
    assert list(hits.scores) == sorted(scored, reverse=True)[:7]
    assert hits.trace.settings["method"] == "gaussian"
    assert {"method", "budget", "batch_sizes", "first", "anchors", "scorer"} <= set(hits.trace.settings)


def test_exact_search_takes_a_budget_that_covers_every_item(index, world) -> None:
    hits = index.search(world.test[0], k=5, method="exact", budget=len(world.items))
    assert hits.ids == index.search(world.test[0], k=5, method="exact").ids
    with pytest.raises(BudgetError, match=r"all 200 items.*of 10"):
        index.search(world.test[0], k=5, method="exact", budget=Budget(10))


def test_search_iter_yields_once_a_round_and_never_gets_worse(index, world) -> None:
    steps = list(index.search_iter(world.test[0], k=5, budget=50, method=Gaussian(rounds=5), first="noisy"))
    assert [step.trace.calls for step in steps] == [15, 24, 33, 42, 50]
    sums = [step.scores.sum() for step in steps]
    assert sums == sorted(sums)


def test_the_trace_says_what_was_predicted_before_each_score(index, world) -> None:
    hits = index.search(world.test[0], k=5, budget=50, method=Gaussian(keep_predictions="all"), first="noisy")
    assert hits.trace.rounds[0].predicted is None
    for round_ in hits.trace.rounds[1:]:
        assert round_.all_predicted[round_.positions].tolist() == round_.predicted.tolist()
    assert hits.trace.approximate_scores.shape == (len(world.items),)
    assert set(hits.trace.seconds) >= {"choose", "predict", "solve", "score"}


def test_a_plain_text_is_a_query() -> None:
    items = [Item(f"i{n}", word * 3) for n, word in enumerate(["alpha ", "beta ", "gamma "])]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query("a", "alpha")],
        scores=np.array([[3.0, 0.0, 1.0]]),
        scorer=lambda pairs: [float(text.count(query)) for query, text in pairs],
    )
    assert index.search("beta", k=1, budget=3).ids == ("i1",)


def test_without_a_first_stage_the_search_starts_at_random_and_the_seed_decides(index, world) -> None:
    first_batches = [
        tuple(
            index.search(world.test[0], k=1, budget=20, method=Gaussian(seed=seed), first="random")
            .trace.rounds[0]
            .positions
        )
        for seed in (0, 0, 1)
    ]
    assert first_batches[0] == first_batches[1] != first_batches[2]


def test_a_short_first_stage_is_topped_up_at_random(world) -> None:
    from adacur.results import Hits

    class Stingy:
        name = "stingy"

        def search(self, queries, k):
            return [Hits(query=query, ids=("i3",), scores=np.ones(1)) for query in queries]

    index = AnchorIndex(world.index, scorer=world.scorer)
    hits = index.search(world.test[0], k=1, budget=20, method=Gaussian(rounds=2), first=Stingy())
    assert hits.trace.rounds[0].positions[0] == 3
    assert len(hits.trace.rounds[0].positions) == 10


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"budget": 0}, BudgetError),
        ({"budget": 5, "k": 6}, BudgetError),
        ({"k": 0}, BudgetError),
        ({"first": "tarot"}, UnknownName),
        ({"method": "magic"}, UnknownName),
        ({"deadline": -1.0}, BudgetError),
        ({"filter": lambda item: False}, EmptyInput),
        ({"filter": "i1"}, InputError),
        ({"filter": ["nobody"]}, UnknownName),
        ({"method": "rerank", "first": "noisy", "keep_predictions": "last"}, InputError),
        ({"method": "rerank", "rounds": 7}, InputError),
        ({"method": "exact", "seed": 5}, InputError),
        ({"method": "exact", "first": "noisy"}, InputError),
        ({"rounds": 0}, BudgetError),
        ({"keep_predictions": "some"}, BudgetError),
        ({"method": "anncur", "split": 1.0}, BudgetError),
        ({"method": "anncur", "acquisition": TopK()}, InputError),
        ({"split": 0.3}, InputError),
        ({"method": "exact", "budget": 10}, BudgetError),
        ({"method": "exact", "k": 0}, BudgetError),
        ({"deadline": float("inf")}, BudgetError),
        ({"budget": 10.5}, BudgetError),
        ({"k": 2.5}, BudgetError),
        ({"tempo": 3}, InputError),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_paid(index, world, wrong, error) -> None:
    given = dict(wrong)
    with pytest.raises(error):
        index.search(world.test[0], given.pop("k", 10), **search_options(index, **given))
    assert index.scorer.calls == 0


@pytest.mark.parametrize("query", [Query(3, "three"), Query("q", None), "\ud83d", Query("\ud83d", "text"), 7])
def test_a_query_that_is_not_text_is_refused(index, query) -> None:
    with pytest.raises(InputError):
        index.search(query)


def test_a_first_stage_that_names_an_item_twice_has_it_scored_once(world) -> None:
    from adacur.results import Hits

    class Stuttering:
        name = "stuttering"

        def search(self, queries, k):
            return [Hits(query=query, ids=("i1", "i1", "i2", "i2"), scores=np.ones(4)) for query in queries]

    index = AnchorIndex(world.index, scorer=world.scorer)
    hits = index.search(world.test[0], k=10, budget=10, method=Gaussian(rounds=2), first=Stuttering())
    assert len(set(hits.ids)) == len(hits.ids) == hits.trace.calls == 10


@pytest.mark.parametrize("method", ["gaussian", "rerank", "first"])
def test_an_item_that_a_first_stage_names_twice_is_scored_and_found_once(world, method) -> None:
    class Twice(Matrix):
        def search(self, queries, k):
            answers = super().search(queries, k)
            return [Ranking(np.repeat(some, 2)[:k], np.repeat(scores, 2)[:k]) for some, scores in answers]

    twice = Twice(queries=world.test, items=world.items, scores=world.test_scores)
    hits = AnchorIndex(world.index, scorer=world.scorer).search(world.test[0], 5, budget=30, first=twice, method=method)
    scored = [position for round_ in hits.trace.rounds for position in round_.positions.tolist()]
    assert len(scored) == len(set(scored)) == (0 if method == "first" else 30)
    assert len(hits.ids) == len(set(hits.ids)) > 2


def test_a_first_stage_must_answer_every_query(world) -> None:
    class Silent:
        def search(self, queries, k):
            return []

    with pytest.raises(InputError, match="0 answers to 1"):
        AnchorIndex(world.index, scorer=world.scorer).search(world.test[0], first=Silent())


def test_scores_beyond_the_range_of_floats_do_not_end_the_search_early(world) -> None:
    huge = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=(1e-40 * world.anchor_scores).astype(np.float32)
    )
    with np.errstate(all="ignore"):
        hits = AnchorIndex(huge, scorer=world.scorer).search(world.test[0], k=5, budget=20)
    assert hits.trace.calls == 20


def test_search_iter_with_a_deadline_yields_answers_only(world) -> None:
    now = [0.0]

    def slow(pairs):
        now[0] += 0.002 * len(pairs)
        return [float(len(text)) for _, text in pairs]

    index = AnchorIndex(world.index, scorer=FunctionScorer(slow), first={"noisy": world.noisy_first()})
    plan = plan_search(index, 3, budget=Budget(100, deadline=0.1), first="noisy")
    timed = replace(plan, purse=replace(plan.purse, clock=lambda: now[0]))
    calls = [step.trace.calls for (step,) in search_iter(timed, world.test[:1], 3)]
    assert calls == sorted(set(calls))
    assert 0 < calls[0] <= calls[-1] < 100


def test_numpy_s_integers_count(index, world) -> None:
    assert len(index.search(world.test[0], k=np.int64(2), budget=np.int32(12), method=Gaussian(rounds=np.int8(2)))) == 2


def test_a_name_that_is_nearly_right_is_suggested(index, world) -> None:
    with pytest.raises(UnknownName, match="'gaussian'"):
        index.search(world.test[0], method="gausian")
    with pytest.raises(UnknownName, match="'noisy'"):
        index.search(world.test[0], first="noisi")


def test_a_query_without_words_is_refused(index) -> None:
    with pytest.raises(EmptyInput):
        index.search(" ")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda pairs: [float("nan")] * len(pairs), NonFiniteScore),
        (lambda pairs: [1.0] * (len(pairs) - 1), ScoreCountError),
        (lambda pairs: [1.0] * (len(pairs) + 1), ScoreCountError),
        (lambda pairs: 1 / 0, ScorerFailed),
    ],
)
def test_a_scorer_that_misbehaves_is_named(world, answer, error) -> None:
    index = AnchorIndex(world.index, scorer=FunctionScorer(answer, name="oracle"))
    with pytest.raises(error):
        index.search("a question")


def test_a_scorer_object_that_raises_is_reported_as_such(world) -> None:
    from adacur.protocols import ScorerCard

    class Broken:
        card = ScorerCard(name="broken", backend="test")

        def score(self, pairs):
            raise ZeroDivisionError("by nought")

    with pytest.raises(ScorerFailed, match=r"'broken'.*ZeroDivisionError"):
        AnchorIndex(world.index, scorer=Broken()).search("a question")


def test_an_index_without_a_scorer_says_so(world) -> None:
    with pytest.raises(InputError, match="no scorer"):
        world.index.search("a question")


@pytest.mark.parametrize("method", ["adacur", "rerank", "anncur"])
def test_a_deadline_ends_the_search_with_what_it_has(world, method) -> None:
    def slow(pairs):
        time.sleep(0.01 * len(pairs))
        return [float(len(text)) for _, text in pairs]

    index = AnchorIndex(world.index, scorer=FunctionScorer(slow), first={"noisy": world.noisy_first()})
    hits = index.search(world.test[0], k=5, budget=Budget(150, deadline=0.5), method=method, first="noisy")
    assert hits.trace.stopped == "deadline"
    assert 1 <= hits.trace.calls < 150
    assert len(hits) == min(5, hits.trace.calls)


def test_every_query_has_an_answer_by_the_deadline_however_many_share_it(world) -> None:
    def slow(pairs):
        time.sleep(0.005 * len(pairs))
        return [float(len(text)) for _, text in pairs]

    index = AnchorIndex(world.index, scorer=FunctionScorer(slow))
    found = index.search(world.test, k=1, budget=Budget(50, deadline=0.01))
    assert len(found) == len(world.test) > 1
    assert all(len(hits) == 1 and hits.trace.stopped == "deadline" for hits in found)


def test_a_generous_deadline_changes_nothing(index, world) -> None:
    plain = index.search(world.test[0], k=5, budget=40, first="noisy")
    timed = index.search(world.test[0], k=5, budget=Budget(40, deadline=600), first="noisy")
    assert plain.ids == timed.ids
    assert timed.trace.calls == 40
    assert timed.trace.stopped == "budget"


def test_eight_threads_give_the_same_answers_as_one(index, world) -> None:
    expected = {query.id: index.search(query, k=5, budget=30, first="noisy").ids for query in world.test}
    seen: list[bool] = []

    def work() -> None:
        seen.extend(
            index.search(query, k=5, budget=30, first="noisy").ids == expected[query.id] for query in world.test
        )

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8 * len(world.test)
    assert all(seen)


def test_an_async_scorer_does_not_block_the_loop(world) -> None:
    running, most = 0, 0

    async def score(pairs):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return [float(len(text)) for _, text in pairs]

    index = AnchorIndex(world.index, scorer=FunctionScorer(score))

    async def together():
        return await asyncio.gather(*(index.asearch(f"question {n}", k=1, budget=10) for n in range(4)))

    assert len(asyncio.run(together())) == 4
    assert most > 1


def test_an_index_of_arrays_can_be_saved_and_opened_again(index, world, tmp_path) -> None:
    from adacur import load

    index.save(tmp_path / "world.adacur")
    opened = load(tmp_path / "world.adacur", scorer=world.scorer, check=False)
    before = index.search(world.test[0], k=5, budget=30, first="random")
    after = opened.search(world.test[0], k=5, budget=30, first="random")
    assert before.ids == after.ids
    assert opened.matrix.tolist() == index.matrix.tolist()


@pytest.mark.parametrize("text", ["", "  ", "\n\t", "\u00a0"])
def test_an_item_without_a_word_is_refused_by_build_and_from_items_alike(text, tmp_path) -> None:
    items = [Item("i0", "a word"), Item("i1", text)]

    def scorer(pairs):
        raise AssertionError("nothing is to be scored")

    with pytest.raises(EmptyInput, match="'i1' has no text"):
        AnchorIndex.from_items(items, scorer=scorer)
    with pytest.raises(EmptyInput, match="'i1' has no text"):
        adacur.build(items, ["a query"], scorer=scorer, path=tmp_path / "i.adacur", progress=False)
    with pytest.raises(InputError, match=r"got int: '7'"):
        AnchorIndex.from_items([7], scorer=scorer)


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "rerank"])
def test_a_budget_beyond_all_items_costs_no_more_than_they_do(world, method) -> None:
    index = AnchorIndex(world.index, scorer=world.scorer, first={"noisy": world.noisy_first()})
    # Split whole, these would be a list of a thousand million numbers.
    rounds = {} if method in ("rerank", "anncur") else {"rounds": 10**9}
    chosen = method_named(method, **rounds)
    explained = plan_search(index, 5, method=chosen, budget=10**10, first="noisy").settings()
    assert sum(explained["batch_sizes"]) == len(world.items)
    assert explained["budget"] == 10**10
    hits = index.search(world.test[0], 5, method=chosen, budget=10**10, first="noisy")
    assert hits.trace.calls == len(world.items)
    assert hits.trace.settings["batch_sizes"] == explained["batch_sizes"]
    late = index.search(world.test[0], 5, budget=Budget(10**10, deadline=1e308), method=method, first="noisy")
    assert late.trace.calls == len(world.items)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-45, 1e30])
@pytest.mark.parametrize("rank", [1, 12])
@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "rerank", "exact"])
def test_scores_of_any_scale_are_searched_to_the_end(scale, rank, method) -> None:
    draws = np.random.default_rng(rank)
    scores = draws.normal(size=(14, rank)) @ draws.normal(size=(rank, 40)) * scale
    items = [Item(f"i{at}", f"word{at % 7} {at}") for at in range(40)]
    queries = [Query(f"q{at}", f"word{at % 7} and {at}") for at in range(14)]
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=queries[:12],
        scores=scores[:12],
        scorer=MatrixScorer(queries[12:], items, scores[12:]),
        first={"bm25": BM25.build(items)},
    )
    budget = {} if method == "exact" else {"budget": 20}
    for fuse in (None, 0.5):
        hits = index.search(queries[12], 5, method=method, fuse=fuse, **budget)
        assert len(hits) == 5
        assert hits.trace.calls == (40 if method == "exact" else 20)


def test_an_index_of_items_alone_opens_a_scorer_by_its_name_in_the_catalogue() -> None:
    items = [Item("a", "Paris is the capital of France."), Item("b", "Bread is baked in an oven.")]
    with AnchorIndex.from_items(items, scorer="ms-marco-MiniLM-L-12-v2") as index:
        assert index.search("capital of france", 1, method="exact").ids == ("a",)
