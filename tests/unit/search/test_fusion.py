from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex, Budget, Exact, Gaussian, Hits, Item, Query, Rerank
from adacur.errors import InputError, UnknownName
from adacur.first_stages import Matrix
from adacur.replay import replay
from adacur.search.finish import LISTED, fused


@pytest.fixture
def index(world) -> AnchorIndex:
    return AnchorIndex.from_arrays(
        items=world.items,
        anchor_queries=world.anchors,
        scores=world.anchor_scores,
        scorer=world.scorer,
        first={"noisy": world.noisy_first(3.0)},
    )


def scored(hits: Hits) -> dict[int, float]:
    return {
        position: float(score)
        for round_ in hits.trace.rounds
        for position, score in zip(round_.positions.tolist(), round_.exact, strict=True)
    }


def by_hand(hits: Hits, world, first: Hits, weight: float) -> dict[str, float]:
    """Both scores in standard deviations from the mean of their best 100."""
    best = np.asarray(first.scores)[:LISTED]
    standing = dict(zip(first.ids[:LISTED], (best - best.mean()) / best.std(), strict=True))
    everything = scored(hits)
    top = np.sort(list(everything.values()))[-LISTED:]
    return {
        (id_ := world.items[position].id): (score - top.mean()) / top.std()
        + weight * standing.get(id_, min(standing.values()))
        for position, score in everything.items()
    }


@pytest.mark.parametrize("budget", [60, 140])
@pytest.mark.parametrize("with_anchors", [True, False])
def test_the_order_is_the_scorers_standard_score_plus_weight_times_the_first_stages(
    index, world, budget, with_anchors
) -> None:
    if not with_anchors:
        index = AnchorIndex.from_items(world.items, scorer=world.scorer, first={"noisy": world.noisy_first(3.0)})
    for query, first in zip(world.test, world.noisy_hits(200, 3.0), strict=True):
        hits = index.search(query, k=budget, budget=budget, first="noisy", fuse=1.5)
        expected = by_hand(hits, world, first, 1.5)
        assert np.allclose(hits.fused, [expected[id_] for id_ in hits.ids])
        assert (np.diff(hits.fused) <= 0).all()


@pytest.mark.parametrize("method", ["gaussian", "adacur", "rerank", "exact"])
def test_scores_stay_the_scorers_own_and_the_best_k_are_the_best_fused_of_all_that_was_scored(
    index, world, method
) -> None:
    spent = {} if method == "exact" else {"budget": 60}
    lists = world.noisy_hits(200, 3.0)
    for row, (query, first) in enumerate(zip(world.test, lists, strict=True)):
        hits = index.search(query, k=5, method=method, first="noisy", fuse=2.0, **spent)
        everything = scored(hits)
        values = fused(
            np.array(list(everything.values())),
            np.array(list(everything)),
            weight=2.0,
            listed=index.items.positions(first.ids),
            listed_scores=first.scores,
        )
        assert np.allclose(hits.fused, np.sort(values)[::-1][:5])
        assert np.array_equal(hits.scores, world.test_scores[row][index.items.positions(hits.ids)])


def test_what_is_scored_does_not_depend_on_fuse(index, world) -> None:
    plain = index.search(world.test, k=10, budget=60, first="noisy")
    fused = index.search(world.test, k=10, budget=60, first="noisy", fuse=3.0)
    assert [scored(hits) for hits in plain] == [scored(hits) for hits in fused]
    assert [hits.ids for hits in plain] != [hits.ids for hits in fused]
    assert all(hits.fused is None for hits in plain)


def test_a_heavy_weight_gives_the_first_stages_order_and_none_the_scorers(index, world) -> None:
    first = world.noisy_hits(60, 3.0)
    heavy = index.search(world.test, k=10, budget=60, method="rerank", first="noisy", fuse=1e6)
    none = index.search(world.test, k=10, budget=60, method="rerank", first="noisy", fuse=0.0)
    assert [hits.ids for hits in heavy] == [hits.ids[:10] for hits in first]
    assert all((np.diff(hits.scores) <= 0).all() and hits.fused is None for hits in none)


