"""Collections in each engine, filled by the engine's own client as their owner would fill them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import pytest

from adacur.errors import InputError
from adacur.extras.engines.checked_store import CheckedStore, shown
from adacur.extras.engines.postgres import PostgresStore
from adacur.extras.engines.qdrant import QdrantStore
from adacur.extras.engines.store_urls import open_store
from adacur.records import Item
from tests.memory_store import MemoryStore
from tests.postgres_servers import running_postgres

Vectors = Mapping[str, np.ndarray]


class Tables(Protocol):
    """An engine: its collections by name. Ids are whole numbers, and an item's id is such a number as text."""

    def filled(self, name: str, items: Sequence[Item], vectors: Vectors) -> CheckedStore:
        """A new collection of these items and their vectors; metadata have the same names in all."""
        ...

    def opened(self, name: str) -> CheckedStore:
        """A store of a collection, which need not be there."""
        ...


class InMemory:
    def __init__(self, folder: Path) -> None:
        self._stores: dict[str, MemoryStore] = {}

    def filled(self, name: str, items: Sequence[Item], vectors: Vectors) -> CheckedStore:
        self._stores[name] = MemoryStore(items, vectors, name=name)
        return self.opened(name)

    def opened(self, name: str) -> CheckedStore:
        if name not in self._stores:
            raise InputError(f"There is no collection {shown(name)}.")
        return CheckedStore(self._stores[name])


class InQdrant:
    def __init__(self, folder: Path) -> None:
        qdrant = pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
        self._client, self._models = qdrant.QdrantClient(":memory:"), qdrant.models

    def filled(self, name: str, items: Sequence[Item], vectors: Vectors) -> CheckedStore:
        m = self._models
        sizes = {one: m.VectorParams(size=rows.shape[1], distance=m.Distance.DOT) for one, rows in vectors.items()}
        self._client.create_collection(name, vectors_config=sizes)
        points = [
            m.PointStruct(
                id=int(item.id),
                vector={one: rows[at].tolist() for one, rows in vectors.items()},
                payload={"text": item.text, **item.metadata},
            )
            for at, item in enumerate(items)
        ]
        self._client.upsert(name, points)
        return self.opened(name)

    def opened(self, name: str) -> CheckedStore:
        return CheckedStore(QdrantStore(name, client=self._client))


class InLanceDB:
    def __init__(self, folder: Path) -> None:
        self._lancedb = pytest.importorskip("lancedb", reason="the extra lancedb is not installed")
        self._folder = folder

    def filled(self, name: str, items: Sequence[Item], vectors: Vectors) -> CheckedStore:
        import pyarrow as pa

        columns: dict[str, Any] = {"id": [int(item.id) for item in items], "text": [item.text for item in items]}
        columns |= {one: [item.metadata[one] for item in items] for one in items[0].metadata}
        for one, rows in vectors.items():
            columns[one] = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])
        table = self._lancedb.connect(self._folder).create_table(name, pa.table(columns))
        table.create_index("text", config=self._lancedb.index.FTS())
        return self.opened(name)

    def opened(self, name: str) -> CheckedStore:
        url = f"lancedb://{quote(self._folder.as_posix())}/{quote(name, safe='', errors='surrogatepass')}"
        return open_store(url)


class InPostgres:
    def __init__(self, folder: Path) -> None:
        self._server = running_postgres()
        self._url = self._server.new_database()
        self.run("CREATE EXTENSION vector")

    def run(self, statement: str) -> None:
        self._server.run(statement, self._url)

    def filled(self, name: str, items: Sequence[Item], vectors: Vectors) -> CheckedStore:
        import psycopg
        from psycopg import sql

        kinds = {one: _kind(items[0].metadata[one]) for one in items[0].metadata}
        kinds |= {one: f"vector({rows.shape[1]})" for one, rows in vectors.items()}
        columns = ["id", "text", *kinds]
        declared = [sql.SQL("{} {}").format(sql.Identifier(one), sql.SQL(kind)) for one, kind in kinds.items()]
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(
                sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, text text, {})").format(
                    sql.Identifier(name), sql.SQL(", ").join(declared)
                )
            )
            copy = sql.SQL("COPY {} ({}) FROM STDIN").format(
                sql.Identifier(name), sql.SQL(", ").join(map(sql.Identifier, columns))
            )
            with connection.cursor().copy(copy) as stream:
                for at, item in enumerate(items):
                    sent = [str(rows[at].tolist()) for rows in vectors.values()]
                    stream.write_row([int(item.id), item.text, *item.metadata.values(), *sent])
        return self.opened(name)

    def opened(self, name: str) -> CheckedStore:
        import psycopg

        return CheckedStore(PostgresStore(partial(psycopg.connect, self._url), name))


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"{_kind(value[0])}[]"
    return {bool: "boolean", int: "integer", str: "text"}[type(value)]


ENGINES: Mapping[str, type[Tables]] = {
    "memory": InMemory,
    "qdrant": InQdrant,
    "lancedb": InLanceDB,
    "postgres": InPostgres,
}
