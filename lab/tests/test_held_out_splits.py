from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from adacur import ANNCUR, AnchorIndex
from adacur.errors import BudgetError, InputError
from adacur.first_stages import Matrix, as_hits
from adacur_lab.experiments.held_out_splits import held_out_splits


def held_out_split(anchors, *, k: int, **options) -> float:
    return held_out_splits(anchors, ks=(k,), **options)[k]


@pytest.mark.parametrize("seed", range(4))
def test_the_held_out_split_is_the_one_that_wins_on_queries_like_the_anchor_queries(make_world, seed) -> None:
    """Few anchor items recover this world, so little is best spent on them, and the test queries agree."""
    world = make_world(n_items=400, n_anchors=80, n_test=60, rank=4, noise=0.3, seed=seed)
    budget = 40
    chosen = held_out_split(world.index, budget=budget, k=20, n_held_out=40)

    def found(split: float) -> float:
        hits = AnchorIndex(world.index, scorer=world.scorer).search(
            world.test, 20, budget=budget, method=ANNCUR(split=split)
        )
        worst = np.sort(world.test_scores, axis=1)[:, -20]
        return np.mean([(own.scores >= least).mean() for own, least in zip(hits, worst, strict=True)])

    recalls = {split: found(split) for split in (tenth / 10 for tenth in range(1, 10))}
    assert recalls[chosen] > max(recalls.values()) - 0.03
    assert recalls[chosen] > min(recalls.values()) + 0.1


def test_the_held_out_split_replays_the_same_for_any_order_of_anchor_queries_and_asks_the_first_stage(world) -> None:
    asked: list[str] = []

    class Listening:
        def search(self, queries, k):
            asked.extend(query.id for query in queries)
            everything = Matrix(queries=world.anchors, items=world.items, scores=world.anchor_scores)
            return as_hits(queries, everything.search(queries, k), everything.ids)

    options = {"budget": 40, "k": 5, "n_held_out": 10}
    split = held_out_split(world.index, first=Listening(), **options)
    assert split in {tenth / 10 for tenth in range(1, 10)}
    assert len(set(asked)) == 10
    first_asked = set(asked)
    asked.clear()
    backwards = dataclasses.replace(world, anchors=world.anchors[::-1], anchor_scores=world.anchor_scores[::-1])
    assert held_out_split(backwards.index, first=Listening(), **options) == split
    assert set(asked) == first_asked


def test_at_most_half_of_the_anchor_queries_are_held_out_and_one_is_too_few(make_world) -> None:
    assert 0 < held_out_split(make_world(n_anchors=3).index, budget=20, k=2, n_held_out=100) < 1
    with pytest.raises(InputError, match="two anchor queries"):
        held_out_split(make_world(n_anchors=1).index, budget=20, k=2)
    with pytest.raises(BudgetError, match="k must not exceed"):
        held_out_split(make_world().index, budget=20, k=30)
