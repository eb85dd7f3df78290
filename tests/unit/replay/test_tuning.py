"""Tuning by replay: the anchor queries of an index, searched as if they were new."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import adacur
from adacur import AdaCUR, AnchorIndex, Gaussian, Item, Query
from adacur.errors import DamagedIndex, OtherFormat
from adacur.first_stages import Matrix
from adacur.model import GaussianModel, PseudoInverse
from adacur.replay import top_k_recall, tune
from adacur.replay.chosen_settings import best_stage, choose_settings
from adacur.replay.searches import Searches, Way, held_out, method_of
from adacur.replay.tune_index import store, verdict
from adacur.scorers import MatrixScorer
from adacur.search.index_stages import learned_slopes
from adacur.search.planning import plan_search
from adacur.search.snapshot import Snapshot
from adacur.search.tuned import (
    Gain,
    GaussianSettings,
    Prediction,
    Tuning,
)
from adacur.store import AnchorTable, locked

SETTINGS = GaussianSettings(rounds=4, first_batch=0.5)


class Untouchable:
    """A scorer that must not be asked."""

    card = adacur.protocols.ScorerCard(name="untouchable", backend="none")

    def score(self, pairs):
        raise AssertionError("the scorer was called")


def replayed_world(make_world, *, n_anchors: int = 40, n_items: int = 150):
    """An index in memory whose first stage knows the anchor queries, blurred."""
    world = make_world(n_anchors=n_anchors, n_items=n_items, noise=0.5)
    blur = np.random.default_rng(5).normal(size=world.anchor_scores.shape) * 2
    first = Matrix(queries=world.anchors, items=world.items, scores=world.anchor_scores + blur)
    index = AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores, first={"matrix": first}
    )
    # Only these names are started from by default.
    index.snapshot._first = {"bm25": first}
    return world, index, first


@pytest.fixture
def replayed(make_world):
    return replayed_world(make_world)


def without(index: AnchorIndex, position: int) -> AnchorTable:
    kept = [at for at in range(len(index.anchor_queries)) if at != position]
    queries = tuple(index.anchor_queries[at] for at in kept)
    return AnchorTable(index.items, queries, np.ascontiguousarray(index.matrix[:, kept]))


def stored(make_world, path: Path) -> AnchorIndex:
    """An index folder whose first stage is a dual encoder's work, and its scorer."""
    world = make_world(n_anchors=30, n_items=150, noise=0.5)
    items = [Item(item.id, f"{item.text} word{position % 7}") for position, item in enumerate(world.items)]
    anchors = [Query(query.id, f"word{position % 7} number") for position, query in enumerate(world.anchors)]
    index = AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=world.anchor_scores)
    index.snapshot._first = {"bm25": adacur.BM25.build(items)}
    index.save(path)
    return adacur.load(path, scorer=Untouchable(), check=False)


def test_a_replayed_query_is_searched_as_on_an_index_without_it(replayed) -> None:
    world, index, first = replayed
    positions = held_out(index.anchors, 10)
    queries = [world.anchors[at] for at in positions]
    searches = Searches(index.anchors, queries, k=8, stages={None: index.snapshot.stage(None)})
    recalls = searches.recalls(Way("adacur", None, 25))
    for query, position, recall in zip(queries, positions, recalls, strict=True):
        exact = world.anchor_scores[position][None]
        scorer = MatrixScorer([query], index.items.ids, exact)
        hits = AnchorIndex(without(index, position), scorer=scorer).search(
            [query], 8, budget=25, method=AdaCUR(), first=first
        )
        assert top_k_recall(hits, exact, k=8)[0] == recall


