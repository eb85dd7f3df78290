"""Items in a table of Postgres with pgvector: searched by inner product, and by words with its full-text search."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, InputError
from adacur.extras.engines.checked_store import repeated, shown
from adacur.extras.engines.postgres_connections import Connections, explained
from adacur.extras.engines.postgres_sql import BLOCKS, COLUMNS, DISTINCT, INDEXABLE, Asked, TableSQL, quoted
from adacur.extras.engines.sql_tables import Layout
from adacur.extras.engines.store_urls import options_in, seconds, split
from adacur.extras.engines.vector_store import Found, Key, Nearest, VectorStore, Where
from adacur.records import Item

_log = logging.getLogger(__name__)
_LONGEST_NAME = 63
# Each question is planned on its own, and a statement has at most 65,535 values.
_QUESTIONS = 16
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
    - timeout: seconds that a statement may take.

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
        timeout: float = 60.0,
    ) -> None:
        self._connections = Connections(dsn, timeout=seconds(timeout))
        self.secrets = self._connections.secrets
        self._schema, self._table = _names(table)
        self.text_fields = (text,) if isinstance(text, str) else tuple(text)
        self.vector = vector
        self._columns: dict[str, Any] = {"text": text, "id_field": id_field, "metadata": metadata}
        self._language = language

    @classmethod
    def from_url(cls, url: str) -> PostgresStore:
        """The store at postgresql://host:port/database?table=items&text=title&text=body."""
        parts = split(url)
        options = options_in(parts, table=str, language=str, timeout=float)
        if "table" not in options:
            raise InputError("The address of a Postgres table ends in ?table=NAME; this one names no table.")
        return cls(f"postgresql://{parts.netloc}{parts.path}", **options)

    @property
    def name(self) -> str:
        return f"{self._connections.address}?table={quote(_one_name(self._schema, self._table), safe='')}"

    def dimensions(self) -> Mapping[str, int]:
        return {name: size for name, size in self._sql.layout.vectors.items() if size > 0}

    def count(self, where: Where = None) -> int:
        return int(self._read(self._sql.count(where))[0][0])

    def best(
        self, vector: str, questions: Sequence[Nearest], *, where: Where = None, exact: bool = True
    ) -> list[Found]:
        sizes = [question.n + len(question.without) for question in questions if question.within is None]
        settings = {} if exact or not sizes else self._index_settings(vector, max(sizes))
        answers: list[list[tuple[Key, float]]] = [[] for _ in questions]
        numbered = list(enumerate(questions))
        for start in range(0, len(numbered), _QUESTIONS):
            statement = self._sql.nearest(vector, numbered[start : start + _QUESTIONS], where, exact=exact)
            for at, key, value in self._read(statement, settings):
                answers[at].append((key, value))
        return [_found(pairs) for pairs in answers]

    def rows(self, vector: str, keys: Sequence[Key]) -> dict[Key, FloatArray]:
        return {
            key: np.frombuffer(sent, dtype=">f4", offset=4).astype(np.float32)
            for key, sent in self._read(self._sql.vectors(vector, keys))
        }

    def items(self, keys: Sequence[Key]) -> dict[Key, Item]:
        layout = self._sql.layout
        rows = (dict(zip(layout.item_columns, row, strict=True)) for row in self._read(self._sql.items(keys)))
        return {row[layout.key]: layout.item(row) for row in rows}

    def words(self, text: str, n: int, *, where: Where = None) -> Found:
        return _found(self._read(self._sql.words(text, n, where)))

    def sample(self, n: int) -> list[Key]:
        ((blocks, has_blocks),) = self._read((BLOCKS, [self._regclass]))
        # There is an item or more in a block; where most are empty, more blocks are read.
        percent = 200.0 * n / max(1, blocks)
        while True:
            rows = self._read(self._sql.sampled(n, min(100.0, percent) if has_blocks else None))
            if len(rows) >= n or percent >= 100 or not has_blocks:
                return [key for (key,) in rows]
            percent *= 4

    def close(self) -> None:
        self._connections.close()

    def explain(self, error: Exception) -> AdacurError | None:
        return explained(error)

    def _read(self, asked: Asked, settings: Mapping[str, str] | None = None) -> list[Any]:
        return self._connections.read(*asked, settings or {})

    @cached_property
    def _sql(self) -> TableSQL:
        rows = self._read((COLUMNS, [self._regclass]))
        if not rows:
            raise InputError(f"There is no table {shown(self._table)} in {self._connections.address}.")
        # Without the schema of the extension, which must be one that needs no naming.
        types = {name: kind.rpartition(".")[2] for name, kind, _ in rows}
        vectors = {name: size if size > 0 else self._size(name) for name, _, size in rows if types[name] in INDEXABLE}
        sql = TableSQL(self._place, Layout.of(self.name, types, vectors, **self._columns), self._language)
        self._check_ids(sql)
        return sql

    def _check_ids(self, sql: TableSQL) -> None:
        """Refuse ids that are missing or occur twice: they would be scored twice."""
        if self._read((DISTINCT, [self._regclass, sql.layout.key]))[0][0]:
            return
        unusable = self._read(sql.unusable_id())
        if unusable and unusable[0][0] is None:
            raise InputError(f"Every item must have an id; in {self.name} one of {sql.layout.key!r} is NULL.")
        if unusable:
            raise repeated(self.name, unusable[0][0])

    def _size(self, vector: str) -> int:
        """The size of a vector whose column does not say it; 0 where no item has one."""
        column = quoted(vector)
        first = f"SELECT vector_dims({column}) FROM {self._place} WHERE {column} IS NOT NULL LIMIT 1"
        return next((size for (size,) in self._read((first, []))), 0)

    def _index_settings(self, vector: str, n: int) -> dict[str, str]:
        kind, size = self._sql.layout.types[vector], self._sql.layout.vectors[vector]
        if size > INDEXABLE[kind]:
            _log.warning("pgvector indexes a %s of at most %d numbers; %r has %d.", kind, INDEXABLE[kind], vector, size)
        return {
            "hnsw.ef_search": str(min(1000, max(40, 2 * n))),
            "hnsw.iterative_scan": "strict_order",
            "ivfflat.iterative_scan": "relaxed_order",
        }

    @property
    def _place(self) -> str:
        return quoted(*([self._schema] if self._schema else []), self._table)

    @property
    def _regclass(self) -> str:
        return self._place.replace("%%", "%")


def _found(pairs: Sequence[tuple[Key, float]]) -> Found:
    return Found([key for key, _ in pairs], np.array([value for _, value in pairs]))


def _names(table: str) -> tuple[str, str]:
    """The schema, or nothing, and the name of a table."""
    if match := _QUOTED_NAMES.fullmatch(table):
        schema, name = (match[1] or "").replace('""', '"'), match[2].replace('""', '"')
    else:
        schema, _, name = table.rpartition(".")
    if "\0" in table or not 0 < len(name.encode(errors="replace")) <= _LONGEST_NAME:
        raise InputError(f"The name of a table has 1 to {_LONGEST_NAME} bytes in Postgres; got {shown(table)}.")
    return schema, name


def _one_name(schema: str, table: str) -> str:
    """What `_names` takes apart."""
    names = [schema, table] if schema else [table]
    plain = ".".join(names)
    return plain if _names(plain) == (schema, table) else ".".join('"' + one.replace('"', '""') + '"' for one in names)
