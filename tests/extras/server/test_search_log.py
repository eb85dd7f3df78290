"""What searches paid for: logged only on request, by many at once, and made anchor queries of."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import sqlite3
import threading
import time

import numpy as np
import pytest

import adacur
from adacur import Item, Query
from adacur.errors import FileFormatError, IndexFolderError, InputError, WrongScorer
from adacur.extras.server import SearchLog, SearchLogWarning
from adacur.extras.server.refresh import refresh as refresh_folder
from adacur.protocols import ScorerCard
from adacur.replay import replay, tune
from adacur.store import IndexFolder, verify
from tests.editing import Edited
from tests.embedding_world import ANCHORS, ITEMS, TRUTH, Encoder, Scorer, number

NEW = [Query(f"n{at}", f"query {len(ANCHORS) + at}") for at in range(5)]


def build(path, *, n_anchors=30, **options):
    given = {"first": ["dense"], "encoder": Encoder(), "progress": False, "tune": False} | options
    return adacur.build(ITEMS, ANCHORS[:n_anchors], scorer=Scorer(), path=path, **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("log") / "index"
    build(path)
    return path


@pytest.fixture
def path(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "index")


def load(path, log=None, **options):
    return adacur.load(path, scorer=Scorer(**options), encoder=Encoder(), log=log, check=False)


def refresh(path, log, **options):
    return adacur.extras.server.refresh(path, log, encoder=Encoder(), **options)


def test_nothing_is_logged_unless_asked_for(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    load(folder).search(NEW[0], 5, budget=40)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_a_log_holds_each_query_with_every_item_that_was_scored_for_it(folder, tmp_path):
    index = load(folder, tmp_path / "log")
    found = index.search(NEW[:2], 5, budget=40)
    logged = list(SearchLog(tmp_path / "log"))
    assert [search.query.text for search in logged] == [query.text for query in NEW[:2]]
    for search, hits, query in zip(logged, found, NEW, strict=False):
        assert len(search.ids) == len(set(search.ids)) == hits.trace.calls == 40
        assert set(hits.ids) <= set(search.ids)
        assert np.array_equal(search.scores, TRUTH[number(query.text), [int(id_[1:]) for id_ in search.ids]])


def test_every_way_to_search_is_logged_once(folder, tmp_path):
    index = load(folder, tmp_path / "log")
    index.search(NEW[0], 5, budget=40)
    for _ in index.search_iter(NEW[1], 5, budget=40):
        pass
    asyncio.run(index.asearch(NEW[2], 5, budget=40))

    async def last():
        async for _ in index.asearch_iter(NEW[3], 5, budget=40):
            pass

    asyncio.run(last())
    for _ in index.search_iter(NEW[4], 5, budget=40):
        break
    logged = list(SearchLog(tmp_path / "log"))
    assert [search.query.text for search in logged] == [query.text for query in NEW]
    assert [len(search.ids) for search in logged] == [40, 40, 40, 40, 12]


def write_some(log, folder, n):
    index = load(folder, log)
    for at in range(n):
        index.search(Query(f"x{at}", f"query {at}"), 5, budget=10)


def test_threads_and_processes_may_log_at_once(folder, tmp_path):
    log = tmp_path / "log"
    others = [multiprocessing.get_context("spawn").Process(target=write_some, args=(log, folder, 4))]
    others += [threading.Thread(target=write_some, args=(log, folder, 4)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(SearchLog(log)) == 16


def test_a_search_is_answered_though_it_cannot_be_logged(folder, tmp_path):
    index = load(folder, tmp_path / "log")
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute("DROP TABLE searches")
    connection.close()
    with pytest.warns(SearchLogWarning):
        assert len(index.search(NEW[0], 5, budget=40)) == 5


def test_a_file_that_is_no_log_is_refused_and_left_as_it_is(folder, tmp_path):
    (tmp_path / "text").write_text("not a database, but longer than the header of one would be" * 9)
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    for name in ("text", "other"):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(FileFormatError):
            load(folder, tmp_path / name)
        assert (tmp_path / name).read_bytes() == before
    with pytest.raises(InputError):
        refresh(folder, tmp_path / "absent")


def test_a_forgotten_query_leaves_no_trace_in_the_file(folder, tmp_path):
    log = tmp_path / "log"
    index = load(folder, log)
    index.search("query 41", 5, budget=40)
    index.search("query 42", 5, budget=40)
    assert SearchLog(log).forget(["query 41"]) == 1
    assert b"query 41" not in b"".join(file.read_bytes() for file in tmp_path.glob("log*"))
    assert [search.query.text for search in SearchLog(log)] == ["query 42"]


def test_refresh_keeps_what_was_paid_for_and_predicts_the_rest(path, tmp_path):
    log = tmp_path / "log"
    load(path, log).search(NEW, 5, budget=40)
    done = refresh(path, log)
    assert (done.queries, done.added, done.anchors) == (5, 5, 35)
    index = load(path)
    cells = IndexFolder.open(path).exact_cells()
    assert cells[:, :30].all()
    assert (cells[:, 30:].sum(axis=0) == 40).all()
    rows = [number(query.text) for query in index.anchor_queries[30:]]
    truth = TRUTH[rows].T.astype(np.float32)
    assert np.array_equal(index.matrix[:, 30:][cells[:, 30:]], truth[cells[:, 30:]])
    assert np.isfinite(index.matrix).all()
    assert np.corrcoef(index.matrix[:, 30:][~cells[:, 30:]], truth[~cells[:, 30:]])[0, 1] > 0.2
    assert verify(path).ok
    assert index.search("query 44", 5, budget=40).trace.calls == 40


def test_a_query_becomes_an_anchor_query_once_with_the_scores_of_all_its_searches(path, tmp_path):
    log = tmp_path / "log"
    index = load(path, log)
    index.search("query 41", 5, budget=40)
    index.search("query 41", 5, budget=30, method="rerank", first="random")
    index.search(ANCHORS[0].text, 5, budget=40)
    index.search("query 42", 5, budget=10)
    done = refresh(path, log)
    assert (done.queries, done.added, done.known, done.left_out) == (3, 1, 1, 1)
    scored = {id_ for search in SearchLog(log) if search.query.text == "query 41" for id_ in search.ids}
    assert int(IndexFolder.open(path).exact_cells()[:, 30].sum()) == len(scored) > 40
    again = refresh(path, log)
    assert (again.added, again.known, again.anchors) == (0, 2, 31)


def test_anchor_queries_from_a_log_are_those_that_the_log_still_holds(path, tmp_path):
    log = tmp_path / "log"
    load(path, log).search(["query 41", "query 42"], 5, budget=40)
    refresh(path, log)
    SearchLog(log).forget(["query 41"])
    done = refresh(path, log)
    assert (done.added, done.dropped, done.anchors, done.changed) == (0, 1, 31, True)
    assert load(path).anchor_queries[30].text == "query 42"
    assert not refresh(path, log).changed


def test_the_limit_keeps_the_queries_with_most_scores(path, tmp_path):
    log = tmp_path / "log"
    index = load(path, log)
    for at, budget in enumerate((30, 50, 40)):
        index.search(f"query {40 + at}", 5, budget=budget)
    done = refresh(path, log, limit=2)
    assert (done.added, done.left_out) == (2, 1)
    assert [query.text for query in load(path).anchor_queries[30:]] == ["query 41", "query 42"]


def test_searches_by_another_scorer_are_left_out_and_counted(path, tmp_path):
    log = tmp_path / "log"
    own, other = load(path, log), load(path, log, weights="others")
    other.search(NEW[:3], 5, budget=40)
    own.search([*NEW[2:4], ANCHORS[0]], 5, budget=40)
    done = refresh(path, log)
    assert (done.queries, done.added, done.known, done.other_scorer) == (5, 2, 1, 2)
    new = IndexFolder.open(path).anchor_queries[30:]
    assert {query.text for query in new} == {query.text for query in NEW[2:4]}
    again = refresh(path, log)
    assert (again.added, again.known, again.other_scorer) == (0, 3, 2)


def test_a_log_of_another_scorer_is_refused_and_the_index_left_as_it_was(path, tmp_path):
    log = tmp_path / "log"
    load(path, log, weights="others").search(NEW[0], 5, budget=40)
    with pytest.raises(WrongScorer):
        refresh(path, log)
    assert IndexFolder.open(path).version == 1


def test_scores_of_a_text_that_has_changed_are_not_used(path, tmp_path):
    log = tmp_path / "log"
    index = load(path, log)
    hits = index.search("query 41", 5, budget=40)
    gone, changed = hits.ids[0], hits.ids[1]
    Edited(index).remove([gone])
    Edited(index).replace([Item(changed, f"another item {changed[1:]}")])
    refresh(path, log)
    folder = IndexFolder.open(path)
    cells = folder.exact_cells()
    assert int(cells[:, 30].sum()) == 38
    assert not cells[folder.items.positions([changed])[0], 30]


def test_recall_is_predicted_from_complete_rows_alone(path, tmp_path):
    log = tmp_path / "log"
    index = load(path, log)
    index.search(NEW, 5, budget=40)
    before = tune(index, k=5, budget=40, quick=True)
    refresh(path, log)
    index = load(path)
    assert tune(index, k=5, budget=40, quick=True) == before
    replay(index, ANCHORS[:1], 5, budget=40)
    with pytest.raises(InputError):
        replay(index, [index.anchor_queries[30]], 5, budget=40)


def test_a_card_is_told_by_its_weights_and_limits(folder, tmp_path):
    log = SearchLog(tmp_path / "log")
    hits = load(folder).search(NEW[:1], 5, budget=40)
    card = ScorerCard(name="truth", backend="function", weights="w", source="somewhere")
    log.add(hits, items=IndexFolder.open(folder).items, card=card)
    (search,) = log
    assert search.card == ScorerCard(name="truth", backend="function", weights="w")


POISON = {
    "a query of bytes": ("UPDATE searches SET query = ?", b"\xff"),
    "no query": ("UPDATE searches SET query = ?", " "),
    "deep items": ("UPDATE searches SET items = ?", "[" * 100_000),
    "nested items": ("UPDATE searches SET items = ?", "[[1], [2]]"),
    "more items": ("UPDATE searches SET items = ?", str([f"i{n}" for n in range(400)]).replace("'", '"')),
    "few digests": ("UPDATE searches SET digests = ?", b"abc"),
    "few scores": ("UPDATE searches SET scores = ?", np.ones(1).tobytes()),
    "NaN": ("UPDATE searches SET scores = ?", np.full(40, np.nan).tobytes()),
    "a time of letters": ("UPDATE searches SET at = ?", "zzz"),
    "a deep card": ("UPDATE scorers SET card = ?", "[" * 100_000),
    "a card of a list": ("UPDATE scorers SET card = ?", "[]"),
}


@pytest.mark.parametrize("change", POISON.values(), ids=POISON)
def test_a_log_that_somebody_else_wrote_is_refused_with_its_name_and_the_index_stays_as_it_is(path, tmp_path, change):
    load(path, tmp_path / "log").search(NEW, 5, budget=40)
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute(change[0], (change[1],))
    connection.close()
    with pytest.raises(IndexFolderError):
        list(SearchLog(tmp_path / "log"))
    with pytest.raises(IndexFolderError):
        refresh(path, tmp_path / "log")
    assert len(load(path).anchor_queries) == 30


def test_a_log_whose_tables_run_something_is_refused(path, tmp_path):
    load(path, tmp_path / "log").search(NEW, 5, budget=40)
    with sqlite3.connect(tmp_path / "log") as connection:
        connection.execute("CREATE TRIGGER t AFTER INSERT ON searches BEGIN DELETE FROM searches; END")
    connection.close()
    with pytest.raises(FileFormatError):
        SearchLog(tmp_path / "log")


@pytest.mark.parametrize("given", [{"limit": "x"}, {"limit": 1.5}, {"fewest_scored": None}, {"limit": 0}])
def test_a_refresh_takes_whole_numbers(tmp_path, given) -> None:
    with pytest.raises(InputError):
        refresh_folder(tmp_path, tmp_path / "log", **given)


def test_a_log_holds_no_more_than_it_may_and_nothing_old(folder, tmp_path):
    log = SearchLog(tmp_path / "log", keep=5, days=1)
    index = load(folder, log)
    index.search([f"query {at}" for at in range(8)], 5, budget=10)
    assert [one.query.text for one in log] == [f"query {at}" for at in range(3, 8)]
    with sqlite3.connect(log.path) as connection:
        connection.execute("UPDATE searches SET at = ? WHERE query < 'query 6'", (time.time() - 1.1 * 86_400,))
    connection.close()
    assert [one.query.text for one in log] == ["query 6", "query 7"]
    index.search("query 8", 5, budget=10)
    assert len(log) == 3


@pytest.mark.parametrize("wrong", [{"keep": 0}, {"keep": 1.5}, {"keep": 10**30}, {"days": 0}, {"days": float("nan")}])
def test_a_log_keeps_a_number_that_sqlite_can_count_for_some_time(tmp_path, wrong) -> None:
    with pytest.raises(InputError):
        SearchLog(tmp_path / "log", **wrong)
