"""Items in a table of Postgres with pgvector: searched by inner product, and by words with its full-text search."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, EngineUnavailable, InputError
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.sql_tables import Layout, Place
from adacur.extras.engines.store_urls import address_in
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item
from adacur.requirements import require

_VECTORS, _WHOLE = ("vector", "halfvec"), ("smallint", "integer", "bigint")
_SECONDS = 60
# The columns of a table, their types and sizes.
_COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod FROM pg_attribute a "
    "WHERE a.attrelid = to_regclass({}) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
)
_NOT_LET_IN = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class PostgresStore(VectorStore):
    """A table of Postgres with vectors of the pgvector extension.

    - connect: a function that opens a connection, such as `partial(psycopg.connect, "dbname=shop")`. Threads each
      borrow one, which only reads and gives up a statement after a minute;
    - table: its name, or SCHEMA.NAME;
    - text, id_field, metadata: columns. Several text columns are joined with a space; ids are distinct, and are the
      keys; metadata are by default all columns that are neither id, text nor vector;
    - vector: the vector to search by, as ?vector= in a URL; its column declares a size;
    - language: the text search configuration for `words`, where the table has no tsvector.

    A filter is a dictionary, which names the id, text and metadata columns alone, or an SQL condition as text: take one
    only from those who may read the whole database. An exact question reads every vector that its filter allows;
    `exact=False` lets Postgres use an HNSW or IVFFlat index for inner products (pgvector 0.8 or later).
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        *,
        text: str | Sequence[str] = "text",
        id_field: str = "id",
        metadata: Sequence[str] | None = None,
        vector: str | None = None,
        language: str = "english",
        name: str | None = None,
    ) -> None:
        self._connect, self._table, self._language, self._name = connect, table, language, name
        self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self.vector = vector
        self._columns: dict[str, Any] = {"text": self.text_fields, "id_field": id_field, "metadata": metadata}
        self._idle: list[Any] = []
        weakref.finalize(self, _close_all, self._idle)

    @classmethod
    def from_url(cls, url: str) -> PostgresStore:
        """The store at postgresql://host:port/database/table; libpq takes user and password from the environment."""
        parts, options = address_in(url)
        database, _, table = parts.path.strip("/").rpartition("/")
        if not database or "/" in database:
            raise InputError("The URL of a Postgres table is postgresql://HOST:PORT/DATABASE/TABLE.")
        connect = require("psycopg", extra="postgres").connect
        opened = partial(connect, f"postgresql://{parts.netloc}/{database}", tcp_user_timeout=1000 * _SECONDS)
        return cls(opened, unquote(table), name=f"postgresql://{parts.netloc}/{database}/{table}", **options)

    @property
    def name(self) -> str:
        return self._name or f"postgresql://…/{quote(self._table)}"

    def dimensions(self) -> Mapping[str, int]:
        return self._layout.vectors

    def count(self, where: Where = None) -> int:
        return int(self._rows(f"SELECT count(*) FROM {self._place} WHERE {self._where(where)}")[0][0])

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        column, kind, condition = _quoted(vector), self._layout.types[vector], self._where(where)
        most = max((one.n + len(one.without) for one in questions), default=0)
        statements = []
        for question in questions:
            value = f"-({column} <#> {_literal(str(question.weights.tolist()))}::{kind})"
            among = f" AND NOT {self._is_one_of(question.without)}" if question.without else ""
            among += "" if question.within is None else f" AND {self._is_one_of(question.within)}"
            # The negative of a distance matches no index, so that an exact question reads every vector. The few that a
            # question names are read by their keys.
            order = "value DESC, key" if exact or question.within is not None else value[1:]
            statements.append(
                f"SELECT {self._key} AS key, {value} AS value FROM {self._place} "
                f"WHERE {column} IS NOT NULL AND {condition}{among} ORDER BY {order} LIMIT {question.n}"
            )
        return [_found(rows) for rows in self._read(*statements, settings={} if exact else _index_settings(most))]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        column = _quoted(vector)
        read = f"SELECT {self._key}, vector_send({column}::vector) FROM {self._place} WHERE {column} IS NOT NULL"
        return {
            key: np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)
            for key, sent in self._rows(f"{read} AND {self._is_one_of(keys)}")
        }

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        layout = self._layout
        columns = ", ".join(self._key if name == layout.key else _quoted(name) for name in layout.item_columns)
        sent = self._rows(f"SELECT {columns} FROM {self._place} WHERE {self._is_one_of(keys)}")
        rows = (dict(zip(layout.item_columns, row, strict=True)) for row in sent)
        return {row[layout.key]: layout.item(row) for row in rows}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        """Any of the words will do, and more of them rank higher.

        ts_rank_cd, which is made for words near each other, would count one word that occurs twice as two.
        """
        layout = self._layout
        configuration = f"{_literal(self._language)}::regconfig"
        held = [name for name, kind in layout.types.items() if kind == "tsvector"]
        texts = [_text_in(layout.place(name)) for name in layout.text]
        # As an index on this expression has it; there can be none on several columns.
        joined = texts[0] if len(texts) == 1 else f"concat_ws(' ', {', '.join(texts)})"
        document = _quoted(held[0]) if held else f"to_tsvector({configuration}, {joined})"
        query = f"plainto_tsquery({configuration}, {_literal(text)})"
        return _found(
            self._rows(
                f"SELECT {self._key} AS key, ts_rank({document}, adacur_words, 1) AS value FROM {self._place}, "
                f"CAST(replace({query}::text, ' & ', ' | ') AS tsquery) AS adacur_words "
                f"WHERE {document} @@ adacur_words AND {self._where(where)} ORDER BY value DESC, key LIMIT {n}"
            )
        )

    def sample(self, n: int) -> list[Key]:
        """By the hash of each id: it reads all ids, once, which takes no longer than an exact question."""
        order = f"md5({_quoted(self._layout.key)}::text)"
        return [key for (key,) in self._rows(f"SELECT {self._key} FROM {self._place} ORDER BY {order} LIMIT {n}")]

    def close(self) -> None:
        _close_all(self._idle)

    def explain(self, error: Exception) -> AdacurError | None:
        psycopg = require("psycopg", extra="postgres")
        if not isinstance(error, psycopg.Error):
            return None
        words = f"{type(error).__name__}: {(error.diag.message_primary or str(error)).strip().splitlines()[0]}"
        kinds = ("ProgrammingError", "DataError", "IntegrityError", "NotSupportedError")
        refused = (
            *(getattr(psycopg, kind) for kind in kinds),
            psycopg.errors.ReadOnlySqlTransaction,
            psycopg.errors.ActiveSqlTransaction,
        )
        # A connection that is refused has no code, only words; trying again would not help, and may lock an account.
        is_refused = isinstance(error, refused) or any(sign in str(error) for sign in _NOT_LET_IN)
        return InputError(words) if is_refused else EngineUnavailable(words)

    @cached_property
    def _layout(self) -> Layout:
        rows = self._rows(_COLUMNS.format(_literal(self._place)))
        if not rows:
            raise InputError(f"There is no table {shown(self._table)} at {self.name}.")
        # Without the schema of the extension, which must be one that needs no naming.
        types = {name: kind.rpartition(".")[2] for name, kind, _ in rows}
        vectors = {name: size for name, _, size in rows if types[name] in _VECTORS and size > 0}
        return Layout.of(self.name, types, vectors, **self._columns)

    @property
    def _place(self) -> str:
        schema, _, name = self._table.rpartition(".")
        return _quoted(schema, name) if schema else _quoted(name)

    @property
    def _key(self) -> str:
        column = _quoted(self._layout.key)
        return column if self._layout.types[self._layout.key] in _WHOLE else f"{column}::text"

    def _where(self, where: Where) -> str:
        return self._layout.condition(where, any_of=_any_of, path=lambda place: _quoted(place.column))

    def _is_one_of(self, keys: Collection[Key]) -> str:
        key = self._layout.key
        return f"({_quoted(key)} = ANY ({_literal(list(keys))}::{self._layout.types[key]}[]))"

    def _rows(self, statement: str) -> list[Any]:
        (rows,) = self._read(statement)
        return rows

    def _read(self, *statements: str, settings: Mapping[str, str] | None = None) -> list[list[Any]]:
        """The rows of each statement, in one transaction, with these settings for it alone.

        It reads only, so that no filter can change a table, and what a condition sets for its session is undone.
        """
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connected()
        try:
            with connection.transaction(force_rollback=True):
                for name, value in (settings or {}).items():
                    connection.execute("SELECT set_config(%s, %s, true)", [name, value])
                answers = [connection.execute(statement).fetchall() for statement in statements]
        except BaseException:
            connection.close()
            # What broke this one may have broken the others.
            self.close()
            raise
        self._idle.append(connection)
        return answers

    def _connected(self) -> Any:
        connection = self._connect()
        connection.autocommit = True
        connection.read_only = True
        # Prepared statements would be planned without knowing the lists of keys; poolers do not like them either.
        connection.prepare_threshold = None
        connection.execute("SELECT set_config('statement_timeout', %s, false)", [str(1000 * _SECONDS)])
        if self._name is None:
            at = connection.info
            place = f"{quote(at.host, safe='')}:{at.port}/{quote(at.dbname, safe='')}"
            self._name = f"postgresql://{place}/{quote(self._table, safe='')}"
        return connection


