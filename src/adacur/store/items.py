"""Items of an index, read on demand."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import IntArray, KeyArray
from adacur.data.stored import read_array
from adacur.errors import UnknownName
from adacur.protocols import Items
from adacur.records import Item
from adacur.store.database import KEYS, connect, damaged, every_id, metadata_of, reading
from adacur.store.writing import damage_reported

# Below SQLite's smallest default limit of bound parameters, 999.
_PARAMETERS = 900


class _ItemsById(Items):
    """Items whose known ids can be looked up."""

    @abstractmethod
    def known_positions(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of those ids that are there."""

    def positions(self, ids: Iterable[str]) -> IntArray:
        """The positions of these ids, in that order."""
        names = list(ids)
        known = self.known_positions(names)
        if missing := [id_ for id_ in names if id_ not in known]:
            raise UnknownName(f"No item has the id {missing[0]!r}.")
        return np.fromiter((known[id_] for id_ in names), dtype=np.intp, count=len(names))


class StoredItems(_ItemsById):
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
            return tuple(every_id(connection, self._folder))

    @cached_property
    def keys(self) -> KeyArray:
        """A random key per item, as stored with them."""
        with damage_reported(str(self._folder / KEYS)):
            keys: KeyArray = read_array(self._folder / KEYS, kind="u", mapped=True)
            if keys.shape != (len(self),) or keys.dtype != np.uint64:
                raise ValueError(f"it holds {keys.dtype} of shape {keys.shape} for {len(self)} items")
        # A plain view: slicing a np.memmap takes microseconds each time.
        return np.asarray(keys)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def _length(self) -> int:
        # The largest key is one look-up; COUNT would walk the whole table.
        with self._connected() as connection:
            return int(connection.execute("SELECT coalesce(max(position) + 1, 0) FROM items").fetchone()[0])

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        places = [int(position) for position in positions]
        columns = "SELECT position, id, text, metadata FROM items WHERE position"
        items: dict[int, Item] = {}
        for position, id_, text, metadata in self._select_in(columns, places):
            try:
                about = metadata_of(metadata)
            except (ValueError, TypeError, RecursionError) as error:
                raise damaged(self._folder, f"the metadata of item {id_!r} is not JSON ({error})") from error
            if not (isinstance(id_, str) and isinstance(text, str) and isinstance(about, dict)):
                kinds = ", ".join(type(value).__name__ for value in (id_, text, about))
                raise damaged(self._folder, f"id, text and metadata of item {id_!r} are {kinds}; not str, str, dict")
            items[position] = Item(id=id_, text=text, metadata=about)
        try:
            return [items[position] for position in places]
        except KeyError as error:
            if 0 <= error.args[0] < len(self):
                raise damaged(self._folder, f"the item at position {error.args[0]} is missing") from None
            raise IndexError(f"There are {len(self)} items; none has position {error.args[0]}.") from None

    def known_positions(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of those ids that are there."""
        # Half a surrogate pair, and what is no text, is nobody's id; SQLite cannot even be asked.
        texts = [id_ for id_ in ids if isinstance(id_, str) and id_ == id_.encode(errors="replace").decode()]
        return dict(self._select_in("SELECT id, position FROM items WHERE id", texts))

    def _select_in(self, columns: str, keys: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(keys), _PARAMETERS):
            some = keys[start : start + _PARAMETERS]
            # Nothing is yielded under the lock, which a reader that stops early would keep.
            with self._connected() as connection:
                rows = connection.execute(f"{columns} IN ({','.join('?' * len(some))})", some).fetchall()
            yield from rows

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._folder):
            connection = self._connection or connect(self._folder)
            try:
                yield connection
            finally:
                if self._connection is None:
                    connection.close()


class PartItems(_ItemsById):
    """The items of a version, which lie in several folders; read on demand and safe to share among threads.

    `rows` has, per folder, the position of each of its items in the version, or -1 where another folder has it or none.
    """

    def __init__(self, stores: Sequence[StoredItems], rows: Sequence[IntArray]) -> None:
        self._stores = tuple(stores)
        self._rows = tuple(rows)
        self._length = sum(int(np.count_nonzero(positions >= 0)) for positions in rows)
        self._store_of = np.full(self._length, -1, dtype=np.int32)
        self._row_of = np.full(self._length, -1, dtype=np.int64)
        for number, positions in enumerate(rows):
            live = np.flatnonzero(positions >= 0)
            self._store_of[positions[live]] = number
            self._row_of[positions[live]] = live

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
        """A random key per item, as stored with them."""
        keys = np.empty(self._length, dtype=np.uint64)
        for store, rows in zip(self._stores, self._rows, strict=True):
            live = np.flatnonzero(rows >= 0)
            keys[rows[live]] = store.keys[live]
        return keys

    def __len__(self) -> int:
        return self._length

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        places = np.fromiter(positions, dtype=np.int64)
        beyond = (places < 0) | (places >= self._length)
        if beyond.any():
            raise IndexError(f"There are {self._length} items; none has position {places[beyond][0]}.")
        items: dict[int, Item] = {}
        stores, rows = self._store_of[places], self._row_of[places]
        for number in np.unique(stores).tolist():
            here = np.flatnonzero(stores == number)
            items |= zip(here.tolist(), self._stores[number].at(rows[here].tolist()), strict=True)
        return [items[at] for at in range(len(places))]

    def known_positions(self, ids: Sequence[str]) -> dict[str, int]:
        """The positions of those ids that are there."""
        return {
            id_: position
            for store, rows in zip(self._stores, self._rows, strict=True)
            for id_, row in store.known_positions(ids).items()
            if (position := int(rows[row])) >= 0
        }
