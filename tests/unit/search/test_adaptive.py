from __future__ import annotations

import numpy as np
import pytest

from adacur import PseudoInverse, TopK
from adacur.core.errors import InputError, ScoreCountError
from adacur.search import AdaptiveSearch


@pytest.fixture
def asking(world) -> AdaptiveSearch:
    return AdaptiveSearch(
        world.test,
        candidates=[np.arange(4)] * len(world.test),
        allowed=[np.ones(len(world.items), dtype=bool)] * len(world.test),
        batch_sizes=[(4, 3)] * len(world.test),
        keys=world.index.items.keys,
        approximation=PseudoInverse().begin(world.index, world.test),
        acquisition=TopK(),
    )


def test_asking_twice_without_telling_is_refused(asking) -> None:
    asking.ask()
    with pytest.raises(InputError, match="tell"):
        asking.ask()


def test_telling_before_asking_is_refused(asking) -> None:
    with pytest.raises(InputError, match="ask"):
        asking.tell([])


def test_telling_the_wrong_number_of_scores_is_refused(asking, world) -> None:
    asking.ask()
    with pytest.raises(ScoreCountError, match="asked for"):
        asking.tell([np.zeros(3)] * len(world.test))


def test_it_asks_for_the_first_stage_s_items_first_and_ends_with_nothing(asking, world) -> None:
    first = asking.ask()
    assert [positions.tolist() for positions in first] == [[0, 1, 2, 3]] * len(world.test)
    asking.tell([scores[:4] for scores in world.test_scores])
    second = asking.ask()
    assert [len(positions) for positions in second] == [3] * len(world.test)
    asking.tell([scores[where] for scores, where in zip(world.test_scores, second, strict=True)])
    assert not any(len(positions) for positions in asking.ask())


@pytest.mark.parametrize("to_the_end", [False, True])
def test_the_last_scores_are_learnt_from_only_where_something_is_predicted_afterwards(world, to_the_end) -> None:
    told = []

    class Told(PseudoInverse):
        def begin(self, anchors, queries):
            state = super().begin(anchors, queries)
            learn = state.tell
            state.tell = lambda positions, scores: (told.append(sum(map(len, positions))), learn(positions, scores))
            return state

    n = len(world.test)
    search = AdaptiveSearch(
        world.test,
        candidates=[np.arange(4)] * n,
        allowed=[np.ones(len(world.items), dtype=bool)] * n,
        batch_sizes=[(4, 3, 2)] * (n - 1) + [(4, 3)],
        keys=world.index.items.keys,
        approximation=Told().begin(world.index, world.test),
        acquisition=TopK(),
        predicts_at_the_end=to_the_end,
    )
    while any(map(len, asked := search.ask())):
        search.tell([scores[where] for scores, where in zip(world.test_scores, asked, strict=True)])
    assert told == [4 * n, 3 * n] + [2 * (n - 1)] * to_the_end


def test_after_stop_the_first_few_scores_are_enough(asking, world) -> None:
    asking.ask()
    asking.stop()
    asking.tell([scores[:2] for scores in world.test_scores])
    assert not any(len(positions) for positions in asking.ask())
    positions, _scores, _ = asking.best(0, 10)
    assert sorted(positions.tolist()) == [0, 1]
    assert asking.trace(0, settings={}, approximate_scores=None).stopped == "deadline"


def test_several_rounds_need_an_approximation(world) -> None:
    with pytest.raises(InputError, match="approximation"):
        AdaptiveSearch(
            world.test[:1],
            candidates=[np.arange(4)],
            allowed=[np.ones(len(world.items), dtype=bool)],
            batch_sizes=[(4, 3)],
            keys=world.index.items.keys,
        )
