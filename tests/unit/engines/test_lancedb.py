"""LanceDB: a user's own tables, hostile words, two writers, and folders and files that go missing."""

from __future__ import annotations

import pickle
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur.core.errors import AdacurError, EngineUnavailable, InputError, UnknownName
from adacur.core.records import Item
from adacur.engines.lancedb import LanceStore
from adacur.engines.vector_store import Nearest
from tests.object_stores import environment

lancedb = pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
pa = pytest.importorskip("pyarrow")

HOSTILE = ["x'; DROP TABLE things; --", 'a"b', "per%cent", "back\\slash'", "`tick`", "ünï 😀", "') OR ('1' = '1"]
RNG = np.random.default_rng(3)


@pytest.fixture
def store(tmp_path: Path) -> LanceStore:
    return LanceStore(tmp_path / "db", "things")


def rows(n: int, width: int = 3) -> np.ndarray:
    return RNG.normal(size=(n, width)).astype(np.float32)


def some_items(n: int, start: int = 0) -> list[Item]:
    return [Item(f"i{at}", f"text {at}", {"at": at}) for at in range(start, start + n)]


def own_table(folder: Path, ids: list[Any]) -> Any:
    n = len(ids)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.array([[at, 1] for at in range(n)], np.float32).ravel()), 2)
    halves = pa.FixedSizeListArray.from_arrays(pa.array(np.array([[at, 2] for at in range(n)], np.float16).ravel()), 2)
    columns = {
        "Doc Id": ids,
        "title": [f"Title {at}" for at in range(n)],
        "body": [f"about penicillin {at}" for at in range(n)],
        "Year": [2020 + at for at in range(n)],
        "draft": [None, *[True] * (n - 1)],
        "v": vectors,
        "half": halves,
    }
    return lancedb.connect(folder).create_table("docs", pa.table(columns))


@pytest.mark.parametrize("ids", [[7, 8, 9], ["x'y", "b", "ü"]])
def test_a_table_of_the_users_own(tmp_path: Path, ids: list[Any]) -> None:
    table = own_table(tmp_path, ids)
    store = LanceStore.from_url(f"lancedb://{tmp_path}/docs?text=title&text=body", id_field="Doc Id")
    assert store.name == f"lancedb://{tmp_path}/docs"
    assert store.dimensions() == {"v": 2, "half": 2}
    assert store.items(ids[1:2]) == {
        ids[1]: Item(str(ids[1]), "Title 1 about penicillin 1", {"Year": 2021, "draft": True})
    }
    answers = store.best("v", [Nearest(np.array([1, 0]), 2), Nearest(np.array([1, 0]), 2, without=[ids[2]])])
    assert [found.keys for found in answers] == [(ids[2], ids[1]), (ids[1], ids[0])]
    assert store.best("v", [Nearest(np.array([1, 0]), 2, within=ids[:2])])[0].keys == (ids[1], ids[0])
    assert store.best("half", [Nearest(np.array([1, 0]), 1)])[0].keys == (ids[2],)
    assert store.best("v", [Nearest(np.array([1, 0]), 9)], where={"Year": [2020, 2021]})[0].keys == (ids[1], ids[0])
    assert store.count("`Year` > 2020 AND title LIKE '%1'") == 1
    assert store.count({"draft": None}) == 1
    assert store.count({"draft": [None, True], "title": "Title 1"}) == 1
    assert store.count({"Year": []}) == 0
    np.testing.assert_array_equal(store.rows("half", ids[2:])[ids[2]], [2, 2])
    assert set(store.sample(9)) == set(ids)
    assert {item.id for item in store.scan()} == {str(id_) for id_ in ids}
    with pytest.raises(InputError, match="index of words"):
        store.words("penicillin", 3)
    table.create_index("body", config=lancedb.index.FTS())
    assert set(store.words("the discovery of penicillin", 9).keys) == set(ids)
    for change in (lambda: store.drop(), lambda: store.put([1], some_items(1), {"v": rows(1, 2)})):
        with pytest.raises(InputError, match="not made by adacur"):
            change()
    with pytest.raises(InputError, match="docs"):
        store.create({"v": 2})
    assert store.count() == 3