def _close_all(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def _index_settings(n: int) -> dict[str, str]:
    return {
        "hnsw.ef_search": str(min(1000, max(40, 2 * n))),
        "hnsw.iterative_scan": "strict_order",
        "ivfflat.iterative_scan": "relaxed_order",
    }


def _found(pairs: Sequence[tuple[Key, float]]) -> Found:
    return Found([key for key, _ in pairs], np.array([value for _, value in pairs]))


def _any_of(place: Place, values: Sequence[Any]) -> str:
    column, kind = _quoted(place.column), place.kind
    if kind in ("json", "jsonb"):
        # A list contains a plain value, and a plain value itself.
        return f"{_json_in(place)} @> ANY ({_literal([json.dumps(value) for value in values])}::text[]::jsonb[])"
    # "character" alone would mean one letter; an array has each of its values.
    kind = "bpchar" if kind == "character" else kind
    given = f"{_literal([str(value) for value in values if value is not None])}::text[]::{kind}"
    return f"{column} && {given}" if kind.endswith("[]") else f"{column} = ANY ({given}[])"


def _json_in(place: Place) -> str:
    return f"({_quoted(place.column)}::jsonb{''.join(f' -> {_literal(name)}' for name in place.inside)})"


def _text_in(place: Place) -> str:
    """The text in a column, or inside its JSON."""
    if not place.inside:
        return _quoted(place.column)
    outer = Place(place.column, place.inside[:-1], place.kind)
    return f"({_json_in(outer)} ->> {_literal(place.inside[-1])})"


def _quoted(*names: str) -> str:
    """The name of a column or table within a statement."""
    return str(require("psycopg.sql", extra="postgres").Identifier(*names).as_string(None))


def _literal(value: str | list[Any]) -> str:
    """A value within a statement: conditions that users write have no placeholders, and may have a % of their own."""
    return str(require("psycopg.sql", extra="postgres").Literal(value).as_string(None))
