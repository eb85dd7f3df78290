"""Qdrant beyond the contract: collections that a user made, servers that fail, and what must not be shown."""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from adacur.errors import EngineUnavailable, InputError, UnknownName
from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item
from tests.memory_store import MemoryStore

qdrant_client = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
qdrant_edge = pytest.importorskip("qdrant_edge", reason="qdrant-edge-py is not installed")

from adacur.extras.engines.engine_index import StoreItems  # noqa: E402
from adacur.extras.engines.qdrant import QdrantStore  # noqa: E402

m = qdrant_client.models
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


def theirs(vectors: dict[str, str], points: Points, **options: Any) -> CheckedStore:
    client = qdrant_client.QdrantClient(location=":memory:")
    config = {name: m.VectorParams(size=5, distance=m.Distance(metric)) for name, metric in vectors.items()}
    client.create_collection(
        "theirs",
        vectors_config=config[""] if list(config) == [""] else config,
        sparse_vectors_config={"bm25": m.SparseVectorParams(modifier=m.Modifier.IDF)},
    )
    client.upsert("theirs", [m.PointStruct(id=id_, vector=vector, payload=rest) for id_, vector, rest in points])
    return CheckedStore(QdrantStore("theirs", client=client, **options))


def plain(metric: str = "Cosine") -> tuple[dict[str, str], Points]:
    return {"": metric}, [(UUIDS[at], ROWS[at].tolist(), PAYLOADS[at]) for at in range(N)]


# A user's collection


def test_values_of_a_cosine_collection_are_inner_products_with_the_stored_unit_vectors() -> None:
    store = theirs(*plain())
    assert store.dimensions() == {"": 5}
    found = store.best("", [Nearest(WEIGHTS * 7, 6, without=UUIDS[:3])])[0]
    rows = store.rows("", found.keys)
    np.testing.assert_allclose(found.values, [rows[key] @ (WEIGHTS * 7) for key in found.keys], rtol=1e-5)
    allowed = np.where(np.arange(N) < 3, -np.inf, UNITS @ WEIGHTS)
    assert list(found.keys) == [UUIDS[at] for at in np.argsort(-allowed)[:6]]


def test_weights_of_zero_have_values_of_zero() -> None:
    found = theirs(*plain()).best("", [Nearest(np.zeros(5, np.float32), 3)])[0]
    assert len(found.keys) == 3
    assert found.values.tolist() == [0, 0, 0]


def test_a_users_fields_make_an_item() -> None:
    store = theirs(*plain(), text=("title", "body"), id_field="doc")
    assert store.items([UUIDS[4]]) == {UUIDS[4]: Item("d4", "Title 4 number4", {"lang": "de", "id": 4})}
    assert {item.id for item in StoreItems(store)} == {f"d{at}" for at in range(N)}
    assert store.count({"id": 4}) == 1


def test_without_fields_for_them_the_id_is_the_points_and_the_text_is_empty() -> None:
    store = theirs({"": "Dot"}, [(7, [1.0] * 5, {"body": "x"}), (UUIDS[0], [2.0] * 5, {"text": "hello"})])
    assert store.items([7, UUIDS[0]]) == {7: Item("7", "", {"body": "x"}), UUIDS[0]: Item(UUIDS[0], "hello", {})}


def test_fields_within_dictionaries_make_an_item_and_filter() -> None:
    """As LangChain, Haystack and LlamaIndex write them."""
    payloads = [
        {"page_content": f"text {at}", "metadata": {"n": f"d{at}", "lang": "de" if at else "en"}} for at in (0, 1)
    ]
    points = [(at, [1.0 + at] * 5, payload) for at, payload in enumerate(payloads)]
    store = theirs({"": "Dot"}, points, text="page_content", id_field="metadata.n")
    assert store.items([1]) == {1: Item("d1", "text 1", {"metadata": {"n": "d1", "lang": "de"}})}
    assert store.best("", [Nearest(WEIGHTS, 5)], where={"metadata.lang": ["de", "fr"]})[0].keys == (1,)
    assert [store.count({"metadata.lang": lang}) for lang in ("de", "fr", None)] == [1, 0, 0]


def test_an_id_field_that_points_do_not_have_is_refused_and_the_fields_are_named() -> None:
    store = theirs({"": "Dot"}, [(7, [1.0] * 5, {"text": "a", "metadata": {"n": 3}})], id_field="metadata.m")
    with pytest.raises(InputError) as caught:
        store.items([7])
    assert all(part in str(caught.value) for part in ("'metadata.m'", "id_field=", "?id=", "'metadata.n'"))