def test_columns_that_are_missing_or_unfit_are_named(tmp_path: Path) -> None:
    own_table(tmp_path, [7, 8])
    options: list[tuple[dict[str, Any], str]] = [
        ({}, "'id'"), ({"id_field": "Doc Id"}, "'text'"), ({"id_field": "Doc Id", "text": "titel"}, "titel"),
    ]  # fmt: skip
    for given, name in options:
        with pytest.raises(UnknownName, match=name):
            LanceStore(tmp_path, "docs", **given).count()
    with pytest.raises(InputError, match="draft"):
        LanceStore(tmp_path, "docs", text="title", id_field="draft").count()
    store = LanceStore(tmp_path, "docs", text="title", id_field="Doc Id")
    with pytest.raises(UnknownName, match="yeer"):
        store.count({"yeer": 1})
    with pytest.raises(InputError, match="yeer"):
        store.count("yeer > 3")
    with pytest.raises(InputError, match="abc"):
        store.count({"Year": "abc"})
    with pytest.raises(InputError, match="2 numbers"):
        store.best("v", [Nearest(np.ones(3), 1)])
    with pytest.raises(InputError, match="finite"):
        store.best("v", [Nearest(np.array([1, np.nan]), 1)])


def test_items_come_back_equal(store: LanceStore) -> None:
    store.create({"v": 2})
    metadata = {
        "key": 1, "text": "t", "metadata": {"a": [1, {"b": None}]}, "id": True, "facts": [], "": "", "a.b": 1.5,
        "large": 1.5e300, "small": -1e-300, "whole": 2.0, "long": "x" * 5000, "ö": "ü\t\n\0\"'\\", "n": -(2**63),
    }  # fmt: skip
    items = [Item(text, text, {**metadata, text: text}) for text in HOSTILE]
    store.put(range(len(items)), items, {"v": rows(len(items), 2)})
    assert [store.items([at])[at] for at in range(len(items))] == items
    assert sorted(store.scan(), key=lambda item: HOSTILE.index(item.id)) == items
    for at, text in enumerate(HOSTILE):
        assert store.count({text: text}) == 1
        assert store.best("v", [Nearest(np.ones(2), 9)], where={text: [text, 7]})[0].keys == (at,)
    for name, value in metadata.items():
        assert store.count({name: [value]}) == len(items), name
    assert store.count({"whole": 2}) == len(items)
    assert store.count({"nosuch": None}) == 0
    assert store.count("json_get_float(metadata, 'whole') > 1") == len(items)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_and_no_key_can_end_a_condition(store: LanceStore, text: str) -> None:
    with pytest.raises(AdacurError):
        store.beside(text).create({"v": 2})
    store.create({"v": 2} if "`" in text else {text: 2})
    (vector,) = store.dimensions()
    store.put([1], some_items(1), {vector: rows(1, 2)})
    assert len(store.rows(vector, [1])[1]) == 2
    assert store.best(vector, [Nearest(np.ones(2), 1)])[0].keys == (1,)
    assert store.words(text, 3).keys == ()
    with pytest.raises(InputError):
        store.items([text])


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_as_keys_are_only_keys(tmp_path: Path, text: str) -> None:
    own_table(tmp_path, ["a", "b", text])
    store = LanceStore(tmp_path, "docs", id_field="Doc Id", text="body")
    assert set(store.items([text])) == {text}
    assert set(store.best("v", [Nearest(np.ones(2), 9, without=[text])])[0].keys) == {"a", "b"}
    assert store.best("v", [Nearest(np.ones(2), 9, within=[text])])[0].keys == (text,)
    assert store.count({"Doc Id": text}) == 1


@pytest.mark.parametrize(
    "where",
    ["true) OR (true", "true; DROP TABLE x", "true -- ", "true /*", "'", "(true", "", 7, ["at = 1"], lambda item: True],
)
def test_a_condition_stays_in_its_parentheses(store: LanceStore, where: object) -> None:
    store.create({"v": 2})
    store.put([0, 1], some_items(2), {"v": rows(2, 2)})
    with pytest.raises(InputError):
        store.best("v", [Nearest(np.ones(2), 2, within=[0])], where=where)
    assert store.count("json_get_int(metadata, 'at') = 1 OR (id = 'x''); --')") == 1


