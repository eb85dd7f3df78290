"""Teachers' scores: from an index for nothing, from scorers, from files, and never unnoticed when unusable."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import BM25, AnchorIndex, Item, Query
from adacur.errors import EmptyInput, InputError, NonFiniteScore
from adacur.extras.train.teacher_scores import TeacherRow, TeacherScores
from adacur.first_stages import Matrix
from adacur.records import ItemList
from adacur.scorers import MatrixScorer

ITEMS = [Item(f"i{n}", f"item {n}") for n in range(9)]
QUERIES = [Query(f"q{n}", f"query {n}") for n in range(3)]
SCORES = np.random.default_rng(0).normal(size=(3, 9)).astype(np.float32)


def scorer(scores=SCORES) -> MatrixScorer:
    return MatrixScorer(queries=QUERIES, items=ITEMS, scores=scores)


def first(scores=SCORES) -> Matrix:
    return Matrix(queries=QUERIES, items=ITEMS, scores=scores)


def test_an_index_teaches_each_anchor_query_s_best_items_with_their_exact_scores() -> None:
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=QUERIES, scores=SCORES)
    teacher = TeacherScores.from_index(index, top=4)
    assert [row.query for row in teacher.rows] == QUERIES
    for scores, row in zip(SCORES, teacher.rows, strict=True):
        assert row.positions.tolist() == np.argsort(-scores)[:4].tolist()
        assert row.scores.tolist() == scores[row.positions].tolist()


def test_several_scorers_teach_their_mean_over_what_the_first_stage_finds() -> None:
    other = SCORES[::-1].copy()
    teacher = TeacherScores.from_scorers(
        [scorer(), scorer(other)], QUERIES, ItemList(ITEMS), first=first(-SCORES), top=3
    )
    for scores, mean, row in zip(SCORES, (SCORES + other) / 2, teacher.rows, strict=True):
        assert row.positions.tolist() == np.argsort(scores)[:3].tolist()
        np.testing.assert_allclose(row.scores, mean[row.positions], rtol=1e-6)


def test_scores_in_a_cache_are_paid_for_once(tmp_path) -> None:
    asked = []

    class Counting:
        card = scorer().card

        def score(self, pairs):
            asked.extend(pairs)
            return scorer().score(pairs)

    options = {"first": first(), "top": 3, "cache": tmp_path / "scores.sqlite"}
    teachers = [TeacherScores.from_scorers([Counting()], QUERIES, ItemList(ITEMS), **options) for _ in range(2)]
    assert len(asked) == 9
    assert teachers[0].fingerprint == teachers[1].fingerprint


@pytest.mark.parametrize(
    ("positions", "scores", "value"),
    [
        ([0, 1, 2], [1.0, 1.0, 1.0], "1.0, 1.0, 1.0"),
        ([3], [1.0], "3"),
        ([0, 4], [1.0, np.nan], "nan"),
        ([0, 4], [np.inf, 1.0], "inf"),
        ([2, 2], [0.0, 1.0], "2, 2"),
        ([-1, 2], [0.0, 1.0], "-1, 2"),
        ([1, 2], [0.0, 1.0, 2.0], "0.0, 1.0, 2.0"),
    ],
)
def test_scores_that_teach_nothing_are_refused_with_the_query_named(positions, scores, value) -> None:
    with pytest.raises(InputError, match=f"'q0'.*{value}"):
        TeacherRow(QUERIES[0], np.array(positions), np.array(scores))


def test_teachers_without_queries_items_or_scorers_are_refused() -> None:
    items = ItemList(ITEMS)
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=QUERIES, scores=SCORES)
    for top in (1, 10, 2.5):
        with pytest.raises(InputError, match="number of items, 9"):
            TeacherScores.from_index(index, top=top)
        with pytest.raises(InputError, match="number of items, 9"):
            TeacherScores.from_scorers([scorer()], QUERIES, items, first=first(), top=top)
    with pytest.raises(EmptyInput, match="no anchor queries"):
        TeacherScores.from_index(AnchorIndex.from_items(ITEMS), top=3)
    with pytest.raises(EmptyInput, match="got 0 and 3"):
        TeacherScores.from_scorers([], QUERIES, items, first=first(), top=3)
    with pytest.raises(EmptyInput, match="got 1 and 0"):
        TeacherScores.from_scorers([scorer()], [], items, first=first(), top=3)
    with pytest.raises(EmptyInput):
        TeacherScores([])


def test_a_first_stage_that_finds_one_item_is_refused() -> None:
    items = ItemList(ITEMS)
    words = BM25.build([*ITEMS[:8], Item("i8", "rare")])
    with pytest.raises(InputError, match="1 queries, such as 'q0'"):
        TeacherScores.from_scorers([scorer()], [Query("q0", "rare")], items, first=words, top=3)


def test_a_query_for_which_the_first_stage_finds_nothing_is_left_out_with_a_warning(caplog) -> None:
    asked = [Query("stranger", "zzz"), Query("q0", ITEMS[0].text)]
    teacher = TeacherScores.from_scorers([scorer()], asked, ItemList(ITEMS), first=BM25.build(ITEMS), top=3)
    assert [row.query.id for row in teacher.rows] == ["q0"]
    assert "1 of 2 queries are left out, such as 'stranger'" in caplog.text


def test_a_query_whose_items_all_score_alike_is_left_out_with_a_warning(caplog) -> None:
    scores = SCORES.copy()
    scores[1] = 7
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=QUERIES, scores=scores)
    items = ItemList(ITEMS)
    for teacher in (
        TeacherScores.from_index(index, top=4),
        TeacherScores.from_scorers([scorer(scores)], QUERIES, items, first=first(scores), top=4),
    ):
        assert [row.query.id for row in teacher.rows] == ["q0", "q2"]
        assert teacher.rows[1].scores.tolist() == scores[2, teacher.rows[1].positions].tolist()
    assert caplog.text.count("1 of 3 queries are left out, such as 'q1'") == 2
    with pytest.raises(InputError, match="3 queries, such as 'q0'"):
        TeacherScores.from_scorers([scorer(0 * scores)], QUERIES, items, first=first(), top=4)


def test_a_scorer_that_answers_nonsense_is_named_with_the_pair() -> None:
    class Nonsense:
        card = scorer().card

        def score(self, pairs):
            return np.full(len(pairs), np.nan)

    with pytest.raises(NonFiniteScore, match="'q0' and item"):
        TeacherScores.from_scorers([Nonsense()], QUERIES, ItemList(ITEMS), first=first(), top=3)
