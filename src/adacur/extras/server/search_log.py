"""A log of searches: the query, the items scored and their scores, in the file that `log=` names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import is_whole
from adacur.data.stored import read_record
from adacur.errors import FileFormatError, IndexFolderError, InputError
from adacur.protocols import Items, ScorerCard
from adacur.records import Query
from adacur.results import Hits

_APPLICATION = int.from_bytes(b"ACsl", "big")
_SCHEMA = (
    "CREATE TABLE scorers (id INTEGER PRIMARY KEY, card TEXT NOT NULL UNIQUE)",
    "CREATE TABLE searches (id INTEGER PRIMARY KEY, at REAL NOT NULL, scorer INTEGER NOT NULL, query TEXT NOT NULL, "
    "items TEXT NOT NULL, digests BLOB NOT NULL, scores BLOB NOT NULL)",
    "CREATE INDEX by_time ON searches (at)",
    f"PRAGMA application_id = {_APPLICATION}",
)
# The prefix of the ids of logged queries.
LOGGED = "log-"
_DIGEST = 8
_SECONDS_TO_WAIT = 60.0
_SECONDS_OF_A_DAY = 86_400.0


class SearchLogWarning(UserWarning):
    """A search was answered but could not be logged."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedSearch:
    """A logged search. `digests` are hashes of the items' texts as they were scored; `at` is in Unix seconds."""

    query: Query
    card: ScorerCard
    at: float
    ids: tuple[str, ...]
    digests: tuple[bytes, ...]
    scores: FloatArray


def text_digest(text: str) -> bytes:
    """A hash that shows whether the text of an item has changed."""
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()


def _read_search(at: Any, card: Any, query: Any, items: Any, digests: Any, scores: Any) -> LoggedSearch:
    """A row of a log, checked: the file may come from anybody."""
    ids = msgspec.json.decode(items, type=list[str])
    if not (isinstance(query, str) and query.strip() and isinstance(at, float) and np.isfinite(at)):
        raise ValueError("a query or its time is missing")
    if not isinstance(digests, bytes) or len(digests) != _DIGEST * len(ids):
        raise ValueError(f"digests are not {_DIGEST} bytes for each of {len(ids)} items")
    numbers = np.frombuffer(scores, dtype="<f8").astype(np.float64)
    if len(numbers) != len(ids) or not np.isfinite(numbers).all():
        raise ValueError(f"scores are not {len(ids)} finite numbers")
    return LoggedSearch(
        query=Query(id=f"{LOGGED}{text_digest(query).hex()}", text=query),
        card=read_record(ScorerCard, json.loads(card)),
        at=at,
        ids=tuple(ids),
        digests=tuple(digests[start : start + _DIGEST] for start in range(0, len(digests), _DIGEST)),
        scores=numbers,
    )