def test_what_cannot_be_written_is_refused_and_nothing_is(store: LanceStore) -> None:
    store.create({"v": 2})
    good = some_items(1)[0]
    bad: list[tuple[Any, Any, Any]] = [
        ([1, 2], [good], {"v": rows(2, 2)}),
        ([1], [good], {"v": rows(1, 3)}),
        ([1], [good], {"w": rows(1, 2)}),
        (["1"], [good], {"v": rows(1, 2)}),
        ([1], [good], {"v": np.array([[1, np.inf]])}),
        ([1], [Item("a", "t", {"x": float("nan")})], {"v": rows(1, 2)}),
        ([1], [Item("a", "t", {"x": 2**64})], {"v": rows(1, 2)}),
        ([1], [Item("a", "t", {"x": object()})], {"v": rows(1, 2)}),
    ]
    for keys, items, vectors in bad:
        with pytest.raises(InputError):
            store.put(keys, items, vectors)
    store.put([], [], {"v": rows(0, 2)})
    assert store.count() == 0 == len(store.sample(3))
    store.put([1, 1], some_items(2), {"v": rows(2, 2)})
    assert store.items([1])[1].id == "i1"
    for dimensions in ({"": 2}, {"key": 2}, {"facts": 2}, {"v`": 2}, {"v": 0}):
        with pytest.raises(InputError):
            store.beside("x").create(dimensions)


def test_an_answer_that_is_not_finite_is_refused(store: LanceStore) -> None:
    store.create({"v": 2})
    store.put([1], some_items(1), {"v": np.full((1, 2), 3e38)})
    with pytest.raises(EngineUnavailable, match="finite"):
        store.best("v", [Nearest(np.full(2, 3e38), 1)])


def test_exact_reads_past_an_index(store: LanceStore) -> None:
    store.create({"v": 8})
    vectors = rows(3000, 8)
    store.put(range(3000), some_items(3000), {"v": vectors})
    config = lancedb.index.IvfFlat(distance_type="dot", num_partitions=128)
    lancedb.connect(store._uri).open_table("things").create_index("v", config=config)
    weights = rows(20, 8)
    questions = [Nearest(row, 30) for row in weights]
    truth = [np.argsort(-(vectors @ row))[:30].tolist() for row in weights]
    assert [list(found.keys) for found in store.best("v", questions)] == truth
    approximate = store.best("v", questions, exact=False)
    assert [list(found.keys) for found in approximate] != truth
    for row, found in zip(weights, approximate, strict=True):
        np.testing.assert_allclose(found.values, vectors[list(found.keys)] @ row, rtol=1e-4, atol=1e-4)


def test_questions_with_and_without_limits_are_asked_together(store: LanceStore) -> None:
    store.create({"v": 4})
    vectors = rows(200, 4)
    store.put(range(200), some_items(200), {"v": vectors})
    weights = rows(1, 4)[0]
    best = np.argsort(-(vectors @ weights)).tolist()
    questions = [
        Nearest(weights, 3), Nearest(weights, 0),
        Nearest(weights, 3, without=best[:150]), Nearest(weights, 3, within=[]),
        Nearest(weights, 3, within=best[50:60], without=best[:52]), Nearest(weights, 500, without=[10**6]),
    ]  # fmt: skip
    keys = [list(found.keys) for found in store.best("v", questions)]
    assert keys == [best[:3], [], best[150:153], [], best[52:55], best]


def test_what_another_writes_is_seen(store: LanceStore) -> None:
    store.create({"v": 2})
    other = pickle.loads(pickle.dumps(store))
    store.put([1], some_items(1), {"v": rows(1, 2)})
    assert other.count() == 1
    other.put([2], some_items(1, 2), {"v": rows(1, 2)})
    assert store.count() == 2
    store.close()
    assert store.count() == 2
    other.drop()
    assert not store.exists()
    with pytest.raises(AdacurError, match="things"):
        store.count()


def test_threads_share_a_store_and_writes_are_not_lost(store: LanceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("adacur.engines.lancedb._INDEX_AFTER", 2500)
    store.create({"v": 4})
    vectors = rows(400, 4)

    def write(start: int) -> None:
        some = slice(start, start + 25)
        store.put(range(start, start + 25), some_items(25, start), {"v": vectors[some]})

    def ask(weights: np.ndarray) -> bool:
        found = store.best("v", [Nearest(weights, 5)])[0]
        return list(found.keys) == np.argsort(-(vectors @ weights))[:5].tolist() and len(store.items(found.keys)) == 5

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(0, 400, 25)))
        assert store.count() == 400
        assert all(pool.map(ask, rows(32, 4)))
    assert store.words("399", 1).keys == (399,)


