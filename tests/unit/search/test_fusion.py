from __future__ import annotations

import numpy as np
import pytest

from adacur import AnchorIndex, Budget, Exact, First, Gaussian, Hits, Item, Query, Rerank
from adacur.core.errors import InputError, UnknownName
from adacur.first_stages import Matrix
from adacur.search.fusion import LISTED, Fusion
from adacur.tuning import replay


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
    """−log of the share of anchor scores above, plus the weight × the first stage's standard score."""
    best = np.asarray(first.scores)[:LISTED]
    standing = dict(zip(first.ids[:LISTED], (best - best.mean()) / best.std(), strict=True))
    anchors = np.sort(world.anchor_scores.ravel())
    values = {}
    for position, score in scored(hits).items():
        share = 1 - np.searchsorted(anchors, score) / len(anchors)
        id_ = world.items[position].id
        values[id_] = -np.log(max(share, 1 / len(anchors))) + weight * standing.get(id_, min(standing.values()))
    return values


def test_the_order_is_rarity_plus_weight_times_the_first_stages_standard_score(index, world) -> None:
    for query, first in zip(world.test, world.noisy_hits(200, 3.0), strict=True):
        hits = index.search(query, k=60, budget=60, first=First("noisy", fuse=1.0))
        expected = by_hand(hits, world, first, 1.0)
        common = [
            id_ for id_ in hits.ids if hits.scores[hits.ids.index(id_)] < np.sort(world.anchor_scores.ravel())[-50]
        ]
        fused = dict(zip(hits.ids, hits.fused, strict=True))
        # The scale has knots; between them it is straight, and at the very top there is nothing to count.
        assert np.allclose([fused[id_] for id_ in common], [expected[id_] for id_ in common], atol=0.02)


@pytest.mark.parametrize("method", ["gaussian", "adacur", "rerank", "exact"])
def test_scores_stay_the_scorers_own_and_the_best_k_are_the_best_fused_of_all_that_was_scored(
    index, world, method
) -> None:
    spent = {} if method == "exact" else {"budget": 60}
    fusion = Fusion.fit(index, weight=2.0)
    lists = world.noisy_hits(200, 3.0)
    for row, (query, first) in enumerate(zip(world.test, lists, strict=True)):
        hits = index.search(query, k=5, method=method, first=First("noisy", fuse=2.0), **spent)
        everything = scored(hits)
        values = fusion.values(
            np.array(list(everything.values())),
            np.array(list(everything)),
            listed=index.items.positions(first.ids),
            listed_scores=first.scores,
        )
        assert np.allclose(hits.fused, np.sort(values)[::-1][:5])
        assert np.array_equal(hits.scores, world.test_scores[row][index.items.positions(hits.ids)])


def test_what_is_scored_does_not_depend_on_fuse(index, world) -> None:
    plain = index.search(world.test, k=10, budget=60, first="noisy")
    fused = index.search(world.test, k=10, budget=60, first=First("noisy", fuse=3.0))
    assert [scored(hits) for hits in plain] == [scored(hits) for hits in fused]
    assert [hits.ids for hits in plain] != [hits.ids for hits in fused]
    assert all(hits.fused is None for hits in plain)


def test_a_heavy_weight_gives_the_first_stages_order_and_none_the_scorers(index, world) -> None:
    first = world.noisy_hits(60, 3.0)
    heavy = index.search(world.test, k=10, budget=60, method="rerank", first=First("noisy", fuse=1e6))
    none = index.search(world.test, k=10, budget=60, method="rerank", first=First("noisy", fuse=0.0))
    assert [hits.ids for hits in heavy] == [hits.ids[:10] for hits in first]
    assert all((np.diff(hits.scores) <= 0).all() and hits.fused is None for hits in none)


def test_a_scorer_of_probabilities_is_fused_like_one_of_logits(world) -> None:
    def rarities(squeezed) -> np.ndarray:
        scores = squeezed(world.anchor_scores)
        index = AnchorIndex.from_arrays(items=world.items, anchor_queries=world.anchors, scores=scores)
        return Fusion.fit(index, weight=1.0).scale.rarity(squeezed(world.test_scores))

    inside = np.abs(world.test_scores) < np.abs(world.anchor_scores).max()
    logits, probabilities = rarities(np.asarray), rarities(lambda scores: 1 / (1 + np.exp(-scores)))
    assert np.allclose(logits[inside], probabilities[inside], atol=0.02)


