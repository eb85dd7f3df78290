from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import DuplicateId, InputError, NonFiniteScore, UnknownName
from adacur.records import Item, Query
from adacur.scorers import MatrixScorer, score_grid

QUERIES = [Query("q0", "x"), Query("q1", "y")]
ITEMS = [Item("i0", "a"), Item("i1", "b"), Item("i2", "c")]
SCORES = np.arange(6.0).reshape(2, 3)


def test_whole_numbers_become_floats() -> None:
    scores = MatrixScorer(queries=QUERIES, items=ITEMS, scores=SCORES.astype(int)).score_grid(QUERIES, ITEMS)
    assert scores.dtype == np.float64
    np.testing.assert_array_equal(scores, SCORES)


def test_records_may_be_bare_ids() -> None:
    scorer = MatrixScorer(["q0", "q1"], ["i0", "i1", "i2"], SCORES)
    assert scorer.score([(QUERIES[1], ITEMS[0])]).tolist() == [3.0]


def test_an_unknown_id_is_named() -> None:
    scorer = MatrixScorer(QUERIES, ITEMS, SCORES)
    with pytest.raises(UnknownName, match="'q7'"):
        scorer.score([(Query("q7", ""), ITEMS[0])])
    with pytest.raises(UnknownName, match="'i7'"):
        scorer.score_grid(QUERIES, [Item("i7", "")])


def test_a_wrong_shape_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(2, 3\), got \(3, 2\)"):
        MatrixScorer(QUERIES, ITEMS, SCORES.T)


def test_repeated_ids_and_texts_for_scores_are_refused() -> None:
    with pytest.raises(DuplicateId, match="'q0'"):
        MatrixScorer(["q0", "q0"], ITEMS, SCORES)
    with pytest.raises(InputError):
        MatrixScorer(QUERIES, ITEMS, [["a", "b", "c"]] * 2)


def test_an_unknown_score_is_refused_only_when_asked_for() -> None:
    scores = SCORES.copy()
    scores[0, 1] = np.nan
    scorer = MatrixScorer(QUERIES, ITEMS, scores)
    assert scorer.score([(QUERIES[0], ITEMS[0])]).tolist() == [0.0]
    with pytest.raises(NonFiniteScore, match="'i1'"):
        score_grid(scorer, QUERIES, ITEMS)


def test_other_scores_or_ids_give_another_card() -> None:
    cards = [
        MatrixScorer(QUERIES, ITEMS, SCORES).card,
        MatrixScorer(QUERIES, ITEMS, SCORES + 1).card,
        MatrixScorer(QUERIES, ["i0", "i1", "other"], SCORES).card,
    ]
    assert len({card.weights for card in cards}) == 3
    assert MatrixScorer(QUERIES, ITEMS, np.asfortranarray(SCORES)).card == cards[0]
