"""Items in a table of Postgres with pgvector: searched by inner product, and by words with its full-text search."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

Read = Callable[[str, Sequence[Any]], list[Any]]

_VECTORS, _WHOLE = ("vector", "halfvec"), ("smallint", "integer", "bigint")
_SECONDS = 60
# The columns of a table, their types and sizes.
_COLUMNS = (
    "SELECT a.attname, format_type(a.atttypid, NULL), a.atttypmod FROM pg_attribute a "
    "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"
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
        condition, values = self._where(where)
        return int(self._read(f"SELECT count(*) FROM {self._place} WHERE {condition}", values)[0][0])

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        column, kind = _quoted(vector), self._layout.types[vector]
        condition, shared = self._where(where)
        answers, most = [], max((one.n + len(one.without) for one in questions), default=0)
        with self._reading({} if exact else _index_settings(most)) as read:
            for question in questions:
                row = f"[{','.join(map(repr, question.weights.tolist()))}]"
                among, keys = self._among(question)
                # The negative of a distance matches no index, so that an exact question reads every vector. The few
                # that a question names are read by their keys.
                by_index = not exact and question.within is None
                order = f"{column} <#> %s::{kind}" if by_index else "value DESC, key"
                statement = (
                    f"SELECT {self._key} AS key, -({column} <#> %s::{kind}) AS value FROM {self._place} "
                    f"WHERE {column} IS NOT NULL AND {condition}{among} ORDER BY {order} LIMIT %s"
                )
                values = [row, *shared, *keys, *([row] if by_index else []), question.n]
                answers.append(_found(read(statement, values)))
        return answers

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        column = _quoted(vector)
        read = f"SELECT {self._key}, vector_send({column}::vector) FROM {self._place} WHERE {column} IS NOT NULL"
        return {
            key: np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)
            for key, sent in self._read(f"{read} AND {self._one_of('=', 'ANY')}", [list(keys)])
        }

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        layout = self._layout
        columns = ", ".join(self._key if name == layout.key else _quoted(name) for name in layout.item_columns)
        sent = self._read(f"SELECT {columns} FROM {self._place} WHERE {self._one_of('=', 'ANY')}", [list(keys)])
        rows = (dict(zip(layout.item_columns, row, strict=True)) for row in sent)
        return {row[layout.key]: layout.item(row) for row in rows}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        """Any of the words will do, and more of them rank higher.

        ts_rank_cd, which is made for words near each other, would count one word that occurs twice as two.
        """
        layout, (condition, values) = self._layout, self._where(where)
        configuration = f"{_literal(self._language)}::regconfig"
        held = [name for name, kind in layout.types.items() if kind == "tsvector"]
        texts = [_text_in(layout.place(name)) for name in layout.text]
        # As an index on this expression has it; there can be none on several columns.
        joined = texts[0] if len(texts) == 1 else f"concat_ws(' ', {', '.join(texts)})"
        document = _quoted(held[0]) if held else f"to_tsvector({configuration}, {joined})"
        return _found(
            self._read(
                f"SELECT {self._key} AS key, ts_rank({document}, adacur_words, 1) AS value FROM {self._place}, "
                f"CAST(replace(plainto_tsquery({configuration}, %s)::text, ' & ', ' | ') AS tsquery) AS adacur_words "
                f"WHERE {document} @@ adacur_words AND {condition} ORDER BY value DESC, key LIMIT %s",
                [text, *values, n],
            )
        )

    def sample(self, n: int) -> list[Key]:
        """By the hash of each id: it reads all ids, once, which takes no longer than an exact question."""
        drawn = f"SELECT {self._key} AS key FROM {self._place} ORDER BY md5({_quoted(self._layout.key)}::text) LIMIT %s"
        return [key for (key,) in self._read(drawn, [n])]

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
        rows = self._read(_COLUMNS, [self._place.replace("%%", "%")])
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

    def _where(self, where: Where) -> tuple[str, list[Any]]:
        text, values = self._layout.condition(where, any_of=_any_of, path=lambda place: _quoted(place.column))
        # A condition of the user's has no placeholders.
        return (text.replace("%", "%%") if isinstance(where, str) else text), values

    def _among(self, question: Nearest) -> tuple[str, list[Any]]:
        added, values = "", []
        if question.without:
            added, values = f" AND {self._one_of('<>', 'ALL')}", [list(question.without)]
        if question.within is not None:
            added, values = f"{added} AND {self._one_of('=', 'ANY')}", [*values, list(question.within)]
        return added, values

    def _one_of(self, sign: str, how: str) -> str:
        key = self._layout.key
        return f"{_quoted(key)} {sign} {how} (%s::{self._layout.types[key]}[])"

    def _read(self, statement: str, values: Sequence[Any]) -> list[Any]:
        with self._reading() as read:
            return read(statement, values)

    @contextmanager
    def _reading(
        self, settings: Mapping[str, str] | None = None
    ) -> Iterator[Callable[[str, Sequence[Any]], list[Any]]]:
        """What reads the rows of a statement, in one transaction, with these settings for it alone.

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
                yield lambda statement, values: connection.execute(statement, values).fetchall()
        except BaseException:
            connection.close()
            # What broke this one may have broken the others.
            self.close()
            raise
        self._idle.append(connection)

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


def _any_of(place: Place, allowed: Sequence[Any]) -> tuple[str, list[Any]]:
    column, kind = _quoted(place.column), place.kind
    if kind in ("json", "jsonb"):
        # A list contains a plain value, and a plain value itself.
        return f"{_json_in(place)} @> ANY (%s::text[]::jsonb[])", [[json.dumps(value) for value in allowed]]
    # "character" alone would mean one letter; an array has each of its values.
    kind = "bpchar" if kind == "character" else kind
    given = [str(value) for value in allowed if value is not None]
    if kind.endswith("[]"):
        return f"{column} && %s::text[]::{kind}", [given]
    return f"{column} = ANY (%s::text[]::{kind}[])", [given]


def _json_in(place: Place) -> str:
    return f"({_quoted(place.column)}::jsonb{''.join(f' -> {_literal(name)}' for name in place.inside)})"


def _text_in(place: Place) -> str:
    """The text in a column, or inside its JSON."""
    if not place.inside:
        return _quoted(place.column)
    outer = Place(place.column, place.inside[:-1], place.kind)
    return f"({_json_in(outer)} ->> {_literal(place.inside[-1])})"


def _quoted(*names: str) -> str:
    """The name of a column or table within a statement that has placeholders."""
    return str(require("psycopg.sql", extra="postgres").Identifier(*names).as_string(None)).replace("%", "%%")


def _literal(text: str) -> str:
    return str(require("psycopg.sql", extra="postgres").Literal(text).as_string(None)).replace("%", "%%")
