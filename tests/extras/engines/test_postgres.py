"""Postgres with pgvector: tables of every kind, hostile words, a server that dies, and passwords that nobody sees."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from adacur import Gaussian
from adacur.errors import AdacurError, EngineUnavailable, InputError, UnknownName
from adacur.extras.engines import EngineWarning, search_in
from adacur.extras.engines.checked_store import CheckedStore
from adacur.extras.engines.engine_index import StoreItems
from adacur.extras.engines.postgres import PostgresStore
from adacur.extras.engines.vector_store import Nearest
from adacur.records import Item
from tests.postgres_servers import PostgresServer, running_postgres

psycopg = pytest.importorskip("psycopg", reason="the extra postgres is not installed")
sql = pytest.importorskip("psycopg.sql")

HOSTILE = [
    "x'; DROP TABLE things; --",
    'a"b',
    "per%cent %s %(x)s",
    "back\\slash",
    "`tick`",
    "ünï 😀",
    "{curly}",
    "$1 $$",
]
RNG = np.random.default_rng(3)
# Not in one piece, as a traceback quotes lines of this file.
USER, PASSWORD = ("".join(parts) for parts in (("gur", "ke"), ("tom", "ate")))


@pytest.fixture(scope="module")
def server() -> PostgresServer:
    return running_postgres()


@pytest.fixture(scope="module")
def database(server: PostgresServer) -> str:
    url = server.new_database()
    server.run("CREATE SCHEMA extensions; CREATE EXTENSION vector SCHEMA extensions", url)
    name = server.run("SELECT current_database()", url)[0][0]
    server.run(f"ALTER DATABASE {name} SET search_path = public, extensions", url)
    return url


@pytest.fixture
def url(server: PostgresServer, database: str) -> str:
    """A database without tables: emptying one takes a fraction of the time of making one."""
    server.run("DROP SCHEMA IF EXISTS public, other CASCADE; CREATE SCHEMA public", database)
    return database


def opened(url: str, table: str, **options: Any) -> CheckedStore:
    return CheckedStore(PostgresStore(partial(psycopg.connect, url), table, **options), waits=(0.01, 0.01))


@pytest.fixture
def store(url: str) -> Iterator[CheckedStore]:
    store = opened(url, "things")
    yield store
    store.close()


def rows(n: int, width: int = 3) -> np.ndarray:
    return RNG.normal(size=(n, width)).astype(np.float32)


def fill(server: PostgresServer, url: str, vectors: np.ndarray, texts: list[str] | None = None) -> None:
    """A table "things" of the items 0, 1, 2, … with these vectors."""
    server.run(f"CREATE TABLE things (id bigint PRIMARY KEY, text text, at int, v vector({vectors.shape[1]}))", url)
    with psycopg.connect(url) as connection, connection.cursor().copy("COPY things FROM STDIN") as stream:
        for at, row in enumerate(vectors):
            stream.write_row([at, texts[at] if texts else f"text {at}", at, str(row.tolist())])


def own_table(server: PostgresServer, url: str, key: str, ids: list[str]) -> None:
    server.run(
        f"CREATE TABLE docs (id {key} PRIMARY KEY, title text, body text, year int, price numeric, born date, "
        "v vector(2), half halfvec(2))",
        url,
    )
    values = (
        f"('{id_}', 'Title {at}', 'about penicillin {at}', {2020 + at}, 1.5, '2020-01-0{at + 1}', '[{at},1]', "
        f"'[{at},2]')"
        for at, id_ in enumerate(ids)
    )
    server.run(f"INSERT INTO docs VALUES {', '.join(values)}", url)


@pytest.mark.parametrize("key", ["integer", "text", "varchar(40)", "uuid"])
def test_a_table_of_the_users_own(server: PostgresServer, url: str, key: str) -> None:
    ids = {"integer": ["7", "8", "9"], "uuid": [str(uuid.UUID(int=at)) for at in range(3)]}.get(
        key, ["x'y", 'a"b\\{,}%s', "ü"]
    )
    own_table(server, url, key, [id_.replace("'", "''") for id_ in ids])
    store = opened(url, "docs", text=("title", "body"))
    keys: list[Any] = [7, 8, 9] if key == "integer" else ids
    assert store.dimensions() == {"v": 2, "half": 2}
    assert store.items(keys[1:2]) == {
        keys[1]: Item(ids[1], "Title 1 about penicillin 1", {"year": 2021, "price": "1.5", "born": "2020-01-02"})
    }
    answers = store.best("v", [Nearest(np.array([1, 0]), 2), Nearest(np.array([1, 0]), 2, without=[keys[2]])])
    assert [found.keys for found in answers] == [(keys[2], keys[1]), (keys[1], keys[0])]
    assert store.best("v", [Nearest(np.array([1, 0]), 2, within=keys[:2])])[0].keys == (keys[1], keys[0])
    assert store.best("half", [Nearest(np.array([1, 0]), 1)])[0].keys == (keys[2],)
    assert store.best("v", [Nearest(np.array([1, 0]), 9)], where={"year": [2020, "2021"]})[0].keys == (keys[1], keys[0])
    assert store.count("year > 2020 AND title LIKE '%1'") == 1
    assert store.count({"year": None}) == 0
    assert store.count({"born": "2020-01-01", "price": 1.5}) == 1
    np.testing.assert_array_equal(store.rows("half", keys[2:])[keys[2]], [2, 2])
    assert set(store.words("the discovery of penicillin", 9).keys) == set(keys)
    assert len(store.sample(2)) == 2
    assert set(store.sample(9)) == set(keys)
    assert {item.id for item in StoreItems(store)} == set(ids)
    store.close()


def test_a_view_and_a_table_in_a_schema_are_read(server: PostgresServer, url: str) -> None:
    own_table(server, url, "integer", ["7", "8"])
    server.run("CREATE SCHEMA other; CREATE VIEW other.docs AS SELECT id, title, v FROM public.docs WHERE id > 7", url)
    store = opened(url, "other.docs", text="title")
    assert (store.count(), store.sample(5), store.items([8])[8].metadata) == (1, (8,), {})
    assert store.name.endswith("/other.docs")
    store.close()


def docs_without_a_key(server: PostgresServer, url: str, ids: str, rule: str = "") -> None:
    server.run(f"CREATE TABLE docs (id int {rule}, text text, tags text[], about jsonb, v vector(2))", url)
    server.run(
        f"""INSERT INTO docs SELECT id, 'text ' || id, ARRAY['t' || id, 'all'], '{{"tags": ["x"]}}', '[1,1]' """
        f"FROM unnest(ARRAY[{ids}]::int[]) AS id",
        url,
    )


def test_ids_that_occur_twice_or_are_missing_are_refused(server: PostgresServer, url: str) -> None:
    docs_without_a_key(server, url, "1, 2, 3, 2")
    store = opened(url, "docs")
    with pytest.raises(InputError):
        store.best("v", [Nearest(np.ones(2), 9)])
    server.run("UPDATE docs SET id = NULL WHERE id = 2; DELETE FROM docs WHERE ctid = '(0,5)'", url)
    with pytest.raises(InputError):
        store.best("v", [Nearest(np.ones(2), 9)])
    store.close()


def test_lists_in_a_column_have_each_of_their_values(server: PostgresServer, url: str) -> None:
    docs_without_a_key(server, url, "1, 2, 3")
    server.run(
        """UPDATE docs SET tags = NULL, about = '"x"' WHERE id = 3; UPDATE docs SET about = '1' WHERE id = 2""", url
    )
    store = opened(url, "docs")
    filters: list[dict[str, Any]] = [
        {"tags": "t1"}, {"tags": ["t1", "t2"]}, {"tags": "all"}, {"tags": None}, {"tags": []},
        {"about": 1}, {"about": True}, {"about": ["x", 1]},
    ]  # fmt: skip
    assert [store.count(where) for where in filters] == [1, 2, 2, 1, 0, 1, 0, 2]
    store.close()


def test_connections_end_when_a_store_is_closed(server: PostgresServer) -> None:
    url = server.new_database()
    server.run("CREATE EXTENSION vector", url)
    fill(server, url, rows(1, 2))
    store = opened(url, "things")
    assert store.count() == 1
    # By process, since those that looked before may not have ended yet.
    open_ = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
        "AND backend_type = 'client backend'"
    )
    of_store = server.run(open_, url)
    assert of_store
    store.close()
    give_up = time.monotonic() + 60
    while set(server.run(open_, url)) & set(of_store) and time.monotonic() < give_up:
        time.sleep(0.05)
    assert not set(server.run(open_, url)) & set(of_store)
    assert store.count() == 1
    store.close()


def test_columns_that_are_missing_or_unfit_are_named(server: PostgresServer, url: str) -> None:
    own_table(server, url, "integer", ["7"])
    for options, name in (
        ({}, "text"),
        ({"text": "titel"}, "titel"),
        ({"text": "title", "metadata": ["yeer"]}, "yeer"),
    ):
        with pytest.raises(InputError, match=name):
            opened(url, "docs", **options).count()  # type: ignore[arg-type]
    store = opened(url, "docs", text="title")
    with pytest.raises(InputError):
        store.count({"yeer": 1})
    with pytest.raises(InputError):
        store.count("yeer > 3")
    with pytest.raises(InputError):
        store.count({"year": "abc"})
    store.close()


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_can_end_a_statement(server: PostgresServer, url: str, text: str) -> None:
    name = text.replace(".", "")
    fill(server, url, rows(1, 2))
    with psycopg.connect(url) as connection:
        table = "CREATE TABLE {} (id int PRIMARY KEY, text text, {} text, {} vector(2))"
        connection.execute(sql.SQL(table).format(*map(sql.Identifier, (name, text, f"v {text}"))))
        row = sql.SQL("INSERT INTO {} VALUES (1, 'a', {}, '[1,2]')")
        connection.execute(row.format(sql.Identifier(name), sql.Literal(text)))
    store = opened(url, name)
    vector = f"v {text}"
    assert store.dimensions() == {vector: 2}
    assert store.items([1]) == {1: Item("1", "a", {text: text})}
    assert len(store.rows(vector, [1])[1]) == 2
    assert store.best(vector, [Nearest(np.ones(2), 1)], where={text: [text, "x"]})[0].keys == (1,)
    assert store.words(text, 3).keys == ()
    with pytest.raises(AdacurError):
        store.items([text])
    guard = opened(url, "things")
    assert guard.count() == 1
    guard.close()
    store.close()


@pytest.mark.parametrize(
    "where",
    [
        "true; DROP TABLE things", "true -- ", "true /*", "'", "(true", "", "nextval('s') > 0", 7, ["at = 1"],
        lambda item: True,
    ],
)  # fmt: skip
def test_a_condition_that_is_not_one_or_writes_is_refused(
    store: CheckedStore, server: PostgresServer, url: str, where: object
) -> None:
    fill(server, url, rows(2, 2))
    server.run("CREATE SEQUENCE s", url)
    with pytest.raises(InputError):
        store.best("v", [Nearest(np.ones(2), 2, within=[0])], where=where)
    assert store.count("at = 1 OR (text = 'x''); --' AND text LIKE '%(%')") == 1


@pytest.mark.parametrize("lasting", ["false", "true"])
def test_no_condition_makes_a_later_one_write(
    store: CheckedStore, server: PostgresServer, url: str, lasting: str
) -> None:
    fill(server, url, rows(2, 2))
    server.run("CREATE SEQUENCE s; CREATE TABLE log (n int)", url)
    server.run(
        "CREATE FUNCTION leave() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (1); RETURN 1; END $$",
        url,
    )
    settings = [
        ("default_transaction_read_only", "off"), ("transaction_read_only", "off"), ("statement_timeout", "0"),
        ("search_path", "pg_catalog"), ("session_characteristics_as_transaction", "read write"),
    ]  # fmt: skip
    for name, value in settings:
        for where in (
            f"set_config('{name}', '{value}', {lasting}) IS NOT NULL",
            f"set_config('{name}', '{value}', {lasting}) IS NOT NULL AND nextval('s') > 0",
            f"set_config('{name}', '{value}', {lasting}) IS NOT NULL AND leave() > 0",
            "nextval('s') > 0",
            "leave() > 0",
        ):
            for ask in (lambda: store.count(where), lambda: store.best("v", [Nearest(np.ones(2), 2)], where=where)):  # noqa: B023
                with contextlib.suppress(InputError):
                    ask()
                assert store.count() == 2
    assert server.run("SELECT is_called FROM s", url) == [(False,)]
    assert server.run("SELECT count(*) FROM log", url) == [(0,)]
    assert store.count("current_setting('statement_timeout') = '1min'") == 2


def test_more_of_the_words_rank_higher(store: CheckedStore, server: PostgresServer, url: str) -> None:
    fill(server, url, rows(3, 2), ["mould mould mould mould", "fleming saw mould in a dish", "nothing"])
    assert store.words("which dish of mould did Fleming see", 3).keys == (1, 0)


def test_exact_reads_past_an_index_which_others_use(store: CheckedStore, server: PostgresServer, url: str) -> None:
    vectors = rows(3000, 8)
    fill(server, url, vectors)
    server.run("CREATE INDEX ON things USING hnsw (v vector_ip_ops); ANALYZE things", url)
    weights = rows(1, 8)[0]
    truth = np.argsort(-(vectors @ weights))
    question = Nearest(weights, 300, without=truth[:100].tolist())
    assert list(store.best("v", [question])[0].keys) == truth[100:400].tolist()
    approximate = store.best("v", [question], exact=False)[0]
    assert len(approximate.keys) == 300
    assert len({*approximate.keys} & {*truth[100:400].tolist()}) > 250
    assert (np.diff(approximate.values) <= 0).all()
    rare = store.best("v", [Nearest(weights, 10)], where={"at": list(range(0, 3000, 100))}, exact=False)[0]
    assert len(rare.keys) == 10
    # Those that a question names lie where the index does not look.
    named = store.best("v", [Nearest(weights, 300, within=truth[-300:].tolist())], exact=False)[0]
    assert list(named.keys) == truth[-300:].tolist()


def test_a_restart_between_calls_is_survived(store: CheckedStore, server: PostgresServer, url: str) -> None:
    fill(server, url, rows(1, 4))
    assert store.count() == 1
    other = opened(url, "things")
    assert other.count() == 1
    server.kill()
    server.start()
    assert store.count() == other.count() == 1
    other.close()


def test_a_server_that_dies_in_a_read_is_unavailable_and_answers_when_it_is_back(
    store: CheckedStore, server: PostgresServer, url: str
) -> None:
    fill(server, url, rows(100, 4))
    # Each row takes a tenth of a second.
    slow = "pg_sleep(0.1) IS NOT NULL"
    killer = threading.Timer(0.5, server.kill)
    killer.start()
    with pytest.raises(EngineUnavailable):
        store.best("v", [Nearest(np.ones(4), 5)], where=slow)
    killer.join()
    with pytest.raises(EngineUnavailable):
        store.items([1])
    server.start()
    assert len(store.items([1])) == 1


def test_a_server_that_is_killed_in_mid_search_leaves_what_was_found(
    store: CheckedStore, server: PostgresServer, url: str
) -> None:
    vectors = rows(300, 4)
    fill(server, url, vectors, [f"river {at}" for at in range(300)])
    asked = 0

    def score(pairs: Any) -> list[float]:
        nonlocal asked
        asked += 1
        if asked == 2:
            server.kill()
        return [float(text.split()[1]) for _, text in pairs]

    index = search_in(store, scorer=score)
    with pytest.warns(EngineWarning):
        hits = index.search("river", 5, budget=50, method=Gaussian(rounds=5, first_batch=0.2))
    server.start()
    assert (hits.trace.stopped, hits.trace.calls, len(hits)) == ("engine", 20, 5)


def test_nobody_sees_a_password(server: PostgresServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    for url in (server.url(user=USER, password=PASSWORD), f"postgresql://{USER}:{PASSWORD}@127.0.0.1:1/d"):
        store = opened(url, "things")
        with pytest.raises(AdacurError) as caught:
            store.count()
        shown += [repr(store), store.name, str(caught.value), "".join(traceback.format_exception(caught.value))]
    assert PASSWORD not in "\n".join([*shown, caplog.text])


@pytest.mark.parametrize("kind", ["json", "jsonb"])
def test_fields_within_json_make_a_text_and_filter(server: PostgresServer, url: str, kind: str) -> None:
    """As LangChain, Haystack and LlamaIndex write them."""
    server.run(f"CREATE TABLE docs (id text PRIMARY KEY, text text, meta {kind}, v vector(1))", url)
    one, other = '{"lang": "en", "a": {"n": 1}, "tags": ["x"], "none": null}', '{"lang": "de", "title": "T%\'\'s"}'
    server.run(f"INSERT INTO docs VALUES ('a', 'rivers', '{one}', '[1]'), ('b', 'lakes', '{other}', '[2]')", url)
    store = opened(url, "docs", text=("meta.title", "text"))
    wheres: list[dict[str, Any]] = [
        {"meta.lang": ["de", "fr"]}, {"meta.a.n": 1}, {"meta.tags": "x"}, {"meta.none": None}, {"meta.lang": None},
    ]  # fmt: skip
    assert [store.count(where) for where in wheres] == [1, 1, 1, 1, 0]
    assert store.best("v", [Nearest(np.ones(1), 2)], where={"meta.lang": "de", "text": "lakes"})[0].keys == ("b",)
    assert [item.text for item in StoreItems(store)] == ["rivers", "T%'s lakes"]
    assert store.words("lakes", 2).keys == ("b",)
    with pytest.raises(InputError):
        store.count({"mota.lang": "de"})
    assert store.count({"meta.la'ng": "de", 'meta.a"%s': 1}) == 0
    store.close()


def test_a_filter_cannot_reach_a_column_that_answers_do_not_show(server: PostgresServer, url: str) -> None:
    own_table(server, url, "integer", ["7", "8"])
    store = opened(url, "docs", text="title", metadata=["born"])
    assert store.count({"id": 7, "born": "2020-01-01", "title": "Title 0"}) == 1
    for hidden in ("year", "body", "v", "yeer"):
        with pytest.raises(InputError, match=hidden) as caught:
            store.count({hidden: 2020})
        assert "'id', 'title', 'born'" in str(caught.value)
        assert "year" not in str(caught.value).replace(f"name {hidden!r}", "")
    store.close()


def test_vectors_without_a_declared_size_are_not_offered(server: PostgresServer, url: str) -> None:
    server.run("CREATE TABLE docs (id int PRIMARY KEY, text text, v vector, half halfvec(3))", url)
    store = opened(url, "docs")
    assert store.dimensions() == {"half": 3}
    with pytest.raises(UnknownName):
        store.best("v", [Nearest(np.ones(2), 2)])
    store.close()


def test_a_database_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(InputError):
        opened(running_postgres().url("no_such_database"), "things").count()
