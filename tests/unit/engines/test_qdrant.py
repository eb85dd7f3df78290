"""Qdrant beyond the contract: collections that a user made, servers that fail, and what must not be shown."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adacur.core.errors import EngineUnavailable, InputError
from adacur.core.records import Item
from adacur.engines.vector_store import CheckedStore, Nearest, VectorStore
from tests.memory_store import MemoryStore

qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
qdrant_edge = pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")

from adacur.engines import qdrant_points, retries  # noqa: E402
from adacur.engines.qdrant import QdrantStore  # noqa: E402
from adacur.engines.qdrant_edge import QdrantEdgeStore  # noqa: E402

m, e = qdrant_client.models, qdrant_edge
RNG = np.random.default_rng(3)
KEY = "sk-very-secret-17"
N = 40
UUIDS = [str(uuid.uuid5(uuid.NAMESPACE_URL, f"item {at}")) for at in range(N)]
ROWS = RNG.normal(size=(N, 5)).astype(np.float32)
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
PAYLOADS: list[dict[str, Any]] = [
    {"doc": f"d{at}", "title": f"Title {at}", "body": f"number{at}", "lang": "en" if at % 2 else "de", "id": at}
    for at in range(N)
]
WEIGHTS = RNG.normal(size=5).astype(np.float32)

# A user's collection of points, each (id, vector or vectors by name, payload).
Points = list[tuple[Any, Any, dict[str, Any]]]


def in_client(folder: Path, vectors: dict[str, str], points: Points, **options: Any) -> VectorStore:
    client = qdrant_client.QdrantClient(location=":memory:")
    config = {name: m.VectorParams(size=5, distance=m.Distance(metric)) for name, metric in vectors.items()}
    client.create_collection(
        "theirs",
        vectors_config=config[""] if list(config) == [""] else config,
        sparse_vectors_config={"bm25": m.SparseVectorParams(modifier=m.Modifier.IDF)},
    )
    client.upsert("theirs", [m.PointStruct(id=id_, vector=vector, payload=rest) for id_, vector, rest in points])
    return QdrantStore("theirs", client=client, **options)


def in_edge(folder: Path, vectors: dict[str, str], points: Points, **options: Any) -> VectorStore:
    config = {name: e.EdgeVectorParams(5, getattr(e.Distance, metric)) for name, metric in vectors.items()}
    sparse = {"bm25": e.EdgeSparseVectorParams(modifier=e.Modifier.Idf)}
    shard = e.EdgeShard.create(_made(folder / "theirs"), e.EdgeConfig(vectors=config, sparse_vectors=sparse))
    made = [
        e.Point(id_, _for_edge(vector if isinstance(vector, dict) else {"": vector}), rest)
        for id_, vector, rest in points
    ]
    shard.update(e.UpdateOperation.upsert_points(made))
    shard.close()
    return QdrantEdgeStore(folder / "theirs", **options)


def _made(folder: Path) -> str:
    folder.mkdir(parents=True)
    return str(folder)


def _for_edge(vectors: dict[str, Any]) -> dict[str, Any]:
    return {
        name: e.SparseVector(one.indices, one.values) if isinstance(one, m.SparseVector) else one
        for name, one in vectors.items()
    }


MAKERS = {"client": in_client, "edge": in_edge}
Maker = Callable[..., VectorStore]


@pytest.fixture(params=MAKERS)
def theirs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    made: list[VectorStore] = []

    def make(vectors: dict[str, str], points: Points, **options: Any) -> VectorStore:
        made.append(MAKERS[request.param](tmp_path / str(len(made)), vectors, points, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture(params=MAKERS)
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorStore]:
    """An empty collection of ours."""
    store = new(request.param, tmp_path)
    store.create({"features": 2})
    yield store
    store.close()


def new(kind: str, folder: Path) -> VectorStore:
    return QdrantEdgeStore(folder / "x" / "ours") if kind == "edge" else QdrantStore("ours", url=":memory:")


def plain(metric: str = "Cosine") -> tuple[dict[str, str], Points]:
    return {"": metric}, [(UUIDS[at], ROWS[at].tolist(), PAYLOADS[at]) for at in range(N)]


def put(store: VectorStore, items: list[Item]) -> None:
    store.put(list(range(len(items))), items, {"features": np.ones((len(items), 2), np.float32)})


# A user's collection


def test_values_of_a_cosine_collection_are_inner_products_with_the_stored_unit_vectors(theirs: Maker) -> None:
    store = theirs(*plain())
    assert store.dimensions() == {"": 5}
    found = store.best("", [Nearest(WEIGHTS * 7, 6, without=UUIDS[:3])])[0]
    rows = store.rows("", found.keys)
    np.testing.assert_allclose(found.values, [rows[key] @ (WEIGHTS * 7) for key in found.keys], rtol=1e-5)
    allowed = np.where(np.arange(N) < 3, -np.inf, UNITS @ WEIGHTS)
    assert list(found.keys) == [UUIDS[at] for at in np.argsort(-allowed)[:6]]


def test_weights_of_zero_have_values_of_zero(theirs: Maker) -> None:
    found = theirs(*plain()).best("", [Nearest(np.zeros(5, np.float32), 3)])[0]
    assert len(found.keys) == 3
    assert found.values.tolist() == [0, 0, 0]


def test_a_users_fields_make_an_item(theirs: Maker) -> None:
    store = theirs(*plain(), text=("title", "body"), id_field="doc")
    assert store.items([UUIDS[4]]) == {UUIDS[4]: Item("d4", "Title 4 number4", {"lang": "de", "id": 4})}
    assert {item.id for item in store.scan()} == {f"d{at}" for at in range(N)}
    assert store.count({"id": 4}) == 1


def test_without_fields_for_them_the_id_is_the_points_and_the_text_is_empty(theirs: Maker) -> None:
    store = theirs({"": "Dot"}, [(7, [1.0] * 5, {"body": "x"}), (UUIDS[0], [2.0] * 5, {"text": "hello"})])
    assert store.items([7, UUIDS[0].upper()]) == {
        7: Item("7", "", {"body": "x"}),
        UUIDS[0].upper(): Item(UUIDS[0], "hello", {}),
    }


def test_only_inner_products_and_cosines_are_offered(theirs: Maker) -> None:
    metrics = {"dot": "Dot", "cosine": "Cosine", "euclid": "Euclid", "manhattan": "Manhattan"}
    store = theirs(metrics, [(1, {name: [1.0, 2, 3, 4, 5] for name in metrics}, {})])
    assert store.dimensions() == {"dot": 5, "cosine": 5}
    for name, metric in (("euclid", "Euclid"), ("manhattan", "Manhattan"), ("bm25", "sparse")):
        with pytest.raises(InputError, match=metric):
            store.best(name, [Nearest(WEIGHTS, 1)])
    with pytest.raises(InputError, match="'cosine'"):
        store.best("cosin", [Nearest(WEIGHTS, 1)])


def test_a_multivector_is_refused() -> None:
    client = qdrant_client.QdrantClient(location=":memory:")
    many = m.MultiVectorConfig(comparator=m.MultiVectorComparator.MAX_SIM)
    config = {"colbert": m.VectorParams(size=5, distance=m.Distance.DOT, multivector_config=many)}
    client.create_collection("theirs", vectors_config=config)
    store = QdrantStore("theirs", client=client)
    assert store.dimensions() == {}
    with pytest.raises(InputError, match="multivector"):
        store.rows("colbert", [1])


def test_a_point_without_the_vector_has_no_row(theirs: Maker) -> None:
    store = theirs({"a": "Dot", "b": "Dot"}, [(1, {"a": [1.0] * 5}, {}), (2, {"a": [1.0] * 5, "b": [2.0] * 5}, {})])
    assert set(store.rows("b", [1, 2])) == {2}


def test_weights_of_another_size_or_that_are_no_numbers_are_refused(theirs: Maker) -> None:
    store = theirs(*plain())
    for weights in (np.ones(4, np.float32), np.array([1, 2, np.nan, 3, 4], np.float32)):
        with pytest.raises(InputError, match=r"5 numbers|finite"):
            store.best("", [Nearest(weights, 1)])
    with pytest.raises(InputError, match="nonsense"):
        store.rows("", ["nonsense"])


@pytest.mark.parametrize("step", [1, 1000])
def test_a_sample_of_a_users_ids_is_spread_distinct_and_the_same_each_time(theirs: Maker, step: int) -> None:
    numbers = [10**6 + step * at for at in range(0, 300)]
    at_once = [str(uuid.UUID(int=(1_700_000_000_000 + at << 80) + 7 * 2**76)) for at in range(300)]
    spread = [str(uuid.uuid5(uuid.NAMESPACE_URL, str(at))) for at in range(300)]
    for ids in (numbers, at_once, spread):
        store = theirs({"": "Dot"}, [(id_, [1.0] * 5, {}) for id_ in ids])
        for n in (5, 70, 150):
            sample = store.sample(n)
            assert len(set(sample)) == len(sample) == n
            assert store.sample(n) == sample
            ranks = sorted(sorted(ids).index(one) for one in sample)
            assert np.diff([0, *ranks, 299]).max() < 300 / min(n, 64) * 6 + 2
        assert set(store.sample(1000)) == set(ids)
    assert store.sample(0) == ()


def test_a_users_collection_is_never_dropped_or_made_again(theirs: Maker) -> None:
    store = theirs(*plain())
    with pytest.raises(InputError, match="not made by adacur"):
        store.drop()
    with pytest.raises(InputError, match="exists already"):
        store.create({"features": 2})
    assert store.count() == N


def test_threads_share_a_store(theirs: Maker) -> None:
    store = theirs(*plain())
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: store.best("", [Nearest(WEIGHTS, 5)])[0].keys, range(40)))
    assert len(set(found)) == 1


# Filters


def test_native_filters_confine_questions(theirs: Maker) -> None:
    store = theirs(*plain())
    native = m if isinstance(store, QdrantStore) else e
    where = native.Filter(must=[native.FieldCondition(key="lang", match=native.MatchValue(value="en"))])
    assert store.count(where) == N // 2
    found = store.best("", [Nearest(WEIGHTS, N, without=[UUIDS[1]])], where=where)[0]
    assert set(found.keys) == set(UUIDS[3::2])


ODD = [
    {"x": 1, "f": 0.5, "none": None, "yes": True, "a.b": 1, "with space": "w", "id": "mine", "text": "t", "[0]": "z"},
    {"x": 2, "f": 1.5, "none": 0, "yes": False, "a": {"b": 1}, "with space": "v", "id": 5, "_adacur": "odd"},
    {"x": "1", "f": 2.0},
    {"f": 2.3423437484423895e-21},
]


@pytest.fixture(params=MAKERS, scope="module")
def odd(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[VectorStore, VectorStore]]:
    """Odd items in a collection of ours, and in memory."""
    stores = new(request.param, tmp_path_factory.mktemp("odd")), MemoryStore()
    for store in stores:
        store.create({"features": 2})
        put(store, [Item(f"item-{at}", "text", metadata) for at, metadata in enumerate(ODD)])
    yield stores
    stores[0].close()


@pytest.mark.parametrize(
    "where",
    [
        {"x": 1},
        {"x": [1, 2]},
        {"x": [1, "1"]},
        {"x": []},
        {"x": np.int64(2)},
        {"f": 0.5},
        {"f": [0.5, 2.0]},
        {"f": 2.3423437484423895e-21},
        {"none": None},
        {"none": [None, 0]},
        {"yes": True},
        {"yes": [True, False]},
        {"a.b": 1},
        {"with space": "w"},
        {"[0]": "z"},
        {"id": "mine"},
        {"id": ["mine", 5]},
        {"id": "item-0"},
        {"text": "t"},
        {"_adacur": "odd"},
        {"x": 1, "yes": False},
        {},
    ],
    ids=str,
)
def test_a_dictionary_finds_what_it_finds_in_memory(
    odd: tuple[VectorStore, VectorStore], where: dict[str, Any]
) -> None:
    ours, memory = odd
    plain_where = {name: one.item() if isinstance(one, np.generic) else one for name, one in where.items()}
    assert ours.count(where) == memory.count(plain_where)


@pytest.mark.parametrize("where", [{"x": {"y": 1}}, {'a"b': 1}, {"": 1}, {"x": 2**70}, "x = 1", {"x": float("nan")}])
def test_a_filter_without_meaning_is_refused(ours: VectorStore, where: Any) -> None:
    put(ours, [Item("a", "b", {"x": 1})])
    with pytest.raises(InputError):
        ours.count(where)


# What comes back

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(["id", "text", "_adacur", "lang", "a.b"]) | texts


@given(metadata=st.lists(st.dictionaries(names, values, max_size=4), min_size=1, max_size=5))
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_items_come_back_as_they_were_written(ours: VectorStore, metadata: list[dict[str, Any]]) -> None:
    items = [Item(f"item {at}", f"text\n{at} ", one) for at, one in enumerate(metadata)]
    put(ours, items)
    back = ours.items(range(len(items)))
    assert back == dict(enumerate(items))
    assert repr([_sorted(one.metadata) for one in back.values()]) == repr([_sorted(one.metadata) for one in items])


def _sorted(value: Any) -> Any:
    """Equal numbers of other types are told apart by repr, which must not depend on the order of names."""
    if isinstance(value, dict):
        return sorted((name, _sorted(one)) for name, one in value.items())
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def test_metadata_that_is_no_json_is_refused_with_the_item_named(ours: VectorStore) -> None:
    with pytest.raises(InputError, match=r"'bad'.*'when'"):
        put(ours, [Item("bad", "text", {"when": {1, 2}})])
    with pytest.raises(InputError, match="finite"):
        ours.put([0], [Item("a", "b")], {"features": np.array([[np.nan, 1]], np.float32)})


def test_large_writes_are_cut_into_requests(ours: VectorStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qdrant_points, "_NUMBERS", 6)
    put(ours, [Item(str(at), "text") for at in range(10)])
    assert ours.count() == 10


# Words


def test_a_users_sparse_bm25_vector_ranks_words(theirs: Maker) -> None:
    bm25 = e.Bm25()
    points: Points = []
    for at, payload in enumerate(PAYLOADS):
        sparse = bm25.embed_document(payload["body"])
        points.append(
            (at, {"d": [1.0] * 5, "bm25": m.SparseVector(indices=sparse.indices, values=sparse.values)}, payload)
        )
    store = theirs({"d": "Dot"}, points)
    assert store.words("number7", 3).keys == (7,)
    assert store.words("number7", 3, where={"lang": "de"}).keys == ()
    assert store.words("  ", 3).keys == () == store.words("number7", 0).keys


def test_without_an_index_for_words_they_are_refused_with_the_reason(tmp_path: Path) -> None:
    client = qdrant_client.QdrantClient(location=":memory:")
    client.create_collection("theirs", vectors_config=m.VectorParams(size=5, distance=m.Distance.DOT))
    shard = e.EdgeShard.create(_made(tmp_path / "t"), e.EdgeConfig(vectors=e.EdgeVectorParams(5, e.Distance.Dot)))
    shard.close()
    for store in (QdrantStore("theirs", client=client, text="body"), QdrantEdgeStore(tmp_path / "t", text="body")):
        with pytest.raises(InputError, match="'body' a text index with scoring"):
            store.words("hello", 3)
        store.close()


# Edge


def test_edge_keeps_its_items_when_closed_and_can_be_searched_through_an_index(tmp_path: Path) -> None:
    n, rows = 3000, RNG.normal(size=(3000, 64)).astype(np.float32)
    store = QdrantEdgeStore(tmp_path / "things")
    store.create({"features": 64})
    store.put(range(n), [Item(str(at), f"text {at}") for at in range(n)], {"features": rows})
    weights = RNG.normal(size=64).astype(np.float32)
    store.close()
    store = QdrantEdgeStore(tmp_path / "things")
    exact = store.best("features", [Nearest(weights, 10)])[0]
    roughly = store.best("features", [Nearest(weights, 10)], exact=False)[0]
    assert exact.keys == tuple(np.argsort(-(rows @ weights))[:10].tolist())
    assert len(set(exact.keys) & set(roughly.keys)) >= 7
    np.testing.assert_allclose(roughly.values, (rows @ weights)[list(roughly.keys)], rtol=1e-4)
    store.close()


def test_values_of_a_compressed_collection_are_exact(tmp_path: Path) -> None:
    n, rows = 3000, RNG.normal(size=(3000, 64)).astype(np.float32)
    config = e.EdgeConfig(
        vectors={"features": e.EdgeVectorParams(64, e.Distance.Dot)},
        quantization_config=e.BinaryQuantizationConfig(),
        optimizers=e.EdgeOptimizersConfig(indexing_threshold=1),
    )
    shard = e.EdgeShard.create(_made(tmp_path / "things"), config)
    points = [e.Point(at, {"features": rows[at].tolist()}, {}) for at in range(n)]
    shard.update(e.UpdateOperation.upsert_points(points))
    assert shard.optimize()
    shard.close()
    store, weights = QdrantEdgeStore(tmp_path / "things"), RNG.normal(size=64).astype(np.float32)
    found = store.best("features", [Nearest(weights, 10)])[0]
    assert found.keys == tuple(np.argsort(-(rows @ weights))[:10].tolist())
    np.testing.assert_allclose(found.values, (rows @ weights)[list(found.keys)], rtol=1e-4)
    store.close()


def test_a_folder_that_another_store_has_open_is_named(tmp_path: Path) -> None:
    store = QdrantEdgeStore(tmp_path / "things")
    store.create({"features": 2})
    with pytest.raises(EngineUnavailable, match=r"things.*has it open"):
        QdrantEdgeStore(tmp_path / "things").count()
    assert store.beside("v1").beside("x").name.endswith("things--v1--x")
    store.close()


def test_a_folder_that_was_closed_can_be_opened_by_another_store(tmp_path: Path) -> None:
    store, other = QdrantEdgeStore(tmp_path / "things"), QdrantEdgeStore(tmp_path / "things")
    store.create({"features": 2})
    put(store, [Item("a", "text")])
    store.beside("v1").create({"features": 2})
    store.close()
    assert (other.count(), other.beside("v1").count()) == (1, 0)
    with pytest.raises(EngineUnavailable, match=r"things.*has it open"):
        store.count()
    other.close()
    assert store.count() == 1
    store.close()


def test_a_client_of_our_own_is_closed_and_made_again(server: Server, store: QdrantStore) -> None:
    first = store._client
    store.close()
    server.script = [ok({"count": 3})]
    beside = store.beside("v1")
    assert store.count() == 3
    assert store._client is not first
    assert beside._client is store._client


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_text("mine")
    store = QdrantEdgeStore(tmp_path)
    assert not store.exists()
    store.drop()
    with pytest.raises(InputError, match="not empty"):
        store.create({"features": 2})
    assert (tmp_path / "photo.png").read_text() == "mine"


class Killed(BaseException):
    """As if the process ended here."""


def test_a_folder_whose_making_was_killed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(*_: object) -> None:
        raise Killed

    for after, before in (("create", "adacur.engines.qdrant_edge._words_index"), ("all", "pathlib.Path.rename")):
        with monkeypatch.context() as patched:
            patched.setattr(before, kill)
            with pytest.raises(Killed):
                QdrantEdgeStore(tmp_path / "killed").create({"features": 2})
        store = QdrantEdgeStore(tmp_path / "killed")
        assert not store.exists(), after
    store.create({"features": 2})
    put(store, [Item("a", "hello world")])
    assert store.words("hello", 3).keys == (0,)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", kill)
        with pytest.raises(Killed):
            store.drop()
    assert not store.exists()
    store.create({"features": 2})
    store.drop()
    assert list(tmp_path.iterdir()) == []
    # What an earlier version left: no index, or nothing but an empty folder.
    config = e.EdgeConfig(vectors={"features": e.EdgeVectorParams(2, e.Distance.Dot)})
    e.EdgeShard.create(_made(tmp_path / "old"), config).close()
    (tmp_path / "old" / "made_by_adacur.json").write_text("{}")
    old = QdrantEdgeStore(tmp_path / "old")
    put(old, [Item("a", "hello world")])
    assert old.words("hello", 3).keys == (0,)
    old.close()
    bad = QdrantEdgeStore(tmp_path / "bad")
    with pytest.raises(InputError, match="at least one"):
        bad.create({"features": -1})
    with monkeypatch.context() as patched:
        patched.setattr("adacur.engines.qdrant_edge._words_index", lambda models: 7)
        with pytest.raises(InputError):
            bad.create({"features": 2})
    assert {one.name for one in tmp_path.iterdir()} == {"old"}
    (tmp_path / "segments" / "segments").mkdir(parents=True)
    assert not QdrantEdgeStore(tmp_path / "segments").exists()


# Servers that fail


class Server:
    """Answers a request as the next of `script` says: (status, what), a function that makes one, or a wait."""

    def __init__(self) -> None:
        self.script: list[Any] = []
        self.requests: list[tuple[str, Any]] = []
        self.headers: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                length = int(self.headers.get("content-length") or 0)
                outer.requests.append((self.path, json.loads(self.rfile.read(length) or b"null")))
                outer.headers.append(self.headers)
                status, body = outer.script.pop(0)
                if status is None:
                    time.sleep(body)
                    return
                content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def described() -> tuple[int, Any]:
    client = qdrant_client.QdrantClient(location=":memory:")
    client.create_collection("things", vectors_config={"f": m.VectorParams(size=5, distance=m.Distance.DOT)})
    return ok(client.get_collection("things").model_dump(mode="json"))


def ok(result: Any) -> tuple[int, Any]:
    return 200, {"result": result, "status": "ok", "time": 0.0}


def error(status: int, text: str) -> tuple[int, Any]:
    return status, {"status": {"error": text}, "time": 0.0}


def points(*found: tuple[Any, Any]) -> dict[str, Any]:
    return {"points": [{"id": id_, "version": 0, "score": score} for id_, score in found]}


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[QdrantStore]:
    monkeypatch.setattr(retries, "_WAIT", 0.0)
    store = QdrantStore("things", url=server.url, api_key=KEY, timeout=1)
    yield store
    store.close()


def test_all_questions_are_one_request_for_exact_values(server: Server, store: QdrantStore) -> None:
    server.script = [described(), ok([points((4, 2.0), (9, 1.5)), points()])]
    questions = [Nearest(WEIGHTS, 2, without=[1]), Nearest(WEIGHTS, 0), Nearest(WEIGHTS, 3, within=[8])]
    found = store.best("f", questions, where={"lang": "en"})
    assert [one.keys for one in found] == [(4, 9), (), ()]
    path, body = server.requests[-1]
    assert path.startswith("/collections/things/points/query/batch")
    first, second = body["searches"]
    assert first["params"] == {"exact": True, "quantization": {"ignore": True, "rescore": False}}
    assert first["using"] == "f"
    assert first["filter"]["must_not"] == [{"has_id": [1]}]
    assert second["filter"]["must"][1] == {"has_id": [8]}
    assert server.headers[-1]["api-key"] == KEY
    server.script = [ok([points(), points()])]
    store.best("f", questions, exact=False)
    first, second = server.requests[-1][1]["searches"]
    assert (first["params"]["exact"], second["params"]["exact"]) == (False, True)
    assert store.best("f", []) == []


def test_a_server_that_stumbles_is_asked_again(server: Server, store: QdrantStore) -> None:
    server.script = [error(500, "disk"), error(503, "starting"), ok({"count": 3})]
    assert store.count() == 3


def test_a_page_of_a_proxy_is_no_answer_of_the_server(server: Server, store: QdrantStore) -> None:
    server.script = [(200, "<html>Please log in</html>"), ok({"count": 3})]
    assert store.count() == 3
    server.script = [(200, "<html>Please log in</html>")] * 3
    with pytest.raises(EngineUnavailable, match="after 3 tries"):
        store.count()


def test_a_server_that_fails_three_times_is_unavailable(
    server: Server, store: QdrantStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script = [error(500, f"disk {KEY} " + "x" * 10_000)] * 3
    with pytest.raises(EngineUnavailable, match=r"qdrant://127.0.0.1:\d+/things.*500.*disk \*\*\*") as caught:
        store.count()
    assert len(str(caught.value)) < 500
    assert len(server.requests) == 3
    assert KEY not in caplog.text


def test_a_server_that_takes_too_long_is_unavailable(
    server: Server, store: QdrantStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A client's shortest patience is a second.
    monkeypatch.setattr(store, "_ask", functools.partial(store._ask, tries=1))
    server.script = [(None, 1.1)]
    with pytest.raises(EngineUnavailable, match="Timeout"):
        store.count()


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "_WAIT", 0.0)
    store = QdrantStore("things", url="http://127.0.0.1:9", api_key=KEY)
    with pytest.raises(EngineUnavailable, match=r"qdrant://127.0.0.1:9/things.*ConnectError"):
        store.exists()


def test_a_refusal_is_not_tried_again_and_never_repeats_the_key(server: Server, store: QdrantStore) -> None:
    server.script = [error(401, f"Invalid key {KEY}"), (403, f"<html>{KEY}</html>"), error(404, "no collection things")]
    for reason in ("401.*not accepted", "403", "no collection things"):
        with pytest.raises(InputError, match=reason) as caught:
            store.count()
        assert KEY not in _everything(caught.value)
    assert len(server.requests) == 3
    assert KEY not in repr(store) + str(store) + store.name


def _everything(error: BaseException | None) -> str:
    """All that a traceback could show of an error and of those behind it."""
    shown = ""
    while error is not None:
        content = getattr(error, "content", b"")
        shown += f"{error!r} {error} {content!r}"
        error = error.__cause__ or error.__context__
    return shown


@pytest.mark.parametrize(
    "answer",
    [
        [points((1, 1.0))],
        [points((1, 1.0)), points((1, 1.0)), points((1, 1.0))],
        [points((1, None)), points()],
        [points((1, "NaN")), points()],
        [points((7, 1.0)), points()],
        [points(), points((5, 1.0))],
        "nonsense",
    ],
    ids=["fewer", "more", "null", "nan", "excluded", "not-within", "text"],
)
def test_an_answer_that_makes_no_sense_is_the_engines_fault(server: Server, store: QdrantStore, answer: Any) -> None:
    content = json.dumps(ok(answer)[1]).replace('"NaN"', "NaN")
    server.script = [described(), *[(200, content)] * 3]
    with pytest.raises(EngineUnavailable, match=r"qdrant://127\.0\.0\.1"):
        CheckedStore(store).best("f", [Nearest(WEIGHTS, 2, without=[7]), Nearest(WEIGHTS, 2, within=[1, 2])])


def test_points_that_come_twice_or_are_too_many_are_left_out(server: Server, store: QdrantStore) -> None:
    server.script = [described(), ok([points((1, 1.0), (1, 0.5), (2, 0.4), (3, 0.1))])]
    assert store.best("f", [Nearest(WEIGHTS, 2)])[0].keys == (1, 2)


def test_rows_that_make_no_sense_are_the_engines_fault_and_others_are_left_out(
    server: Server, store: QdrantStore
) -> None:
    row = {"id": 1, "vector": {"f": [1.0, 2.0]}, "payload": None}
    server.script = [described(), ok([row]), ok([{**row, "id": 2}])]
    with pytest.raises(EngineUnavailable, match="5 numbers"):
        store.rows("f", [1])
    assert store.rows("f", [1]) == {}


@pytest.mark.parametrize(
    "payload",
    [
        {"_adacur": {}},
        {"_adacur": {}, "id": "a"},
        {"_adacur": {"json": {"x": "{"}}, "id": "a", "text": "t"},
        {"_adacur": {"json": {"x": 1}}, "id": "a", "text": "t"},
        {"_adacur": {"json": [1]}, "id": "a", "text": "t"},
        {"_adacur": {"metadata": 7}, "id": "a", "text": "t"},
    ],
)
def test_a_damaged_point_is_named(theirs: Maker, payload: dict[str, Any]) -> None:
    store = theirs({"": "Dot"}, [(17, [1.0] * 5, payload)])
    for ask in (lambda: store.items([17]), lambda: list(store.scan())):
        with pytest.raises(EngineUnavailable, match=r"17.*damaged"):
            ask()


def test_making_a_collection_is_not_tried_twice(server: Server, store: QdrantStore) -> None:
    server.script = [ok({"exists": False}), error(500, "disk")]
    with pytest.raises(EngineUnavailable):
        store.create({"features": 2})
    server.script = [ok({"exists": False}), ok(True), error(400, "scoring is not known")]
    store.create({"features": 2})
    assert server.requests[-1][1]["field_schema"]["scoring"] is True


def test_a_collection_whose_maker_was_killed_gets_its_index(server: Server, store: QdrantStore) -> None:
    status, made = described()
    made["result"]["config"]["metadata"] = {"adacur": 1}
    server.script = [(status, made), ok({"status": "completed"}), *[ok({"status": "completed"})] * 2]
    rows = np.ones((1, 5), np.float32)
    store.put([0], [Item("a", "text")], {"f": rows})
    store.put([1], [Item("b", "text")], {"f": rows})
    paths = [path.partition("?")[0].removeprefix("/collections/things") for path, _ in server.requests]
    assert paths == ["", "/index", "/points", "/points"]


@pytest.mark.parametrize("offsets", [[5, 5, 5], [5, 9, 5], [9, 5, 9], [UUIDS[0], 5, 9], ["x"]])
def test_pages_that_lead_back_are_the_engines_fault(server: Server, store: QdrantStore, offsets: list[Any]) -> None:
    pages = [ok({"points": [{"id": at, "payload": {}}], "next_page_offset": to}) for at, to in enumerate(offsets)]
    counted = [ok({"count": 900}), *pages]
    for script, ask in ((pages, lambda: list(store.scan())), (counted, lambda: store.sample(999))):
        server.script = list(script)
        with pytest.raises(EngineUnavailable, match="points go on after"):
            ask()


def test_a_sample_ends_where_pages_do_not(server: Server, store: QdrantStore) -> None:
    pages = [ok({"points": [], "next_page_offset": at}) for at in range(9)]
    server.script = [ok({"count": 2}), *pages]
    assert store.sample(9) == ()
    assert len(server.requests) < 5


def test_errors_of_grpc_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import grpc

    class Failure(grpc.RpcError):
        def __init__(self, code: Any) -> None:
            self.code = lambda: code

        def details(self) -> str:
            return f"because {KEY}"

    class Client:
        init_options = {"url": None, "host": "db", "port": 6333, "api_key": KEY, "https": None}  # noqa: RUF012

        def __init__(self, code: Any) -> None:
            self.failure = Failure(code)

        def count(self, **_: Any) -> None:
            raise self.failure

    monkeypatch.setattr(retries, "_WAIT", 0.0)
    with pytest.raises(EngineUnavailable, match=r"qdrant\+https://db:6333/things.*UNAVAILABLE: because \*\*\*"):
        QdrantStore("things", client=Client(grpc.StatusCode.UNAVAILABLE)).count()
    with pytest.raises(InputError, match="NOT_FOUND"):
        QdrantStore("things", client=Client(grpc.StatusCode.NOT_FOUND)).count()


def test_a_given_client_stays_open_and_stores_beside_share_theirs() -> None:
    client = qdrant_client.QdrantClient(location=":memory:")
    QdrantStore("things", client=client).close()
    assert client.get_collections().collections == []
    store = QdrantStore("things", url=":memory:")
    store.beside("v1").close()
    store.beside("v1").create({"features": 2})
    assert store.beside("v1").exists()
    store.close()


@pytest.mark.parametrize("url", [f"http://me:{KEY}@host", f"http://host?api_key={KEY}", "ftp://host", "localhost:6333"])
def test_an_address_with_credentials_or_of_another_kind_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InputError) as caught:
        QdrantStore("things", url=url)
    assert KEY not in _everything(caught.value)
