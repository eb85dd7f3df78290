"""What searches paid for, in a file where `log=` names one: the query, the items scored and their scores."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import FileFormatError, IndexFolderError
from adacur.core.protocols import Items, ScorerCard
from adacur.core.records import Query
from adacur.core.results import Hits

_APPLICATION = int.from_bytes(b"ACsl", "big")
_SCHEMA = (
    "CREATE TABLE scorers (id INTEGER PRIMARY KEY, card TEXT NOT NULL UNIQUE)",
    "CREATE TABLE searches (id INTEGER PRIMARY KEY, at REAL NOT NULL, scorer INTEGER NOT NULL, query TEXT NOT NULL, "
    "items TEXT NOT NULL, digests BLOB NOT NULL, scores BLOB NOT NULL)",
    f"PRAGMA application_id = {_APPLICATION}",
)
_DIGEST = 8
_SECONDS_TO_WAIT = 60.0


class SearchLogWarning(UserWarning):
    """A search was answered but could not be logged."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSearch:
    """A search that was paid for. `digests` tell the items' texts as they were scored; `at` is in Unix seconds."""

    query: Query
    card: ScorerCard
    at: float
    ids: tuple[str, ...]
    digests: tuple[bytes, ...]
    scores: FloatArray


def text_digest(text: str) -> bytes:
    """Tells an item whose text has changed from the one that was scored."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()


class SearchLog:
    """An SQLite file of searches, made if there is none; many threads and processes may write to it at once.

    It holds the texts of the queries. Delete the file to forget them all, or `forget` one.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self._connected() as connection:
                self._prepare(connection)
        except sqlite3.DatabaseError as error:
            raise FileFormatError(f"{self.path} cannot be used as a search log: {error}.") from error

    def add(self, answers: Sequence[Hits], *, items: Items, card: ScorerCard) -> None:
        """Log searches over these items; what cannot be written is a warning, and no search fails for it."""
        rows = []
        for hits in answers:
            if not hits.trace.calls:
                continue
            scores = np.concatenate([round_.exact for round_ in hits.trace.rounds]).astype("<f8")
            scored = [item for round_ in hits.trace.rounds for item in round_.scored_items(items)]
            ids = json.dumps([item.id for item in scored], ensure_ascii=False)
            digests = b"".join(text_digest(item.text) for item in scored)
            rows.append((time.time(), hits.query.text, ids, digests, scores.tobytes()))
        if not rows:
            return
        card_json = json.dumps(asdict(replace(card, source=None)), sort_keys=True)
        try:
            with self._connected() as connection:
                # Somebody may have deleted the file, which is how a log is forgotten.
                self._prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT OR IGNORE INTO scorers (card) VALUES (?)", (card_json,))
                scorer = connection.execute("SELECT id FROM scorers WHERE card = ?", (card_json,)).fetchone()[0]
                connection.executemany(
                    "INSERT INTO searches (scorer, at, query, items, digests, scores) "
                    f"VALUES ({scorer}, ?, ?, ?, ?, ?)",
                    rows,
                )
                connection.execute("COMMIT")
        except (sqlite3.Error, FileFormatError) as error:
            warnings.warn(
                f"{len(rows)} searches are not logged in {self.path}: {error}.", SearchLogWarning, stacklevel=3
            )

    def __iter__(self) -> Iterator[LoggedSearch]:
        """The searches, oldest first."""
        known = {field.name for field in fields(ScorerCard)}
        try:
            with self._connected() as connection:
                for at, card, query, ids, digests, scores in connection.execute(
                    "SELECT at, card, query, items, digests, scores FROM searches JOIN scorers ON scorer = scorers.id "
                    "ORDER BY searches.id"
                ):
                    values = json.loads(card)
                    yield LoggedSearch(
                        query=Query(id=f"log-{text_digest(query).hex()}", text=query),
                        card=ScorerCard(**{name: values[name] for name in known & values.keys()}),
                        at=at,
                        ids=tuple(json.loads(ids)),
                        digests=tuple(digests[start : start + _DIGEST] for start in range(0, len(digests), _DIGEST)),
                        scores=np.frombuffer(scores, dtype="<f8").astype(np.float64),
                    )
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise IndexFolderError(f"The search log {self.path} cannot be read: {error}.") from error

    def __len__(self) -> int:
        with self._connected() as connection:
            return int(connection.execute("SELECT count(*) FROM searches").fetchone()[0])

    def forget(self, queries: Iterable[str]) -> int:
        """Delete every search for one of these texts, and overwrite it on the disk; how many there were."""
        with self._connected() as connection:
            connection.execute("PRAGMA secure_delete = ON")
            before = connection.total_changes
            connection.executemany("DELETE FROM searches WHERE query = ?", ((text,) for text in queries))
            gone = connection.total_changes - before
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # A connection of its own for each use: safe among threads, and in a process that was forked.
        # It holds the texts of queries.
        with contextlib.suppress(OSError):
            self.path.touch(mode=0o600)
        connection = sqlite3.connect(self.path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        try:
            yield connection
        finally:
            connection.close()

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make the tables of a new file; a file of something else is refused, and not written to."""
        if self._is_log(connection):
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have made them while this one waited.
        if not self._is_log(connection):
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")

    def _is_log(self, connection: sqlite3.Connection) -> bool:
        # Counted first: another process may make the log between two looks at the file.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
            return True
        if tables:
            raise FileFormatError(f"{self.path} is a database of something else. Give another file for the log.")
        return False
