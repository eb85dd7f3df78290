"""Scores that were not paid for, predicted from embeddings and from queries that are alike."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.extras.server.completion import Completion, ScoredItems

N_ITEMS, N_ANCHORS, DIMENSION = 400, 20, 6
DRAWS = np.random.default_rng(0)
EMBEDDINGS = DRAWS.normal(size=(N_ITEMS, DIMENSION))
VECTORS = DRAWS.normal(size=(N_ANCHORS, DIMENSION))
SCORES = VECTORS @ EMBEDDINGS.T


def scored(n, *, scores=SCORES, seed=1):
    draws = np.random.default_rng(seed)
    chosen = [np.sort(draws.choice(N_ITEMS, n, replace=False)) for _ in scores]
    return [ScoredItems(at, row[at], np.full(n, N_ITEMS / n)) for at, row in zip(chosen, scores, strict=True)]


def completed(rows, **options):
    return Completion(rows, **({"embeddings": EMBEDDINGS, "query_vectors": VECTORS} | options))


def _rank_correlation(some, others):
    return np.corrcoef(np.argsort(np.argsort(some)), np.argsort(np.argsort(others)))[0, 1]


def test_given_scores_are_kept_to_the_bit_and_known_as_such():
    rows = scored(30)
    completion = completed(rows, dtype="float32")
    matrix, cells = completion[0:N_ITEMS], completion.exact(0, N_ITEMS)
    assert matrix.shape == completion.shape == (N_ITEMS, N_ANCHORS)
    assert cells.sum() == 30 * N_ANCHORS
    for column, own in enumerate(rows):
        assert np.array_equal(matrix[own.positions, column], own.scores.astype(np.float32))
        assert cells[own.positions, column].all()


def test_scores_that_follow_from_the_embeddings_are_predicted_in_their_order():
    matrix = completed(scored(60))[0:N_ITEMS]
    told = [_rank_correlation(own, truth) for own, truth in zip(matrix.T, SCORES, strict=True)]
    assert min(told) > 0.9


def test_what_embeddings_do_not_tell_is_learnt_from_queries_that_are_alike():
    surprising = SCORES.copy()
    surprising[:, 7] += 10
    rows = scored(60, scores=surprising)
    others = rows[0].positions != 7
    rows[0] = ScoredItems(rows[0].positions[others], rows[0].scores[others], rows[0].weights[others])
    for row in range(1, N_ANCHORS):
        if 7 not in rows[row].positions:
            rows[row].positions[0], rows[row].scores[0] = 7, surprising[row, 7]
    alike = np.tile(VECTORS[:1], (N_ANCHORS, 1))
    unlike = np.eye(N_ANCHORS)
    lifted = completed(rows, query_vectors=alike)[7:8][0, 0] - completed(rows, query_vectors=unlike)[7:8][0, 0]
    assert lifted > 1


def test_how_items_are_cut_into_blocks_makes_no_difference():
    completion = completed(scored(30))
    blocks = [completion[start : start + 37] for start in range(0, N_ITEMS, 37)]
    assert np.allclose(np.concatenate(blocks), completion[0:N_ITEMS], atol=1e-5)


def test_an_item_drawn_at_random_counts_for_those_it_was_drawn_from():
    # 90 % of all items score 0; the best tenth, all of which is scored, 1 … 2.
    row = np.where(np.arange(N_ITEMS) < 40, np.linspace(2, 1, N_ITEMS), 0.0) + 1e-3 * DRAWS.normal(size=N_ITEMS)
    positions = np.arange(50)
    blank = np.zeros((N_ITEMS, 1))
    fair = Completion(
        [ScoredItems(positions, row[positions], np.where(positions < 40, 1.0, 36.0))],
        embeddings=blank,
        query_vectors=np.ones((1, 1)),
    )
    naive = Completion(
        [ScoredItems(positions, row[positions], np.ones(50))], embeddings=blank, query_vectors=np.ones((1, 1))
    )
    assert abs(np.median(fair[50:N_ITEMS])) < 0.1
    assert np.median(naive[50:N_ITEMS]) > 0.5


def test_equal_scores_and_equal_items_are_no_obstacle():
    same = [ScoredItems(np.arange(5), np.full(5, 2.0), np.ones(5))] * 2
    matrix = Completion(same, embeddings=np.ones((8, 3)), query_vectors=np.zeros((2, 3)))[0:8]
    assert np.array_equal(matrix, np.full((8, 2), 2.0))


def test_predictions_stay_within_what_was_seen():
    rows = scored(20)
    matrix = completed(rows)[0:N_ITEMS]
    seen = np.concatenate([own.scores for own in rows])
    assert matrix.min() >= np.float32(seen.min())
    assert matrix.max() <= np.float32(seen.max())


def test_a_query_without_scores_is_refused():
    with pytest.raises(InputError, match="at least one score"):
        completed([*scored(5)[:-1], ScoredItems(np.empty(0, dtype=np.intp), np.empty(0), np.empty(0))])
    with pytest.raises(InputError, match="vector"):
        completed(scored(5), query_vectors=VECTORS[1:])
