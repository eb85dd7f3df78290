from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, FirstOnly, Hits, Item
from adacur.errors import BudgetError, InputError, UnknownOption
from adacur.first_stages import Matrix
from adacur.protocols import ScorerCard
from adacur.replay import exact_scores, replay, top_k_recall
from adacur.search.tuned import GaussianSettings, Tuning


class Never:
    """A scorer that must not be asked, or even opened."""

    card = ScorerCard(name="never", backend="onnx")

    def score(self, pairs: Sequence) -> np.ndarray:
        raise AssertionError("a scorer was called")


def unopened() -> None:
    raise AssertionError("a scorer was opened")


ITEMS = [
    Item(f"i{at}", text, {"even": at % 2 == 0}) for at, text in enumerate(["a red fox", "a fox", "red", "blue"] * 5)
]
QUERY = "the red fox"


@pytest.fixture
def index(world) -> AnchorIndex:
    return AnchorIndex(world.index, scorer=unopened, first={"noisy": world.noisy_first(3.0)})


def test_the_hits_are_the_first_stages_best_with_its_scores_in_its_order_and_no_scorer_is_opened(index, world) -> None:
    for hits, first in zip(index.search(world.test, 7, method="first"), world.noisy_hits(7, 3.0), strict=True):
        assert hits.ids == first.ids
        assert np.array_equal(hits.scores, first.scores)
        assert (hits.trace.calls, hits.trace.rounds, hits.rounds, hits.fused) == (0, (), (), None)
        assert (hits.relevance, hits.verdict) == (None, None)
        assert [hit.item.id for hit in hits] == list(hits.ids)
    said = hits.trace.settings
    assert (said["method"], said["budget"], said["first"], said["fuse"]) == ("first", 0, "noisy", 0.0)


@pytest.mark.parametrize("budget", [None, 0, 3, 10_000, "1 tokens", "0.01 USD"])
def test_no_budget_is_too_small_or_changes_the_answer(index, world, budget) -> None:
    assert index.search(world.test[0], 12, method=FirstOnly(), budget=budget).ids == world.noisy_hits(12, 3.0)[0].ids


def test_every_form_of_search_gives_the_same(index, world) -> None:
    query, expected = world.test[0], index.search(world.test[0], 5, method="first").ids

    async def steps() -> list[Hits]:
        return [hits async for hits in index.asearch_iter(query, 5, method="first")]

    assert [hits.ids for hits in index.search_iter(query, 5, method="first")] == [expected]
    assert [hits.ids for hits in asyncio.run(steps())] == [expected]
    assert asyncio.run(index.asearch(query, 5, method="first")).ids == expected


def test_a_filter_leaves_the_first_stages_best_of_what_passes(index, world) -> None:
    kept = {item.id for item in world.items[::7]}
    best = [id_ for id_ in world.noisy_hits(len(world.items), 3.0)[0].ids if id_ in kept]
    assert index.search(world.test[0], 6, method="first", filter=kept).ids == tuple(best[:6])


def test_k_counts_documents_whose_best_passage_is_the_hit() -> None:
    items = [Item(f"p{at}", f"fox {at} " + "red " * (at % 3), {"document": f"d{at // 8}"}) for at in range(24)]
    index = AnchorIndex.from_items(items, scorer=Never(), first="bm25")
    everything = index.first_stage("bm25").search(["red fox"], 24)[0].positions.tolist()
    best: dict[str, str] = {}
    for at in everything:
        best.setdefault(items[at].document, items[at].id)
    hits = index.search("red fox", 3, method="first")
    assert hits.ids == tuple(best.values())
    assert len(hits) == 3


def test_several_stages_are_joined_as_a_search_would_start(world) -> None:
    stages = {"one": world.noisy_first(3.0), "other": world.noisy_first(1.0)}
    index = AnchorIndex(world.index, scorer=Never(), first=stages)
    joined = index.first_stage("one+other").search(world.test[:1], 9)[0]
    hits = index.search(world.test[0], 9, method="first", first="one+other")
    assert index.items.positions(hits.ids).tolist() == joined.positions.tolist()
    assert np.array_equal(hits.scores, joined.scores)


def test_what_would_need_scores_or_starts_at_random_is_refused(index, world) -> None:
    for options in (
        {"fuse": 1.0},
        {"min_score": 0.5},
        {"min_score": 0},
        {"first": "random"},
    ):
        with pytest.raises(InputError):
            index.search(world.test[0], 5, method="first", **options)
    assert index.search(world.test[0], 5, method="first", fuse=0).ids


def test_nothing_is_logged_since_nothing_was_scored(world, tmp_path) -> None:
    log = adacur.extras.server.SearchLog(tmp_path / "log.sqlite")
    index = AnchorIndex(world.index, scorer=Never(), first={"noisy": world.noisy_first(3.0)}, log=log)
    index.search(world.test[0], 5, method="first")
    assert list(log) == []


def test_an_index_without_a_scorer_can_be_searched_by_its_first_stage() -> None:
    index = AnchorIndex.from_items(ITEMS, first="bm25")
    assert index.search(QUERY, 3, method="first").ids[0] == "i0"


def test_its_recall_is_measured_by_exact_scores_and_not_by_the_first_stages(index, world) -> None:
    hits = index.search(world.test, 10, method="first")
    with pytest.raises(InputError):
        top_k_recall(hits, world.test_scores, k=10)
    scored = [exact_scores(one, world.scorer) for one in hits]
    assert [one.ids for one in scored] == [one.ids for one in hits]
    best = [set(np.argsort(-row)[:10].tolist()) for row in world.test_scores]
    shares = [len(own & set(index.items.positions(one.ids).tolist())) / 10 for own, one in zip(best, hits, strict=True)]
    assert top_k_recall(scored, world.test_scores, k=10).tolist() == shares


def test_anchor_queries_are_replayed_by_the_first_stage_alone_with_their_known_scores(world) -> None:
    known = Matrix(queries=world.anchors, items=world.items, scores=-world.anchor_scores)
    index = AnchorIndex(world.index, first={"worst": known})
    for row, hits in enumerate(replay(index, world.anchors[:3], 4, method="first")):
        assert np.array_equal(hits.scores, np.sort(world.anchor_scores[row])[:4])
        assert hits.trace.calls == 0


@pytest.mark.parametrize("budget", ["nonsense", -5])
def test_a_budget_that_is_none_is_refused_though_it_is_not_spent(index, world, budget) -> None:
    with pytest.raises(BudgetError):
        index.search(world.test[0], 3, method="first", budget=budget)


def test_effort_and_a_k_that_counts_nothing_are_refused_with_the_reason_on_a_tuned_index_too(index, world) -> None:
    tuned = Tuning(3, 100, GaussianSettings(), first="noisy", n_queries=25)
    for tunings in ((), (tuned,)):
        index.snapshot.tunings = tunings
        with pytest.raises(InputError, match="method 'gaussian'"):
            index.search(world.test[0], 3, method="first", effort="auto")
        for k in (0, -1, "3"):
            with pytest.raises(BudgetError, match="k must be"):
                index.search(world.test[0], k, method="first")


def test_an_option_of_another_place_is_refused_with_that_place(index, world) -> None:
    with pytest.raises(UnknownOption, match=r"Gaussian\(rounds=3\)"):
        index.search(world.test[0], 3, rounds=3)
