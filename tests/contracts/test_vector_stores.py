"""What every vector store promises. A new one is one more line in MAKERS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adacur.core.errors import AdacurError, InputError, UnknownName
from adacur.core.records import Item
from adacur.engines.lancedb import LanceStore
from adacur.engines.postgres import PostgresStore
from adacur.engines.qdrant import QdrantStore
from adacur.engines.qdrant_edge import QdrantEdgeStore
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import Nearest, VectorStore
from tests.memory_store import MemoryStore
from tests.postgres_servers import running_postgres

N, WIDTH = 300, 16
RNG = np.random.default_rng(7)
ROWS = RNG.normal(size=(N, WIDTH)).astype(np.float32) * RNG.uniform(0.2, 3, size=(N, 1)).astype(np.float32)
OTHERS = RNG.normal(size=(N, 4)).astype(np.float32)
ITEMS = [
    Item(f"item-{at}", f"text of number{at} {'odd' if at % 2 else 'even'}", {"parity": at % 2, "lang": "en", "at": at})
    for at in range(N)
]
WEIGHTS = RNG.normal(size=(5, WIDTH)).astype(np.float32)


def memory(folder: Path) -> VectorStore:
    return MemoryStore("things")


def qdrant(folder: Path) -> VectorStore:
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    return open_store("qdrant://:memory:/things")


def qdrant_edge(folder: Path) -> VectorStore:
    pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")
    return open_store(f"qdrant-edge://{folder.as_posix()}/things")


def lancedb(folder: Path) -> VectorStore:
    pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
    return LanceStore(folder, "things")


def postgres(folder: Path) -> VectorStore:
    return PostgresStore(running_postgres().new_database(), "things")


MAKERS: dict[str, Callable[[Path], VectorStore]] = {
    "memory": memory,
    "qdrant": qdrant,
    "qdrant-edge": qdrant_edge,
    "lancedb": lancedb,
    "postgres": postgres,
}


@pytest.fixture(params=MAKERS, scope="module")
def empty(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VectorStore]:
    """A store in which nothing was made yet."""
    store = MAKERS[request.param](tmp_path_factory.mktemp(request.param))
    yield store
    store.close()


@pytest.fixture(scope="module")
def store(empty: VectorStore) -> VectorStore:
    """A store of all items; what a test changes, it changes in a collection beside it."""
    if not empty.exists():
        filled(empty)
    return empty


def filled(store: VectorStore, n: int = N) -> VectorStore:
    store.create({"features": WIDTH, "dense": 4})
    for start in range(0, n, 128):
        some = slice(start, min(n, start + 128))
        store.put(list(range(n))[some], ITEMS[:n][some], {"features": ROWS[:n][some], "dense": OTHERS[:n][some]})
    return store


def truth(weights: np.ndarray, allowed: np.ndarray, n: int) -> list[int]:
    values = np.where(allowed, ROWS @ weights, -np.inf)
    return np.argsort(-values)[:n].tolist()


def test_it_knows_its_vectors_and_counts_its_items(store: VectorStore) -> None:
    assert store.exists()
    assert store.dimensions() == {"features": WIDTH, "dense": 4}
    assert store.count() == N
    assert store.count({"parity": 1}) == N // 2
    assert store.count({"parity": 1, "lang": "de"}) == 0


def test_the_best_are_those_of_the_largest_inner_product(store: VectorStore) -> None:
    answers = store.best("features", [Nearest(weights, 10) for weights in WEIGHTS])
    for weights, (keys, values) in zip(WEIGHTS, answers, strict=True):
        assert list(keys) == truth(weights, np.ones(N, bool), 10)
        np.testing.assert_allclose(values, (ROWS @ weights)[list(keys)], rtol=1e-4, atol=1e-4)


def test_each_question_leaves_out_what_it_names(store: VectorStore) -> None:
    questions, wanted = [], []
    for at, weights in enumerate(WEIGHTS):
        allowed = np.ones(N, bool)
        without = truth(weights, allowed, 5 * at)
        allowed[without] = False
        questions.append(Nearest(weights, 7, without=without))
        wanted.append(truth(weights, allowed, 7))
    assert [list(found.keys) for found in store.best("features", questions)] == wanted


def test_a_question_can_be_confined_to_some_items(store: VectorStore) -> None:
    within = list(range(3, N, 11))
    found = store.best("features", [Nearest(WEIGHTS[0], len(within), within=within, without=within[:2])])[0]
    assert set(found.keys) == set(within[2:])
    assert (np.diff(found.values) <= 0).all()


def test_a_question_within_nothing_finds_nothing(store: VectorStore) -> None:
    assert store.best("features", [Nearest(WEIGHTS[0], 5, within=[])])[0].keys == ()
    assert store.best("features", [Nearest(WEIGHTS[0], 0)])[0].keys == ()
    assert store.best("features", []) == []


def test_metadata_confines_all_questions(store: VectorStore) -> None:
    found = store.best("features", [Nearest(WEIGHTS[1], 12)], where={"parity": 1})[0]
    assert list(found.keys) == truth(WEIGHTS[1], np.arange(N) % 2 == 1, 12)
    found = store.best("features", [Nearest(WEIGHTS[1], 12)], where={"at": [1, 5, 9]})[0]
    assert set(found.keys) == {1, 5, 9}


def test_rows_and_items_are_those_written_and_missing_ones_are_left_out(store: VectorStore) -> None:
    rows = store.rows("features", [5, 17, N + 3])
    assert set(rows) == {5, 17}
    np.testing.assert_allclose(rows[17], ROWS[17], rtol=1e-6)
    items = store.items([5, N + 3, 17])
    assert items == {5: ITEMS[5], 17: ITEMS[17]}
    assert store.rows("features", []) == {} == store.items([])


def test_small_vectors_are_told_apart(store: VectorStore) -> None:
    beside, small = store.beside("small"), ROWS * np.float32(1e-4)
    beside.create({"features": WIDTH})
    beside.put(range(N), ITEMS, {"features": small})
    answers = beside.best("features", [Nearest(weights * np.float32(1e-4), 20) for weights in WEIGHTS])
    for weights, (keys, values) in zip(WEIGHTS, answers, strict=True):
        assert list(keys) == truth(weights, np.ones(N, bool), 20)
        np.testing.assert_allclose(values, (ROWS @ weights)[list(keys)] * 1e-8, rtol=1e-3)
    beside.drop()


def test_a_sample_is_spread_and_the_same_each_time(store: VectorStore) -> None:
    sample = store.sample(40)
    assert len(set(sample)) == 40 == len(sample)
    assert sample == store.sample(40)
    assert max(sample) - min(sample) > N / 2
    assert set(store.sample(10 * N)) == set(range(N))


def test_a_scan_meets_every_item_once(store: VectorStore) -> None:
    assert sorted(item.id for item in store.scan()) == sorted(item.id for item in ITEMS)


def test_words_are_found(store: VectorStore) -> None:
    try:
        found = store.words("number42", 3)
    except InputError as error:
        pytest.skip(f"no search for words: {error}")
    assert found.keys[0] == 42
    assert store.words("number42", 3, where={"parity": 1}).keys != found.keys


def test_a_list_has_each_of_its_values_and_true_is_not_one(store: VectorStore) -> None:
    """As in memory, and as in the filters of an index."""
    beside = store.beside("lists")
    metadata: list[dict[str, Any]] = [
        {"tags": ["x", "y"], "flag": True, "n": [1, 2]},
        {"tags": "x", "flag": 1, "n": 2},
        {"tags": ["z", "x y"], "flag": [True], "n": [True]},
        {"tags": [], "flag": False},
        {},
    ]
    beside.create({"features": 2})
    items = [Item(f"i{at}", "text", one) for at, one in enumerate(metadata)]
    beside.put(range(len(items)), items, {"features": np.ones((len(items), 2), np.float32)})
    expected: list[tuple[dict[str, Any], set[int]]] = [
        ({"tags": "x"}, {0, 1}),
        ({"tags": ["y", "z"]}, {0, 2}),
        ({"tags": "x", "n": 2}, {0, 1}),
        ({"tags": ["x"], "flag": True}, {0}),
        ({"flag": True}, {0, 2}),
        ({"flag": 1}, {1}),
        ({"flag": [1, False]}, {1, 3}),
        ({"n": 1}, {0}),
        ({"n": True}, {2}),
        ({"nosuch": "x"}, set()),
        ({"tags": "nosuch"}, set()),
        ({"tags": []}, set()),
    ]
    for where, keys in expected:
        assert beside.count(where) == len(keys), where
        found = beside.best("features", [Nearest(np.ones(2, np.float32), 9)], where=where)[0]
        assert set(found.keys) == keys, where
    assert beside.items(range(len(items))) == dict(enumerate(items))
    beside.drop()


def test_items_that_a_question_names_are_found_where_an_index_is_allowed(store: VectorStore) -> None:
    within = list(range(3, N, 11))
    questions = [Nearest(WEIGHTS[0], 5), Nearest(WEIGHTS[0], len(within), within=within)]
    found = store.best("features", questions, exact=False)[1]
    assert set(found.keys) == set(within)
    np.testing.assert_allclose(found.values, (ROWS @ WEIGHTS[0])[list(found.keys)], rtol=1e-4, atol=1e-4)


def test_what_lies_beside_it_is_separate(store: VectorStore) -> None:
    beside = store.beside("v1")
    assert not beside.exists()
    filled(beside, n=20)
    assert beside.exists()
    assert beside.count() == 20
    with pytest.raises(InputError):
        beside.create({"features": WIDTH, "dense": 4})
    assert beside.count() == 20
    # Written again, over what is there: an export that was killed goes on.
    beside.put([3, 20], [ITEMS[7], ITEMS[20]], {"features": ROWS[[7, 20]], "dense": OTHERS[[7, 20]]})
    assert beside.count() == 21
    assert beside.items([3]) == {3: ITEMS[7]}
    np.testing.assert_allclose(beside.rows("features", [3])[3], ROWS[7], rtol=1e-6)
    beside.drop()
    beside.drop()
    assert not beside.exists()
    assert store.count() == N


def test_a_suffix_that_would_belong_to_another_name_is_refused(store: VectorStore) -> None:
    for suffix in ("x--y", "-x", ""):
        with pytest.raises(InputError):
            store.beside(suffix)


def test_a_collection_that_somebody_else_made_is_neither_dropped_nor_written_to(empty: VectorStore) -> None:
    kind = empty.name.partition("://")[0]
    theirs = empty.beside("somebody").beside("theirs")
    if kind == "memory":
        pytest.skip("nobody else can make one")
    make_empty(theirs)
    for change in (theirs.drop, lambda: theirs.put([1], ITEMS[:1], {"features": ROWS[:1]})):
        with pytest.raises(InputError, match="not made by adacur"):
            change()
    assert theirs.exists()
    assert theirs.count() == 0


def make_empty(store: Any) -> None:
    """An empty collection as a user would make it: with the engine's own client."""
    if isinstance(store, QdrantStore):
        models = store._models
        config = {"features": models.VectorParams(size=WIDTH, distance=models.Distance.DOT)}
        store._client.create_collection(store._collection, vectors_config=config)
    elif isinstance(store, QdrantEdgeStore):
        import qdrant_edge as edge

        store._folder.mkdir(parents=True)
        config = edge.EdgeConfig(vectors={"features": edge.EdgeVectorParams(WIDTH, edge.Distance.Dot)})
        edge.EdgeShard.create(str(store._folder), config).close()
    elif isinstance(store, LanceStore):
        import pyarrow as pa

        fields = [("id", pa.int64()), ("text", pa.string()), ("features", pa.list_(pa.float32(), WIDTH))]
        store._connected.create_table(store._table, schema=pa.schema(fields))
    else:
        statements = (
            "CREATE EXTENSION IF NOT EXISTS vector",
            f"CREATE TABLE {store._place} (id int PRIMARY KEY, text text, features vector({WIDTH}))",
        )
        store._execute(*statements)


