"""Searches that may spend so many tokens or so much money: what they spend, and what is refused."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from adacur import AnchorIndex, Budget, Item, Query
from adacur.errors import BudgetError
from adacur.first_stages.matrix import Matrix
from adacur.protocols import ScorerCard
from adacur.search import plan_search, search_options

N = 40
ITEMS = [Item(str(at), f"item {at}") for at in range(N)]
QUERIES = [Query(f"q{at}", f"question {at}") for at in range(3)]
ANCHORS = [Query(f"a{at}", f"anchor {at}") for at in range(6)]
DRAW = np.random.default_rng(3)
SCORES = DRAW.normal(size=(len(QUERIES) + len(ANCHORS), 4)) @ DRAW.normal(size=(4, N))
ROWS = {query.id: row for row, query in enumerate([*QUERIES, *ANCHORS])}


class Charging:
    """A scorer with a price list: item i takes i + 1 tokens."""

    card = ScorerCard("charging", "test")
    can_batch_callers = True

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def tokens_of(self, pairs):
        return np.array([int(item.id) + 1 for _, item in pairs])

    def score(self, pairs):
        self.calls.append(self.tokens_of(pairs).tolist())
        return np.array([SCORES[ROWS[query.id], int(item.id)] for query, item in pairs])


@pytest.fixture(name="scorer")
def scorer_fixture() -> Charging:
    return Charging()


@pytest.fixture(name="index")
def index_fixture(scorer: Charging) -> AnchorIndex:
    first = Matrix(queries=[*QUERIES, *ANCHORS], items=ITEMS, scores=SCORES + DRAW.normal(size=SCORES.shape))
    return AnchorIndex.from_arrays(
        items=ITEMS, anchor_queries=ANCHORS, scores=SCORES[len(QUERIES) :], scorer=scorer, first={"first": first}
    )


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur", "rerank"])
def test_tokens_are_a_wall_and_are_used(index, scorer, method) -> None:
    hits = index.search(QUERIES[0], 3, budget=Budget(N, tokens=200), method=method)
    spent = sum(sum(call) for call in scorer.calls)

    assert hits.trace.tokens == spent <= 200
    assert hits.trace.stopped == "tokens"
    # What is left pays for no pair like those before.
    assert 200 - spent < 2 * spent / hits.trace.calls


@pytest.mark.parametrize("budget", [Budget(tokens=300), Budget(cost="0.3 USD", price="1 USD / 1k tokens")])
def test_a_budget_needs_no_calls(index, budget) -> None:
    hits = index.search(QUERIES[0], 3, budget=budget)

    assert 150 < hits.trace.tokens <= 300
    assert hits.trace.stopped == ("tokens" if budget.tokens else "cost")


def test_the_first_limit_that_is_reached_ends_the_search(index) -> None:
    few = index.search(QUERIES[0], 3, budget=Budget(4, tokens=10_000, cost="9 USD", price="1 USD / 1k tokens"))
    dear = index.search(QUERIES[0], 3, budget=Budget(20, tokens=10_000, cost="5 USD", price="1 USD / call"))

    assert (few.trace.calls, few.trace.stopped) == (4, "budget")
    assert (dear.trace.calls, dear.trace.stopped, str(dear.trace.cost)) == (5, "cost", "5 USD")


def test_a_budget_that_pays_for_every_item_finds_the_exact_best(index) -> None:
    exact = index.search(QUERIES, 5, method="exact")
    paid = index.search(QUERIES, 5, budget=Budget(tokens=N * (N + 1) // 2))

    assert [hits.ids for hits in paid] == [hits.ids for hits in exact]
    assert {hits.trace.stopped for hits in paid} == {"exhausted"}


def test_a_price_alone_is_counted_and_changes_nothing(index) -> None:
    plain = index.search(QUERIES[0], 5, budget=20)
    priced = index.search(QUERIES[0], 5, budget=Budget(20, price="2 USD / 1000 searches"))

    assert priced.ids == plain.ids
    assert (plain.trace.tokens, plain.trace.cost) == (None, None)
    assert priced.trace.cost.currency == "USD"


def test_items_too_dear_are_passed_over_for_cheaper_ones(index, scorer) -> None:
    index.search(QUERIES[0], 1, budget=Budget(N, tokens=15), method="rerank")

    assert scorer.calls
    assert sum(map(sum, scorer.calls)) <= 15


@pytest.mark.parametrize("method", ["gaussian", "rerank"])
def test_what_pays_for_no_dear_item_is_spent_on_cheap_ones(index, scorer, monkeypatch, method) -> None:
    monkeypatch.setattr(
        scorer, "tokens_of", lambda pairs: np.array([2 if int(item.id) % 2 else 40 for _, item in pairs])
    )
    traces = [index.search(query, 3, budget=Budget(tokens=238), method=method).trace for query in QUERIES]

    assert [trace.tokens for trace in traces] == [238] * len(QUERIES)


@pytest.mark.parametrize("deadline", [None, 60.0])
def test_searches_are_counted_by_the_request(index, scorer, deadline) -> None:
    budget = Budget(30, deadline, cost="0.004 USD", price="2 USD / 1000 searches")

    hits = index.search(QUERIES[0], 3, budget=budget, method="adacur")

    # Two units are two calls, however small; the last takes what it may, and a deadline splits neither.
    assert len(scorer.calls) == 2
    assert hits.trace.calls >= 25
    assert str(hits.trace.cost) == "0.004 USD"
    assert hits.trace.calls == sum(map(len, scorer.calls))


def test_a_budget_that_cannot_pay_one_call_is_refused_before_anything_is_paid(index, scorer) -> None:
    class Long(Charging):
        def tokens_of(self, pairs):
            return np.full(len(pairs), 57)

    dear = index.with_scorer(lambda _: Long())
    with pytest.raises(BudgetError, match=r"40 tokens.*57 tokens.*'q1'"):
        dear.search([QUERIES[1], QUERIES[0]], 1, budget=Budget(5, tokens=40))
    with pytest.raises(BudgetError, match=r"0\.001 USD.*2 USD / 1,000 searches"):
        index.search(QUERIES[0], 1, budget=Budget(5, cost="0.001 USD", price="2 USD / 1000 searches"))
    assert not scorer.calls


@pytest.mark.parametrize(
    ("budget", "method", "named"),
    [
        (Budget(10, cost="1 USD"), "rerank", "charging"),
        (Budget(tokens=10), "exact", "exact"),
        (Budget(tokens=2), "rerank", "k=5"),
        (Budget(4, tokens=100), "rerank", "k=5"),
    ],
)
def test_contradictory_budgets_are_refused(index, scorer, budget, method, named) -> None:
    with pytest.raises(BudgetError, match=named):
        index.search(QUERIES[0], 5, budget=budget, method=method)
    assert not scorer.calls


def test_single_values_become_one_budget(index) -> None:
    options = search_options(index, budget="50 calls", tokens=900, cost="1 EUR", price="1 EUR / call", deadline=2.0)
    settings = plan_search(index, 3, **options).settings()

    assert options["budget"] == Budget(50, 2.0, tokens=900, cost="1 EUR", price="1 EUR / call")
    assert (settings["tokens"], settings["cost"], settings["price"]) == (900, "1 EUR", "1 EUR / call")


@pytest.mark.parametrize("price", ["1 USD / 1k tokens", "100 USD / 1000 searches"])
def test_awaited_searches_spend_the_same(index, scorer, price) -> None:
    budget = Budget(20, tokens=200, cost="0.2 USD", price=price)

    async def awaited():
        return [hits async for hits in index.asearch_iter(QUERIES[0], 3, budget=budget)][-1]

    here, there = index.search(QUERIES[0], 3, budget=budget), asyncio.run(awaited())

    assert (here.ids, here.trace.tokens, here.trace.cost) == (there.ids, there.trace.tokens, there.trace.cost)
    assert here.trace.cost.amount <= budget.cost.amount


def test_a_deadline_never_splits_a_round_that_is_charged_by_the_request(index, scorer) -> None:
    budget = Budget(30, 60.0, cost="0.002 USD", price="2 USD / 1000 searches")

    hits = index.search(QUERIES[0], 1, budget=budget, method="rerank")

    assert (len(scorer.calls), hits.trace.calls, hits.trace.stopped) == (1, 30, "budget")
    assert str(hits.trace.cost) == "0.002 USD"


@pytest.mark.parametrize("limit", [{"tokens": 120}, {"cost": "0.12 USD", "price": "1 USD / 1k tokens"}])
@pytest.mark.parametrize("method", ["gaussian", "adacur", "rerank"])
def test_a_filter_that_leaves_one_query_short_of_candidates_changes_no_other_s_answer(index, limit, method) -> None:
    first = index.first_stage("first")
    rankings = [answer.positions for answer in first.search(QUERIES, N)]
    # The others have to look deeper for these.
    allowed = [ITEMS[at].id for at in rankings[0][: N // 2]]
    options = {"filter": allowed, "budget": Budget(12, **limit), "method": method}

    together = index.search(QUERIES, 3, **options)
    alone = [index.search(query, 3, **options) for query in QUERIES]

    assert [steps_of(hits) for hits in together] == [steps_of(hits) for hits in alone]


def steps_of(hits) -> list:
    return [hits.ids, hits.trace.tokens, [round_.positions.tolist() for round_ in hits.trace.rounds]]


@pytest.mark.parametrize("tokens", [2, 4, 7])
def test_what_a_budget_could_not_pay_for_is_not_certified_as_scored(index, tokens) -> None:
    for found in index.find(QUERIES, above=0.5, budget=Budget(N, tokens=tokens)):
        assert found.trace.calls < N
        assert (found.trace.stopped, found.certificate.basis) == ("tokens", "none")


@pytest.mark.parametrize("tokens", [7, 30, 61])
def test_the_last_step_of_a_search_that_tokens_ended_is_its_answer(index, tokens) -> None:
    budget = Budget(N, tokens=tokens)
    for query in QUERIES:
        *_, last = index.find_iter(query, above=0.5, budget=budget)
        answer = index.find(query, above=0.5, budget=budget)
        assert (last.trace.stopped, last.certificate) == (answer.trace.stopped, answer.certificate)
