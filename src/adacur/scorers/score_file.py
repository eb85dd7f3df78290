"""The SQLite file in which `Cached` keeps scores."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import AdacurError, FileFormatError, InputError, StorageFull
from adacur.records import Pair

# With the number of the format.
_APPLICATION = int.from_bytes(b"ACs1", "big")
_SCHEMA = (
    "CREATE TABLE scorers (id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, card TEXT NOT NULL)",
    # The bytes of the float: SQLite's own numbers know no float32 and lose the sign of zero.
    "CREATE TABLE scores (scorer INTEGER NOT NULL, query BLOB NOT NULL, item BLOB NOT NULL, "
    "score BLOB NOT NULL CHECK (length(score) IN (2, 4, 8)), PRIMARY KEY (scorer, query, item)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
)
_DIGEST = 16
_KEYS_PER_LOOK_UP = 1000
_SECONDS_TO_WAIT = 60.0
_CACHE_BYTES = 64 * 2**20
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)
# SQLite forbids a forked child even to close the connections of its parent.
_of_the_parent: list[sqlite3.Connection] = []


def _digest(text: str, kind: bytes) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST, person=kind).digest()


def look_up(n: int) -> str:
    """The statement that finds n pairs, by the digests of each, then the scorer."""
    values = ", ".join(["(?, ?)"] * n)
    # CROSS JOIN: for (query, item) IN (VALUES …) SQLite reads every score of the scorer, .1 s for a million.
    return (
        f"WITH wanted (query, item) AS (VALUES {values}) SELECT scores.query, scores.item, score FROM wanted "
        "CROSS JOIN scores ON scorer = ? AND scores.query = wanted.query AND scores.item = wanted.item"
    )


class ScoreFile:
    """The scores of one scorer, which `identity` describes, by the texts of pairs; processes may share the file."""

    def __init__(self, path: Path, *, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._scorer = 0
        with self._connected():
            pass

    def keys(self, pairs: Sequence[Pair]) -> list[bytes]:
        """The digest of each query followed by that of its item."""
        queries = {query.text: _digest(query.text, b"query") for query, _ in pairs}
        items = {item.text: _digest(item.text, b"item") for _, item in pairs}
        return [queries[query.text] + items[item.text] for query, item in pairs]

    def find(self, keys: Sequence[bytes]) -> dict[bytes, np.floating]:
        """The scores of those keys that have one, in the floating types in which they were stored."""
        scores: dict[bytes, np.floating] = {}
        for start in range(0, len(keys), _KEYS_PER_LOOK_UP):
            halves = [
                half for key in keys[start : start + _KEYS_PER_LOOK_UP] for half in (key[:_DIGEST], key[_DIGEST:])
            ]
            with self._connected() as connection:
                rows = connection.execute(look_up(len(halves) // 2), (*halves, self._scorer)).fetchall()
            for query, item, score in rows:
                scores[query + item] = self._number(score)
        return scores

    def _number(self, stored: object) -> np.floating:
        # SQLite lets a column of bytes hold a text, and checks no length of bytes that changed on the disk.
        if isinstance(stored, bytes) and len(stored) in (2, 4, 8):
            number: np.floating = np.frombuffer(stored, dtype=f"<f{len(stored)}")[0]
            if np.isfinite(number):
                return number
        raise FileFormatError(f"{self._path} holds a score that is not a number. Give another path.")

    def add(self, keys: Sequence[bytes], scores: FloatArray) -> None:
        """Store one score per key, all or none; scores that another process stored first stay."""
        values = scores.astype(scores.dtype.newbyteorder("<"))
        # In the order of the table, so that each of its pages is visited once.
        rows = sorted(
            (self._scorer, key[:_DIGEST], key[_DIGEST:], value.tobytes())
            for key, value in zip(keys, values, strict=True)
        )
        with self._connected() as connection, _transaction(connection):
            connection.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?, ?, ?)", rows)

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._process == os.getpid():
                self._closing()
                self._connection = None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._connection is not None and self._process != os.getpid():
                self._closing.detach()
                _of_the_parent.append(self._connection)
                self._connection = None
            try:
                if self._connection is None:
                    self._connection, self._scorer = self._open()
                    self._process = os.getpid()
                yield self._connection
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _open(self) -> tuple[sqlite3.Connection, int]:
        # What was scored is private; SQLite gives the files that it makes beside this one the same mode.
        with contextlib.suppress(OSError):
            self._path.touch(mode=0o600)
        connection = sqlite3.connect(
            f"{self._path.resolve().as_uri()}?mode=rwc",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
            timeout=_SECONDS_TO_WAIT,
        )
        try:
            if not self._has_tables(connection):
                with _transaction(connection):
                    # Another process may have created them meanwhile.
                    for statement in () if self._has_tables(connection) else _SCHEMA:
                        connection.execute(statement)
            # Readers need not wait for a writer. If another process is setting this right now, that serves both.
            with contextlib.suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            # The newest scores may be lost in a power cut, never in a crash, and the file stays whole in both.
            connection.execute("PRAGMA synchronous = NORMAL")
            # SQLite's default of 2 MB would be read over and over where keys are hashes.
            connection.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            scorer = self._scorer_id(connection)
        except BaseException:
            connection.close()
            raise
        self._closing = weakref.finalize(self, connection.close)
        return connection, scorer

    def _has_tables(self, connection: sqlite3.Connection) -> bool:
        # In this order: another process may create the tables, and the number with them, between the two.
        tables = connection.execute("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        # A view or a trigger is foreign SQL, which a look-up would run.
        strange = any(kind != "table" or sql not in _SCHEMA for kind, sql in tables)
        if strange or (tables and application != _APPLICATION):
            raise FileFormatError(f"{self._path} is an SQLite database, but not a score cache. Give another path.")
        return bool(tables)

    def _scorer_id(self, connection: sqlite3.Connection) -> int:
        fingerprint = _digest(self._identity, b"scorer")
        select = "SELECT id FROM scorers WHERE fingerprint = ?"
        if (row := connection.execute(select, (fingerprint,)).fetchone()) is None:
            insert = "INSERT OR IGNORE INTO scorers (fingerprint, card) VALUES (?, ?)"
            connection.execute(insert, (fingerprint, self._identity))
            row = connection.execute(select, (fingerprint,)).fetchone()
        return int(row[0])

    def _explained(self, error: sqlite3.Error) -> AdacurError:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _FULL:
            return StorageFull(f"The disk of the score cache {self._path} is full: {error}. Free some space.")
        if code & 0xFF in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
            return FileFormatError(f"{self._path} is not a score cache, or damaged: {error}. Give another path.")
        advice = "It must be a file in an existing folder that can be written to."
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            advice = f"Another process held it for over {_SECONDS_TO_WAIT:.0f} s. Try again."
        return InputError(f"The score cache {self._path} cannot be used: {error}. {advice}")


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        # SQLite rolls back on some errors by itself, a full disk among them.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