@pytest.mark.parametrize(("unit", "zero"), [(1e-200, 0.0), (1e200, 0.0), (0.01, 0.5), (3.0, -1e4)])
def test_the_units_of_neither_score_matter(unit, zero) -> None:
    draws = np.random.default_rng(0)
    exact, positions, listed, of_listed = draws.normal(size=30), np.arange(30), np.arange(20, 80), draws.normal(size=60)
    plain = fused(exact, positions, weight=0.7, listed=listed, listed_scores=of_listed)
    other = fused(exact * unit + zero, positions, weight=0.7, listed=listed, listed_scores=of_listed * unit - zero)
    assert np.allclose(plain, other)


def test_scores_that_are_all_equal_leave_the_order_to_the_other(index) -> None:
    exact, positions, flat = np.array([3.0, 1.0, 2.0]), np.arange(3), np.full(3, 0.1 + 0.2)
    by_scorer = fused(exact, positions, weight=1.0, listed=positions, listed_scores=flat)
    by_first = fused(flat, positions, weight=1.0, listed=positions, listed_scores=exact)
    assert np.argsort(-by_scorer).tolist() == np.argsort(-by_first).tolist() == [0, 2, 1]
    nothing = fused(exact, positions, weight=1.0, listed=np.empty(0, np.intp), listed_scores=np.empty(0))
    assert np.argsort(-nothing).tolist() == [0, 2, 1]
    assert len(fused(np.empty(0), np.empty(0, np.intp), weight=1.0, listed=positions, listed_scores=exact)) == 0


def test_the_order_of_the_items_does_not_matter(world) -> None:
    order = np.random.default_rng(0).permutation(len(world.items))
    answers = []
    for places in (np.arange(len(order)), order):
        items = [world.items[place] for place in places]
        index = AnchorIndex.from_arrays(
            items=items, anchor_queries=world.anchors, scores=world.anchor_scores[:, places]
        )
        found = AnchorIndex(index, scorer=world.scorer).search(
            world.test, 10, method=Exact(), first=world.noisy_first(3.0), fuse=1.0
        )
        answers.append([hits.ids for hits in found])
    assert answers[0] == answers[1]


def test_fuse_goes_with_filter_and_deadline(index, world) -> None:
    kept = {item.id for item in world.items[::2]}
    hits = index.search(
        world.test[0],
        k=5,
        filter=kept,
        budget=Budget(40, deadline=60.0),
        method=Gaussian(rounds=4),
        first="noisy",
        fuse=1.0,
    )
    assert len(hits) == 5
    assert set(hits.ids) <= kept
    assert hits.trace.settings["fuse"] == 1.0


def test_every_round_of_search_iter_is_fused(index, world) -> None:
    steps = list(index.search_iter(world.test[0], k=5, budget=60, first="noisy", fuse=1.0))
    assert len(steps) == 5
    assert all(step.fused is not None and (np.diff(step.fused) <= 0).all() for step in steps)
    assert steps[-1].ids == index.search(world.test[0], k=5, budget=60, first="noisy", fuse=1.0).ids


def test_an_item_that_the_first_stage_names_twice_counts_once(world) -> None:
    class Twice:
        def search(self, queries, k):
            return [
                Hits(query=hits.query, ids=hits.ids + hits.ids, scores=np.concatenate([hits.scores, hits.scores - 100]))
                for hits in world.noisy_hits(k, 3.0)
                if hits.query in queries
            ]

    def found(first) -> list[tuple[str, ...]]:
        index = AnchorIndex(world.index, scorer=world.scorer)
        hits = index.search(world.test, 10, budget=120, method=Rerank(), first=first, fuse=1.0)
        return [one.ids for one in hits]

    assert found(Twice()) == found(world.noisy_first(3.0))