def test_its_name_opens_the_same_collection(store: VectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if store.name.startswith("memory://") or ":memory:" in store.name:
        pytest.skip("memory is not shared")
    # A name has no credentials.
    monkeypatch.setenv("PGUSER", "postgres")
    # A folder of Edge is open once.
    store.close()
    for other in (store, store.beside("named")):
        again = open_store(other.name, vector="features")
        assert again.name == other.name
        assert (again.vector, other.vector) == ("features", None)
        assert again.exists() == (other is store)
        again.close()
    again = open_store(f"{store.name}{'&' if '?' in store.name else '?'}text=a&text=b&id=c&vector=dense")
    assert again.vector == "dense"
    assert again.beside("x").vector is None
    assert again.count() == N
    again.close()


def test_a_closed_store_lets_go_and_opens_again_when_it_is_used(store: VectorStore) -> None:
    if ":memory:" in store.name:
        pytest.skip("what it holds is gone")
    beside = store.beside("v1")
    filled(beside, n=20)
    store.close()
    store.close()
    assert (store.count(), beside.count()) == (N, 20)
    beside.close()
    assert store.count() == N
    beside.drop()


def test_a_collection_or_vector_that_is_missing_is_named(store: VectorStore) -> None:
    with pytest.raises(AdacurError, match="nosuch"):
        store.best("nosuch", [Nearest(WEIGHTS[0], 3)])
    with pytest.raises(AdacurError, match="absent"):
        store.beside("absent").count()


def test_a_filter_that_cannot_be_expressed_is_refused(store: VectorStore) -> None:
    with pytest.raises(InputError):
        store.best("features", [Nearest(WEIGHTS[0], 3)], where=lambda item: True)


@pytest.mark.parametrize("odd", ["a\ud800b" * 100, "a\0b" * 100], ids=["half", "nul"])
def test_text_that_no_engine_takes_is_refused_in_few_words(store: VectorStore, odd: str) -> None:
    asked: list[Callable[[], object]] = [
        lambda: store.count({odd: 1}),
        lambda: store.count({"lang": odd}),
        lambda: store.count({"lang": [odd, "de"]}),
        lambda: store.count({"lang": {odd: [odd]}}),
        lambda: store.count(f"id = '{odd}'"),
        lambda: store.count(f"{odd} = 1"),
        lambda: store.beside(odd).exists(),
        lambda: store.beside("odd").create({odd: 2}),
        lambda: len(store.rows(odd, [0])),
        lambda: len(store.items([odd])),
        lambda: len(store.words(odd, 3).keys),
        lambda: open_store(f"{store.name}{odd}"),
        lambda: open_store(f"{store.name}{odd}".replace("\0", "%00")),
    ]
    for ask in asked:
        try:
            assert not ask()
        except (InputError, UnknownName) as error:
            assert repr(odd)[1:75] not in str(error)  # noqa: PT017
            assert odd[:75] not in str(error)  # noqa: PT017
    assert not store.beside("odd").exists()


@pytest.mark.parametrize("odd", ["a\ud800b", "a\0b"], ids=["half", "nul"])
def test_odd_text_of_an_item_comes_back_or_is_refused_with_the_item_named(store: VectorStore, odd: str) -> None:
    beside = store.beside("odd")
    beside.create({"features": 2})
    vectors = {"features": np.ones((1, 2), np.float32)}
    items = [
        Item(odd, "t"), Item("b", odd), Item("b", "t", {"m": odd}), Item("b", "t", {odd: 1}),
        Item("b", "t", {"m": [{odd: [odd]}]}),
    ]  # fmt: skip
    for item in items:
        try:
            beside.put([0], [item], vectors)
        except InputError as error:
            assert repr(item.id)[1:-1] in str(error)  # noqa: PT017
        else:
            assert beside.items([0]) == {0: item}
            assert list(beside.scan()) == [item]
    beside.drop()


def test_the_name_is_a_url(store: VectorStore) -> None:
    assert "://" in store.name
