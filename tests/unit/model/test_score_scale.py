"""The scale of rarity."""

from __future__ import annotations

import numpy as np
import pytest

from adacur.model.scale import ScoreScale
from adacur.seeds import item_keys

KEYS = item_keys(f"i{number}" for number in range(3000))


def logits(n_items: int = 300, n_anchors: int = 40) -> np.ndarray:
    """Most pairs near −11, few high, as a cross-encoder has them."""
    rng = np.random.default_rng(0)
    return (-11 + np.abs(rng.standard_t(2, size=(n_items, n_anchors)))).clip(max=11)


def test_a_score_s_rarity_is_the_log_of_the_share_above_it() -> None:
    scale = ScoreScale.of(np.arange(100.0).reshape(50, 2))
    assert scale.rarity(np.array([49.5]))[0] == pytest.approx(-np.log(0.5), abs=0.01)
    assert scale.rarity(np.array([89.5]))[0] == pytest.approx(-np.log(0.1), abs=0.02)


def test_rarity_rises_strictly_with_the_score_also_beyond_what_was_seen() -> None:
    scale = ScoreScale.of(logits())
    rarities = scale.rarity(np.linspace(-30, 30, 2001))
    assert (np.diff(rarities) > 0).all()


def test_scores_come_back_from_their_rarity() -> None:
    scores = np.concatenate([logits().ravel(), [-20.0, 20.0]])
    scale = ScoreScale.of(logits())
    assert scale.score(scale.rarity(scores)) == pytest.approx(scores, abs=1e-6)


def test_a_scorer_that_gives_sigmoids_has_the_same_rarities() -> None:
    scores = logits(100, 20)
    sigmoids = 1 / (1 + np.exp(-scores))
    by_logit = ScoreScale.of(scores).rarity(scores)
    by_sigmoid = ScoreScale.of(sigmoids).rarity(sigmoids)
    assert by_sigmoid == pytest.approx(by_logit, abs=1e-9)


def test_of_many_items_a_sample_is_drawn_that_does_not_depend_on_their_order() -> None:
    scores = logits(3000, 500)
    order = np.random.default_rng(1).permutation(3000)
    scale = ScoreScale.of(scores[ScoreScale.sample(KEYS, n_anchors=500)])
    shuffled = ScoreScale.of(scores[order][ScoreScale.sample(KEYS[order], n_anchors=500)])
    assert np.array_equal(scale.scores, shuffled.scores)
    assert np.array_equal(scale.rarities, shuffled.rarities)
    # A million of a million and a half scores tell nearly the same as all of them.
    share_above = (scores[:, :, None] > np.array([-10.0, -5.0, 0.0])).mean(axis=(0, 1))
    assert np.exp(-scale.rarity(np.array([-10.0, -5.0, 0.0]))) == pytest.approx(share_above, rel=0.1, abs=2e-4)


def test_scores_that_never_vary_are_left_as_they_are() -> None:
    scale = ScoreScale.of(np.full((5, 3), 2.0))
    assert scale.rarity(np.array([2.0, 3.0])).tolist() == [2.0, 3.0]


def some_logits(n: int = 30) -> np.ndarray:
    return np.random.default_rng(1).normal(-6, 3, size=n)


def test_probabilities_are_modelled_as_the_logits_they_came_from() -> None:
    first, later = some_logits(), np.linspace(-11, 9, 50)
    plain, odds = ScoreScale.of_first(first), ScoreScale.of_first(1 / (1 + np.exp(-first)))
    assert odds.rarity(1 / (1 + np.exp(-later))) == pytest.approx(plain.rarity(later), abs=1e-3)
    assert odds.score(plain.rarity(later)) == pytest.approx(1 / (1 + np.exp(-later)), abs=1e-3)


@pytest.mark.parametrize(
    "change",
    [lambda x: 1000 * x - 7, lambda x: x * 1e200, lambda x: x / 1e200],
    ids=["a thousand times", "huge", "tiny"],
)
def test_first_scores_are_modelled_the_same_in_whatever_units(change) -> None:
    rarities = ScoreScale.of_first(some_logits()).rarity(some_logits())
    assert ScoreScale.of_first(change(some_logits())).rarity(change(some_logits())) == pytest.approx(rarities)


@pytest.mark.parametrize("scores", [[3.0] * 5, [0.0] * 5, [1.0] * 5, [0.5], [-1e200] * 3], ids=str)
def test_equal_first_scores_have_a_scale_on_which_others_differ(scores) -> None:
    scale = ScoreScale.of_first(np.array(scores))
    assert scale.rarity(np.array(scores)) == pytest.approx(np.zeros(len(scores)), abs=1e-9)
    higher = scale.rarity(np.array(scores[:1]) + max(1.0, abs(scores[0])))[0]
    assert 0 < higher < np.inf


def test_yes_and_no_differ_and_grades_keep_their_order() -> None:
    assert np.diff(ScoreScale.of_first(np.array([0.0, 0, 0, 1])).rarity(np.array([0.0, 1])))[0] > 0
    grades = np.array([0, 0.25, 0.5, 0.75, 1])
    steps = np.diff(ScoreScale.of_first(grades).rarity(grades))
    # The ends are no further out than the others are apart.
    assert (steps > 0).all()
    assert steps.max() < 2 * steps.min()