def test_a_writer_that_is_killed_leaves_whole_writes_and_a_rerun_completes(store: LanceStore) -> None:
    store.create({"v": 4})
    program = (
        "import sys, numpy as np\n"
        "from adacur.core.records import Item\n"
        "from adacur.engines.lancedb import LanceStore\n"
        "store = LanceStore(sys.argv[1], 'things')\n"
        "for start in range(0, 100_000, 100):\n"
        "    keys = range(start, start + 100)\n"
        "    store.put(keys, [Item(str(key), 'text') for key in keys], {'v': np.ones((100, 4))})\n"
        "    print(start, flush=True)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, store._uri], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    for _ in range(5):
        last = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    assert store.count() >= last + 100
    assert store.count() % 100 == 0
    store.put(range(1000), some_items(1000), {"v": rows(1000, 4)})
    assert len(store.items(range(1000))) == 1000
    assert store.items([last])[last].text == f"text {last}"


def test_what_lies_in_an_object_store(s3_url: str, s3_endpoint: str) -> None:
    options = environment(s3_endpoint) | {"allow_http": "true"}
    url = f"lancedb+{s3_url}/db/things"
    store = LanceStore.from_url(url, storage_options=options)
    assert store.name == url
    assert not store.exists()
    store.create({"v": 4})
    vectors = rows(50, 4)
    store.put(range(50), some_items(50), {"v": vectors})
    assert store.best("v", [Nearest(vectors[3], 50)])[0].keys[0] == int(np.argmax(vectors @ vectors[3]))
    assert LanceStore.from_url(url, storage_options=options).items([7]) == {7: some_items(1, 7)[0]}
    store.drop()
    assert not store.exists()


def test_asking_about_a_folder_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    for url in (f"lancedb://{tmp_path}/no/such/things", f"lancedb+file://{tmp_path}/no/such/things"):
        store = LanceStore.from_url(url)
        assert not store.exists()
        assert not store.beside("v1").exists()
        store.drop()
        with pytest.raises(InputError, match="no table 'things'"):
            store.count()
        assert list(tmp_path.iterdir()) == []
    store.beside("v1").create({"v": 2})
    assert store.beside("v1").exists()


class Killed(BaseException):
    """As if the process ended here."""


@pytest.mark.parametrize("made", [0, 1])
def test_a_table_whose_maker_was_killed_gets_its_indexes(
    store: LanceStore, monkeypatch: pytest.MonkeyPatch, made: int
) -> None:
    make, left = lancedb.table.LanceTable.create_index, [None] * made

    def killed(table: Any, *given: Any, **options: Any) -> None:
        if not left:
            raise Killed
        left.pop()
        make(table, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(lancedb.table.LanceTable, "create_index", killed)
        with pytest.raises(Killed):
            store.create({"v": 2})
    fresh = LanceStore(store._uri, "things")
    assert fresh.exists()
    assert fresh.words("text", 3).keys == () or made
    other = LanceStore(store._uri, "things")
    other.put([1], some_items(1), {"v": rows(1, 2)})
    assert other.words("text", 3).keys == (1,)
    assert len(other._there[0].list_indices()) == 2


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 1), (1e-4, 1e-4), (1e-4, 1e4), (3e4, 1e3), (1, 1e-20), (0, 1), (1e30, 1e-3)])
def test_products_of_any_size_are_found(tmp_path: Path, kind: Any, sizes: tuple[float, float]) -> None:
    if kind is np.float16 and not 1e-3 < sizes[0] < 1e4:
        pytest.skip("16 bits hold no such rows")
    vectors, weights = rows(100, 8).clip(-2, 2) * sizes[0], (rows(1, 8)[0] * sizes[1]).astype(np.float32)
    vectors = vectors.astype(kind)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    lancedb.connect(tmp_path).create_table("docs", pa.table({"id": range(100), "text": ["t"] * 100, "v": column}))
    found = LanceStore(tmp_path, "docs").best("v", [Nearest(weights, 20), Nearest(-weights, 20)])
    for sign, answer in zip((1, -1), found, strict=True):
        truth = sign * (vectors.astype(np.float64) @ weights)
        near = 2e-3 if kind is np.float16 else 1e-6
        np.testing.assert_allclose(answer.values, truth[list(answer.keys)], atol=near * np.abs(truth).max())
        if sizes[0] and kind is not np.float16:
            assert list(answer.keys) == np.argsort(-truth)[:20].tolist()


def test_files_that_are_gone_make_it_unavailable(store: LanceStore) -> None:
    store.create({"v": 4})
    store.put(range(50), some_items(50), {"v": rows(50, 4)})
    fresh = pickle.loads(pickle.dumps(store))
    shutil.rmtree(Path(store._uri) / "things.lance" / "data")
    with pytest.raises(EngineUnavailable, match="things"):
        fresh.best("v", [Nearest(np.ones(4), 3)])
    shutil.rmtree(store._uri)
    with pytest.raises(AdacurError, match="things"):
        pickle.loads(pickle.dumps(store)).count()


