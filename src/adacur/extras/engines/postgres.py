"""Items in a table of Postgres with pgvector: searched by inner product, and by words with its full-text search."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from adacur.arrays import FloatArray
from adacur.errors import EngineUnavailable, InputError
from adacur.extras.engines.postgres_connections import Connections, vector_received
from adacur.extras.engines.postgres_sql import BLOCKS, COLUMNS, DISTINCT, INDEXABLE, Asked, TableSQL, quoted
from adacur.extras.engines.retries import TRIES, answered
from adacur.extras.engines.sql_tables import Layout, repeated
from adacur.extras.engines.store_urls import parameters, split
from adacur.extras.engines.vector_store import (
    Found,
    Key,
    Nearest,
    VectorStore,
    Where,
    check_name,
    found,
    shown,
    weights_of,
)
from adacur.records import Item
from adacur.requirements import require

_log = logging.getLogger(__name__)
_LONGEST_NAME = 63
# Each question is planned on its own, and a statement has at most 65,535 values.
_QUESTIONS = 16
_PAGE = 1000
_OF_LANGCHAIN, _COLLECTIONS_SHOWN = "langchain_pg_embedding", 20
# Options in a URL, beside those of libpq.
_OF_A_URL = {"table": str, "language": str, "ef_search": int, "timeout": float, "connect_timeout": float}
_QUOTED_NAMES = re.compile(r'(?:"((?:[^"]|"")+)"\.)?"((?:[^"]|"")+)"')


class PostgresStore(VectorStore):
    """A table of Postgres with vectors of the pgvector extension.

    - dsn: how to connect, as libpq takes it: a URL or "host=… dbname=…". A password may be in it, in PGPASSWORD or in
      ~/.pgpass; nothing shows it;
    - table: its name, or SCHEMA.NAME; with dots in a name, "SCHEMA"."NAME" or "NAME" in double quotes;
    - text, id_field, metadata: columns. Several text columns are joined with a space; ids are whole numbers, texts or
      UUIDs, and are the keys; metadata are by default all columns that are neither id, text nor vector. Ids must be
      distinct: where no unique index says so, the first use looks at all of them, which takes no longer than an exact
      question;
    - vector: the vector to search by, as ?vector= in a URL;
    - language: the text search configuration for `words`;
    - ef_search: of an HNSW index, where `exact=False`; by default twice the items asked for and left out, 40 to 1,000;
    - timeout, connect_timeout: seconds that a statement, or connecting, may take.

    A filter is a dictionary, which names the id, text and metadata columns alone, or an SQL condition as text: take one
    only from those who may read the whole database. An exact question reads every vector that its filter allows.
    `exact=False` lets Postgres use an HNSW or IVFFlat index for inner products, which goes on until enough items pass
    the filter (from pgvector 0.8). Threads each borrow a connection.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        text: str | Sequence[str] = "text",
        id_field: str = "id",
        metadata: Sequence[str] | None = None,
        vector: str | None = None,
        language: str = "english",
        ef_search: int | None = None,
        timeout: float = 60.0,
        connect_timeout: float = 10.0,
    ) -> None:
        self._connections = Connections(dsn, timeout=timeout, connect_timeout=connect_timeout)
        self._schema, self._table = _names(table)
        self.vector = vector
        self._columns: dict[str, Any] = {"text": text, "id_field": id_field, "metadata": metadata}
        self._language, self._ef_search = language, ef_search
        self._known: TableSQL | None = None
        self._distinct = False
        _check_name(self._table)
        check_name("schema", self._schema)

    @classmethod
    def from_url(cls, url: str, **options: Any) -> PostgresStore:
        """The store at postgresql://host:port/database?table=items&text=title&text=body."""
        parts = split(url, credentials=True)
        given = parse_qsl(parts.query, keep_blank_values=True)
        libpq = {one.keyword.decode() for one in require("psycopg", extra="postgres").pq.Conninfo.get_defaults()}
        libpq -= set(_OF_A_URL)
        options = parameters(url, _OF_A_URL, several=("metadata",), passed=libpq) | options
        if "table" not in options:
            raise InputError("The address of a Postgres table ends in ?table=NAME; this one names no table.")
        query = urlencode([(name, value) for name, value in given if name in libpq])
        return cls(f"postgresql://{parts.netloc}{parts.path}{query and f'?{query}'}", **options)

    @property
    def name(self) -> str:
        return f"{self._connections.address}?table={quote(_one_name(self._schema, self._table), safe='')}"

    def dimensions(self) -> dict[str, int]:
        return self._sql.layout.dimensions

    def count(self, where: Where = None) -> int:
        return int(self._read(self._sql.count(where))[0][0])

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        sql = self._sql
        size = sql.layout.dimension(vector)
        weights = [weights_of(question, size, vector=vector, store=self.name) for question in questions]
        asked = [(at, question, weights[at]) for at, question in enumerate(questions) if question.n > 0]
        sizes = [question.n + len(question.without) for question in questions if question.within is None]
        settings = {} if exact or not sizes else self._index_settings(vector, max(sizes))
        answers: list[list[tuple[Key, float]]] = [[] for _ in questions]
        for start in range(0, len(asked), _QUESTIONS):
            statement = sql.nearest(vector, asked[start : start + _QUESTIONS], where, exact=exact)
            for at, key, value in self._read(statement, settings):
                answers[at].append((key, value))
        return [found(self.name, pairs, question.n) for pairs, question in zip(answers, questions, strict=True)]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        size = self._sql.layout.dimension(vector)
        rows = {key: vector_received(sent) for key, sent in self._read(self._sql.vectors(vector, keys))}
        for key, row in rows.items():
            if len(row) != size:
                raise InputError(
                    f"Vectors {vector!r} of {self.name} differ in size: {key!r} has {len(row)}, not {size}."
                )
        return rows

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        return dict(self._items(self._sql.items(keys)))

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        return found(self.name, self._read(self._sql.words(text, n, where)), n)

    def sample(self, n: int) -> tuple[Key, ...]:
        sql = self._sql
        if n < 1:
            return ()
        ((blocks, has_blocks),) = self._read((BLOCKS, [self._regclass]))
        # There is an item or more in a block; where most are empty, more blocks are read.
        percent = 200.0 * n / max(1, blocks)
        while True:
            rows = self._read(sql.sampled(n, min(100.0, percent) if has_blocks else None))
            if len(rows) >= n or percent >= 100 or not has_blocks:
                return tuple(key for (key,) in rows)
            percent *= 4

    def scan(self) -> Iterator[Item]:
        # A page that gets lost is read again, which a cursor on the server would not survive.
        after: list[Key] = []
        while page := self._items(self._sql.page(after, _PAGE)):
            yield from (item for _, item in page)
            after = [page[-1][0]]

    def close(self) -> None:
        self._connections.close()

    def _read(self, asked: Asked, settings: Mapping[str, str] | None = None, *, tries: int = TRIES) -> list[Any]:
        def read() -> list[Any]:
            return self._connections.read(*asked, settings=settings or {})

        try:
            return answered(self.name, read, extra="postgres", tries=tries)
        except InputError:
            # The table may have changed since it was described.
            self._known = None
            raise

    def _items(self, asked: Asked) -> list[tuple[Key, Item]]:
        layout = self._sql.layout
        return [layout.item(dict(zip(layout.item_columns, row, strict=True))) for row in self._read(asked)]

    @property
    def _sql(self) -> TableSQL:
        known = self._known
        if known is None:
            rows = self._read((COLUMNS, [self._regclass]))
            if not rows:
                raise InputError(f"There is no table {self._table!r} in {self._connections.address}.")
            # Without the schema of the extension, which must be one that needs no naming.
            types = {name: kind.rpartition(".")[2] for name, kind, _ in rows}
            vectors = {
                name: size if size > 0 else self._size(name) for name, _, size in rows if types[name] in INDEXABLE
            }
            layout = Layout.of(self.name, types, vectors, **self._columns)
            known = TableSQL(self._place, layout, self._language)
            if not self._distinct:
                self._check_ids(known)
            self._known = known
            if "collection_id" in types and self._table == _OF_LANGCHAIN:
                self._tell_collections()
        return known

    def _tell_collections(self) -> None:
        """Warn where LangChain keeps several collections in this table: they would be searched as one."""
        beside = quoted(*([self._schema] if self._schema else []), "langchain_pg_collection")
        names = f"SELECT uuid::text, name FROM {beside} ORDER BY name LIMIT {_COLLECTIONS_SHOWN}"
        there = self._read(("SELECT to_regclass(%s) IS NOT NULL", [beside]))[0][0]
        if there and len(rows := self._read((names, []))) > 1:
            _log.warning(
                "%s holds several collections of LangChain, which are searched as one. Name yours in a filter, "
                "{'collection_id': '%s'}: %s.",
                self.name,
                rows[0][0],
                ", ".join(f"{name!r} is {id_}" for id_, name in rows),
            )

    def _check_ids(self, sql: TableSQL) -> None:
        """Refuse ids that are missing or occur twice: pages of `scan` would skip some, and others be scored twice."""
        if not self._read((DISTINCT, [self._regclass, sql.layout.key]))[0][0]:
            try:
                unusable = self._read(sql.unusable_id(), tries=1)
            except EngineUnavailable as error:
                raise EngineUnavailable(
                    f"{error} This was to see whether the ids in {sql.layout.key!r} are distinct, which a unique index "
                    "on a column NOT NULL would tell."
                ) from None
            if unusable and unusable[0][0] is None:
                raise InputError(f"Every item must have an id; in {self.name} one of {sql.layout.key!r} is NULL.")
            if unusable:
                raise repeated(self.name, unusable[0][0])
        self._distinct = True

    def _size(self, vector: str) -> int:
        """The size of a vector whose column does not say it."""
        column = quoted(vector)
        first = f"SELECT vector_dims({column}) FROM {self._place} WHERE {column} IS NOT NULL LIMIT 1"
        return next((size for (size,) in self._read((first, []))), 0)

    def _index_settings(self, vector: str, n: int) -> dict[str, str]:
        kind, size = self._sql.layout.types[vector], self._sql.layout.vectors[vector]
        if size > INDEXABLE[kind]:
            _log.warning("pgvector indexes a %s of at most %d numbers; %r has %d.", kind, INDEXABLE[kind], vector, size)
        return {
            "hnsw.ef_search": str(self._ef_search or min(1000, max(40, 2 * n))),
            "hnsw.iterative_scan": "strict_order",
            "ivfflat.iterative_scan": "relaxed_order",
        }

    @property
    def _place(self) -> str:
        return quoted(*([self._schema] if self._schema else []), self._table)

    @property
    def _regclass(self) -> str:
        return self._place.replace("%%", "%")


def _check_name(table: str) -> None:
    check_name("table", table)
    if not 0 < len(table.encode()) <= _LONGEST_NAME:
        raise InputError(f"The name of a table has 1 to {_LONGEST_NAME} bytes in Postgres; got {shown(table)}.")


def _names(table: str) -> tuple[str, str]:
    """The schema, or nothing, and the name of a table."""
    if match := _QUOTED_NAMES.fullmatch(table):
        return (match[1] or "").replace('""', '"'), match[2].replace('""', '"')
    schema, _, name = table.rpartition(".")
    return schema, name


def _one_name(schema: str, table: str) -> str:
    """What `_names` takes apart."""
    names = [schema, table] if schema else [table]
    plain = ".".join(names)
    return plain if _names(plain) == (schema, table) else ".".join('"' + one.replace('"', '""') + '"' for one in names)
