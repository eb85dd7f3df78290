"""Searches that step together: who takes part in a step, and what a step costs."""

from __future__ import annotations

import asyncio
import threading
import time

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Budget, Gaussian, Rerank
from adacur.errors import InputError, NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.search import plan_search, rounds
from adacur.search.rounds import Rounds


class Noting:
    """A scorer that remembers the queries of each of its calls."""

    card = ScorerCard(name="noting", backend="test")

    def __init__(self, scorer, *, seconds: float = 0.0) -> None:
        self.scorer = scorer
        self.seconds = seconds
        self.calls: list[list[str]] = []

    def score(self, pairs):
        self.calls.append([query.id for query, _ in pairs])
        time.sleep(self.seconds * len(pairs))
        return self.scorer.score(pairs)


class ByPosition(Noting):
    """A scorer that takes positions and refuses pairs."""

    def __init__(self, scorer, *, wrong=lambda scores: scores) -> None:
        super().__init__(scorer)
        self.wrong = wrong
        self.collections: list[object] = []

    def score_at(self, items, queries, query_of, positions):
        self.collections.append(items)
        self.calls.append([queries[query].id for query in query_of])
        pairs = [(queries[query], items[int(at)]) for query, at in zip(query_of, positions, strict=True)]
        return self.wrong(self.scorer.score(pairs))

    def score(self, pairs):
        raise AssertionError("positions were to be had")


@pytest.fixture
def index(world) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=Noting(world.scorer), first={"bm25": world.noisy_first()})


def everything(hits) -> list:
    return [hits.ids, hits.scores.tolist(), [round_.positions.tolist() for round_ in hits.trace.rounds]]


def test_searches_of_different_plans_share_one_call_a_step_and_answer_as_if_alone(index, world) -> None:
    asked = [
        (plan_search(index, 5, budget=40), world.test[:2], 5),
        (plan_search(index, 3, budget=30, method=AdaCUR(rounds=3)), world.test[2:3], 3),
        (plan_search(index, 7, budget=20, method=Rerank()), world.test[3:], 7),
    ]
    together = Rounds()
    joined = [together.join(*one) for one in asked]
    steps = 0
    while together.step():
        steps += 1
    assert steps == len(index.scorer.calls) == 5
    assert set(index.scorer.calls[0]) == {query.id for query in world.test}
    for (plan, queries, k), search in zip(asked, joined, strict=True):
        alone = rounds.search(plan, queries, k)
        assert [everything(hits) for hits in search.hits()] == [everything(hits) for hits in alone]


def test_a_search_joins_between_steps_and_waits_for_no_other_s_last_round(index, world) -> None:
    plan = plan_search(index, 5, budget=40, method=Gaussian(rounds=4))
    together = Rounds()
    early = together.join(plan, world.test[:1], 5)
    together.step()
    late = together.join(plan, world.test[1:2], 5)
    together.step()
    assert set(index.scorer.calls[1]) == {world.test[0].id, world.test[1].id}
    assert early.hits()[0].trace.calls > late.hits()[0].trace.calls > 0
    while together.step():
        pass
    assert len(index.scorer.calls) == 5
    assert [everything(early.hits()[0]), everything(late.hits()[0])] == [
        everything(hits) for hits in rounds.search(plan, world.test[:2], 5)
    ]


def test_searches_that_step_together_have_one_scorer(index, world) -> None:
    together = Rounds()
    together.join(plan_search(index, 5, budget=40), world.test[:1], 5)
    with pytest.raises(InputError, match="scorer"):
        together.join(plan_search(index, 5, budget=40, scorer=world.scorer), world.test[:1], 5)


def test_a_tight_deadline_is_kept_beside_a_search_that_has_none(world) -> None:
    index = AnchorIndex(world.index, scorer=Noting(world.scorer, seconds=0.002))
    together = Rounds()
    hurried = together.join(plan_search(index, 1, budget=Budget(50, deadline=0.05)), world.test[:1], 1)
    patient = together.join(plan_search(index, 1, method="exact"), world.test[1:2], 1)
    while together.step():
        pass
    assert hurried.hits()[0].trace.stopped == "deadline"
    # One call of all pairs would have taken half a second.
    assert len(index.scorer.calls[0]) <= 3
    assert patient.hits()[0].trace.calls == len(world.items)


