"""An index that learns from its searches: in the background, one refresh at a time, and nobody is held up."""

from __future__ import annotations

import gc
import shutil
import sqlite3
import threading
import time
import weakref

import numpy as np
import pytest

import adacur
from adacur import Item
from adacur.errors import InputError
from adacur.extras.server import SearchLog
from adacur.extras.server.learning import move
from adacur.store import IndexFolder, verify
from tests.embedding_world import ANCHORS, ITEMS, TRUTH, Encoder, Scorer, number

SECRET = "query 41"
EVERY = 10


@pytest.fixture(scope="module")
def empty(tmp_path_factory):
    path = tmp_path_factory.mktemp("learning") / "index"
    adacur.build(
        ITEMS, 0, scorer=Scorer(), path=path, first=["bm25", "dense"], encoder=Encoder(), progress=False, tune=False
    ).close()
    return path


@pytest.fixture
def path(empty, tmp_path):
    return shutil.copytree(empty, tmp_path / "index")


def load(path, log, every=EVERY, **options):
    return adacur.load(path, scorer=Scorer(), encoder=Encoder(), log=log, learn_every=every, check=False, **options)


def search(index, numbers, **options):
    for at in numbers:
        index.search(f"query {at}", 5, **{"budget": 40} | options)
        # One refresh after another: a test of what each makes of the log, not of when it begins.
        assert index.learning is None or index.learning.wait(60)


def everything_in(*folders):
    return b"".join(file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file())


def test_an_index_without_anchor_queries_gets_them_from_its_searches(path, tmp_path):
    index = load(path, tmp_path / "log")
    search(index, range(9))
    assert (index.version, len(index.anchor_queries)) == (1, 0)
    search(index, range(9, 20))
    assert (index.version, len(index.anchor_queries)) == (3, 20)
    cells = IndexFolder.open(path).exact_cells()
    assert (cells.sum(axis=0) == 40).all()
    rows = [number(query.text) for query in index.anchor_queries]
    assert np.array_equal(index.matrix[cells], TRUTH[rows].T.astype(np.float32)[cells])
    assert verify(path).ok
    assert index.learning.as_dict() == {"every": EVERY, "refreshes": 2, "failed": 0}


def test_items_that_no_search_scored_are_predicted_below_those_that_one_did(path, tmp_path):
    index = load(path, tmp_path / "log")
    search(index, range(10))
    cells = IndexFolder.open(path).exact_cells()
    exact = np.array([column[own].mean() for column, own in zip(index.matrix.T, cells.T, strict=True)])
    predicted = np.array([column[~own].mean() for column, own in zip(index.matrix.T, cells.T, strict=True)])
    assert (predicted < exact).all()


def test_an_index_of_words_alone_learns_too(path, tmp_path):
    adacur.build(ITEMS, 0, scorer=Scorer(), path=tmp_path / "words", progress=False, tune=False).close()
    index = load(tmp_path / "words", tmp_path / "log")
    assert index.snapshot.default_method == "rerank"
    search(index, range(10))
    assert index.snapshot.default_method == "gaussian"
    assert index.search("query 41", 5, budget=40).trace.calls == 40


def test_a_search_under_way_ends_on_its_version_which_is_then_freed(path, tmp_path):
    index = load(path, tmp_path / "log")
    before = weakref.ref(index.anchors)
    rounds = index.search_iter("query 44", 5, budget=40)
    next(rounds)
    search(index, range(10))
    assert index.version == 2
    assert before() is not None
    *_, last = rounds
    assert last.trace.calls == 40
    assert last.trace.settings["anchors"] == 0
    assert index.search("query 44", 5, budget=40).trace.settings["anchors"] == 10
    del rounds, last
    gc.collect()
    assert before() is None


def test_copies_with_another_scorer_move_on_together_and_share_one_version(path, tmp_path):
    index = load(path, tmp_path / "log")
    other = index.with_scorer(lambda scorer: scorer)
    search(other, range(10))
    assert other.version == index.version == 2
    assert other.snapshot is index.snapshot