def test_a_first_stage_that_cannot_tell_items_apart_changes_nothing(world) -> None:
    flat = Matrix(queries=world.test, items=world.items, scores=np.ones_like(world.test_scores))
    plain = AnchorIndex(world.index, scorer=world.scorer).search(world.test, 10, method=Exact())
    fused = AnchorIndex(world.index, scorer=world.scorer).search(world.test, 10, method=Exact(), first=flat, fuse=1.0)
    assert [hits.ids for hits in fused] == [hits.ids for hits in plain]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_is_a_number_from_zero_up(index, world, weight) -> None:
    with pytest.raises(InputError, match="from 0"):
        index.search(world.test[0], first="noisy", fuse=weight)


def test_fuse_needs_a_first_stage_and_scores_of_it(index, world) -> None:
    with pytest.raises(InputError, match="give first"):
        index.search(world.test[0], first="random", fuse=1.0)

    class Bare:
        def search(self, queries, k):
            return [Hits(query=query, ids=("i1", "i2"), scores=np.array([np.nan, 1.0])) for query in queries]

    with pytest.raises(InputError, match="NaN"):
        index.search(world.test[0], method="rerank", first=Bare(), fuse=1.0)


def test_exact_search_takes_a_first_stage_only_to_fuse(index, world) -> None:
    with pytest.raises(InputError, match="first"):
        index.search(world.test[0], method="exact", first="noisy")


def test_a_representation_shows_what_the_hits_are_ranked_by(index, world) -> None:
    hits = index.search(world.test[0], k=10, budget=60, first="noisy", fuse=3.0)
    written = hits.fused.tolist()
    assert written == sorted(written, reverse=True)
    assert "fused" in repr(hits)
    plain = index.search(world.test[0], k=10, budget=60, first="noisy")
    assert "fused" not in repr(plain)


def test_replaying_anchor_queries_finds_their_scores_without_a_scorer(world) -> None:
    first = Matrix(queries=world.anchors, items=world.items, scores=world.anchor_scores)
    index = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores, first={"known": first}
    )
    for method in ("gaussian", "adacur", "rerank"):
        for row, hits in enumerate(replay(index, world.anchors[:5], 10, budget=40, method=method, first="known")):
            positions = index.items.positions(hits.ids)
            assert np.allclose(hits.scores, world.anchor_scores[row][positions])
            assert hits.trace.calls == 40
    with pytest.raises(UnknownName, match="new"):
        replay(index, [Query("new", "new")], first="known")


def test_a_closed_index_replays_nothing(world) -> None:
    index = AnchorIndex.from_arrays(items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores)
    index.close()
    with pytest.raises(InputError, match="closed"):
        replay(index, world.anchors[:1], 5, budget=20)


def test_first_stage_scores_that_cannot_be_blended_are_refused_before_anything_is_scored(index, world) -> None:
    class Bare:
        def search(self, queries, k):
            return [Hits(query=query, ids=("i1", "i2"), scores=np.array([np.inf, 1.0])) for query in queries]

    class Counted:
        card = world.scorer.card
        calls = 0

        def score(self, pairs):
            self.calls += len(pairs)
            return world.scorer.score(pairs)

    scorer = Counted()
    with pytest.raises(InputError, match="infinity"):
        AnchorIndex(world.index, scorer=scorer).search(
            world.test, 3, budget=60, method=Rerank(), first=Bare(), fuse=1.0
        )
    assert scorer.calls == 0


def test_a_replayed_query_does_not_know_its_own_row() -> None:
    scores = np.random.default_rng(3).normal(size=(40, 300))
    items = [Item(f"i{position}", f"item {position}") for position in range(300)]
    anchors = [Query(f"a{position}", f"anchor {position}") for position in range(40)]
    index = AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=scores)
    best = [set(np.argsort(-row)[:10].tolist()) for row in scores]
    found = replay(index, anchors, 10, budget=60, first="random")
    shares = [
        len(own & set(index.items.positions(hits.ids).tolist())) / 10 for own, hits in zip(best, found, strict=True)
    ]
    # Noise cannot be predicted: 60 of 300 items hold a fifth of the best, unless the row is known.
    assert np.mean(shares) < 0.3