@pytest.mark.parametrize("popularity", [0.0, 3.0, 30.0], ids=["means of noise", "means of both", "means to trust"])
@pytest.mark.parametrize("parts", ["plain", "embeddings", "queries", "both", "uncentred"])
def test_the_gaussian_leaves_an_anchor_query_out_as_if_it_had_never_been_there(
    make_world, parts: str, popularity: float
) -> None:
    world = make_world(n_anchors=60, noise=0.5)
    rng = np.random.default_rng(3)
    world.anchor_scores[:] += popularity * rng.normal(size=len(world.items))
    vectors = {query.id: rng.normal(size=5) for query in world.anchors}
    given = {"rescale": False, "centre": parts != "uncentred"}
    if parts in ("embeddings", "both"):
        given["embeddings"] = world.item_embeddings
    if parts in ("queries", "both", "uncentred"):
        given["embed_queries"] = lambda queries: np.stack([vectors[query.id] for query in queries])
    position = 17
    query = world.anchors[position]
    rest = without(world.index, position)
    new = GaussianModel(**given).begin(rest, [query])
    replayed = GaussianModel(**given).replay(world.index, np.array([position, 3]))
    known = GaussianModel(**given).begin(world.index, [query])
    seen, unseen = (GaussianModel(**given).features_of(one) for one in (world.index, rest))
    # What means are shrunk towards, which lifts all items alike, and how far they are have seen the query.
    off = replayed.predict()[0] - new.predict()[0]
    assert np.abs(off - off.mean()).max() <= 1e-5 + abs(seen.trust - unseen.trust) * np.ptp(seen.means)
    assert abs(off.mean()) <= 1e-5 + 2 * abs(seen.centre - unseen.centre) * (1 - seen.trust)
    assert seen.trust == pytest.approx(unseen.trust, abs=0.05)
    for start in (0, 40):
        where = np.arange(start, start + 8)
        scores = world.anchor_scores[position][where]
        new.tell([where], [scores])
        known.tell([where], [scores])
        replayed.tell([where, where], [scores, scores])
    wanted = new.predict()[0]
    # The mean variance, which the noise is a share of, has seen the query.
    off = np.abs(replayed.predict()[0] - wanted).max() / wanted.std()
    assert off < 0.02
    assert off < 0.2 * np.abs(known.predict()[0] - wanted).max() / wanted.std()


def test_the_pseudo_inverse_leaves_an_anchor_query_out(world) -> None:
    where = np.arange(12)
    scores = world.anchor_scores[4][where]
    new, replayed = (
        PseudoInverse().begin(without(world.index, 4), [world.anchors[4]]),
        PseudoInverse().replay(world.index, np.array([4, 9])),
    )
    new.tell([where], [scores])
    replayed.tell([where, where], [scores, scores])
    np.testing.assert_allclose(replayed.predict()[0], new.predict()[0], atol=1e-6)


def test_tuning_calls_no_scorer_and_predicts_four_methods(replayed) -> None:
    _, index, _ = replayed
    index._scorer = Untouchable()
    tuning = tune(index, k=5, budget=20, queries=30)
    assert [one.method for one in tuning.predictions] == ["gaussian", "adacur", "anncur", "rerank"]
    assert tuning.n_queries == 30
    assert all(0 <= one.low <= one.recall <= one.high <= 1 for one in tuning.predictions)


def with_stages(make_world, **blurs: float) -> AnchorIndex:
    """An index whose first stages know the anchor queries, each blurred in its own way."""
    world = make_world(n_anchors=40, n_items=150, noise=0.5)
    stages = {}
    for seed, (name, blur) in enumerate(blurs.items()):
        noise = np.random.default_rng(seed).normal(size=world.anchor_scores.shape) * blur
        stages[name] = Matrix(queries=world.anchors, items=world.items, scores=world.anchor_scores + noise)
    return AnchorIndex.from_arrays(
        items=world.items, anchor_queries=world.anchors, scores=world.anchor_scores, scorer=Untouchable(), first=stages
    )