def test_the_order_of_the_items_does_not_matter(world) -> None:
    order = np.random.default_rng(0).permutation(len(world.items))
    answers = []
    for places in (np.arange(len(order)), order):
        items = [world.items[place] for place in places]
        index = AnchorIndex.from_arrays(
            items=items, anchor_queries=world.anchors, scores=world.anchor_scores[:, places]
        )
        found = AnchorIndex(index, scorer=world.scorer).search(
            world.test, 10, method=Exact(), first=First(world.noisy_first(3.0), fuse=1.0)
        )
        answers.append([hits.ids for hits in found])
    assert answers[0] == answers[1]


def test_fuse_goes_with_filter_pool_and_deadline(index, world) -> None:
    kept = {item.id for item in world.items[::2]}
    hits = index.search(
        world.test[0],
        k=5,
        filter=kept,
        budget=Budget(40, deadline=60.0),
        method=Gaussian(rounds=4),
        first=First("noisy", pool=50, fuse=1.0),
    )
    assert len(hits) == 5
    assert set(hits.ids) <= kept
    assert hits.trace.settings["fuse"] == 1.0


def test_every_round_of_search_iter_is_fused(index, world) -> None:
    steps = list(index.search_iter(world.test[0], k=5, budget=60, first=First("noisy", fuse=1.0)))
    assert len(steps) == 5
    assert all(step.fused is not None and (np.diff(step.fused) <= 0).all() for step in steps)
    assert steps[-1].ids == index.search(world.test[0], k=5, budget=60, first=First("noisy", fuse=1.0)).ids


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
        hits = index.search(world.test, 10, budget=120, method=Rerank(), first=First(first, fuse=1.0))
        return [one.ids for one in hits]

    assert found(Twice()) == found(world.noisy_first(3.0))


def test_a_first_stage_that_cannot_tell_items_apart_changes_nothing(world) -> None:
    flat = Matrix(queries=world.test, items=world.items, scores=np.ones_like(world.test_scores))
    plain = AnchorIndex(world.index, scorer=world.scorer).search(world.test, 10, method=Exact())
    fused = AnchorIndex(world.index, scorer=world.scorer).search(
        world.test, 10, method=Exact(), first=First(flat, fuse=1.0)
    )
    assert [hits.ids for hits in fused] == [hits.ids for hits in plain]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_is_a_number_from_zero_up(index, world, weight) -> None:
    with pytest.raises(InputError, match="from 0"):
        index.search(world.test[0], first=First("noisy", fuse=weight))


def test_fuse_needs_a_first_stage_anchor_scores_and_scores_of_the_first_stage(index, world) -> None:
    with pytest.raises(InputError, match="give first"):
        index.search(world.test[0], first=First("random", fuse=1.0))
    with pytest.raises(InputError, match="no anchor queries"):
        AnchorIndex.from_items(world.items, scorer=world.scorer, first="random").search(
            world.test[0], method="rerank", first=First(world.noisy_first(), fuse=1.0)
        )

    class Bare:
        def search(self, queries, k):
            return [Hits(query=query, ids=("i1", "i2"), scores=np.array([np.nan, 1.0])) for query in queries]

    with pytest.raises(InputError, match="NaN"):
        index.search(world.test[0], method="rerank", first=First(Bare(), fuse=1.0))


def test_exact_search_takes_a_first_stage_only_to_fuse(index, world) -> None:
    with pytest.raises(InputError, match="first"):
        index.search(world.test[0], method="exact", first="noisy")


def test_dicts_and_representations_show_what_the_hits_are_ranked_by(index, world) -> None:
    hits = index.search(world.test[0], k=10, budget=60, first=First("noisy", fuse=3.0))
    written = hits.fused.tolist()
    assert written == sorted(written, reverse=True)
    assert [row["fused"] for row in hits.to_dicts()] == written
    assert [row["score"] for row in hits.to_dicts()] == hits.scores.tolist()
    assert "fused" in repr(hits)
    plain = index.search(world.test[0], k=10, budget=60, first="noisy")
    assert "fused" not in repr(plain)
    assert all("fused" not in row for row in plain.to_dicts())


def test_replaying_anchor_queries_finds_their_scores_without_a_scorer(world) -> None:
    first = Matrix(queries=world.anchors, items=world.items, scores=world.anchor_scores)
    index = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores, first={"known": first}
    )
    for method in ("gaussian", "adacur", "rerank"):
        for row, hits in enumerate(
            replay(index, world.anchors[:5], 10, budget=40, method=method, first=First("known", fuse=1.0))
        ):
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
            world.test, 3, budget=60, method=Rerank(), first=First(Bare(), fuse=1.0)
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
