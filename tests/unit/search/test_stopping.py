"""A search that stops early: when it may, for whom, and what its expectation means."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from adacur import AnchorIndex, Budget, Gaussian, Item, Query
from adacur.errors import InputError
from adacur.first_stages import Matrix
from adacur.replay import top_k_recall
from adacur.scorers import MatrixScorer, Metered
from adacur.search import plan_search
from adacur.search.rounds import RunningSearch
from adacur.search.stopping import expected_recall
from tests.stopping import Stopping


def easy_and_hard(*, n_items: int = 300, n_anchors: int = 40) -> AnchorIndex:
    """Queries e0 … e3 are like the anchor queries; h0 … h3 score every item by chance."""
    random = np.random.default_rng(5)
    factors = random.normal(size=(4, n_items))
    scores = np.concatenate(
        [
            random.normal(size=(n_anchors + 4, 4)) @ factors + 0.05 * random.normal(size=(n_anchors + 4, n_items)),
            2 * random.normal(size=(4, n_items)),
        ]
    )
    items = [Item(f"i{number}", f"item {number}") for number in range(n_items)]
    names = [*(f"e{number}" for number in range(4)), *(f"h{number}" for number in range(4))]
    asked = [Query(name, name) for name in names]
    blurred = scores[n_anchors:] + 2 * random.normal(size=(8, n_items))
    return AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query(f"a{number}", f"a{number}") for number in range(n_anchors)],
        scores=scores[:n_anchors],
        scorer=Metered(MatrixScorer(asked, items, scores[n_anchors:])),
        first={"bm25": Matrix(queries=asked, items=items, scores=blurred)},
    )


QUERIES = [Query(name, name) for name in ("e0", "h0", "e1", "h1", "e2", "h2", "e3", "h3")]


def simulated_recall(chances: np.ndarray, best: np.ndarray, levels: np.ndarray, *, draws: int = 40_000) -> float:
    """What independent items of these chances leave of the top k, by drawing their scores."""
    random = np.random.default_rng(1)
    k, missing = len(best), 0
    for _ in range(draws):
        # An item lies above level j with its chance for it; chances fall as levels rise, so one draw decides all.
        reached = (random.random(len(chances))[:, None] < chances).sum(axis=1)
        scores = np.where(reached > 0, levels[np.maximum(reached, 1) - 1] + 0.5, -np.inf)
        everything = np.sort(np.concatenate([best, scores]))[::-1][:k]
        missing += int(np.isin(everything, scores).sum())
    return 1 - missing / (k * draws)


def test_expected_recall_is_what_independent_chances_leave() -> None:
    random = np.random.default_rng(0)
    best = np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    # Columns by rising score to beat: 1, 2, … 5.
    at_lowest = 0.2 * random.random(30)
    chances = at_lowest[:, None] * 0.7 ** np.arange(5)
    expected = expected_recall(lambda scores, ranks: chances[:, 5 - ranks], best)
    assert expected == pytest.approx(simulated_recall(chances, best, best[::-1], draws=4000), abs=0.02)
    assert 1 - chances[:, 0].sum() / 5 < expected < 1


def test_without_chances_everything_is_found_and_with_certain_ones_nothing() -> None:
    best = np.arange(10.0)[::-1]
    assert expected_recall(lambda scores, ranks: np.zeros((50, len(scores))), best) == 1
    assert expected_recall(lambda scores, ranks: np.ones((50, len(scores))), best) == pytest.approx(0, abs=1e-6)
    assert expected_recall(lambda scores, ranks: np.full((50, len(scores)), np.nan), best) == 0


def test_a_settled_search_spends_less_and_says_so() -> None:
    index = easy_and_hard()
    hits = index.search(QUERIES[0], k=5, budget=120, method=Stopping(rounds=10, stop_when=0.95))
    assert hits.trace.stopped == "settled"
    assert hits.trace.calls < 120
    assert index.scorer.calls == hits.trace.calls
    assert len(hits) == 5
    *before, last = (round_.expected_recall for round_ in hits.trace.rounds)
    assert last >= 0.95
    assert all(recall < 0.95 for recall in before)
    easy = index.search(QUERIES[::2], k=5, budget=120, method=Stopping(rounds=10, stop_when=0.95))
    exact = index.search(QUERIES[::2], k=5, method="exact")
    assert np.mean([np.isin(some.ids, best.ids).mean() for some, best in zip(easy, exact, strict=True)]) > 0.8


def test_others_in_the_batch_go_on_and_answers_do_not_depend_on_it() -> None:
    index = easy_and_hard()
    options = {"k": 5, "budget": 120, "method": Stopping(rounds=10, stop_when=0.95)}
    together = index.search(QUERIES, **options)
    assert {hits.trace.stopped for hits in together} == {"settled", "budget"}
    for query, hits in zip(QUERIES, together, strict=True):
        alone = index.search(query, **options)
        assert alone.ids == hits.ids
        assert alone.trace.stopped == hits.trace.stopped
        for one, other in zip(alone.trace.rounds, hits.trace.rounds, strict=True):
            assert one.positions.tolist() == other.positions.tolist()
            assert one.expected_recall == other.expected_recall


def test_up_to_its_end_a_stopped_search_does_what_it_would_have_done() -> None:
    index = easy_and_hard()
    stopped = index.search(QUERIES[0], k=5, budget=120, method=Stopping(rounds=10, stop_when=0.95))
    whole = index.search(QUERIES[0], k=5, budget=120, method=Gaussian(rounds=10))
    assert len(stopped.trace.rounds) < len(whole.trace.rounds)
    for one, other in zip(stopped.trace.rounds, whole.trace.rounds, strict=False):
        assert one.positions.tolist() == other.positions.tolist()
    assert all(round_.expected_recall is None for round_ in whole.trace.rounds)


@pytest.mark.parametrize("k", [1, 7, 30])
def test_never_fewer_than_k_are_scored(k) -> None:
    for hits in easy_and_hard().search(QUERIES, k=k, budget=60, method=Stopping(rounds=30, stop_when=0.01)):
        assert len(hits) == k
        assert hits.trace.calls >= k


def test_ties_at_the_kth_score_are_no_reason_to_go_on() -> None:
    items = [Item(f"i{number}", "") for number in range(200)]
    random = np.random.default_rng(2)
    scores = np.round(random.normal(size=(31, 3)) @ random.normal(size=(3, 200)))
    asked = Query("q", "q")
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query(f"a{number}", "a") for number in range(30)],
        scores=scores[:30],
        scorer=MatrixScorer([asked], items, scores[30:]),
        first={"bm25": Matrix(queries=[asked], items=items, scores=scores[30:] + random.normal(size=(1, 200)))},
    )
    hits = index.search(asked, k=10, budget=150, method=Stopping(rounds=10, stop_when=0.9))
    assert hits.trace.calls <= 150
    assert hits.scores.min() >= np.sort(scores[30])[::-1][9] - 1


def test_a_constant_scorer_is_no_hindrance() -> None:
    items = [Item(f"i{number}", "") for number in range(100)]
    asked = Query("q", "q")
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query("a", "a")],
        scores=np.ones((1, 100)),
        scorer=MatrixScorer([asked], items, np.ones((1, 100))),
        first={"bm25": Matrix(queries=[asked], items=items, scores=np.arange(100.0)[None])},
    )
    assert len(index.search(asked, k=5, budget=40, method=Stopping(stop_when=0.9))) == 5


def test_items_that_a_filter_leaves_out_do_not_hinder_the_end() -> None:
    index = easy_and_hard()
    wanted = [f"i{number}" for number in range(60)]
    hits = index.search(QUERIES[0], k=3, filter=wanted, budget=60, method=Stopping(rounds=10, stop_when=0.9))
    assert set(hits.ids) <= set(wanted)
    assert hits.trace.calls <= 60
    everything = index.search(QUERIES[1], k=3, filter=wanted, budget=300, method=Stopping(rounds=3, stop_when=0.999))
    assert everything.trace.calls <= 60
    assert everything.trace.stopped in ("settled", "exhausted")


def test_steps_and_awaited_searches_end_the_same_way() -> None:
    index = easy_and_hard()
    options = {"k": 5, "budget": 120, "method": Stopping(rounds=10, stop_when=0.95)}
    whole = index.search(QUERIES[0], **options)
    steps = list(index.search_iter(QUERIES[0], **options))
    assert len(steps) == len(whole.trace.rounds)
    assert [hits.trace.stopped for hits in steps][-1] == "settled"
    assert all(hits.trace.stopped != "settled" for hits in steps[:-1])
    assert steps[-1].ids == whole.ids
    awaited = asyncio.run(index.asearch(QUERIES[0], **options))
    assert (awaited.ids, awaited.trace.stopped, awaited.trace.calls) == (whole.ids, "settled", whole.trace.calls)


def test_a_deadline_that_comes_first_is_what_is_told() -> None:
    hits = easy_and_hard().search(
        QUERIES[0], k=5, budget=Budget(120, deadline=1e-9), method=Stopping(rounds=10, stop_when=0.95)
    )
    assert hits.trace.stopped == "deadline"


def test_a_deadline_says_nothing_of_what_had_ended_before(monkeypatch) -> None:
    index = easy_and_hard()
    method = Stopping(rounds=10, stop_when=0.95)
    free = index.search(QUERIES, k=5, budget=120, method=method)
    joined = RunningSearch(plan_search(index, 5, budget=Budget(120, 3600.0), method=method), QUERIES, 5)
    while not any(hits.trace.stopped == "settled" for hits in joined.hits()):
        assert joined.step()
    settled = [hits.trace.stopped == "settled" for hits in joined.hits()]
    monkeypatch.setattr(type(joined), "seconds_left", 0.0)
    while joined.step():
        pass

    assert 0 < sum(settled) < len(settled)
    for hits, whole, before in zip(joined.hits(), free, settled, strict=True):
        assert hits.trace.stopped == ("settled" if before else "deadline")
        assert not before or hits.ids == whole.ids


def test_a_random_start_is_refused() -> None:
    with pytest.raises(InputError, match="first stage"):
        easy_and_hard().search(QUERIES[0], k=5, method=Stopping(stop_when=0.9), first="random")


def test_expectations_hold_on_real_scores(shared_folder: Path) -> None:
    from adacur_lab.experiments import Testbed

    bed = Testbed.from_score_folder(shared_folder / "scores" / "scifact", n_queries=60)
    assert bed.item_embeddings is not None
    assert bed.query_embeddings is not None
    index = AnchorIndex.from_arrays(
        items=bed.items,
        anchor_queries=bed.anchor_queries,
        scores=bed.anchor_scores,
        scorer=MatrixScorer(bed.test_queries, bed.items, bed.exact_scores),
        first={
            "bm25": Matrix(
                queries=bed.test_queries, items=bed.items, scores=bed.query_embeddings @ bed.item_embeddings.T
            )
        },
    )
    found = index.search(bed.test_queries, k=10, budget=200, method=Stopping(rounds=10, stop_when=0.9))
    settled = [at for at, hits in enumerate(found) if hits.trace.stopped == "settled"]
    assert len(settled) > 30
    expected = np.mean([found[at].trace.rounds[-1].expected_recall for at in settled])
    measured = np.mean(top_k_recall([found[at] for at in settled], bed.exact_scores[settled], k=10))
    assert measured == pytest.approx(expected, abs=0.05)
