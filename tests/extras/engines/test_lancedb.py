"""LanceDB: tables of every kind, hostile words, and folders and files that go missing."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur.errors import AdacurError, EngineRefused, EngineUnavailable, InputError
from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.engine_index import StoreItems
from adacur.extras.engines.lancedb import LanceStore
from adacur.extras.engines.store_urls import open_store
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item

lancedb = pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
pa = pytest.importorskip("pyarrow")

HOSTILE = ["x'; DROP TABLE things; --", 'a"b', "per%cent", "back\\slash'", "`tick`", "ünï 😀", "') OR ('1' = '1"]
RNG = np.random.default_rng(3)


def rows(n: int, width: int = 3) -> np.ndarray:
    return RNG.normal(size=(n, width)).astype(np.float32)


def opened(folder: Path, name: str, **options: Any) -> CheckedStore:
    database = lancedb.connect(folder, read_consistency_interval=timedelta(0))
    return CheckedStore(LanceStore(lambda: database.open_table(name), name=f"lancedb://{folder}/{name}", **options))


def filled(folder: Path, vectors: np.ndarray) -> CheckedStore:
    """A table of the items 0, 1, 2, … with these vectors."""
    n = len(vectors)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    columns = {"id": range(n), "text": [f"text {at}" for at in range(n)], "at": range(n), "v": column}
    lancedb.connect(folder).create_table("things", pa.table(columns))
    return opened(folder, "things")


def own_vectors(n: int) -> Any:
    return pa.FixedSizeListArray.from_arrays(pa.array(np.array([[at, 1] for at in range(n)], np.float32).ravel()), 2)


def own_table(folder: Path, ids: list[Any]) -> Any:
    n = len(ids)
    halves = pa.FixedSizeListArray.from_arrays(pa.array(np.array([[at, 2] for at in range(n)], np.float16).ravel()), 2)
    columns = {
        "Doc Id": ids,
        "title": [f"Title {at}" for at in range(n)],
        "body": [f"about penicillin {at}" for at in range(n)],
        "Year": [2020 + at for at in range(n)],
        "draft": [None, *[True] * (n - 1)],
        "v": own_vectors(n),
        "half": halves,
    }
    return lancedb.connect(folder).create_table("docs", pa.table(columns))


@pytest.mark.parametrize("ids", [[7, 8, 9], ["x'y", "b", "ü"]])
def test_a_table_of_the_users_own(tmp_path: Path, ids: list[Any]) -> None:
    table = own_table(tmp_path, ids)
    store = open_store(f"lancedb://{tmp_path}/docs?text=title&text=body&id=Doc+Id")
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
    assert {item.id for item in StoreItems(store)} == {str(id_) for id_ in ids}
    with pytest.raises(InputError):
        store.words("penicillin", 3)
    table.create_index("body", config=lancedb.index.FTS())
    assert set(store.words("the discovery of penicillin", 9).keys) == set(ids)


def test_columns_that_are_missing_or_unfit_are_named(tmp_path: Path) -> None:
    own_table(tmp_path, [7, 8])
    options: list[tuple[dict[str, Any], str]] = [
        ({}, "'id'"), ({"id_field": "Doc Id"}, "'text'"), ({"id_field": "Doc Id", "text": "titel"}, "titel"),
    ]  # fmt: skip
    for given, name in options:
        with pytest.raises(InputError, match=name) as caught:
            opened(tmp_path, "docs", **given).dimensions()
        assert "?id=" in str(caught.value) or "?text=" in str(caught.value), "a URL has no id_field="
    store = opened(tmp_path, "docs", text="title", id_field="Doc Id")
    with pytest.raises(EngineRefused):
        store.count({"yeer": 1})
    with pytest.raises(InputError):
        store.count("yeer > 3")
    with pytest.raises(InputError):
        store.count({"Year": "abc"})


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_and_no_value_can_end_a_condition(tmp_path: Path, text: str) -> None:
    own_table(tmp_path, [7, 8])
    columns = {"id": [1, 2], "text": ["a", "b"], text: [text, "other"], "v": own_vectors(2)}
    lancedb.connect(tmp_path).create_table("odd", pa.table(columns))
    store = opened(tmp_path, "odd")
    if "`" in text:
        with pytest.raises(InputError):
            store.count({text: text})
    else:
        assert store.count({text: text}) == store.count({text: [text, "nosuch"]}) == 1
        assert store.best("v", [Nearest(np.ones(2), 9)], where={text: text})[0].keys == (1,)
    with pytest.raises(AdacurError):
        store.rows(text, [1])
    assert opened(tmp_path, "docs", id_field="Doc Id", text="body").count() == 2


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_as_keys_are_only_keys(tmp_path: Path, text: str) -> None:
    own_table(tmp_path, ["a", "b", text])
    store = opened(tmp_path, "docs", id_field="Doc Id", text="body")
    assert set(store.items([text])) == {text}
    assert set(store.best("v", [Nearest(np.ones(2), 9, without=[text])])[0].keys) == {"a", "b"}
    assert store.best("v", [Nearest(np.ones(2), 9, within=[text])])[0].keys == (text,)
    assert store.count({"Doc Id": text}) == 1


@pytest.mark.parametrize(
    "where",
    ["true; DROP TABLE x", "true /*", "'", "(true", "", 7, ["at = 1"], lambda item: True],
)
def test_a_condition_that_is_not_one_is_refused(tmp_path: Path, where: object) -> None:
    store = filled(tmp_path, rows(2, 2))
    with pytest.raises(InputError):
        store.best("v", [Nearest(np.ones(2), 2, within=[0])], where=where)
    assert store.count("at = 1 OR (text = 'x''); --')") == 1


def test_exact_reads_past_an_index(tmp_path: Path) -> None:
    vectors = rows(3000, 8)
    store = filled(tmp_path, vectors)
    config = lancedb.index.IvfFlat(distance_type="dot", num_partitions=128)
    lancedb.connect(tmp_path).open_table("things").create_index("v", config=config)
    weights = rows(20, 8)
    questions = [Nearest(row, 30) for row in weights]
    truth = [np.argsort(-(vectors @ row))[:30].tolist() for row in weights]
    assert [list(found.keys) for found in store.best("v", questions)] == truth
    # Those that a question names lie where the index does not look.
    worst = np.argsort(vectors @ weights[0])[:300].tolist()
    *approximate, named = store.best("v", [*questions, Nearest(weights[0], 300, within=worst)], exact=False)
    assert set(named.keys) == set(worst)
    assert [list(found.keys) for found in approximate] != truth
    for row, found in zip(weights, approximate, strict=True):
        np.testing.assert_allclose(found.values, vectors[list(found.keys)] @ row, rtol=1e-4, atol=1e-4)


def test_questions_with_and_without_limits_are_asked_together(tmp_path: Path) -> None:
    vectors = rows(200, 4)
    store = filled(tmp_path, vectors)
    weights = rows(1, 4)[0]
    best = np.argsort(-(vectors @ weights)).tolist()
    questions = [
        Nearest(weights, 3), Nearest(weights, 0),
        Nearest(weights, 3, without=best[:150]), Nearest(weights, 3, within=[]),
        Nearest(weights, 3, within=best[50:60], without=best[:52]), Nearest(weights, 500, without=[10**6]),
    ]  # fmt: skip
    keys = [list(found.keys) for found in store.best("v", questions)]
    assert keys == [best[:3], [], best[150:153], [], best[52:55], best]


def test_what_another_writes_is_seen(tmp_path: Path) -> None:
    store = filled(tmp_path, rows(2, 2))
    other = opened(tmp_path, "things")
    assert store.count() == other.count() == 2
    database = lancedb.connect(tmp_path)
    table = database.open_table("things")
    table.add(table.search().limit(1).to_arrow().drop_columns("id").append_column("id", pa.array([9])))
    assert store.count() == other.count() == 3
    assert set(store.items([9])) == {9}
    database.drop_table("things")
    with pytest.raises(AdacurError):
        other.count()


def test_asking_about_a_folder_that_is_not_there_does_not_make_it(tmp_path: Path) -> None:
    store = open_store(f"lancedb://{tmp_path}/no/such/things")
    with pytest.raises(InputError):
        store.count()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("sizes", [(1, 1), (1e-4, 1e-4), (1e-4, 1e4), (3e4, 1e3), (1, 1e-20), (0, 1), (1, 0)])
def test_products_of_any_size_are_found(tmp_path: Path, kind: Any, sizes: tuple[float, float]) -> None:
    if kind is np.float16 and not 1e-3 < sizes[0] < 1e4:
        pytest.skip("16 bits hold no such rows")
    vectors, weights = rows(100, 8).clip(-2, 2) * sizes[0], (rows(1, 8)[0] * sizes[1]).astype(np.float32)
    vectors = vectors.astype(kind)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    lancedb.connect(tmp_path).create_table("docs", pa.table({"id": range(100), "text": ["t"] * 100, "v": column}))
    found = opened(tmp_path, "docs").best("v", [Nearest(weights, 20), Nearest(-weights, 20)])
    for sign, answer in zip((1, -1), found, strict=True):
        truth = sign * (vectors.astype(np.float64) @ weights)
        near = 2e-3 if kind is np.float16 else 1e-6
        np.testing.assert_allclose(answer.values, truth[list(answer.keys)], atol=near * np.abs(truth).max())
        if sizes[0] and kind is not np.float16:
            assert list(answer.keys) == np.argsort(-truth)[:20].tolist()


def test_files_that_are_gone_make_it_unavailable(tmp_path: Path) -> None:
    store = filled(tmp_path / "db", rows(50, 4))
    assert store.count() == 50
    fresh = open_store(store.name)
    shutil.rmtree(tmp_path / "db" / "things.lance" / "data")
    with pytest.raises(EngineUnavailable):
        fresh.best("v", [Nearest(np.ones(4), 3)])
    shutil.rmtree(tmp_path / "db")
    with pytest.raises(AdacurError):
        open_store(store.name).count()


def test_fields_within_dictionaries_make_a_text_and_filter(tmp_path: Path) -> None:
    """As LangChain and LlamaIndex write them."""
    about = [
        {"lang": "en", "at": {"n": 1}, "tags": ["x"], "title": "A"},
        {"lang": "de", "at": {"n": 2}, "tags": [], "title": None},
    ]
    columns = {"id": ["a", "b"], "text": ["t", "u"], "metadata": about}
    lancedb.connect(tmp_path).create_table("docs", pa.table(columns))
    store = opened(tmp_path, "docs", text=("metadata.title", "text"))
    wheres = ({"metadata.lang": ["de", "fr"]}, {"metadata.at.n": 2}, {"metadata.tags": "x"}, {"metadata.lang": "fr"})
    assert [store.count(where) for where in wheres] == [1, 1, 1, 0]
    assert [item.text for item in StoreItems(store)] == ["A t", "u"]
    with pytest.raises(EngineRefused):
        store.count({"metadata.long": "de"})


def test_a_filter_cannot_reach_a_column_that_answers_do_not_show(tmp_path: Path) -> None:
    own_table(tmp_path, [7, 8, 9])
    store = opened(tmp_path, "docs", id_field="Doc Id", text="title", metadata=["draft"])
    assert store.count({"Doc Id": 7, "draft": None, "title": "Title 0"}) == 1
    for hidden in ("Year", "body", "v", "yeer"):
        with pytest.raises(EngineRefused, match=hidden) as caught:
            store.count({hidden: 2020})
        assert "'Doc Id', 'title', 'draft'" in str(caught.value)
        assert "Year" not in str(caught.value).replace(f"name {hidden!r}", "")
