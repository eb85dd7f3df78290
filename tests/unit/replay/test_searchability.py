"""Judged quality by depth, phantom hits, and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from adacur import Item, Query
from adacur.errors import InputError
from adacur.first_stages import BM25, Matrix
from adacur.replay import searchability
from adacur.scorers import MatrixScorer

N_ITEMS = 300


class World:
    """Queries whose one relevant item is at a known rank of the first stage; `scores` may be changed at will."""

    def __init__(self, *, n_queries: int = 60, deepest: int = 40, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.items = [Item(f"i{n}", f"item {n}") for n in range(N_ITEMS)]
        self.queries = [Query(f"q{n}", f"query {n}") for n in range(n_queries)]
        self.ranks = np.array([random.permutation(N_ITEMS) for _ in self.queries])
        self.first = Matrix(queries=self.queries, items=self.items, scores=-self.ranks.astype(float))
        relevant = [int(np.flatnonzero(row == random.integers(deepest))[0]) for row in self.ranks]
        self.rows = np.arange(n_queries), np.array(relevant)
        self.qrels = {query.id: {f"i{at}": 1} for query, at in zip(self.queries, relevant, strict=True)}
        self.scores = random.normal(size=(n_queries, N_ITEMS))
        self.scores[self.rows] += 6

    def report(self, **options):
        scorer = MatrixScorer(self.queries, self.items, self.scores)
        given = {"scorer": scorer, "first": {"known": self.first}} | options
        return searchability(self.queries, self.items, self.qrels, **given)


def test_where_deeper_is_no_better_it_stays_at_the_depth_that_holds_the_relevant_items() -> None:
    report = World(deepest=40).report()
    (curve,) = report.curves
    assert [depth.n for depth in curve.depths] == [0, 10, 50, 100, None]
    assert (curve.verdict.kind, curve.verdict.depth) == ("stay", 50)
    by_depth = {depth.n: depth for depth in curve.depths}
    assert by_depth[50].change is None
    assert by_depth[10].change.high < 0
    assert by_depth[0].ndcg.mean < by_depth[10].ndcg.mean < by_depth[50].ndcg.mean
    assert by_depth[50].mrr.mean > 0.95
    assert (report.n_items, report.n_queries, report.left_out) == (N_ITEMS, 60, 0)


def test_where_relevant_items_are_everywhere_it_says_to_search_deeper() -> None:
    (curve,) = World(deepest=N_ITEMS).report().curves
    assert (curve.verdict.kind, curve.verdict.depth) == ("deeper", None)
    assert "all items" in str(curve.verdict)


def test_a_scorer_that_likes_far_items_is_to_be_mended_and_its_phantoms_are_shown() -> None:
    world = World(deepest=40)
    world.scores[:40] += np.where(world.ranks[:40] == 200, 20.0, 0.0)
    # Eleven more push the relevant item out of the ten best.
    world.scores[:40] += np.where((world.ranks[:40] > 200) & (world.ranks[:40] <= 211), 10.0, 0.0)
    report = world.report()
    (curve,) = report.curves
    assert (curve.verdict.kind, curve.verdict.depth) == ("mend", 50)
    assert curve.depths[-1].change.high < -0.3
    assert (report.beyond, report.n_haunted, len(report.phantoms)) == (100, 40, 20)
    margins = [phantom.margin for phantom in report.phantoms]
    assert margins == sorted(margins, reverse=True)
    for phantom in report.phantoms:
        row = int(phantom.query.id[1:])
        assert world.ranks[row, int(phantom.item.id[1:])] == 200
        assert phantom.ranks == {"known": None}
        assert world.qrels[phantom.query.id] == {phantom.expected.id: 1}
        assert phantom.score > phantom.expected_score


def test_a_scorer_that_ranks_its_positives_last_is_asked_whether_higher_is_better() -> None:
    world = World(deepest=40)
    world.scores = -world.scores
    (curve,) = world.report().curves
    assert (curve.verdict.kind, curve.verdict.depth) == ("mend", 0)
    assert "60 queries" in curve.verdict.why
    assert curve.depths[-1].ndcg.mean == 0


def test_a_scorer_that_adds_nothing_to_the_first_stage_is_to_be_mended() -> None:
    world = World(deepest=1)
    world.scores = -world.ranks.astype(float)
    (curve,) = world.report().curves
    assert (curve.verdict.kind, curve.verdict.depth) == ("mend", 0)
    assert {depth.ndcg.mean for depth in curve.depths} == {1.0}


@pytest.mark.parametrize(("n_queries", "least"), [(10, 20), (30, 40)])
def test_few_queries_cannot_tell_and_it_says_how_many_would(n_queries, least) -> None:
    world = World(n_queries=n_queries, deepest=10)
    # A coin for each query: right at the top, or lost.
    world.scores = np.random.default_rng(1).normal(size=world.scores.shape)
    world.scores[world.rows] += np.where(np.arange(n_queries) % 2, 9, -9)
    (curve,) = world.report(depths=(50,)).curves
    assert curve.verdict.kind == "unclear"
    assert curve.verdict.enough >= least
    assert curve.verdict.n_queries == n_queries


@pytest.mark.parametrize("grades", [{}, {"i3": 0}, {"elsewhere": 1}, {f"i{n}": 1 for n in range(N_ITEMS)}])
def test_queries_without_relevant_items_or_with_nothing_else_are_left_out_or_refused(grades) -> None:
    world = World()
    world.qrels["q7"] = grades
    assert world.report().left_out == 1
    world.qrels = {query.id: grades for query in world.queries}
    with pytest.raises(InputError, match="60 queries"):
        world.report()


def test_a_limited_depth_scores_the_first_stages_best_and_the_relevant_items_once() -> None:
    world = World(deepest=N_ITEMS)
    known, asked = MatrixScorer(world.queries, world.items, world.scores), []

    class Counting:
        card = known.card

        def score(self, pairs):
            asked.extend((query.id, item.id) for query, item in pairs)
            return known.score(pairs)

    limited = world.report(scorer=Counting(), depths=(10, 50), all_items=False)
    assert len(asked) == len(set(asked))
    assert len(world.queries) * 50 <= len(asked) <= len(world.queries) * 51
    (curve,), (whole,) = limited.curves, world.report().curves
    assert [depth.n for depth in curve.depths] == [0, 10, 50]
    assert [depth.ndcg for depth in curve.depths] == [depth.ndcg for depth in whole.depths[:3]]
    assert limited.beyond == 10
    with pytest.raises(InputError, match="300"):
        world.report(depths=(500,), all_items=False)
    with pytest.raises(InputError, match="0"):
        world.report(depths=(0,))


def test_what_the_text_of_the_relevant_item_finds_is_a_near_miss_and_no_phantom() -> None:
    texts = ["ataxia of type one", "ataxia of type two", *(f"fever number {n}" for n in range(60))]
    items = [Item(f"i{n}", text) for n, text in enumerate(texts)]
    scores = np.zeros((1, len(items)))
    scores[0, :3] = 1, 3, 2
    query = Query("q", "ADCA")
    first = {"bm25": BM25.build(items)}
    report = searchability(
        [query], items, {"q": {"i0": 1}}, scorer=MatrixScorer([query], items, scores), first=first, depths=(10,)
    )
    assert [(phantom.item.id, phantom.ranks) for phantom in report.phantoms] == [("i2", {"bm25": None})]
    assert report.curves[0].verdict.kind == "unclear"
