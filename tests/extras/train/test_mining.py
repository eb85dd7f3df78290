"""Searches with the model find what it wrongly likes; what may be a missing judgement is set aside."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacur import Item, Query
from adacur.data import JudgedCollection
from adacur.errors import InputError
from adacur.extras.train import Mixture, TeacherScores, TrainingSettings, train_cross_encoder, train_dual_encoder
from adacur.extras.train.checking import Checked
from adacur.extras.train.judged_queries import JudgedQueries, same_words, warn_of_leaks
from adacur.extras.train.mining import Mined, SetAside, list_set_aside, mine, plan_mining, still_preferred, twice
from adacur.extras.train.negatives import Draws, Pool
from adacur.first_stages import Matrix
from adacur.protocols import ScorerCard
from adacur.records import ItemList
from adacur.scorers import MatrixScorer
from tests.unit.scorers.cross_encoders.tiny_models import WORDS, tiny_transformer

N_QUERIES, N_ITEMS = 60, 400
PHANTOMS = np.arange(300, 310)


@pytest.fixture(scope="module")
def world() -> tuple[JudgedQueries, ItemList, MatrixScorer, Matrix]:
    """Scores of rank four, in which ten items that no first stage finds outscore whatever is relevant."""
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(N_QUERIES, 4)) @ rng.normal(size=(4, N_ITEMS))
    scores[:, PHANTOMS] += 20
    items = ItemList([Item(f"i{n}", f"text {n}") for n in range(N_ITEMS)])
    queries = [Query(f"q{n}", f"question {n}") for n in range(N_QUERIES)]
    judged = JudgedQueries(queries, [np.array([n]) for n in range(N_QUERIES)])
    near = -np.tile(np.arange(N_ITEMS, dtype=float), (N_QUERIES, 1))
    first = Matrix(queries=queries, items=list(items), scores=near)
    return judged, items, MatrixScorer(queries=queries, items=list(items), scores=scores), first


def test_shares_are_read_from_a_text_and_what_is_not_named_has_none() -> None:
    assert Mixture.parsed("near=1, found=2") == Mixture(near=1, random=0, found=2)
    assert Mixture().counts(31, has_found=True) == (10, 10)
    assert Mixture().counts(31, has_found=False) == (16, 0)
    assert Mixture(near=1, random=0, found=1).counts(7, has_found=True) == (3, 4)
    for wrong in ("near", "near=much", "far=1", "", "near=-1", "found=1", "near=nan"):
        with pytest.raises(InputError):
            Mixture.parsed(wrong)


def test_negatives_are_drawn_by_their_shares_and_never_relevant_set_aside_or_twice(world) -> None:
    judged, items, _, _ = world
    pool = Pool(near=np.arange(1, 40), found=np.arange(20, 60), set_aside=np.array([25, 300]))
    draws = Draws(judged, items, 30, 0, Mixture())
    for epoch in range(20):
        relevant, *negatives = draws(20, epoch, pool).tolist()
        assert relevant == 20
        assert len(negatives) == len(set(negatives)) == 30
        assert not {20, 25, 300} & set(negatives)
        assert sum(20 <= one < 60 for one in negatives) >= 10
        assert sum(one >= 60 for one in negatives) >= 5
    assert draws(20, 0, pool).tolist() == draws(20, 0, pool).tolist() != draws(20, 1, pool).tolist()


def test_near_duplicates_have_the_same_words() -> None:
    texts = ["Type-2 diabetes", "diabetes, type 2", "diabetes type 1", "…", "!"]
    rows = same_words(ItemList([Item(str(n), text) for n, text in enumerate(texts)]))
    assert rows[0] == rows[1]
    assert len(set(rows.tolist())) == 4


@pytest.mark.parametrize("calls", [30_000, 100_000, 500_000, 5_000_000])
def test_a_mining_stays_within_its_calls(calls) -> None:
    plan = plan_mining(8_000, 28_000, calls=calls)
    assert plan.calls <= calls
    assert plan.anchors >= 50
    assert plan.items >= 200
    whole = plan_mining(8_000, 28_000, calls=10_000_000)
    assert (whole.anchors, whole.items, whole.queries) == (200, 28_000, 8_000)


def test_an_index_that_is_larger_than_the_calls_allowed_is_refused_with_the_number_that_is_enough() -> None:
    with pytest.raises(InputError, match="20,000; got 5,000"):
        plan_mining(8_000, 28_000, calls=5_000)
    assert plan_mining(8_000, 28_000, calls=20_000).calls <= 20_000


@pytest.mark.parametrize("calls", [40_000, 26_000, 21_000], ids=["all", "fewer anchors", "a sample"])
def test_searches_find_what_the_scorer_wrongly_likes(world, calls) -> None:
    judged, items, scorer, first = world
    plan = plan_mining(len(judged), len(items), calls=calls)
    mined = mine(scorer, judged, items, first=first, plan=plan, seed=0)
    searched = [place for place, row in enumerate(mined.positions) if len(row)]
    assert len(searched) == plan.queries
    for place in searched:
        assert place not in mined.positions[place]
        there = np.isin(PHANTOMS, mined.positions[place]).sum()
        # In a sample of the items, those of it.
        assert there == 10 if plan.items == N_ITEMS else there > 0
        assert (np.diff(mined.scores[place]) <= 0).all()
        exact = scorer.score([(judged.queries[place], item) for item in items.at(mined.positions[place].tolist())])
        np.testing.assert_array_equal(mined.scores[place], exact.astype(np.float32))


def test_a_mining_is_stored_and_read_as_it_was(world, tmp_path) -> None:
    judged, items, scorer, first = world
    mined = mine(scorer, judged, items, first=first, plan=plan_mining(60, 400, calls=9_000 * 3), seed=0)
    mined.save(tmp_path / "mined.npz")
    again = Mined.load(tmp_path / "mined.npz")
    assert again.margin == mined.margin
    np.testing.assert_array_equal(again.liked, mined.liked)
    for one, other in zip(again.positions, mined.positions, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_outscores_the_relevant_item_twice_in_a_row_is_set_aside_and_listed(world, tmp_path, caplog) -> None:
    judged, items, scorer, _ = world
    liked, empty = np.full(N_QUERIES, 1.0, np.float32), np.empty(0, np.intp)
    positions = [np.array([7, 8, 9]), *[empty] * (N_QUERIES - 1)]
    scores = [np.array([5.0, 3.5, 1.5], np.float32), *[empty.astype(np.float32)] * (N_QUERIES - 1)]
    now = Mined(positions, scores, liked, 2.0)
    earlier = replace(now, positions=[np.array([8, 7]), *positions[1:]], scores=[np.array([9, 2.0]), *scores[1:]])
    # Item 7 outscored it only now, item 9 by less than the margin.
    aside = twice(earlier, now)
    assert [(one.place, one.position) for one in aside] == [(0, 8)]
    list_set_aside(aside, judged, items, tmp_path)
    (row,) = map(json.loads, (tmp_path / "set_aside.jsonl").read_text().splitlines())
    assert (row["query"], row["positive"], row["item"]) == ("q0", "i0", "i8")
    assert (row["positive_score"], row["score"]) == (1.0, 3.5)
    assert row["item_text"] == "text 8"
    assert "1 items" in caplog.text
    list_set_aside([], judged, items, tmp_path)
    assert not (tmp_path / "set_aside.jsonl").exists()
    again = still_preferred(scorer, judged, items, now)
    assert len(again.scores[0]) == 2


def test_a_person_is_shown_one_item_of_a_query_and_no_more_than_fifty(tmp_path) -> None:
    queries = tuple(Query(f"q{n}", f"query {n}") for n in range(80))
    judged = JudgedQueries(queries, [np.array([0])] * 80)
    items = ItemList([Item(f"i{n}", f"text {n}") for n in range(9)])
    found = [SetAside(place, at, 1.0, 2.0 + place + at, "why") for place in range(80) for at in range(1, 4)]
    found.append(SetAside(3, 7, 1.0, 1.5, "why", looks=3))
    list_set_aside(found, judged, items, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "set_aside.jsonl").read_text().splitlines()]
    # What was seen most often comes first, then what outscores the relevant item most.
    assert [(row["query"], row["item"]) for row in rows] == [
        ("q3", "i7"),
        *((f"q{place}", "i3") for place in range(79, 30, -1)),
    ]


def test_ranks_among_all_items_are_exact_where_the_sample_is_everything_and_extrapolated_elsewhere() -> None:
    held_out = JudgedQueries([Query("q", "q")], [np.array([3])])
    scores = np.array([9.0, 1.0, 8.0, 5.0, 7.0, 0.0, 2.0, 3.0])

    def quality(sample: list[int]) -> dict[str, float]:
        checked = Checked(held_out, [np.array([1, 3])], np.array(sample), n_items=8)
        return checked.quality(scores[[1, 3, *sample, 3]])

    everything = quality(list(range(8)))
    assert everything["mrr"] == 1
    assert everything["mrr_all"] == pytest.approx(1 / 4)
    assert everything["outscored"] == pytest.approx(3 / 7)
    # One of two sampled items outscores it, and six are not in the shortlist.
    assert quality([0, 5])["mrr_all"] == pytest.approx(1 / (1 + 6 / 2))


def test_leaks_are_told_by_id_and_by_text(caplog) -> None:
    items = [Item("a", "One item"), Item("b", "item one"), Item("c", "another")]
    training = JudgedCollection(
        "t", items, [Query("1", "What is it?"), Query("2", "Why")], {"1": {"a": 1}, "2": {"c": 1}}
    )
    test = JudgedCollection("t", items, [Query("1", "Who"), Query("9", "what IS it")], {"1": {"b": 1}, "9": {"c": 1}})
    with caplog.at_level(logging.WARNING):
        warn_of_leaks(training, test)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert "'1'" in said[0]
    assert "'9'" in said[1]
    assert "'c'" in said[2]
    assert "'b'" in said[3]
    caplog.clear()
    warn_of_leaks(training, JudgedCollection("t", items, [Query("7", "else")], {"7": {"a": 0}}))
    assert not caplog.records


def test_a_teacher_scores_what_searches_with_it_find(world) -> None:
    judged, items, scorer, first = world
    mixture = Mixture(near=1, random=1, found=1)
    taught = TeacherScores.from_scorers([scorer], judged.queries, items, first=first, top=30, mixture=mixture)
    assert all(np.isin(PHANTOMS, row.positions).all() and len(row.positions) == 30 for row in taught.rows)
    assert all(np.isin(np.arange(10), row.positions).all() for row in taught.rows)
    with pytest.raises(InputError, match="one scorer"):
        TeacherScores.from_scorers([scorer] * 2, judged.queries, items, first=first, mixture=mixture)


# ── in a training ─────────────────────────────────────────────────────────────────────────────────────────────────

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
SETTINGS = TrainingSettings(epochs=4, learning_rate=3e-3, batch_queries=4, patience=None)


class Shared:
    """The number of words that query and item share."""

    card = ScorerCard(name="shared", backend="function", weights="words")

    def score(self, pairs):
        return np.array([len(set(q.text.split()) & set(i.text.split())) for q, i in pairs], np.float32)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return tiny_transformer(tmp_path_factory.mktemp("base") / "tiny", layers=1)


@pytest.fixture(scope="module")
def tiny() -> tuple[JudgedCollection, Matrix]:
    rng = np.random.default_rng(0)
    items = [Item(f"i{n}", " ".join(map(str, rng.choice(WORDS, 5)))) for n in range(80)]
    queries = [Query(f"q{n}", " ".join([*items[n].text.split()[:2], WORDS[n]])) for n in range(24)]
    collection = JudgedCollection("tiny", items, queries, {f"q{n}": {f"i{n}": 1} for n in range(24)})
    return collection, Matrix(queries=queries, items=items, scores=rng.random((24, 80)))


def train(folder: Path, base: Path, tiny, **options):
    collection, first = tiny
    chosen = {"head": "cls", "negatives": 6, "depth": 10, "settings": SETTINGS, "turns": 3} | options
    return train_cross_encoder(collection, folder, base=base, first=first, **chosen)


def test_a_run_that_is_killed_while_it_mines_ends_with_the_same_weights(tmp_path, base, tiny, monkeypatch) -> None:
    from adacur.extras.train import turns

    whole = train(tmp_path / "whole", base, tiny)
    assert [file.name for file in sorted(whole.folder.glob("training/mined-*"))] == ["mined-1.npz", "mined-2.npz"]
    minings = 0

    def ended(*args, **options):
        nonlocal minings
        minings += 1
        if minings == 2:
            raise KeyboardInterrupt
        return mine(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(turns, "mine", ended)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "killed", base, tiny)
    train(tmp_path / "killed", base, tiny)
    for name in ("model.safetensors", "training/mined-1.npz", "training/mined-2.npz"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "killed" / "training" / "as-it-is").exists()


def test_what_was_set_aside_is_listed_though_the_run_was_killed_at_its_end(tmp_path, base, tiny, monkeypatch) -> None:
    from adacur.extras.train.run_folder import RunFolder

    # Whatever scores above the relevant item counts: a tiny model has no margins.
    monkeypatch.setattr("adacur.extras.train.mining.margin_of", lambda scores: 0.0)
    listed = train(tmp_path / "whole", base, tiny).folder / "set_aside.jsonl"
    rows = [json.loads(line) for line in listed.read_text().splitlines()]
    assert {row["because"] for row in rows} <= {"in two minings", "in the last mining and after training"}
    assert 0 < len(rows) == len({row["query"] for row in rows})
    assert all(row["score"] > row["positive_score"] for row in rows)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "killed", base, tiny)
    assert (train(tmp_path / "killed", base, tiny).folder / "set_aside.jsonl").read_bytes() == listed.read_bytes()


def test_turns_must_fit_the_epochs_and_calls_the_index(tmp_path, base, tiny) -> None:
    with pytest.raises(InputError, match="from 1 to 4; got 5"):
        train(tmp_path / "m", base, tiny, turns=5)
    with pytest.raises(InputError, match="mining_calls must be at least"):
        train(tmp_path / "m", base, tiny, mining_calls=100)
    assert not (tmp_path / "m").exists()


def test_the_cost_is_told_and_one_turn_mines_nothing(tmp_path, base, tiny, caplog) -> None:
    with caplog.at_level(logging.INFO, logger="adacur.extras.train"):
        trained = train(tmp_path / "m", base, tiny, turns=1, settings=replace(SETTINGS, epochs=1))
    assert any(f"{22 * 7:,} pairs" in record.getMessage() for record in caplog.records)
    assert not list(trained.folder.glob("training/mined-*"))
    assert {"mrr", "mrr_all", "outscored"} <= trained.best.keys()


def test_a_model_that_ranks_relevant_items_last_is_told(tmp_path, base, tiny, monkeypatch, caplog) -> None:
    quality = Checked.quality
    monkeypatch.setattr(Checked, "quality", lambda self, scores: quality(self, -np.abs(scores)) | {"outscored": 0.9})
    train(tmp_path / "m", base, tiny, turns=1, settings=replace(SETTINGS, epochs=1))
    assert "90 %" in caplog.text


def test_a_dual_encoder_is_shown_what_searches_with_a_scorer_find(tmp_path, base, tiny, monkeypatch) -> None:
    collection, first = tiny
    shown: list[tuple[int, Pool]] = []
    draw = Draws.__call__

    def recorded(self, place, epoch, pool):
        shown.append((place, pool))
        return draw(self, place, epoch, pool)

    monkeypatch.setattr(Draws, "__call__", recorded)
    trained = train_dual_encoder(
        collection,
        tmp_path / "m",
        base=base,
        first=first,
        miner=Shared(),
        settings=replace(SETTINGS, epochs=2),
    )
    assert trained.updates == 2 * 6
    assert all(len(pool.found) for _, pool in shown)
    with pytest.raises(InputError, match="negatives is 0"):
        train_dual_encoder(collection, tmp_path / "n", base=base, miner=Shared(), negatives=0)
