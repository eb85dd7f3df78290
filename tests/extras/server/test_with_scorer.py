"""What serving asks of an index: to search with its scorer wrapped, and to say what a search would do."""

from __future__ import annotations

import pytest

from adacur import Gaussian
from adacur.errors import BudgetError
from adacur.scorers import Metered
from adacur.search import plan_search
from tests.serving_world import TextScorer, world_index


def test_an_index_with_its_scorer_wrapped_finds_the_same_and_leaves_the_first_alone():
    index = world_index()
    other = index.with_scorer(Metered)
    found = other.search("a ship", 3, budget=20)
    assert found.ids == index.search("a ship", 3, budget=20).ids
    assert other.scorer.calls == 20
    assert isinstance(index.scorer, TextScorer)


def test_explaining_a_search_calls_no_scorer_and_refuses_what_the_search_would():
    scorer = TextScorer()
    index = world_index(scorer)
    explained = plan_search(index, 5, budget=30, method=Gaussian(rounds=3)).settings()
    assert (explained["budget"], explained["first"]) == (30, "bm25")
    assert (
        explained["batch_sizes"]
        == index.search("a ship", 5, budget=30, method=Gaussian(rounds=3)).trace.settings["batch_sizes"]
    )
    calls = len(scorer.calls)
    with pytest.raises(BudgetError, match="k=50"):
        plan_search(index, 50, budget=30)
    assert len(scorer.calls) == calls
