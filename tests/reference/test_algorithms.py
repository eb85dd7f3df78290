"""The fast search against the paper's algorithms, line by line."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex
from tests.reference import literal

SHAPES = {
    "fewer anchors items than anchor queries": {"n_anchors": 60, "rank": 60, "noise": 0.1, "budget": 40, "rounds": 4},
    "through as many anchor items as anchor queries": {
        "n_anchors": 30,
        "rank": 30,
        "noise": 0.1,
        "budget": 60,
        "rounds": 6,
    },
    "exactly as many at the end": {"n_anchors": 40, "rank": 40, "noise": 0.1, "budget": 40, "rounds": 5},
    "one item a round": {"n_anchors": 20, "rank": 20, "noise": 0.1, "budget": 30, "rounds": 30},
    "rank-deficient": {"n_anchors": 30, "rank": 7, "noise": 0.0, "budget": 40, "rounds": 5},
    "one round": {"n_anchors": 30, "rank": 30, "noise": 0.1, "budget": 10, "rounds": 1},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("seed", range(3))
def test_search_follows_algorithm_1_to_a_millionth(make_world, shape, seed) -> None:
    shape = dict(shape)
    budget, rounds = shape.pop("budget"), shape.pop("rounds")
    world = make_world(n_items=300, n_test=3, seed=seed, **shape)
    first = world.noisy_first()
    hits = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, k=5, budget=budget, method=AdaCUR(rounds=rounds, keep_predictions="last"), first=first
    )
    for row, found in enumerate(hits):
        start = first.search([world.test[row]], budget // rounds)[0].positions.tolist()
        exact = world.test_scores[row]
        approximate, chosen, scores = literal.adacur(
            world.anchor_scores,
            lambda positions, exact=exact: exact[positions],
            budget=budget,
            rounds=rounds,
            first=start,
        )
        ours = np.concatenate([round_.positions for round_ in found.trace.rounds])
        assert ours.tolist() == chosen
        assert found.trace.approximate_scores == pytest.approx(
            approximate, rel=1e-6, abs=1e-6 * np.abs(approximate).max()
        )
        best = np.argsort(-scores, kind="stable")[:5]
        assert list(found.ids) == [f"i{chosen[position]}" for position in best]


@pytest.mark.parametrize("seed", range(25))
def test_a_rank_deficient_index_gives_the_literal_answer_for_queries_it_cannot_explain(make_world, seed) -> None:
    """As many items a round as the rank: the first batch is often ill-conditioned, and a rank misjudged shows."""
    world = make_world(n_items=300, n_anchors=40, n_test=2, rank=20, seed=seed)
    world.test_scores[:] += 0.3 * np.random.default_rng(seed).normal(size=world.test_scores.shape)
    hits = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, k=5, budget=100, method=AdaCUR(rounds=5, keep_predictions="last")
    )
    for row, found in enumerate(hits):
        chosen = np.concatenate([round_.positions for round_ in found.trace.rounds])
        expected = world.test_scores[row][chosen] @ np.linalg.pinv(world.anchor_scores[:, chosen]) @ world.anchor_scores
        assert found.trace.approximate_scores == pytest.approx(expected, abs=1e-6 * np.abs(expected).max())


def test_items_with_equal_rows_do_not_upset_the_pseudo_inverse(make_world) -> None:
    world = make_world(n_items=120, n_anchors=40, rank=40, noise=0.1)
    world.anchor_scores[:, 1:6] = world.anchor_scores[:, :1]
    world.test_scores[:, 1:6] = world.test_scores[:, :1]
    hits = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, k=5, budget=60, method=AdaCUR(rounds=4, keep_predictions="last"), first=world.noisy_first()
    )
    for row, found in enumerate(hits):
        chosen = np.concatenate([round_.positions for round_ in found.trace.rounds])
        # The same formula, with singular values that are rounding cut off: numpy's own threshold is a coin toss here.
        inverse = np.linalg.pinv(world.anchor_scores[:, chosen], rcond=1e-12)
        expected = world.test_scores[row][chosen] @ inverse @ world.anchor_scores
        assert found.trace.approximate_scores == pytest.approx(expected, rel=1e-6, abs=1e-6 * np.abs(expected).max())


def test_softmax_draws_like_the_paper_s_sampler(make_world) -> None:
    """Over many seeds, how often each item is drawn agrees with numpy's sampler without replacement."""
    from adacur.model import Softmax
    from adacur.seeds import item_keys, stream_key

    rng = np.random.default_rng(0)
    predicted = rng.normal(size=12)
    unscored = np.ones(12, dtype=bool)
    unscored[[2, 7]] = False
    keys = item_keys(f"i{position}" for position in range(12))
    draws = 4000
    ours, theirs = np.zeros(12), np.zeros(12)
    for seed in range(draws):
        ours[Softmax().choose(predicted, unscored=unscored, n=4, keys=keys, stream=stream_key(seed, "x"))] += 1
        theirs[literal.sample_items("softmax", 4, [2, 7], predicted, rng)] += 1
    assert ours[[2, 7]].sum() == 0
    # Four standard deviations of the difference of two shares.
    assert np.abs(ours - theirs).max() / draws < 4 * np.sqrt(2 * 0.25 / draws)