def test_only_inner_products_and_cosines_are_offered() -> None:
    metrics = {"dot": "Dot", "cosine": "Cosine", "euclid": "Euclid", "manhattan": "Manhattan"}
    config = {name: m.VectorParams(size=5, distance=m.Distance(metric)) for name, metric in metrics.items()}
    many = m.MultiVectorConfig(comparator=m.MultiVectorComparator.MAX_SIM)
    config["colbert"] = m.VectorParams(size=5, distance=m.Distance.DOT, multivector_config=many)
    client = qdrant_client.QdrantClient(location=":memory:")
    client.create_collection("theirs", vectors_config=config)
    store = CheckedStore(QdrantStore("theirs", client=client))
    assert store.dimensions() == {"dot": 5, "cosine": 5}
    for name in ("euclid", "manhattan", "colbert", "bm25", "cosin"):
        with pytest.raises(UnknownName):
            store.best(name, [Nearest(WEIGHTS, 1)])


def test_a_point_without_the_vector_has_no_row() -> None:
    store = theirs({"a": "Dot", "b": "Dot"}, [(1, {"a": [1.0] * 5}, {}), (2, {"a": [1.0] * 5, "b": [2.0] * 5}, {})])
    assert set(store.rows("b", [1, 2])) == {2}


def test_a_sample_of_a_users_ids_is_distinct_and_the_same_each_time() -> None:
    numbers = [10**6 + 1000 * at for at in range(300)]
    for ids in (numbers, [str(uuid.uuid5(uuid.NAMESPACE_URL, str(at))) for at in range(300)]):
        store = theirs({"": "Dot"}, [(id_, [1.0] * 5, {}) for id_ in ids])
        for n in (5, 150):
            sample = store.sample(n)
            assert len(set(sample)) == len(sample) == n
            assert store.sample(n) == sample
        assert set(store.sample(1000)) == set(ids)
    assert store.sample(0) == ()


# Filters


def test_native_filters_confine_questions() -> None:
    store = theirs(*plain())
    where = m.Filter(must=[m.FieldCondition(key="lang", match=m.MatchValue(value="en"))])
    assert store.count(where) == N // 2
    found = store.best("", [Nearest(WEIGHTS, N, without=[UUIDS[1]])], where=where)[0]
    assert set(found.keys) == set(UUIDS[3::2])


ODD = [
    {"x": 1, "f": 0.5, "none": None, "yes": True, "a.b": 1, "with space": "w", "id": "mine", "[0]": "z", "tags": ["u"]},
    {"x": 2, "f": 1.5, "none": 0, "yes": False, "a": {"b": 1}, "with space": "v", "id": 5, "tags": ["u", "v w"]},
    {"x": "1", "f": 2.0, "tags": "u", "yes": [True]},
    {"f": 2.3423437484423895e-21, "yes": 1, "tags": []},
]


@pytest.fixture(scope="module")
def odd() -> tuple[CheckedStore, CheckedStore]:
    """Odd items in Qdrant, and in memory."""
    items = [Item(f"item-{at}", "text", metadata) for at, metadata in enumerate(ODD)]
    points: Points = [(at, [1.0] * 5, {"text": "text", **metadata}) for at, metadata in enumerate(ODD)]
    return theirs({"": "Dot"}, points), CheckedStore(MemoryStore(items, {"": np.ones((len(ODD), 5), np.float32)}))


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
        {"a.b": [1, 2]},
        {"a.c": 1},
        {"with space": "w"},
        {"[0]": "z"},
        {"id": "mine"},
        {"id": ["mine", 5]},
        {"yes": 1},
        {"tags": "u"},
        {"tags": ["v w", "x"]},
        {"x": 1, "yes": False},
        {},
    ],
    ids=str,
)
def test_a_dictionary_finds_what_it_finds_in_memory(
    odd: tuple[CheckedStore, CheckedStore], where: dict[str, Any]
) -> None:
    ours, memory = odd
    assert ours.count(where) == memory.count(where)


@pytest.mark.parametrize("where", [{'a"b': 1}, "x = 1"])
def test_a_filter_without_meaning_is_refused(odd: tuple[CheckedStore, CheckedStore], where: Any) -> None:
    with pytest.raises(InputError):
        odd[0].count(where)


