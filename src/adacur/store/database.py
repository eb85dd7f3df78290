"""The SQLite database of an index folder: items, anchor queries and the record of finished blocks."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.as_json import as_json
from adacur.errors import DamagedIndex, DuplicateId, IndexFolderError, InputError
from adacur.records import Item, Query, check_item, repeats
from adacur.seeds import item_keys
from adacur.store.writing import is_full, sync_path

DATABASE = "items.sqlite"
# The random keys of the items, which every search needs: reading and hashing all ids takes a second for a million.
KEYS = "keys.npy"
_DEEPEST, _KEYS_AT_ONCE = 100, 8192
_SCHEMA = (
    "CREATE TABLE items (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL)",
    "CREATE TABLE anchors (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL)",
)


def connect(folder: Path) -> sqlite3.Connection:
    """A connection to a folder's database, which nobody writes to any more; the caller closes it."""
    # Immutable: whatever lies next to it, such as a journal that names another file, SQLite does not look at.
    uri = f"{(folder / DATABASE).resolve().as_uri()}?mode=ro&immutable=1"
    with reading(folder):
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            _check_schema(connection, folder)
        except (sqlite3.Error, DamagedIndex):
            connection.close()
            raise
        return connection


def _check_schema(connection: sqlite3.Connection, folder: Path) -> None:
    """Refuse tables that are not as they were made: a look-up would run the SQL of a view or a trigger."""
    tables = connection.execute("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if foreign := [sql for kind, sql in tables if kind != "table" or sql not in _SCHEMA]:
        raise damaged(folder, f"it was not made by adacur: {str(foreign[0])[:80]!r}")


def damaged(folder: Path, what: str) -> DamagedIndex:
    """The error for a database that cannot be read."""
    return DamagedIndex(
        f"{folder / DATABASE} cannot be read: {what}. Restore it from a copy, and keep the folder: the scores lie in "
        "scores, and `adacur inspect --verify` tells which of them are whole."
    )


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Report a database that is damaged, or that cannot be read as things are, as such."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if is_full(error):
            raise
        if (folder / DATABASE).exists() and not os.access(folder / DATABASE, os.R_OK):
            raise IndexFolderError(
                f"{folder / DATABASE} cannot be read here ({error}). Nothing is lost: check its permissions."
            ) from error
        raise damaged(folder, str(error)) from error


def load(folder: Path, items: Iterable[Item], anchors: Sequence[Query]) -> dict[str, Any]:
    """Stream items and anchor queries into a new database in one transaction, and write the items' keys next to it.

    Returns what a manifest says of them: `n_items`, `documents`, and the digests of ids with texts and of metadata.
    """
    digest, metadata_digest = _fresh_digest(), _fresh_digest()
    count = 0
    latest = ""

    def rows() -> Iterator[tuple[int, str, str, str]]:
        nonlocal count, latest
        for item in items:
            check_item(item)
            latest = item.id
            digest.update(_framed(item.id, item.text))
            metadata = metadata_as_json(item)
            metadata_digest.update(_framed(item.id, metadata))
            yield count, item.id, item.text, metadata
            count += 1

    with contextlib.closing(sqlite3.connect(folder / DATABASE, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        for statement in _SCHEMA:
            connection.execute(statement)
        try:
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows())
        except sqlite3.IntegrityError:
            again = repeats(item.id for item in items) if isinstance(items, Sequence) else f"{latest!r} occurs"
            raise DuplicateId(f"Item ids must be unique; {again} more than once.") from None
        queries = ((position, query.id, query.text) for position, query in enumerate(anchors))
        connection.executemany("INSERT INTO anchors VALUES (?, ?, ?)", queries)
        connection.execute("COMMIT")
        documents = _count_documents(connection)
        ids = every_id(connection, folder)
        # Not through a mapping: on a full disk, that would end the process.
        with (folder / KEYS).open("wb") as file:
            about = {"descr": np.dtype(np.uint64).str, "fortran_order": False, "shape": (count,)}
            np.lib.format.write_array_header_1_0(file, about)
            for _ in range(0, count, _KEYS_AT_ONCE):
                file.write(item_keys(itertools.islice(ids, _KEYS_AT_ONCE)).data)
    sync_path(folder / KEYS)
    return {
        "n_items": count,
        "documents": documents,
        "items_digest": digest.hexdigest(),
        "metadata_digest": metadata_digest.hexdigest(),
        "anchors_digest": digest_texts((query.id, query.text) for query in anchors),
    }


def _count_documents(connection: sqlite3.Connection) -> int | None:
    """How many documents the items belong to; None where no item names one."""
    named = "CASE WHEN json_type(metadata, '$.document') = 'text' THEN nullif(metadata ->> '$.document', '') END"
    documents, n_named = connection.execute(
        f"SELECT count(DISTINCT coalesce({named}, id)), count({named}) FROM items"
    ).fetchone()
    return int(documents) if n_named else None


def read_texts(
    connection: sqlite3.Connection, table: str, *, folder: Path, column: str = "text"
) -> Iterator[tuple[str, str]]:
    """(id, text) of "items" or "anchors", by position, one at a time; or another column in place of the text."""
    with reading(folder):
        # One by one: `yield from` would close the cursor of a reader that stops early, perhaps after its connection.
        rows = connection.execute(f"SELECT position, id, {column} FROM {table} ORDER BY position")
        for count, (position, id_, text) in enumerate(rows):
            if position != count or not (isinstance(id_, str) and isinstance(text, str)):
                what = f"position {position}, id {id_!r} and {column} {str(text)[:60]!r}"
                raise damaged(folder, f"in {table}, {what} come after {count} others")
            yield id_, text


def every_id(connection: sqlite3.Connection, folder: Path) -> Iterator[str]:
    """The ids of the items, by position."""
    return (id_ for id_, _ in read_texts(connection, "items", folder=folder, column="id"))


def digest_texts(texts: Iterable[tuple[str, str]]) -> str:
    """A digest of ids and texts in their order."""
    digest = _fresh_digest()
    for id_, text in texts:
        digest.update(_framed(id_, text))
    return str(digest.hexdigest())


def digest_given(items: Iterable[Item]) -> str:
    """A digest of ids, texts and metadata in their order."""
    return digest_texts(part for item in items for part in ((item.id, item.text), ("metadata", metadata_as_json(item))))


def _fresh_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def _framed(id_: str, text: str) -> bytes:
    """Both parts with their lengths: ("ab", "c") and ("a", "bc") must differ."""
    parts = (id_.encode(), text.encode())
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def metadata_as_json(item: Item) -> str:
    """An item's metadata as it is stored; anything but JSON is refused. NaN, which JSON has not, becomes null."""
    try:
        text = json.dumps(dict(item.metadata))
        if "NaN" in text or "Infinity" in text:
            text = json.dumps(as_json(json.loads(text)))
        metadata_of(text)
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"Metadata must be JSON; that of item {item.id!r} is not: {error}") from error


def metadata_of(text: str) -> Any:
    """Metadata as they are stored; a ValueError where they are nested so deeply that others could not walk them."""
    value = json.loads(text)
    layer = [value] if text.count("[") + text.count("{") > _DEEPEST else []
    for _ in range(_DEEPEST):
        layer = [
            one for of in layer for one in (of.values() if isinstance(of, dict) else of if isinstance(of, list) else ())
        ]
    if layer:
        raise ValueError(f"it is nested more than {_DEEPEST} deep")
    return value
