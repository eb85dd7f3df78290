"""Items, anchor queries and finished blocks in SQLite."""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import IntArray, KeyArray
from adacur.core.errors import DamagedIndex, DuplicateId, EmptyInput, InputError, UnknownName
from adacur.core.records import Item, Query
from adacur.core.seeds import item_keys
from adacur.index.manifest import Manifest

__all__ = [
    "DATABASE",
    "PartItems",
    "StoredItems",
    "check_room",
    "connect",
    "digest_items",
    "digest_texts",
    "error_is_full",
    "load",
    "metadata_as_json",
    "read_texts",
    "reading",
    "seal",
]

DATABASE = "items.sqlite"
# Below SQLite's smallest default limit of bound parameters, 999.
_PARAMETERS = 900
_ITEMS_AT_ONCE = 1024
# How a rollback journal ends that belongs to several databases; adacur writes none.
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
_SCHEMA = (
    "CREATE TABLE items (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL, "
    "metadata TEXT NOT NULL)",
    "CREATE TABLE anchors (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, text TEXT NOT NULL)",
    "CREATE TABLE blocks (block INTEGER PRIMARY KEY, digest TEXT NOT NULL, pairs INTEGER NOT NULL, "
    "seconds REAL NOT NULL)",
)


class StoredItems:
    """The items of an index folder, read on demand; safe to share among threads.

    With `keep_open` it holds a file handle: a folder that is replaced under a running server does not mix texts.
    """

    def __init__(self, folder: Path, *, keep_open: bool = True) -> None:
        self._folder = folder
        self._connection = connect(folder) if keep_open else None
        self._lock = threading.Lock()
        if self._connection is not None:
            weakref.finalize(self, self._connection.close)

    @cached_property
    def ids(self) -> Sequence[str]:
        """The ids by position, read once."""
        with self._connected() as connection:
            return tuple(self._every_id(connection))

    @cached_property
    def keys(self) -> KeyArray:
        """A random key per item, computed once."""
        # Not from `ids`, which would stay: a string takes ten times as much memory as a key.
        with self._connected() as connection:
            return item_keys(self._every_id(connection))

    def _every_id(self, connection: sqlite3.Connection) -> Iterator[str]:
        rows = connection.execute("SELECT position, id FROM items ORDER BY position")
        for expected, (position, id_) in enumerate(rows):
            if position != expected or not isinstance(id_, str):
                raise _damaged(self._folder, f"the item after {expected} others has position {position} and id {id_!r}")
            yield id_

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Item:
        return _item_at(self, position)

    def __iter__(self) -> Iterator[Item]:
        return _one_by_one(self)

    @cached_property
    def _length(self) -> int:
        # The largest key is one look-up; COUNT would walk the whole table.
        return int(self._select("SELECT coalesce(max(position) + 1, 0) FROM items")[0][0])

    def _item(self, id_: Any, text: Any, metadata: Any) -> Item:
        try:
            about = json.loads(metadata)
        except (ValueError, TypeError, RecursionError) as error:
            raise _damaged(self._folder, f"the metadata of item {id_!r} is not JSON ({error})") from error
        if not (isinstance(id_, str) and isinstance(text, str) and isinstance(about, dict)):
            kinds = ", ".join(type(value).__name__ for value in (id_, text, about))
            raise _damaged(self._folder, f"id, text and metadata of item {id_!r} are {kinds}; not str, str, dict")
        return Item(id=id_, text=text, metadata=about)

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        wanted = [int(position) for position in positions]
        columns = "SELECT position, id, text, metadata FROM items WHERE position"
        found = {
            position: self._item(id_, text, metadata)
            for position, id_, text, metadata in self._select_in(columns, wanted)
        }
        try:
            return [found[position] for position in wanted]
        except KeyError as error:
            if 0 <= error.args[0] < len(self):
                raise _damaged(self._folder, f"the item at position {error.args[0]} is missing") from None
            raise IndexError(f"There are {len(self)} items; none has position {error.args[0]}.") from None

    def positions(self, ids: Iterable[str]) -> IntArray:
        """The positions of these ids, in that order."""
        wanted = list(ids)
        return _in_order(wanted, self.found(wanted))

    def found(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of those ids that are there."""
        return dict(self._select_in("SELECT id, position FROM items WHERE id", ids))

    def _select_in(self, columns: str, wanted: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(wanted), _PARAMETERS):
            some = wanted[start : start + _PARAMETERS]
            yield from self._select(f"{columns} IN ({','.join('?' * len(some))})", some)

    def _select(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self._connected() as connection:
            return connection.execute(sql, parameters).fetchall()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._folder):
            if self._connection is not None:
                yield self._connection
                return
            with contextlib.closing(connect(self._folder)) as connection:
                yield connection


class PartItems:
    """The items of a version, which lie in several folders; read on demand and safe to share among threads.

    `rows` has, per folder, the position of each of its items in the version, or -1 where another folder has it or none.
    """

    def __init__(self, stores: Sequence[StoredItems], rows: Sequence[IntArray]) -> None:
        self._stores = tuple(stores)
        self._rows = tuple(rows)
        self._length = sum(int(np.count_nonzero(own >= 0)) for own in rows)
        self._store_of = np.full(self._length, -1, dtype=np.int32)
        self._row_of = np.full(self._length, -1, dtype=np.int64)
        for number, own in enumerate(rows):
            live = np.flatnonzero(own >= 0)
            self._store_of[own[live]] = number
            self._row_of[own[live]] = live

    @cached_property
    def ids(self) -> Sequence[str]:
        """The ids by position, read once."""
        ids = [""] * self._length
        for store, rows in zip(self._stores, self._rows, strict=True):
            for position, id_ in zip(rows.tolist(), store.ids, strict=True):
                if position >= 0:
                    ids[position] = id_
        return tuple(ids)

    @cached_property
    def keys(self) -> KeyArray:
        """A random key per item, computed once."""
        # Not from `ids`, for the same reason as there.
        keys = np.empty(self._length, dtype=np.uint64)
        for store, rows in zip(self._stores, self._rows, strict=True):
            live = np.flatnonzero(rows >= 0)
            keys[rows[live]] = store.keys[live]
        return keys

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: int) -> Item:
        return _item_at(self, position)

    def __iter__(self) -> Iterator[Item]:
        return _one_by_one(self)

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        wanted = np.fromiter(positions, dtype=np.int64)
        beyond = (wanted < 0) | (wanted >= self._length)
        if beyond.any():
            raise IndexError(f"There are {self._length} items; none has position {wanted[beyond][0]}.")
        found: list[Item | None] = [None] * len(wanted)
        stores, rows = self._store_of[wanted], self._row_of[wanted]
        for number in np.unique(stores).tolist():
            places = np.flatnonzero(stores == number)
            for place, item in zip(places.tolist(), self._stores[number].at(rows[places].tolist()), strict=True):
                found[place] = item
        return [item for item in found if item is not None]

    def positions(self, ids: Iterable[str]) -> IntArray:
        """The positions of these ids, in that order."""
        wanted = list(ids)
        return _in_order(wanted, self.found(wanted))

    def found(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of those ids that are there."""
        return {
            id_: position
            for store, rows in zip(self._stores, self._rows, strict=True)
            for id_, row in store.found(ids).items()
            if (position := int(rows[row])) >= 0
        }


def _item_at(items: StoredItems | PartItems, position: int) -> Item:
    at, n = operator.index(position), len(items)
    if not -n <= at < n:
        raise IndexError(f"There are {n} items; none has position {at}.")
    return items.at([at % n])[0]


def _one_by_one(items: StoredItems | PartItems) -> Iterator[Item]:
    for start in range(0, len(items), _ITEMS_AT_ONCE):
        yield from items.at(range(start, min(start + _ITEMS_AT_ONCE, len(items))))


def _in_order(ids: Sequence[str], found: Mapping[str, int]) -> IntArray:
    try:
        return np.fromiter((found[id_] for id_ in ids), dtype=np.intp, count=len(ids))
    except KeyError as error:
        raise UnknownName(f"No item has the id {error.args[0]!r}.") from None


def connect(folder: Path, *, writable: bool = False) -> sqlite3.Connection:
    """A connection to a folder's database: without implicit transactions, closed by whoever asked for it."""
    _check_journal(folder)
    uri = f"{(folder / DATABASE).resolve().as_uri()}?mode={'rwc' if writable else 'ro'}"
    with reading(folder):
        connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        try:
            # A block that is recorded must survive a power cut, since its record is what a resumed build trusts.
            connection.execute("PRAGMA synchronous = FULL")
            _check_schema(connection, folder)
        except (sqlite3.Error, DamagedIndex):
            connection.close()
            raise
        return connection


def _check_journal(folder: Path) -> None:
    """Refuse a journal that names another file: SQLite would delete that file when it rolls the journal back."""
    try:
        with (folder / f"{DATABASE}-journal").open("rb") as journal:
            journal.seek(max(0, journal.seek(0, 2) - len(_SUPER_JOURNAL)))
            if journal.read() == _SUPER_JOURNAL:
                raise _damaged(folder, "its journal names another file")
    except FileNotFoundError:
        return
    except OSError as error:
        raise _damaged(folder, f"its journal cannot be read ({error})") from error


def _check_schema(connection: sqlite3.Connection, folder: Path) -> None:
    """Refuse tables that are not as they were made: a view or a trigger is SQL of somebody else, run by a look-up."""
    found = connection.execute("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    if foreign := [sql for kind, sql in found if kind != "table" or sql not in _SCHEMA]:
        raise _damaged(folder, f"it was not made by adacur: {str(foreign[0])[:80]!r}")


def check_room(folder: Path, manifest: Manifest) -> None:
    """Refuse counts that the database has no room for, before memory is taken for them."""
    try:
        size = (folder / DATABASE).stat().st_size
    except OSError as error:
        raise _damaged(folder, str(error)) from error
    if max(manifest.n_items, manifest.n_anchors) > size:
        raise _damaged(
            folder,
            f"its {size} bytes cannot hold {manifest.n_items} items and {manifest.n_anchors} anchor queries, as the "
            "manifest says",
        )


def _damaged(folder: Path, what: str) -> DamagedIndex:
    return DamagedIndex(
        f"{folder / DATABASE} cannot be read: {what}. Restore it from a copy, or build the index again elsewhere."
    )


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Tell a database that cannot be read as damage to the folder."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if error_is_full(error):
            raise
        raise _damaged(folder, str(error)) from error


def error_is_full(error: sqlite3.Error) -> bool:
    """Whether SQLite stopped for want of space."""
    # The second is what it says when there is no room for the shared memory beside a write-ahead log.
    return getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


def load(
    connection: sqlite3.Connection, items: Iterable[Item], anchors: Sequence[Query], *, check: Callable[[Item], None]
) -> tuple[int, str, str]:
    """Stream items and anchors into an empty database in one transaction; returns count and both digests."""
    digest = _fresh_digest()
    count = 0
    latest = ""

    def rows() -> Iterator[tuple[int, str, str, str]]:
        nonlocal count, latest
        for item in items:
            check(item)
            latest = item.id
            digest.update(_framed(item.id, item.text))
            yield count, item.id, item.text, metadata_as_json(item)
            count += 1

    connection.execute("BEGIN")
    try:
        for statement in _SCHEMA:
            connection.execute(statement)
        try:
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?)", rows())
        except sqlite3.IntegrityError:
            raise DuplicateId(f"Item ids must be unique; {latest!r} occurs more than once.") from None
        if not count:
            raise EmptyInput("There are no items. Give at least one.")
        connection.executemany(
            "INSERT INTO anchors VALUES (?, ?, ?)",
            ((position, query.id, query.text) for position, query in enumerate(anchors)),
        )
        connection.execute("COMMIT")
    finally:
        # SQLite rolls back on some errors by itself, a full disk among them.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    # Only now: in one large transaction a write-ahead log would hold a second copy of the collection.
    connection.execute("PRAGMA journal_mode = WAL")
    return count, digest.hexdigest(), digest_texts((query.id, query.text) for query in anchors)


def seal(connection: sqlite3.Connection) -> None:
    """Fold the write-ahead log into the database, so that a finished folder can be read from read-only media."""
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        # Somebody is reading; the log stays and is folded in by whoever closes last.
        if error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise


def read_texts(connection: sqlite3.Connection, table: str, *, folder: Path) -> Iterator[tuple[str, str]]:
    """(id, text) of "items" or "anchors", by position, one at a time."""
    with reading(folder):
        # One by one: `yield from` would close the cursor of a reader who stops early, perhaps after its connection.
        for id_, text in connection.execute(f"SELECT id, text FROM {table} ORDER BY position"):
            if not (isinstance(id_, str) and isinstance(text, str)):
                kinds = f"{type(id_).__name__} and {type(text).__name__}"
                raise _damaged(folder, f"id and text of {id_!r} in {table} are {kinds}, not str")
            yield id_, text


def digest_texts(texts: Iterable[tuple[str, str]]) -> str:
    """A digest of ids and texts in their order."""
    digest = _fresh_digest()
    for id_, text in texts:
        digest.update(_framed(id_, text))
    return str(digest.hexdigest())


def digest_items(items: Iterable[Item]) -> str:
    """A digest of ids, texts and metadata in their order."""
    return digest_texts(part for item in items for part in ((item.id, item.text), ("metadata", metadata_as_json(item))))


def _fresh_digest() -> Any:
    return hashlib.blake2b(digest_size=16)


def _framed(id_: str, text: str) -> bytes:
    """Both parts with their lengths: ("ab", "c") and ("a", "bc") must differ."""
    parts = (id_.encode(), text.encode())
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def metadata_as_json(item: Item) -> str:
    """An item's metadata as it is stored; what is no JSON is refused."""
    try:
        return json.dumps(dict(item.metadata))
    except (TypeError, ValueError) as error:
        raise InputError(f"Metadata must be JSON; that of item {item.id!r} is not: {error}") from error
