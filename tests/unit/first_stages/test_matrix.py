from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import NonFiniteScore, ScoreCountError, UnknownName
from adacur.first_stages import Matrix
from adacur.records import Item, Query

ITEMS = [Item(f"i{n}", "text") for n in range(2000)]
QUERIES = [Query(f"q{n}", "text") for n in range(20)]


def test_it_returns_what_a_full_sort_returns() -> None:
    # Few different values, so that ties cross the k-th place.
    scores = np.random.default_rng(0).integers(0, 50, size=(20, 2000)).astype(np.float32)
    found = Matrix(queries=QUERIES, items=ITEMS, scores=scores).search(QUERIES, 100)
    for row, hits in zip(scores, found, strict=True):
        expected = sorted(range(2000), key=lambda position: (-row[position], ITEMS[position].id))[:100]
        assert hits.positions.tolist() == expected
        assert hits.scores.tolist() == [row[position] for position in expected]


def test_a_query_without_known_scores_is_refused() -> None:
    retriever = Matrix(queries=QUERIES, items=ITEMS, scores=np.zeros((20, 2000)))
    with pytest.raises(UnknownName):
        retriever.search(["text"], 1)


def test_a_matrix_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ScoreCountError):
        Matrix(queries=QUERIES, items=ITEMS, scores=np.zeros((2000, 20)))
    with pytest.raises(NonFiniteScore):
        Matrix(queries=QUERIES, items=ITEMS, scores=np.full((20, 2000), np.nan))