@pytest.mark.parametrize(
    "limit", ["rounds._PAIRS_AT_ONCE", "places._PREDICTIONS_AT_ONCE", "plan._SQUARES_AT_ONCE", "plan._RANKS_AT_ONCE"]
)
def test_groups_that_fit_into_memory_answer_as_all_at_once(index, world, monkeypatch, limit) -> None:
    plan = plan_search(index, 5, budget=40)
    whole = rounds.search(plan, world.test, 5)
    calls = len(index.scorer.calls)
    monkeypatch.setattr(f"adacur.search.{limit}", 1)
    parts = rounds.search(plan, world.test, 5)
    assert len(index.scorer.calls) - calls == calls * len(world.test)
    assert [everything(hits) for hits in parts] == [everything(hits) for hits in whole]


@pytest.mark.parametrize("error", [ScorerFailed, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [0, -1])
def test_an_error_in_one_half_of_many_queries_ends_the_other(world, monkeypatch, failing, error) -> None:
    monkeypatch.setattr("adacur.search.rounds._WORTH_HALVING", 4)
    failed = threading.Event()

    class Failing(Noting):
        runs_on_device = True

        def score(self, pairs):
            if world.test[failing] in {query for query, _ in pairs}:
                failed.set()
                raise error
            # The other half has a call under way when the error comes.
            assert failed.wait(30)
            return super().score(pairs)

    scorer = Failing(world.scorer, seconds=0.01)
    index = AnchorIndex(world.index, scorer=scorer, first={"bm25": world.noisy_first()})
    with pytest.raises(error):
        index.search(world.test, 3, budget=20, method=AdaCUR(rounds=10))

    # Of ten rounds.
    assert len(scorer.calls) < 6


def test_awaited_steps_do_what_steps_do(index, world) -> None:
    plan = plan_search(index, 5, budget=40)

    async def stepped() -> list:
        together = Rounds()
        joined = [together.join(plan, [query], 5) for query in world.test]
        while await together.astep():
            pass
        return [search.hits()[0] for search in joined]

    found = asyncio.run(stepped())
    assert [everything(hits) for hits in found] == [everything(hits) for hits in rounds.search(plan, world.test, 5)]


def test_no_queries_have_no_hits(index) -> None:
    assert index.search([]) == []
    assert np.size(index.scorer.calls) == 0


def test_a_scorer_of_positions_is_given_positions_and_answers_as_one_of_pairs(index, world) -> None:
    scorer = ByPosition(world.scorer)
    asked = [
        (plan_search(index, 5, budget=40, scorer=scorer), world.test[:2], 5),
        (plan_search(index, 7, budget=20, method=Rerank(), scorer=scorer), world.test[2:], 7),
    ]
    together = Rounds()
    joined = [together.join(*one) for one in asked]
    while together.step():
        pass
    assert set(scorer.calls[0]) == {query.id for query in world.test}
    assert all(items is index.items for items in scorer.collections)
    for (_, queries, k), search, options in zip(
        asked, joined, ({"budget": 40}, {"budget": 20, "method": Rerank()}), strict=True
    ):
        alone = rounds.search(plan_search(index, k, **options), queries, k)
        assert [everything(hits) for hits in search.hits()] == [everything(hits) for hits in alone]


def test_searches_of_different_items_that_step_together_are_given_as_pairs(world) -> None:
    class Both(ByPosition):
        score = Noting.score

    scorer = Both(world.scorer)
    first, second = (AnchorIndex.from_items(world.items[part], scorer=scorer) for part in (slice(0, 30), slice(30, 60)))
    together = Rounds()
    joined = [together.join(plan_search(one, 3, method="exact"), world.test[:1], 3) for one in (first, second)]
    while together.step():
        pass
    assert len(scorer.calls) == 1
    assert not scorer.collections
    assert all(len(search.hits()[0]) == 3 for search in joined)


@pytest.mark.parametrize(
    ("wrong", "error", "named"),
    [
        (lambda scores: np.where(np.arange(len(scores)) == 1, np.nan, scores), NonFiniteScore, "query '.+' and item '"),
        (lambda scores: scores[1:], ScoreCountError, "shape"),
        (lambda scores: 1 / 0, ScorerFailed, "'noting' failed with ZeroDivisionError"),
    ],
)
def test_what_is_wrong_with_scores_by_position_is_named(index, world, wrong, error, named) -> None:
    plan = plan_search(index, 5, budget=40, scorer=ByPosition(world.scorer, wrong=wrong))
    with pytest.raises(error, match=named):
        rounds.search(plan, world.test[:1], 5)
