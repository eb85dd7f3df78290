"""Searches with the model find what it wrongly likes."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from adacur import Item, Query
from adacur.data import JudgedCollection
from adacur.errors import InputError
from adacur.extras.train import Mixture, TrainingSettings, train_cross_encoder
from adacur.extras.train.checking import Checked
from adacur.extras.train.judged_queries import JudgedQueries, same_words
from adacur.extras.train.mining import load_mined, mine, plan_mining, save_mined
from adacur.extras.train.negatives import Draws, Pool
from adacur.first_stages import Matrix
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


def test_negatives_are_drawn_by_their_shares_and_never_relevant_or_twice(world) -> None:
    judged, items, _, _ = world
    pool = Pool(near=np.arange(1, 40), found=np.arange(20, 60))
    draws = Draws(judged, items, 30, 0, Mixture())
    for epoch in range(20):
        relevant, *negatives = draws(20, epoch, pool).tolist()
        assert relevant == 20
        assert len(negatives) == len(set(negatives)) == 30
        assert 20 not in negatives
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
    with pytest.raises(InputError):
        plan_mining(8_000, 28_000, calls=5_000)
    assert plan_mining(8_000, 28_000, calls=20_000).calls <= 20_000


@pytest.mark.parametrize("calls", [40_000, 26_000, 21_000], ids=["all", "fewer anchors", "a sample"])
def test_searches_find_what_the_scorer_wrongly_likes(world, calls) -> None:
    judged, items, scorer, first = world
    plan = plan_mining(len(judged), len(items), calls=calls)
    mined = mine(scorer, judged, items, first=first, plan=plan, seed=0)
    searched = [place for place, row in enumerate(mined) if len(row)]
    assert len(searched) == plan.queries
    for place in searched:
        assert place not in mined[place]
        there = np.isin(PHANTOMS, mined[place]).sum()
        # In a sample of the items, those of it.
        assert there == 10 if plan.items == N_ITEMS else there > 0
        exact = scorer.score([(judged.queries[place], item) for item in items.at(mined[place].tolist())])
        assert (np.diff(exact) <= 0).all()


def test_a_mining_is_stored_and_read_as_it_was(world, tmp_path) -> None:
    judged, items, scorer, first = world
    mined = mine(scorer, judged, items, first=first, plan=plan_mining(60, 400, calls=9_000 * 3), seed=0)
    save_mined(mined, tmp_path / "mined.npz")
    for one, other in zip(load_mined(tmp_path / "mined.npz"), mined, strict=True):
        np.testing.assert_array_equal(one, other)


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


# ── in a training ─────────────────────────────────────────────────────────────────────────────────────────────────

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")
SETTINGS = TrainingSettings(epochs=4, learning_rate=3e-3, batch_queries=4, patience=None)


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


def test_a_run_that_is_killed_while_it_mines_goes_on_with_what_it_had_mined(tmp_path, base, tiny, monkeypatch) -> None:
    minings = 0

    def ended(*args, **options):
        nonlocal minings
        minings += 1
        if minings == 2:
            raise KeyboardInterrupt
        return mine(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr("adacur.extras.train.mining.mine", ended)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "m", base, tiny)
    first = (tmp_path / "m" / "training" / "mined-1.npz").read_bytes()
    trained = train(tmp_path / "m", base, tiny)
    assert (tmp_path / "m" / "training" / "mined-1.npz").read_bytes() == first
    assert [file.name for file in sorted(trained.folder.glob("training/mined-*"))] == ["mined-1.npz", "mined-2.npz"]
    # Of four epochs three were done.
    assert trained.queries == 22
    assert not (trained.folder / "training" / "as-it-is").exists()


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