class SearchLog:
    """An SQLite file of searches, created if missing; many threads and processes may write to it at once.

    It holds the texts of the queries. Delete the file to forget them all, or `forget` one.

    - `keep`: the largest number of searches that it holds, the newest; `days`: the age at which they are deleted;
    """

    def __init__(
        self,
        path: str | Path,
        *,
        keep: int = 20_000,
        days: float = 90.0,
    ) -> None:
        if not (is_whole(keep) and 1 <= keep < 2**63):
            raise InputError(f"keep, the number of searches that a log holds, must be 1 or more; got {keep!r}.")
        if not days > 0:
            raise InputError(f"days, the age at which logged searches are deleted, must be positive; got {days!r}.")
        self.path = Path(path)
        self.keep = keep
        self.days = days
        try:
            with self._connected() as connection:
                self._prepare(connection)
        except sqlite3.DatabaseError as error:
            raise FileFormatError(f"{self.path} cannot be used as a search log: {error}.") from error

    def add(self, answers: Sequence[Hits], *, items: Items, card: ScorerCard) -> int:
        """Log searches over these items; returns how many. A failure is a warning, so that no search fails."""
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
            return 0
        card_json = json.dumps(asdict(replace(card, source=None)), sort_keys=True)
        try:
            with self._connected() as connection:
                # The file may have been deleted, which is how a log is forgotten.
                self._prepare(connection)
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("INSERT OR IGNORE INTO scorers (card) VALUES (?)", (card_json,))
                scorer = connection.execute("SELECT id FROM scorers WHERE card = ?", (card_json,)).fetchone()[0]
                connection.executemany(
                    "INSERT INTO searches (scorer, at, query, items, digests, scores) "
                    f"VALUES ({scorer}, ?, ?, ?, ?, ?)",
                    rows,
                )
                connection.execute(
                    "DELETE FROM searches WHERE at < ? OR id <= (SELECT max(id) FROM searches) - ?",
                    (self._oldest(), self.keep),
                )
                connection.execute("COMMIT")
        except (sqlite3.Error, FileFormatError) as error:
            warnings.warn(
                f"{len(rows)} searches are not logged in {self.path}: {error}.", SearchLogWarning, stacklevel=3
            )
            return 0
        return len(rows)

    def newest_card(self) -> ScorerCard | None:
        """The card of the newest search's scorer; None for an empty log."""
        with self._reading() as connection:
            row = connection.execute(
                "SELECT card FROM searches JOIN scorers ON scorer = scorers.id ORDER BY searches.id DESC LIMIT 1"
            ).fetchone()
            return None if row is None else read_record(ScorerCard, json.loads(row[0]))

    def __iter__(self) -> Iterator[LoggedSearch]:
        """The searches, oldest first."""
        with self._reading() as connection:
            for row in connection.execute(
                "SELECT at, card, query, items, digests, scores FROM searches JOIN scorers ON scorer = scorers.id "
                "WHERE at >= ? ORDER BY searches.id",
                (self._oldest(),),
            ):
                yield _read_search(*row)

    def __len__(self) -> int:
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM searches").fetchone()[0])

    def forget(self, queries: Iterable[str]) -> int:
        """Delete every search for one of these texts, and overwrite it on the disk; returns how many."""
        with self._connected() as connection:
            before = connection.total_changes
            connection.executemany("DELETE FROM searches WHERE query = ?", ((text,) for text in queries))
            gone = connection.total_changes - before
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return gone

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """A connection; whatever cannot be read is an error that names the file."""
        try:
            with self._connected() as connection:
                yield connection
        except (sqlite3.Error, msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise IndexFolderError(f"The search log {self.path} cannot be read: {error}.") from error

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        # A new connection for each use is safe with threads and forks. Others must not read the texts of queries.
        with contextlib.suppress(OSError):
            self.path.touch(mode=0o600)
        connection = sqlite3.connect(self.path, timeout=_SECONDS_TO_WAIT, isolation_level=None)
        try:
            # Deleted rows are overwritten.
            connection.execute("PRAGMA secure_delete = ON")
            yield connection
        finally:
            connection.close()

    def _oldest(self) -> float:
        return time.time() - self.days * _SECONDS_OF_A_DAY

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Create the tables of a new file; any other file is refused, and not written to."""
        if self._is_log(connection):
            return
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        # Another process may have created them while this one waited.
        if not self._is_log(connection):
            for statement in _SCHEMA:
                connection.execute(statement)
        connection.execute("COMMIT")

    def _is_log(self, connection: sqlite3.Connection) -> bool:
        # Counted first, because another process may create the log between the two statements.
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if connection.execute("PRAGMA application_id").fetchone()[0] == _APPLICATION:
            # These would run, perhaps for ever, whenever a search is logged or read.
            if connection.execute("SELECT count(*) FROM sqlite_master WHERE type IN ('view', 'trigger')").fetchone()[0]:
                raise FileFormatError(f"A search log has neither views nor triggers; {self.path} has some. Delete it.")
            return True
        if tables:
            raise FileFormatError(f"{self.path} is a database of something else. Give another file for the log.")
        return False