def test_the_better_first_stage_is_taken_and_searches_start_from_it(make_world) -> None:
    index = with_stages(make_world, dense=30.0, bm25=0.5)
    tuning = tune(index, k=5, budget=15, queries=30, quick=True)
    # Predictions learn from the anchor queries that the other stage's ranks say nothing; re-ranking cannot.
    assert (tuning.first, tuning.rerank_first) == ("bm25+dense", "bm25")
    by_first = {one.first: one for one in tuning.tried}
    assert by_first["bm25+dense"].rerank < by_first["bm25"].rerank - 0.05
    index.snapshot.tunings = (tuning := replace(tuning, first="bm25"),)
    assert {one.first for one in tuning.tried} == {"dense", "bm25", "bm25+dense"}
    settings = plan_search(index, 5, budget=15).settings()
    assert (settings["first"], settings["tuned"], settings["tuned_for"]) == ("bm25", ("first",), (5, 15))
    assert plan_search(index, 5, budget=15, method="rerank").settings()["first"] == "bm25"
    # Named, or for another k and budget, it is another.
    assert plan_search(index, 5, budget=15, first="dense").settings()["tuned"] == ()
    assert plan_search(index, 5, budget=100).settings()["first"] == "bm25+dense"
    assert "Re-ranking bm25's best 15" in verdict(tuning)


def test_all_together_are_taken_where_that_is_better_and_the_rival_too(make_world) -> None:
    index = with_stages(make_world, dense=4.0, bm25=4.0)
    tuning = tune(index, k=10, budget=20, queries=40, quick=True)
    assert tuning.rerank_first == "bm25+dense"
    by_first = {one.first: one for one in tuning.tried}
    assert by_first["bm25+dense"].rerank > max(by_first["bm25"].rerank, by_first["dense"].rerank)
    assert plan_search(index, 10, budget=20, method="rerank").settings()["first"] == "bm25+dense"


def test_a_tie_goes_to_the_preferred_and_to_one_before_all() -> None:
    steady, luck = np.full(40, 0.5), np.tile([0.3, 0.72], 20)
    assert best_stage({"dense": steady, "bm25": luck, "bm25+dense": luck}) == "dense"
    better = steady + np.tile([0.0, 0.2], 20)
    assert best_stage({"dense": steady, "bm25": better, "bm25+dense": better}) == "bm25"
    assert best_stage({"dense": steady, "bm25": luck, "bm25+dense": better}) == "bm25+dense"
    assert best_stage({None: steady}) is None


def test_the_same_seed_tunes_the_same(replayed) -> None:
    _, index, _ = replayed
    given = {"k": 5, "budget": 20, "queries": 25, "quick": True}
    assert tune(index, **given) == tune(index, **given)
    other = tune(index, **given, seed=1)
    assert other.seed == 1


class Lottery:
    """Searches in which all settings are alike, and only luck differs."""

    stages = {None: None}  # noqa: RUF012
    n_items, k = 1000, 10

    def __init__(self, seed: int) -> None:
        self._draws = np.random.default_rng(seed)
        self._known: dict[object, np.ndarray] = {}
        self.queries = [Query(f"q{position}", "text") for position in range(40)]

    def recalls(self, way):
        return self._known.setdefault(way.method, self._draws.binomial(10, 0.7, size=40) / 10)


def test_the_prediction_does_not_gain_by_the_luck_of_the_choice() -> None:
    lotteries = [Lottery(seed) for seed in range(100)]
    tunings = [choose_settings(lottery, budget=100) for lottery in lotteries]
    lucky = [lottery.recalls(Way(one.settings)).mean() for lottery, one in zip(lotteries, tunings, strict=True)]
    promised = [one.recall_of("gaussian").recall for one in tunings]
    # 100 means of 40 queries: a standard error of .0023.
    assert np.mean(promised) == pytest.approx(0.7, abs=0.005)
    assert np.mean(lucky) > 0.715


def test_the_mean_over_as_many_new_queries_lies_in_the_interval_in_19_of_20_cases() -> None:
    draws = np.random.default_rng(0)
    inside = []
    for _ in range(150):
        lottery = Lottery(int(draws.integers(1 << 30)))
        lottery._known = {name: draws.binomial(1, 0.95, size=40) * 1.0 for name in ("adacur", "anncur", "rerank")}
        one = choose_settings(lottery, budget=100, quick=True).recall_of("rerank")
        inside.append(one.low <= draws.binomial(1, 0.95, size=40).mean() <= one.high)
    assert 0.9 <= np.mean(inside) <= 1.0


