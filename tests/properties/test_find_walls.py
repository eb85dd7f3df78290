"""What must hold for every `find`, whatever the world, the line and the budget."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from adacur import AnchorIndex
from adacur.scorers import Metered
from tests.conftest import World, make_world

worlds = st.builds(
    make_world,
    n_items=st.integers(2, 60),
    n_anchors=st.integers(1, 15),
    n_test=st.integers(1, 4),
    rank=st.integers(1, 12),
    noise=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 10_000),
)
lines = st.sampled_from([-100.0, -1.0, 0.0, 1.0, 3.0, 100.0])
recalls = st.sampled_from([0.5, 0.9, 0.99])


def index_of(world: World, *, is_random: bool = False) -> AnchorIndex:
    first = {} if is_random else {"noisy": world.noisy_first()}
    return AnchorIndex(world.index, scorer=Metered(world.scorer), first=first)


@settings(max_examples=100, deadline=None)
@given(
    world=worlds, above=lines, recall=recalls, budget=st.integers(2, 80), share=st.floats(0, 0.9), random=st.booleans()
)
def test_the_budget_is_never_exceeded_and_nothing_is_scored_twice(world, above, recall, budget, share, random) -> None:
    index = index_of(world, is_random=random)
    audit = int(share * (min(budget, len(world.items)) - 1))
    hits = index.find(world.test, above=above, recall=recall, budget=budget, audit=audit)
    assert index.scorer.calls == sum(found.trace.calls for found in hits)
    for found in hits:
        scored = np.concatenate([round_.positions for round_ in found.trace.rounds])
        assert len(scored) == found.trace.calls == found.certificate.calls <= min(budget, len(world.items))
        assert max(Counter(scored.tolist()).values()) == 1


@settings(max_examples=60, deadline=None)
@given(world=worlds, above=lines, recall=recalls, budget=st.integers(2, 80))
def test_hits_are_what_was_scored_above_the_line_and_best_first(world, above, recall, budget) -> None:
    for found, exact in zip(
        index_of(world).find(world.test, above=above, recall=recall, budget=budget), world.test_scores, strict=True
    ):
        by_id = {item.id: score for item, score in zip(world.items, exact.tolist(), strict=True)}
        scored = [world.items[at].id for round_ in found.trace.rounds for at in round_.positions.tolist()]
        assert set(found.ids) == {id_ for id_ in scored if by_id[id_] >= above}
        assert found.scores.tolist() == sorted((by_id[id_] for id_ in found.ids), reverse=True)


@settings(max_examples=60, deadline=None)
@given(world=worlds, above=lines, extra=st.integers(0, 5))
def test_a_budget_that_covers_all_items_and_a_recall_of_1_give_the_exact_set(world, above, extra) -> None:
    n_items = len(world.items)
    found = index_of(world).find(world.test, above=above, recall=1.0, budget=n_items + extra)
    for hits, exact in zip(found, world.test_scores, strict=True):
        assert set(hits.ids) == {world.items[at].id for at in np.flatnonzero(exact >= above).tolist()}
        assert hits.certificate.basis == "every item"


@settings(max_examples=60, deadline=None)
@given(world=worlds, above=lines, recall=recalls, budget=st.integers(2, 80), audit=st.integers(0, 1))
def test_an_answer_does_not_depend_on_its_batch(world, above, recall, budget, audit) -> None:
    index = index_of(world)
    options = {"above": above, "recall": recall, "budget": budget, "audit": audit}
    together = index.find(world.test, **options)
    backwards = index.find(world.test[::-1], **options)[::-1]
    alone = [index.find(query, **options) for query in world.test]
    for one, two, three in zip(together, backwards, alone, strict=True):
        rounds = [[round_.positions.tolist() for round_ in found.trace.rounds] for found in (one, two, three)]
        assert rounds[0] == rounds[1] == rounds[2]
        assert one.ids == two.ids == three.ids
        assert one.certificate == two.certificate == three.certificate