# Words


def test_a_users_sparse_bm25_vector_ranks_words() -> None:
    bm25 = qdrant_edge.Bm25()
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


def test_without_an_index_for_words_they_are_refused_with_the_reason() -> None:
    client = qdrant_client.QdrantClient(location=":memory:")
    client.create_collection("theirs", vectors_config=m.VectorParams(size=5, distance=m.Distance.DOT))
    store = CheckedStore(QdrantStore("theirs", client=client, text="body"))
    with pytest.raises(InputError):
        store.words("hello", 3)


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
def store(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckedStore]:
    monkeypatch.setenv("QDRANT_API_KEY", KEY)
    url = f"{server.url.replace('http', 'qdrant')}/things"
    store = CheckedStore(QdrantStore.from_url(url), waits=(0.01, 0.01))
    yield store
    store.close()


def test_all_questions_are_one_request_for_exact_values(server: Server, store: CheckedStore) -> None:
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


def test_a_server_that_stumbles_is_asked_again(server: Server, store: CheckedStore) -> None:
    server.script = [error(500, "disk"), error(503, "starting"), ok({"count": 3})]
    assert store.count() == 3


def test_a_page_of_a_proxy_is_no_answer_of_the_server(server: Server, store: CheckedStore) -> None:
    server.script = [(200, "<html>Please log in</html>"), ok({"count": 3})]
    assert store.count() == 3
    server.script = [(200, "<html>Please log in</html>")] * 3
    with pytest.raises(EngineUnavailable):
        store.count()


def test_a_server_that_fails_three_times_is_unavailable(
    server: Server, store: CheckedStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.script = [error(500, f"disk {KEY} " + "x" * 10_000)] * 3
    with pytest.raises(EngineUnavailable) as caught:
        store.count()
    assert len(str(caught.value)) < 500
    assert len(server.requests) == 3
    assert KEY not in caplog.text


def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = CheckedStore(QdrantStore.from_url("qdrant://127.0.0.1:9/things"), waits=(0.01, 0.01))
    with pytest.raises(EngineUnavailable):
        store.count()


def test_a_refusal_is_not_tried_again_and_never_repeats_the_key(server: Server, store: CheckedStore) -> None:
    server.script = [error(401, f"Invalid key {KEY}"), (403, f"<html>{KEY}</html>"), error(404, "no collection things")]
    for _ in range(3):
        with pytest.raises(InputError) as caught:
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
def test_an_answer_that_makes_no_sense_is_the_engines_fault(server: Server, store: CheckedStore, answer: Any) -> None:
    content = json.dumps(ok(answer)[1]).replace('"NaN"', "NaN")
    server.script = [described(), *[(200, content)] * 3]
    with pytest.raises(EngineUnavailable):
        store.best("f", [Nearest(WEIGHTS, 2, without=[7]), Nearest(WEIGHTS, 2, within=[1, 2])])


def test_rows_that_make_no_sense_are_the_engines_fault_and_others_are_left_out(
    server: Server, store: CheckedStore
) -> None:
    row = {"id": 1, "vector": {"f": [1.0, 2.0]}, "payload": None}
    server.script = [described(), ok([row]), ok([{**row, "id": 2}])]
    with pytest.raises(EngineUnavailable):
        store.rows("f", [1])
    assert store.rows("f", [1]) == {}


def test_a_sample_ends_where_pages_do_not(server: Server, store: CheckedStore) -> None:
    pages = [ok({"points": [], "next_page_offset": at}) for at in range(9)]
    server.script = [ok({"count": 2}), *pages]
    assert store.sample(9) == ()
    assert len(server.requests) < 5


def test_errors_of_grpc_are_told_apart() -> None:
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

        def count(self, *_: Any, **__: Any) -> None:
            raise self.failure

    with pytest.raises(EngineUnavailable):
        CheckedStore(QdrantStore("things", client=Client(grpc.StatusCode.UNAVAILABLE)), waits=(0,)).count()
    with pytest.raises(InputError):
        CheckedStore(QdrantStore("things", client=Client(grpc.StatusCode.NOT_FOUND))).count()


def test_a_given_client_stays_open() -> None:
    client = qdrant_client.QdrantClient(location=":memory:")
    QdrantStore("things", client=client).close()
    assert client.get_collections().collections == []
