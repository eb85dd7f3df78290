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