def test_a_method_that_has_not_failed_yet_may_still_fail(replayed) -> None:
    _, index, _ = replayed
    perfect = tune(index, k=1, budget=149, queries=25, quick=True).recall_of("gaussian")
    assert (perfect.recall, perfect.high) == (1.0, 1.0)
    assert 0.8 < perfect.low < 1


def test_a_budget_of_all_items_is_certain_and_nothing_is_kept(replayed) -> None:
    index = replayed[1]
    before, n_items = index.tunings, len(index)
    for budget in (n_items, 17 * n_items):
        tuning = tune(index, k=5, budget=budget)
        assert (tuning.budget, tuning.is_exact) == (n_items, True)
        assert {(one.recall, one.low, one.high) for one in tuning.predictions} == {(1.0, 1.0, 1.0)}
        assert "every item" in verdict(tuning)
    assert index.tunings == before
    assert not tune(index, k=5, budget=n_items - 1, quick=True).is_exact


def tuned(k: int = 10, budget: int = 100, *, first: str | None = "dense", **gain: float) -> Tuning:
    predictions = tuple(Prediction(method, 0.8, 0.7, 0.9) for method in ("gaussian", "adacur", "anncur", "rerank"))
    how_much = Gain(**gain) if gain else Gain(0.1, 0.05, 0.15)
    return Tuning(
        k=k, budget=budget, settings=SETTINGS, first=first, n_queries=100, predictions=predictions, gain=how_much
    )


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        ((0.12, 0.08, 0.16), "the index adds .12 [.08, .16]: worth having."),
        ((0.015, 0.01, 0.03), "[.01, .03]: probably not worth building"),
        ((0.015, -0.01, 0.04), "[−.01, .04]: too few anchor queries to tell; 100 were replayed, and about 280"),
        ((-0.05, -0.09, -0.01), "re-ranking does better here."),
    ],
)
def test_the_verdict_says_what_the_index_adds(gain: tuple[float, float, float], words: str) -> None:
    recall, low, high = gain
    words_of = verdict(tuned(recall=recall, low=low, high=high))
    assert words_of.startswith("Re-ranking dense's best 100 finds .80 of the top 10; ")
    assert words in words_of
    assert "pseudo" not in words_of


def test_a_tuning_serves_searches_within_a_factor_of_two_the_nearest_first(make_world) -> None:
    snapshot = Snapshot(make_world().index)
    snapshot.tunings = (tuned(10, 100), tuned(20, 100), tuned(10, 400))

    def found(k: int, budget: int, first: str | None = "dense") -> tuple[int, int] | None:
        one = snapshot.tuned(k=k, budget=budget, first=first)
        return None if one is None else (one.k, one.budget)

    assert found(10, 100) == (10, 100)
    assert found(5, 200) == (10, 100)
    assert found(13, 110) == (10, 100)
    assert found(16, 90) == (20, 100)
    assert found(12, 260) == (10, 400)
    assert found(4, 100) is None
    assert found(10, 201) == (10, 400)
    assert found(10, 49) is None
    assert found(10, 100, "bm25") is None


