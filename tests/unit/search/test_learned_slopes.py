"""Searches that learn from anchor queries what their first stage's ranks are worth."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import adacur
from adacur import AnchorIndex, Budget, Gaussian, Hits, Item, Query
from adacur.first_stages import Joined, Matrix, as_hits, placed
from adacur.model.rank_slopes import RankSlopes
from adacur.protocols import FirstStage, Ranking
from adacur.replay import top_k_recall
from adacur.replay.searches import method_of
from adacur.scorers import MatrixScorer
from adacur.search import plan_search, rounds
from adacur.search.index_stages import FirstStageWarning, learned_slopes
from adacur.search.tuned import GaussianSettings

N_ITEMS, N_ANCHORS, N_TEST = 400, 30, 40
ITEMS = [Item(f"i{position}", f"item {position}") for position in range(N_ITEMS)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(N_ANCHORS)]
TEST = [Query(f"t{number}", f"test {number}") for number in range(N_TEST)]


def scores() -> np.ndarray:
    """Much of a query's scores is shared with the anchor queries', and something is its own."""
    random = np.random.default_rng(4)
    shared = random.normal(size=(N_ANCHORS + N_TEST, 10)) @ random.normal(size=(10, N_ITEMS))
    return shared + random.normal(size=shared.shape)


SCORES = scores()


def stage(noise: float, *, seed: int = 0, queries: int = N_ANCHORS + N_TEST) -> Matrix:
    """A first stage that knows the scores of the last queries, blurred."""
    blurred = SCORES + noise * np.random.default_rng(seed).normal(size=SCORES.shape)
    return Matrix(queries=[*ANCHORS, *TEST][-queries:], items=ITEMS, scores=blurred[-queries:])


def made(n_anchors: int = N_ANCHORS, **options) -> AnchorIndex:
    given = {"items": ITEMS, "scorer": MatrixScorer(TEST, ITEMS, SCORES[N_ANCHORS:]), **options}
    if not n_anchors:
        return AnchorIndex.from_items(**given)
    return AnchorIndex.from_arrays(anchor_queries=ANCHORS[:n_anchors], scores=SCORES[:n_anchors], **given)


def recall(index: AnchorIndex, first: FirstStage, slopes: RankSlopes | None) -> float:
    method = method_of(GaussianSettings(), index.snapshot.gaussian_model(), slopes=slopes)
    return float(
        top_k_recall(index.search(TEST, 10, budget=50, method=method, first=first), SCORES[N_ANCHORS:], k=10).mean()
    )


class Asked(FirstStage):
    """A stage that counts the queries it is asked about."""

    def __init__(self, inner: Matrix) -> None:
        self.inner = inner
        self.name = "asked"
        self.queries: list[str] = []

    @property
    def ids(self):
        return self.inner.ids

    def search(self, queries, k: int) -> list[Ranking]:
        self.queries += [query.id for query in queries]
        return self.inner.search(queries, k)

    def settings(self):
        return {}

    build = load = updated = save = check_can_grow = None


class Service:
    """Answers with hits by id."""

    def __init__(self, inner: Matrix) -> None:
        self.inner = inner
        self.queries: list[str] = []

    def search(self, queries, k: int):
        self.queries += [query.id for query in queries]
        return as_hits(queries, self.inner.search(queries, k), self.inner.ids)


def error(index: AnchorIndex, first: FirstStage, slopes: RankSlopes | None, *, told: int) -> float:
    """Of predictions of the test queries' scores, up to a constant per query, when the stage's best are scored."""
    lists = [[positions] for positions, _ in first.search(TEST, N_ITEMS)]
    model = index.snapshot.gaussian_model().with_slopes(slopes)
    state = model.begin(index.snapshot.anchors, TEST, lists)
    batches = [listed[:told] for (listed,) in lists]
    exact = SCORES[N_ANCHORS:]
    state.tell(batches, [row[batch] for row, batch in zip(exact, batches, strict=True)])
    scale = model.features_of(index.snapshot.anchors).scale
    off = np.asarray(state.predict()) - scale.rarity(exact)
    return float(off.std(axis=1).mean())


@pytest.mark.parametrize("told", [0, 15])
@pytest.mark.parametrize("noise", [0.3, 1000.0], ids=["strong", "noise"])
def test_what_anchor_queries_tell_predicts_better_than_what_is_assumed(noise, told) -> None:
    index, first = made(), stage(noise)
    learned = index.snapshot.rank_slopes(placed(first, index.snapshot.anchors.items))
    assumed = RankSlopes.assumed(1)
    assert learned.means[0] > assumed.means[0] + 0.2 if noise < 1 else abs(learned.means[0]) < 0.15
    # The query's own scores move what was assumed, too, and leave less to gain.
    gain = 1 - error(index, first, learned, told=told) / error(index, first, assumed, told=told)
    assert gain > (0.05 if told == 0 else 0.005)


def test_a_first_stage_of_noise_is_ignored() -> None:
    index, first = made(), stage(1000.0)
    learned = index.snapshot.rank_slopes(placed(first, index.snapshot.anchors.items))
    assert error(index, first, learned, told=0) == pytest.approx(error(index, first, None, told=0), rel=0.01)
    assert error(index, first, RankSlopes.assumed(1), told=0) > 1.05 * error(index, first, None, told=0)
    assert recall(index, first, learned) == pytest.approx(recall(index, first, None), abs=0.02)


def test_a_strong_first_stage_is_followed() -> None:
    index, first = made(), stage(2.0)
    learned = index.snapshot.rank_slopes(placed(first, index.snapshot.anchors.items))
    assert recall(index, first, learned) > recall(index, first, None) + 0.03


def test_each_of_joined_stages_counts_by_what_it_is_worth() -> None:
    index = made(first={"good": stage(0.5), "noise": stage(1000.0, seed=1)})
    good, both = (index.snapshot.first_stage(name) for name in ("good", "good+noise"))
    alone, slopes = (index.snapshot.rank_slopes(one) for one in (good, both))
    assert both.n_stages == len(slopes.means) == 2
    assert slopes.means == pytest.approx([alone.means[0], 0], abs=0.15)
    hits = index.search(TEST, 10, budget=50, first="good+noise")
    single = index.search(TEST, 10, budget=50, first="good")
    found, best = (float(top_k_recall(some, SCORES[N_ANCHORS:], k=10).mean()) for some in (hits, single))
    assert found > best - 0.1


def test_a_service_is_not_asked_about_anchor_queries() -> None:
    service = Service(stage(0.3))
    index = made()
    index.search(TEST[0], 5, budget=30, first=service)
    assert service.queries == ["t0"]
    slopes = index.snapshot.rank_slopes(placed(service, index.snapshot.anchors.items))
    assert slopes.means.tolist() == RankSlopes.assumed(1).means.tolist()


def test_a_service_that_is_joined_with_another_stage_is_not_asked_about_anchor_queries_either() -> None:
    service = Service(stage(0.3))
    index = made(first={"service": service, "stage": stage(0.5)})
    index.search(TEST[0], 5, budget=30, first="service+stage")
    assert service.queries == ["t0"]
    slopes = index.snapshot.rank_slopes(index.snapshot.first_stage("service+stage"))
    assert slopes.means.tolist() == RankSlopes.assumed(2).means.tolist()


def test_a_table_of_other_queries_is_assumed_to_be_what_most_are() -> None:
    index, first = made(), stage(0.3, queries=N_TEST)
    slopes = index.snapshot.rank_slopes(placed(first, index.snapshot.anchors.items))
    assert slopes.means.tolist() == RankSlopes.assumed(1).means.tolist()
    assert index.search(TEST[0], 5, budget=30, first=first).trace.calls == 30


def test_with_one_anchor_query_and_with_none_slopes_are_assumed() -> None:
    first = stage(0.3)
    one, none = made(1), made(0)
    for index in (one, none):
        slopes = index.snapshot.rank_slopes(placed(first, index.snapshot.anchors.items))
        assert slopes.means.tolist() == RankSlopes.assumed(1).means.tolist()
    for index in (one, none):
        hits = index.search(TEST, 10, budget=50, first=first)
        reranked = index.search(TEST, 10, budget=50, method="rerank", first=first)
        found, plain = (float(top_k_recall(some, SCORES[N_ANCHORS:], k=10).mean()) for some in (hits, reranked))
        assert found > plain - 0.05


def test_a_first_stage_is_asked_about_anchor_queries_once() -> None:
    asked = Asked(stage(0.3))
    index = made()
    for _ in range(2):
        # Handed in, it is placed anew at every search.
        index.search(TEST[0], 5, budget=30, first=asked)
    assert sorted(asked.queries) == sorted([*(query.id for query in ANCHORS), "t0", "t0"])


def test_slopes_are_learned_anew_when_what_was_read_from_the_folder_is_forgotten() -> None:
    asked = Asked(stage(0.3))
    index = made()
    first = placed(asked, index.snapshot.anchors.items)
    before = index.snapshot.rank_slopes(first)
    index.snapshot.reread()
    assert index.snapshot.rank_slopes(first) is not before
    assert len(asked.queries) == 2 * N_ANCHORS


def test_searches_from_another_stage_go_on_while_slopes_are_learned_once_for_all_who_wait() -> None:
    asked_at_all, goes_on = threading.Event(), threading.Event()

    class Slow(Asked):
        def search(self, queries, k: int) -> list[Ranking]:
            asked_at_all.set()
            assert goes_on.wait(60)
            return super().search(queries, k)

    slow = Slow(stage(0.3))
    index = made(first={"plain": stage(0.5)})
    first = placed(slow, index.snapshot.anchors.items)
    index.search(TEST[1], 5, budget=30, first="plain")
    with ThreadPoolExecutor(3) as threads:
        learning = [threads.submit(index.snapshot.rank_slopes, first) for _ in range(2)]
        assert asked_at_all.wait(60)
        others = [
            threads.submit(index.search, TEST[0], 5, budget=30, first="plain", method=method)
            for method in ("rerank", "gaussian")
        ]
        try:
            assert [other.result(20).trace.calls for other in others] == [30, 30]
        finally:
            goes_on.set()
        assert learning[0].result(60) is learning[1].result(60)
    assert len(slow.queries) == N_ANCHORS


def searched(index: AnchorIndex, way: str, **options) -> Hits:
    if way == "search":
        return index.search(TEST[0], 1, **options)
    if way == "search_iter":
        return list(index.search_iter(TEST[0], 1, **options))[-1]
    if way == "asearch":
        return asyncio.run(index.asearch(TEST[0], 1, **options))

    async def last() -> Hits:
        return [hits async for hits in index.asearch_iter(TEST[0], 1, **options)][-1]

    return asyncio.run(last())


@pytest.mark.parametrize("way", ["search", "search_iter", "asearch", "asearch_iter"])
def test_the_time_that_learning_takes_counts_towards_the_deadline(way) -> None:
    class Slow(Asked):
        def search(self, queries, k: int) -> list[Ranking]:
            time.sleep(0.5 * (len(queries) > 1))
            return super().search(queries, k)

    def score(pairs):
        time.sleep(0.001)
        return [float(len(text)) for _, text in pairs]

    index, first = made(scorer=score), Slow(stage(0.3))
    late, again = (searched(index, way, budget=Budget(30, deadline=0.4), first=first) for _ in range(2))
    assert (late.trace.stopped, late.trace.calls) == ("deadline", 1)
    # Learned once, and a deadline is counted anew.
    assert again.trace.calls == 30


def test_a_plan_that_is_searched_again_has_all_of_its_time_again() -> None:
    index = made(first={"stage": stage(0.3)})
    plan = plan_search(index, 5, budget=Budget(30, deadline=0.3), first="stage")
    time.sleep(0.4)
    for _ in range(2):
        assert rounds.search(plan, TEST[:1], 5)[0].trace.calls == 30


def test_of_many_anchor_queries_some_are_asked_about() -> None:
    random = np.random.default_rng(0)
    anchors = [Query(f"b{number}", f"b {number}") for number in range(150)]
    values = random.normal(size=(150, N_ITEMS))
    asked = Asked(Matrix(queries=anchors, items=ITEMS, scores=values))
    index = AnchorIndex.from_arrays(items=ITEMS, anchor_queries=anchors, scores=values)
    learned_slopes(index.snapshot.gaussian_model(), index.snapshot.anchors, placed(asked, index.snapshot.anchors.items))
    assert len(asked.queries) == len(set(asked.queries)) == 60


@pytest.mark.parametrize("n_exact", [N_ANCHORS, 1])
def test_slopes_are_learned_from_anchor_queries_that_were_scored_against_every_item(n_exact, tmp_path) -> None:
    made(n_exact).save(tmp_path / "index")
    index = adacur.load(tmp_path / "index")
    exact = np.ones((2, N_ITEMS), dtype=bool)
    exact[0, 7] = exact[1, 9:] = False
    with index.edit(progress=False) as edit:
        edit.add_anchor_scores(TEST[:2], SCORES[N_ANCHORS : N_ANCHORS + 2], exact=exact)
    asked = Asked(stage(0.3))
    slopes = index.snapshot.rank_slopes(placed(asked, index.snapshot.anchors.items))
    if n_exact == 1:
        assert slopes.means.tolist() == RankSlopes.assumed(1).means.tolist()
    assert asked.queries == [query.id for query in ANCHORS] * (n_exact > 1)


def test_a_first_stage_that_fails_over_anchor_queries_is_assumed_to_be_what_most_are_and_named() -> None:
    class Picky(Asked):
        def search(self, queries, k: int) -> list[Ranking]:
            if any(query.id.startswith("a") for query in queries):
                raise KeyError("a0")
            return super().search(queries, k)

    index, first = made(), Picky(stage(0.3))
    with pytest.warns(FirstStageWarning, match=r"'asked'.*KeyError: 'a0'"):
        hits = index.search(TEST[0], 5, budget=30, first=first)
    assert hits.trace.calls == 30
    # Once is enough.
    assert index.search(TEST[0], 5, budget=30, first=first).ids == hits.ids


def test_ranks_count_among_all_items_whatever_a_filter_leaves() -> None:
    asked = []

    class Deep(Asked):
        def search(self, queries, k: int) -> list[Ranking]:
            asked.append(k)
            return super().search(queries, k)

    index = made()
    index.search(TEST[0], 3, budget=5, first=Deep(stage(0.3)), filter=["i1", "i2", "i3", "i4", "i5", "i6"])
    assert set(asked) == {N_ITEMS}


def test_joined_stages_of_another_order_speak_of_the_index_s_positions() -> None:
    turned = ITEMS[::-1]
    index, other = made(), AnchorIndex.from_items(turned)
    items = other.snapshot.anchors.items
    joined = Joined([placed(stage(0.3), items), placed(stage(9.0), items)])
    here = placed(joined, index.snapshot.anchors.items)
    answers, lists = here.search_parts(TEST[:2], 7)
    for query, (positions, _), of_query in zip(TEST[:2], answers, lists, strict=True):
        assert positions.tolist() == here.search([query], 7)[0].positions.tolist()
        for one, listed in zip((stage(0.3), stage(9.0)), of_query, strict=True):
            assert listed.tolist() == one.search([query], N_ITEMS)[0].positions.tolist()


def test_a_batch_and_a_single_search_learn_the_same() -> None:
    together = made().search(TEST[:4], 5, budget=40, first=stage(1.0), method=Gaussian(rounds=3))
    for query, hits in zip(TEST[:4], together, strict=True):
        alone = made().search(query, 5, budget=40, first=stage(1.0), method=Gaussian(rounds=3))
        assert alone.ids == hits.ids
        assert alone.trace.calls == hits.trace.calls
