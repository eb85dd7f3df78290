from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest

from adacur.errors import WrongScorer
from adacur.records import Item, Query
from adacur.scorers.known import MatrixScorer
from adacur.scorers.metered import Metered
from adacur.store import AnchorTable, DriftWarning, check_scorer, save_table
from adacur.store.probes import choose_probes


def probes_of(matrix: np.ndarray, *, cut: int = 1000, seed: int = 0):
    return choose_probes(((start, matrix[start : start + cut]) for start in range(0, len(matrix), cut)), seed=seed)


def saturated(n_items: int = 2000, n_anchors: int = 20) -> np.ndarray:
    """Logits as cross-encoders give them: nearly all at the bottom, a few spread up to the top."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(-11, 0.05, size=(n_items, n_anchors))
    few = rng.choice(matrix.size, size=matrix.size // 200, replace=False)
    matrix.flat[few] = rng.uniform(-11, 8, size=len(few))
    return matrix.astype(np.float32)


def test_probes_are_true_scores_and_include_the_lowest_and_the_highest() -> None:
    matrix = saturated()
    probes = probes_of(matrix)
    assert len(probes) == len(set(probes)) == 32
    assert all(matrix[probe.item, probe.anchor] == probe.score for probe in probes)
    assert probes[0].score == matrix.min()
    assert probes[-1].score == matrix.max()


def test_probes_spread_evenly_over_the_values_where_nearly_all_scores_are_saturated() -> None:
    matrix = saturated()
    scores = np.array([probe.score for probe in probes_of(matrix)])
    span = matrix.max() - matrix.min()
    assert np.diff(scores).max() < 2 * span / 31
    assert np.mean(scores > -10) > 0.9


def test_probes_come_from_all_over_the_items_and_anchors() -> None:
    probes = probes_of(saturated())
    assert len({probe.item for probe in probes}) > 25
    assert len({probe.item // 500 for probe in probes}) == 4
    assert len({probe.anchor for probe in probes}) > 10


def test_only_scores_that_the_scorer_gave_are_probes() -> None:
    matrix = saturated(n_items=300)
    exact = np.random.default_rng(0).random(matrix.shape) < 0.1
    probes = choose_probes([(0, matrix[:200]), (200, matrix[200:])], exact=exact, seed=0)
    assert all(exact[probe.item, probe.anchor] for probe in probes)
    assert probes[-1].score == matrix[exact].max()
    assert choose_probes([(0, matrix)], exact=np.zeros_like(exact), seed=0) == ()


@pytest.mark.parametrize(("shape", "count"), [((1, 1), 1), ((3, 2), 6), ((400, 5), 32)])
def test_constant_and_tiny_matrices_give_as_many_probes_as_there_are(shape, count) -> None:
    probes = probes_of(np.full(shape, 2.5))
    assert 1 <= len(probes) <= count
    if shape[0] > 100:
        assert len(probes) > 16


# --- recognising a scorer


def pretending(scorer, **card):
    """The same scores under another card."""

    class Pretending:
        def __init__(self) -> None:
            self.card = replace(scorer.card, **card)

        def score(self, pairs):
            return scorer.score(pairs)

    return Metered(Pretending())


def distorted(known, distort):
    scores = distort(known.scores.astype(np.float64))
    return MatrixScorer(known.anchors, known.items, scores, name="other")


@pytest.fixture
def folder(known, tmp_path):
    return known.build(tmp_path / "index")


def test_the_scorer_that_built_the_index_is_recognised_without_a_call(known, folder) -> None:
    scorer = known.metered
    assert check_scorer(folder, scorer) is None
    assert scorer.calls == 0


@pytest.mark.parametrize(
    "card",
    [
        {"weights": None},
        {"backend": "x"},
        {"dtype": "int8"},
        {"max_tokens": 3},
        {"max_item_tokens": 3},
        {"settings": "x"},
        {"arithmetic": "x"},
    ],
)
def test_a_scorer_with_another_card_is_asked_for_the_probes_and_nothing_else(known, folder, card) -> None:
    scorer = pretending(known.scorer, **card)
    drift = check_scorer(folder, scorer)
    assert drift.same
    assert drift.correlation == pytest.approx(1)
    assert drift.max_difference == drift.mean_difference == drift.rms_over_std == 0
    assert scorer.calls == drift.n_probes == 32


def test_a_scorer_without_weights_is_never_taken_on_its_word(known, tmp_path) -> None:
    scorer = pretending(known.scorer, weights=None)
    folder = known.build(tmp_path / "index", scorer=scorer)
    before = scorer.calls
    assert check_scorer(folder, scorer).same
    assert scorer.calls == before + 32


def test_half_precision_storage_is_not_taken_for_drift(known, tmp_path) -> None:
    # Far from zero, where steps of half precision are large beside the spread.
    known = replace(known, scores=known.scores + 300)
    folder = known.build(tmp_path / "index", dtype="float16")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drift = check_scorer(folder, pretending(known.scorer, weights="other"))
    assert drift.same
    assert drift.max_difference > 1e-3 * known.scores.std()


def test_a_scorer_that_is_a_little_off_is_accepted_with_a_warning_that_gives_the_numbers(known, folder) -> None:
    rng = np.random.default_rng(1)
    near = distorted(known, lambda scores: scores + rng.normal(0, 0.3, size=scores.shape))
    with pytest.warns(DriftWarning, match=r"'other'.*'matrix'.*correlation 0\.99") as caught:
        drift = check_scorer(folder, near)
    assert len(caught) == 1
    assert not drift.same
    assert 0.99 <= drift.correlation < 1
    assert 0 < drift.mean_difference <= drift.max_difference
    assert check_scorer(folder, near, warn=False) == drift


@pytest.mark.parametrize(
    "distort",
    [
        lambda scores: -scores,
        lambda scores: scores + 100,
        lambda scores: 1 / (1 + np.exp(-scores)),
        lambda scores: scores[:, ::-1],
        lambda scores: np.zeros_like(scores),
    ],
    ids=["negated", "shifted", "sigmoid", "unrelated", "constant"],
)
def test_another_scorer_is_refused_with_the_numbers_and_both_names(known, folder, distort) -> None:
    with pytest.raises(WrongScorer):
        check_scorer(folder, distorted(known, distort))


def test_an_index_of_equal_scores_knows_its_scorer_too(known, tmp_path) -> None:
    flat = replace(known, scores=np.full_like(known.scores, 0.1))
    folder = flat.build(tmp_path / "index")
    assert check_scorer(folder, pretending(flat.scorer, weights=None)).same
    with pytest.raises(WrongScorer):
        check_scorer(folder, known.scorer)
    with pytest.raises(WrongScorer):
        check_scorer(folder, distorted(flat, lambda scores: scores + 1))


def test_an_index_of_one_score_and_an_unknown_scorer_can_be_checked(tmp_path) -> None:
    items, anchors = [Item("i", "text")], [Query("a", "text")]
    table = AnchorTable.from_arrays(items=items, anchor_queries=anchors, scores=[[3.0]])
    folder = save_table(table, tmp_path / "index")
    assert check_scorer(folder, MatrixScorer(anchors, items, [[3.0]])).same
    with pytest.raises(WrongScorer):
        check_scorer(folder, MatrixScorer(anchors, items, [[4.0]]))
