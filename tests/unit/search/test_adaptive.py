from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from adacur import AdaCUR, AnchorIndex, Gaussian
from adacur.errors import InputError, ScoreCountError
from adacur.model import PseudoInverse
from adacur.scorers import MatrixScorer
from adacur.search import plan_search
from adacur.search.asktell import AskTell, QueryBatch
from adacur.search.candidates import CandidatesInMemory


def plan_of(world, sizes, **choices):
    index = AnchorIndex(world.index, scorer=world.scorer)
    plan = plan_search(index, 1, budget=sum(sizes), method=AdaCUR(rounds=len(sizes), **choices))
    return replace(plan, sizes=lambda affordable: sizes)


def lock_step(world, plan, approximator=None) -> QueryBatch:
    return QueryBatch(
        plan,
        world.test,
        1,
        candidates=[
            CandidatesInMemory(np.arange(4), np.ones(len(world.items), dtype=bool), len(world.items), plan.items.keys)
            for _ in world.test
        ],
        approximation=(approximator or PseudoInverse()).begin(world.index, world.test),
    )


@pytest.fixture
def asking(world) -> AskTell:
    return lock_step(world, plan_of(world, (4, 3))).searches[0]


def test_asking_twice_without_telling_is_refused(asking) -> None:
    asking.ask()
    with pytest.raises(InputError, match="tell"):
        asking.ask()


def test_telling_before_asking_is_refused(asking) -> None:
    with pytest.raises(InputError, match="ask"):
        asking.tell(np.empty(0))


def test_telling_the_wrong_number_of_scores_is_refused(asking) -> None:
    asking.ask()
    with pytest.raises(ScoreCountError, match=r"4.*3"):
        asking.tell(np.zeros(3))


def test_it_asks_for_the_first_stage_s_items_first_and_ends_with_nothing(world) -> None:
    steps = lock_step(world, plan_of(world, (4, 3)))
    assert [positions.tolist() for positions in steps.ask()] == [[0, 1, 2, 3]] * len(world.test)
    steps.tell([scores[:4] for scores in world.test_scores])
    second = steps.ask()
    assert [len(positions) for positions in second] == [3] * len(world.test)
    steps.tell([scores[where] for scores, where in zip(world.test_scores, second, strict=True)])
    assert not steps.goes_on
    assert not any(len(positions) for positions in steps.ask())


@pytest.mark.parametrize("kept", [False, "last"])
def test_the_last_scores_are_learnt_from_only_where_something_is_predicted_afterwards(world, kept) -> None:
    learnt = []

    class Listening(PseudoInverse):
        def begin(self, anchors, queries):
            state = super().begin(anchors, queries)
            learn = state.tell
            state.tell = lambda positions, scores: (learnt.append(sum(map(len, positions))), learn(positions, scores))
            return state

    n = len(world.test)
    steps = lock_step(world, plan_of(world, (4, 3, 2), keep_predictions=kept), Listening())
    steps.searches[-1].remaining = [4, 3]
    while steps.goes_on:
        asked = steps.ask()
        steps.tell([scores[where] for scores, where in zip(world.test_scores, asked, strict=True)])
    assert learnt == [4 * n, 3 * n] + [2 * (n - 1)] * bool(kept)


def test_after_stop_the_first_few_scores_are_enough(asking, world) -> None:
    asking.ask()
    asking.stop("deadline")
    asking.tell(world.test_scores[0][:2])
    assert not len(asking.ask())
    positions, _scores, _ = asking.best()
    assert sorted(positions.tolist()) == [0, 1]
    assert asking.trace(settings={}).stopped == "deadline"


@pytest.mark.parametrize("scale", [1e38, 1e200, 1e300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", [Gaussian, AdaCUR])
def test_predictions_beyond_the_range_of_floats_are_left_out(world, scale, dtype, method) -> None:
    scorer = MatrixScorer(queries=world.test, items=world.items, scores=world.test_scores * scale)
    index = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores.astype(dtype), scorer=scorer
    )
    hits = index.search(world.test[0], 5, budget=40, method=method(keep_predictions="all"))
    kept = [
        values
        for values in (
            hits.trace.approximate_scores,
            *(round_.predicted for round_ in hits.trace.rounds),
            *(round_.all_predicted for round_ in hits.trace.rounds),
        )
        if values is not None
    ]
    assert all(np.isfinite(values).all() for values in kept)
    assert hits.trace.calls == 40
    if (dtype, scale) == (np.float64, 1e38):
        assert len(kept) == 1 + 2 * (len(hits.trace.rounds) - 1)
