from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from adacur.errors import ScorerFailed
from adacur.records import Item, Query
from adacur.scorers import FunctionScorer, Metered, ascore, score_grid

QUERIES = [Query(f"q{n}", "x" * n) for n in range(3)]
ITEMS = [Item(f"i{n}", "y" * n) for n in range(4)]
PAIRS = [(query, item) for query in QUERIES for item in ITEMS]


def lengths(pairs):
    return [10.0 * len(query) + len(item) for query, item in pairs]


def test_every_pair_is_counted_however_it_was_asked() -> None:
    metered = Metered(FunctionScorer(lengths))
    metered.score(PAIRS)
    metered.score_grid(QUERIES, ITEMS)
    asyncio.run(metered.ascore(PAIRS))
    assert metered.calls == 3 * len(PAIRS)
    assert metered.seconds > 0


def test_threads_lose_no_count() -> None:
    metered = Metered(FunctionScorer(lengths))
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(metered.score, [PAIRS] * 200))
    assert metered.calls == 200 * len(PAIRS)


def test_unanswered_pairs_are_not_counted() -> None:
    metered = Metered(FunctionScorer(lambda pairs: 1 / 0))
    with pytest.raises(ScorerFailed):
        metered.score(PAIRS)
    assert metered.calls == 0


def test_a_scorer_without_a_grid_gets_bounded_batches() -> None:
    sizes = []
    scorer = FunctionScorer(lambda pairs: sizes.append(len(pairs)) or lengths(pairs))
    grid = score_grid(scorer, QUERIES, ITEMS * 5000)
    assert grid.shape == (3, 20_000)
    assert grid[2, :4].tolist() == [20.0, 21.0, 22.0, 23.0]
    assert max(sizes) <= 8192
    assert score_grid(scorer, [], ITEMS).shape == (0, 4)


def test_a_scorer_that_cannot_be_awaited_runs_in_a_thread() -> None:
    class Plain:
        card = FunctionScorer(lengths).card

        def score(self, pairs):
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return lengths([(query.text, item.text) for query, item in pairs])

    assert asyncio.run(ascore(Plain(), PAIRS)).tolist() == FunctionScorer(lengths).score(PAIRS).tolist()