def test_searches_use_what_was_tuned_and_say_so(make_world, tmp_path: Path) -> None:
    index = stored(make_world, tmp_path / "index")
    tuning = tune(index, k=5, budget=20, queries=25, quick=True)
    again = adacur.load(tmp_path / "index", scorer=Untouchable(), check=False)
    assert again.tunings == (tuning,)
    again.snapshot.tunings = (replace(tuning, settings=SETTINGS),)
    plan = plan_search(again, 5, budget=20)
    assert plan.settings()["tuned_for"] == (5, 20)
    assert plan.sizes(20) == (10, 4, 3, 3)
    assert plan_search(again, 8, budget=30).notes["tuned_for"] == (5, 20)
    assert plan_search(again, 5, budget=20, method=Gaussian(rounds=2)).sizes(20) == (10, 10)
    assert plan_search(again, 5, budget=20, method=Gaussian(first_batch=0.3)).sizes(20)[0] == 6
    for other in ({"budget": 60}, {"budget": 20, "first": "random"}, {"budget": 20, "method": "adacur"}):
        plan = plan_search(again, 5, **other)
        assert plan.notes["tuned_for"] is None
        assert plan.sizes(20) != (10, 4, 3, 3)


def test_tuning_again_takes_the_place_of_the_same_k_and_budget(make_world, tmp_path: Path) -> None:
    index = stored(make_world, tmp_path / "index")
    tune(index, k=5, budget=20, queries=25, quick=True)
    tune(index, k=1, budget=20, queries=25, quick=True)
    last = tune(index, k=5, budget=20, queries=22, quick=True)
    found = adacur.load(tmp_path / "index", scorer=Untouchable(), check=False).tunings
    assert [(one.k, one.budget) for one in found] == [(1, 20), (5, 20)]
    assert found[1] == last
    assert adacur.store.verify(tmp_path / "index").ok


def test_a_folder_that_cannot_be_written_to_keeps_its_tuning_in_memory(make_world, tmp_path: Path, monkeypatch) -> None:
    index = stored(make_world, tmp_path / "index")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("adacur.replay.tune_index.write_atomically", refuse)
    assert index.tunings == ()
    tuning = tune(index, k=5, budget=20, queries=25, quick=True)
    assert index.tunings == (tuning,)
    assert not (index.snapshot.home / "tuned.json").exists()