def test_urls() -> None:
    assert (
        LanceStore.from_url("lancedb+s3://bucket/some/folder/things").name == "lancedb+s3://bucket/some/folder/things"
    )
    hidden = LanceStore("s3://bucket/db", "things", storage_options={"aws_secret_access_key": "zwiebel"})
    for shown in (hidden.name, repr(hidden), str(hidden._in_words(OSError("no zwiebel in s3")))):
        assert "zwiebel" not in shown
    for bad in ("s3://user:tomate@bucket/db", "s3://user:tom/ate@bucket/db", "s3://user:tom#ate@bucket/db"):
        with pytest.raises(InputError) as caught:
            LanceStore(bad, "things")
        assert "tom" not in str(caught.value)
    for bad in ("lancedb:///things", "lancedb:///a/things?texts=b", "lancedb:///a/", "lancedb:///a#b/things"):
        with pytest.raises(InputError):
            LanceStore.from_url(bad)


def test_an_id_that_occurs_twice_is_refused_by_name(tmp_path: Path) -> None:
    table = own_table(tmp_path, [7, 8, 9])
    store = LanceStore(tmp_path, "docs", id_field="Doc Id", text="body")
    table.create_index("body", config=lancedb.index.FTS())
    table.add(table.search().limit(2).to_arrow())
    weights = np.ones(2, np.float32)
    for ask in (
        lambda: store.best("v", [Nearest(weights, 5)]),
        lambda: store.best("v", [Nearest(weights, 1), Nearest(weights, 5, within=[8])]),
        lambda: store.rows("v", [7]),
        lambda: store.items([7, 8]),
        lambda: store.words("penicillin", 9),
        lambda: store.sample(9),
    ):
        with pytest.raises(InputError, match=r"id (7|8) .*more than once.*docs"):
            ask()
    assert set(store.items([9])) == {9}


def test_lists_in_a_column_have_each_of_their_values(tmp_path: Path) -> None:
    columns = {"id": ["a", "b", "c"], "text": ["t"] * 3, "tags": [["x", "y"], ["z"], None], "n": [[1, 2], [], [2]]}
    lancedb.connect(tmp_path).create_table("docs", pa.table(columns))
    store = LanceStore(tmp_path, "docs")
    counted = [store.count(where) for where in ({"tags": "x"}, {"tags": ["y", "z"]}, {"tags": None}, {"n": 2})]
    assert counted == [1, 2, 1, 2]


def test_a_filter_cannot_reach_a_column_that_answers_do_not_show(tmp_path: Path) -> None:
    own_table(tmp_path, [7, 8, 9])
    store = LanceStore(tmp_path, "docs", id_field="Doc Id", text="title", metadata=["draft"])
    assert store.count({"Doc Id": 7, "draft": None, "title": "Title 0"}) == 1
    for hidden in ("Year", "body", "v", "yeer"):
        with pytest.raises(UnknownName, match=hidden) as caught:
            store.count({hidden: 2020})
        assert "'Doc Id', 'title', 'draft'" in str(caught.value)
        assert "Year" not in str(caught.value).replace(f"name {hidden!r}", "")


def test_times_that_python_cannot_tell_are_texts(tmp_path: Path) -> None:
    columns = {"id": [1, 2], "text": ["a", "b"], "at": pa.array([2**60, 1], pa.timestamp("s")), "n": [1, 2]}
    lancedb.connect(tmp_path).create_table("docs", pa.table(columns))
    store = LanceStore(tmp_path, "docs")
    assert store.items([2]) == {2: Item("2", "b", {"at": "1970-01-01 00:00:01", "n": 2})}
    far = store.items([1, 2])
    assert far[2] == store.items([2])[2]
    assert str(2**60) in far[1].metadata["at"]
    assert sorted(store.scan(), key=lambda item: item.id) == [far[1], far[2]]


def test_a_users_table_that_has_our_mark_is_the_users(tmp_path: Path) -> None:
    table = pa.table({"id": [1], "text": ["a"], "n": [5]}).replace_schema_metadata({"adacur": "1"})
    lancedb.connect(tmp_path).create_table("docs", table)
    store = LanceStore(tmp_path, "docs")
    assert store.items([1]) == {1: Item("1", "a", {"n": 5})}
    with pytest.raises(InputError, match="not made by adacur"):
        store.drop()


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -1, 0, 1e300])
def test_a_timeout_is_a_time(tmp_path: Path, timeout: float) -> None:
    with pytest.raises(InputError, match="timeout"):
        LanceStore(tmp_path, "docs", timeout=timeout)
