"""The queries of a search step together: what a step costs, and what it gives the scorer."""

from __future__ import annotations

import time

import numpy as np
import pytest

from adacur import AnchorIndex, Rerank
from adacur.errors import NonFiniteScore, ScoreCountError, ScorerFailed
from adacur.protocols import ScorerCard
from adacur.search import plan_search, rounds


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


def test_a_scorer_of_positions_is_given_positions_and_answers_as_one_of_pairs(index, world) -> None:
    scorer = ByPosition(world.scorer)
    for options in ({"budget": 40}, {"budget": 20, "method": Rerank()}):
        by_position = rounds.search(plan_search(index, 5, scorer=scorer, **options), world.test, 5)
        by_pair = rounds.search(plan_search(index, 5, **options), world.test, 5)
        assert [everything(hits) for hits in by_position] == [everything(hits) for hits in by_pair]
    assert set(scorer.calls[0]) == {query.id for query in world.test}
    assert all(items is index.items for items in scorer.collections)


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