def test_tunings_of_other_anchor_queries_are_left_aside_with_a_warning(make_world, tmp_path: Path) -> None:
    index = stored(make_world, tmp_path / "index")
    store(index, tuned(5, 20))
    file = index.snapshot.home / "tuned.json"
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data | {"anchors_digest": "0" * 32}))
    again = adacur.load(tmp_path / "index", scorer=Untouchable(), check=False)
    with pytest.warns(adacur.search.TuningWarning):
        assert again.tunings == ()
    # Tuning again is the remedy.
    tune(again, k=1, budget=20, queries=25, quick=True)
    assert [one.k for one in adacur.load(tmp_path / "index", scorer=Untouchable(), check=False).tunings] == [1]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _: "[]", "tuned.json"),
        (lambda text: text.replace("adacur_tuned", "cake"), "'cake'"),
        (lambda text: text.replace('"tunings"', '"cakes"'), "'tunings' is missing"),
        (lambda text: text.replace('"first_batch": 0.', '"first_batch": -0.'), "first_batch is -0."),
        (lambda text: text.replace('"format": 4', '"format": 2'), "format 2"),
        (lambda text: text.replace('"rounds": ', '"rounds": -'), "rounds is -"),
        (lambda text: text.replace('"first_batch": 0.5', '"first_batch": 1.5'), "first_batch is 1.5"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_by_name_with_the_remedy(
    make_world, tmp_path: Path, damage, words
) -> None:
    index = stored(make_world, tmp_path / "index")
    store(index, tuned(5, 20))
    file = index.snapshot.home / "tuned.json"
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    with pytest.raises((DamagedIndex, OtherFormat)) as refused:
        plan_search(adacur.load(tmp_path / "index", scorer=Untouchable(), check=False), 5, budget=20)
    assert words in str(refused.value)
    assert str(file) in str(refused.value)


def test_a_damaged_file_is_refused_before_anything_is_replayed(make_world, tmp_path: Path) -> None:
    index = stored(make_world, tmp_path / "index")
    (index.snapshot.home / "tuned.json").write_text("cake")
    # Of the two refusals, that of the file comes first.
    with pytest.raises(DamagedIndex):
        tune(index, k=5, budget=20, queries=19)


def test_who_tunes_while_another_writes_waits_for_it(make_world, tmp_path: Path) -> None:
    index = stored(make_world, tmp_path / "index")
    written = threading.Event()

    def hold() -> None:
        with locked(index.snapshot.home):
            written.set()
            time.sleep(0.3)

    with ThreadPoolExecutor(1) as other:
        held = other.submit(hold)
        written.wait()
        store(index, tuned(5, 20))
        held.result()
    assert [one.k for one in index.tunings] == [5]


def test_a_build_tunes_at_its_end_without_a_call_more(tmp_path: Path) -> None:
    calls = []

    def score(pairs):
        calls.append(len(pairs))
        return [len(set(query) & set(text)) + len(text) % 5 for query, text in pairs]

    items = [Item(f"i{n}", f"item {n * 37 % 101} {'abcdefgh'[n % 8]}") for n in range(120)]
    anchors = [Query(f"a{n}", f"{'hgfedcba'[n % 8]} question {n}") for n in range(22)]
    given = {"scorer": score, "first": ["bm25"], "progress": False, "block_items": 40}
    plain = adacur.build(items, anchors, path=tmp_path / "plain", tune=False, **given)
    without_tuning = sum(calls)
    calls.clear()
    index = adacur.build(items, anchors, path=tmp_path / "tuned", **given)
    assert sum(calls) == without_tuning
    assert plain.tunings == ()
    assert [(one.k, one.budget, one.n_queries, one.first) for one in index.tunings] == [(10, 100, 22, "bm25")]
    assert index.search("a question", k=10, budget=100).trace.settings["tuned_for"] == (10, 100)


def test_a_build_with_too_few_anchor_queries_is_left_untuned(tmp_path: Path) -> None:
    items = [Item(f"i{n}", f"item {n}") for n in range(120)]
    index = adacur.build(
        items, [Query("a", "item")], scorer=lambda pairs: [len(text) for _, text in pairs], path=tmp_path / "i"
    )
    assert index.tunings == ()
    assert not (tmp_path / "i" / "versions/1/tuned.json").exists()


def test_predictions_hold_on_real_scores(shared_folder: Path) -> None:
    from adacur_lab.experiments import Testbed

    bed = Testbed.from_score_folder(shared_folder / "scores" / "scifact", n_queries=100)
    index = AnchorIndex.from_arrays(items=bed.items, anchor_queries=bed.anchor_queries, scores=bed.anchor_scores)
    vectors = np.concatenate([bed.anchor_embeddings, bed.query_embeddings])
    rows = {query.id: row for row, query in enumerate([*bed.anchor_queries, *bed.test_queries])}
    gaussian = GaussianModel(
        embeddings=bed.item_embeddings, embed_queries=lambda queries: vectors[[rows[query.id] for query in queries]]
    )
    first = Matrix(
        queries=[*bed.anchor_queries, *bed.test_queries], items=bed.items, scores=vectors @ bed.item_embeddings.T
    )
    queries = [index.anchor_queries[at] for at in held_out(index.anchors, 60)]
    slopes = learned_slopes(gaussian, index.anchors, index.snapshot.stage(first))
    stages = {"matrix": index.snapshot.stage(first)}
    searches = Searches(index.anchors, queries, k=10, stages=stages, model=gaussian, slopes=lambda stage: slopes)
    tuning = choose_settings(searches, budget=50, quick=True)
    settings, scorer = tuning.settings, MatrixScorer(bed.test_queries, index.items.ids, bed.exact_scores)
    method = method_of(settings, gaussian, slopes=slopes)
    searched = AnchorIndex(index.anchors, scorer=scorer)
    hits = searched.search(bed.test_queries, 10, budget=50, method=method, first=first)
    measured = top_k_recall(hits, bed.exact_scores, k=10).mean()
    predicted = tuning.recall_of("gaussian")
    assert predicted.low <= measured <= predicted.high
    assert "worth having" in verdict(tuning)