def test_one_refresh_at_a_time_however_many_search(path, tmp_path):
    index = load(path, tmp_path / "log", every=2)
    seen = []

    def searching(first):
        for at in range(first, first + 8):
            index.search(f"query {at}", 5, budget=40)
            seen.append(sum(thread.name == "adacur-refresh" for thread in threading.enumerate()))

    threads = [threading.Thread(target=searching, args=(8 * at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.learning.wait(60)
    assert max(seen) == 1
    assert index.learning.failed == 0
    assert 1 < index.version <= index.learning.refreshes + 1


def test_a_refresh_that_fails_is_noted_and_no_search_hears_of_it(path, tmp_path, caplog):
    index = load(path, tmp_path / "log")
    heard = []
    index.learning.heard = heard.append
    with adacur.load(path, scorer=Scorer(), encoder=Encoder(), check=False).edit(progress=False) as edit:
        search(index, range(10))
        edit.add([Item("new", "item 7")])
    assert heard == ["IndexLocked"]
    assert "IndexLocked" in caplog.text
    assert index.version == 1
    # The next one follows the edit that somebody else made.
    search(index, range(10, 20))
    assert heard == ["IndexLocked", None]
    assert (len(index), len(index.anchor_queries)) == (len(ITEMS) + 1, 20)
    assert index.search("query 41", 5, budget=40).trace.calls == 40


def test_an_edit_waits_for_a_refresh_and_the_next_refresh_builds_upon_it(path, tmp_path):
    index = load(path, tmp_path / "log")
    for at in range(10):
        index.search(f"query {at}", 5, budget=40)
    with index.edit(progress=False) as edit:
        edit.remove(["i7"])
    search(index, range(10, 20))
    assert (len(index), len(index.anchor_queries)) == (len(ITEMS) - 1, 20)
    assert (index.learning.refreshes, index.learning.failed) == (2, 0)


def test_a_closed_index_stays_closed(path, tmp_path):
    index = load(path, tmp_path / "log")
    index.close()
    index.learning.note(EVERY)
    assert index.learning.wait(60)
    with pytest.raises(InputError):
        index.search("query 41", 5, budget=40)
    assert index.learning.refreshes == 0
    # Nor does a refresh that was under way open it again.
    move([index], IndexFolder.open(path), first=lambda folder: {})
    with pytest.raises(InputError):
        index.search("query 41", 5, budget=40)


def test_an_index_that_holds_nobodys_scores_becomes_that_of_the_scorer_it_is_searched_with(path, tmp_path):
    scorer = Scorer(weights="others")
    index = adacur.load(path, scorer=scorer, encoder=Encoder(), log=tmp_path / "log", learn_every=EVERY, check=False)
    search(index, range(EVERY))
    assert IndexFolder.open(path).manifest.scorer.weights == index.card.weights == "others"


def test_a_query_that_is_forgotten_leaves_the_index_at_the_next_refresh(path, tmp_path):
    index = load(path, tmp_path / "log")
    search(index, [41, *range(9)])
    assert SECRET in {query.text for query in index.anchor_queries}
    index.learning.log.forget([SECRET])
    search(index, range(9, 19))
    search(index, range(19, 29))
    assert SECRET not in {query.text for query in index.anchor_queries}
    gc.collect()
    assert SECRET.encode() not in everything_in(tmp_path)


def test_an_index_whose_log_is_forgotten_has_no_anchor_queries_again(path, tmp_path):
    index = load(path, tmp_path / "log")
    search(index, range(10))
    index.learning.log.forget([f"query {at}" for at in range(10)])
    index.learning.note(EVERY)
    assert index.learning.wait(60)
    assert len(index.anchor_queries) == 0
    assert index.learning.failed == 0
    assert index.search("query 41", 5, budget=40).trace.calls == 40


def test_neither_folder_nor_logs_hold_a_query_unless_searches_are_logged(path, tmp_path, caplog, capfd):
    index = adacur.load(path, scorer=Scorer(), encoder=Encoder(), check=False)
    caplog.set_level(0)
    index.search(SECRET, 5, budget=40)
    assert SECRET.encode() not in everything_in(tmp_path)
    assert SECRET not in caplog.text + "".join(capfd.readouterr())


def test_a_log_holds_no_more_than_it_may_and_nothing_old(path, tmp_path):
    log = SearchLog(tmp_path / "log", keep=5, days=1)
    index = adacur.load(path, scorer=Scorer(), encoder=Encoder(), log=log, check=False)
    search(index, range(8))
    assert [one.query.text for one in log] == [f"query {at}" for at in range(3, 8)]
    with sqlite3.connect(log.path) as connection:
        connection.execute("UPDATE searches SET at = ? WHERE query < 'query 6'", (time.time() - 1.1 * 86_400,))
    connection.close()
    assert [one.query.text for one in log] == ["query 6", "query 7"]
    search(index, [8])
    assert len(log) == 3
    for wrong in ({"keep": 0}, {"keep": 1.5}, {"days": 0}, {"days": float("nan")}):
        with pytest.raises(InputError):
            SearchLog(tmp_path / "other", **wrong)


def test_what_cannot_learn_is_refused(path, tmp_path, empty):
    with pytest.raises(InputError):
        adacur.load(path, scorer=Scorer(), encoder=Encoder(), learn_every=5, check=False)
    in_memory = adacur.AnchorIndex.from_items(ITEMS, scorer=Scorer())
    in_memory._log = SearchLog(tmp_path / "log")
    with pytest.raises(InputError):
        in_memory.learn(5)
    for wrong in (0, -1, 2.5):
        with pytest.raises(InputError):
            load(path, tmp_path / "log", every=wrong)
    adacur.build(
        ITEMS,
        ANCHORS[:30],
        scorer=Scorer(),
        path=tmp_path / "tuned",
        first=["dense"],
        encoder=Encoder(),
        progress=False,
    ).close()
    tuned = adacur.load(tmp_path / "tuned", scorer=Scorer(), encoder=Encoder(), log=tmp_path / "log", check=False)
    adacur.tune(tuned, k=5, budget=40, quick=True)
    with pytest.raises(InputError):
        tuned.learn(10)
