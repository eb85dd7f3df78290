"""Oracles and AXN against literal transcriptions."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import ANNCUR, AnchorIndex
from adacur.first_stages import Matrix
from adacur.model import Softmax, TopK
from adacur.seeds import item_keys
from adacur_lab.axn import AXN, EmbeddingRegression
from adacur_lab.oracle import Oracle
from tests.reference import literal


def positions(ids) -> list[int]:
    return [int(id_[1:]) for id_ in ids]


@pytest.mark.parametrize("masked", [0, 10])
@pytest.mark.parametrize("random_share", [0.0, 0.25, 0.75])
def test_anchor_items_by_oracle_then_the_best_predicted_of_the_rest_as_in_the_appendix(
    make_world, masked, random_share
) -> None:
    world = make_world(n_items=300, n_anchors=60, rank=60, noise=0.1)
    oracle = Oracle(
        queries=world.test,
        items=world.items,
        exact_scores=world.test_scores,
        masked=masked,
        random_share=random_share,
    )
    found = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, 5, budget=60, method=ANNCUR(split=0.5), first=oracle
    )
    for hits, exact in zip(found, world.test_scores, strict=True):
        first, second = (round_.positions.tolist() for round_ in hits.trace.rounds)
        greedy, n_random = literal.oracle_anchors("topk", 30, exact, masked=masked, epsilon=random_share)
        best = np.argsort(-exact, kind="stable")[:masked]
        assert len(first) == 30
        assert set(greedy) <= set(first)
        assert len(set(first) - set(greedy)) == n_random
        assert not set(first) & set(best.tolist())
        assert second == literal.one_shot(world.anchor_scores, exact, first, budget=60)
        # Masked items may be retrieved: only their use as anchor items is denied.
        assert list(hits.scores) == sorted(exact[first + second], reverse=True)[:5]


def test_the_softmax_oracle_draws_like_the_paper_s_sampler(make_world) -> None:
    world = make_world(n_items=12, n_test=1, rank=2)
    exact = world.test_scores[0]
    masked, n_random = literal.oracle_anchors("softmax", 4, exact, masked=2, epsilon=0.0)
    assert n_random == 0
    rng = np.random.default_rng(0)
    draws = 3000
    ours, theirs = np.zeros(12), np.zeros(12)
    for seed in range(draws):
        oracle = Oracle(
            queries=world.test, items=world.items, exact_scores=world.test_scores, choice=Softmax(), masked=2, seed=seed
        )
        ours[positions(oracle.search(world.test, 4)[0].ids)] += 1
        theirs[literal.sample_items("softmax", 4, masked, exact, rng)] += 1
    assert ours[masked].sum() == 0
    # Four standard deviations of the difference of two shares.
    assert np.abs(ours - theirs).max() / draws < 4 * np.sqrt(2 * 0.25 / draws)


@pytest.mark.parametrize("blend", [0.0, 0.6, 1.0])
@pytest.mark.parametrize(("budget", "rounds"), [(40, 4), (120, 6), (12, 1)])
def test_axn_follows_its_literal_transcription_to_a_millionth(make_world, blend, budget, rounds) -> None:
    """Through more scored items than dimensions (16) as well as fewer."""
    world = make_world(n_items=300, rank=16, noise=0.3, n_test=4)
    duals = np.random.default_rng(5).normal(size=(len(world.test), 16))
    of = {query.id: dual for query, dual in zip(world.test, duals, strict=True)}
    found = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test,
        5,
        budget=budget,
        method=AXN(
            rounds=rounds,
            approximator=EmbeddingRegression(
                world.item_embeddings,
                embed_queries=lambda queries: np.stack([of[query.id] for query in queries]),
                blend=blend,
                ridge=0.3,
            ),
            acquisition=TopK(),
            keep_predictions="last",
        ),
        first=Matrix(queries=world.test, items=world.items, scores=duals @ world.item_embeddings.T),
    )
    for hits, dual, exact in zip(found, duals, world.test_scores, strict=True):
        chosen, approximate = literal.axn(
            world.item_embeddings, dual, exact, budget=budget, rounds=rounds, blend=blend, ridge=0.3
        )
        assert np.concatenate([round_.positions for round_ in hits.trace.rounds]).tolist() == chosen
        assert hits.trace.approximate_scores == pytest.approx(approximate, rel=1e-6, abs=1e-6)


def test_ties_of_exact_scores_are_broken_alike_for_the_mask_and_the_choice(make_world) -> None:
    """Saturated scores tie by the thousand: the masked and the chosen must not overlap, and all orders agree."""
    world = make_world(n_items=40, n_test=1)
    oracle = Oracle(queries=world.test, items=world.items, exact_scores=np.zeros((1, 40)), masked=10)
    by_key = np.argsort(item_keys(item.id for item in world.items))
    assert positions(oracle.search(world.test, 8)[0].ids) == by_key[10:18].tolist()
