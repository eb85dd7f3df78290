"""Scores that were paid for once, kept in a file."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import math
import os
import sqlite3
import threading
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import FloatArray
from adacur.core.budget import is_whole
from adacur.core.errors import AdacurError, FileFormatError, InputError, StorageFull
from adacur.core.protocols import Scorer, ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_scores
from adacur.scorers.grid import ascore, score_grid
from adacur.scorers.metered import Metered
from adacur.scorers.shared_batches import SharedBatches, shares_calls

__all__ = ["CacheWarning", "Cached", "past_cache"]

T = TypeVar("T")
Ask = Callable[[list[int]], Awaitable[FloatArray]]
"""From the numbers of unknown pairs, ascending, to their scores."""

_APPLICATION = int.from_bytes(b"ACsc", "big")
_VERSION = 1
_SCHEMA = (
    "CREATE TABLE scorers (id INTEGER PRIMARY KEY, fingerprint BLOB NOT NULL UNIQUE, card TEXT NOT NULL)",
    # The bytes of the float: SQLite's own numbers know no float32 and lose the sign of zero.
    "CREATE TABLE scores (scorer INTEGER NOT NULL, query BLOB NOT NULL, item BLOB NOT NULL, "
    "score BLOB NOT NULL CHECK (length(score) IN (2, 4, 8)), PRIMARY KEY (scorer, query, item)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_VERSION}",
)
_DIGEST = 16
# One statement for thousands of keys, whatever the limit of bound parameters: they lie behind each other in one blob.
_NUMBERS = "WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < ?2)"
_QUERY = f"substr(?1, {2 * _DIGEST} * n + 1, {_DIGEST})"
_ITEM = f"substr(?1, {2 * _DIGEST} * n + {_DIGEST + 1}, {_DIGEST})"
_FIND = f"""
{_NUMBERS} SELECT n, score FROM numbers CROSS JOIN scores
WHERE scorer = ?3 AND query = {_QUERY} AND item = {_ITEM}
"""
_ADD = f"""
{_NUMBERS} INSERT OR IGNORE INTO scores SELECT ?3, {_QUERY}, {_ITEM}, substr(?4, ?5 * n + 1, ?5) FROM numbers
"""
_KEYS_PER_LOOK_UP = 8192
_SECONDS_TO_WAIT = 60.0
_SAVE_EVERY = 16_384
_CACHE_BYTES = 64 * 2**20
_FEWEST_PAIRS_PER_GRID = 64
_SEE_IDS = ("matrix", "pyterrier")
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE)


class CacheWarning(UserWarning):
    """Scores were answered but could not be stored."""


class Cached:
    """A scorer that is asked for each pair of texts once: its scores are kept in the SQLite file `path`.

    The file may serve several scorers, threads and processes at once. A scorer is told from others by its card
    (weights, settings, arithmetic, backend, dtype and token limits); one without weights, such as a service, only by
    its name and source, a function by its code too: give a `key`, and another one when what they call has changed. A
    function or object whose code cannot be read in full is refused without a `key`. Pairs are told apart
    by their texts; where a `MatrixScorer` or a PyTerrier transformer sees ids too, by both. A scorer of your own that
    looks at ids or metadata must not be cached.

    `hits` counts answers that cost nothing, `misses` the pairs that the scorer was asked for. Scores are stored
    after every `save_every` pairs asked for at most; that is what a crash can lose. Scores that cannot be stored
    (a full disk) are returned all the same, with a `CacheWarning`.
    """

    def __init__(
        self, scorer: Scorer, path: str | Path, *, key: str | None = None, save_every: int = _SAVE_EVERY
    ) -> None:
        if not isinstance(scorer, Scorer):
            raise InputError(
                f"Cached wraps a scorer; got {type(scorer).__name__}. Open it first: Cached(adacur.scorer(…), path)."
            )
        if not is_whole(save_every) or save_every < 1:
            raise InputError(f"save_every counts pairs: a whole number of at least 1; got {save_every!r}.")
        self.scorer = scorer
        self.path = Path(path)
        self.hits = 0
        self.misses = 0
        self._save_every = save_every
        self._told_apart_by = _id_and_text if scorer.card.backend in _SEE_IDS else attrgetter("text")
        self._file = _ScoreFile(self.path, identity=_identity(scorer, key))
        self._lock = threading.Lock()
        self._claims: dict[bytes, _Claim] = {}
        _in_this_process.add(self)

    @property
    def card(self) -> ScorerCard:
        return self.scorer.card

    @property
    def shares_calls(self) -> bool:
        """Whether callers may share a call."""
        return shares_calls(self.scorer)

    @property
    def hit_rate(self) -> float:
        """The share of answers that cost nothing; 0 before the first."""
        return self.hits / ((self.hits + self.misses) or 1)

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return _completed(self._score(pairs, _Blocking()))

    async def ascore(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order; look-ups run in a thread."""
        return await self._score(pairs, _Awaiting())

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items); the scorer is asked for grids where nothing is known of them."""
        if not queries or not items:
            return np.empty((len(queries), len(items)))
        rows, row_of = _distinct([self._told_apart_by(query) for query in queries])
        columns, column_of = _distinct([self._told_apart_by(item) for item in items])
        # Nearly square, so that the scorer reads few texts per pair and the file's pages get many scores each.
        width = min(len(columns), max(math.isqrt(self._save_every), self._save_every // len(rows)))
        height = self._save_every // width
        paid = 0
        blocks: list[list[FloatArray]] = []
        for top in range(0, len(rows), height):
            some_queries = [queries[row] for row in rows[top : top + height]]
            blocks.append([])
            for left in range(0, len(columns), width):
                some_items = [items[column] for column in columns[left : left + width]]
                keys = self._grid_keys(some_queries, some_items)
                ask = partial(self._ask_grid, some_queries, some_items)
                scores, asked = _completed(self._answers(keys, ask, _Blocking()))
                blocks[-1].append(scores.reshape(len(some_queries), len(some_items)))
                paid += asked
        self._count(hits=len(queries) * len(items) - paid)
        return np.asarray(np.block(blocks)[np.ix_(row_of, column_of)])

    def count(self) -> int:
        """How many scores of this scorer the file holds."""
        return self._file.count()

    def clear(self) -> None:
        """Forget the scores of this scorer; those of others stay."""
        self._file.clear()

    def reset(self) -> None:
        """Count hits and misses from zero again."""
        with self._lock:
            self.hits = self.misses = 0

    def close(self) -> None:
        """Close the scorer, if it can be closed, and the file, which the next look-up would open again."""
        self._file.close()
        if callable(close := getattr(self.scorer, "close", None)):
            close()

    def __enter__(self) -> Cached:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def _score(self, pairs: Sequence[Pair], manner: _Manner) -> FloatArray:
        keys = await manner.work(self._pair_keys, pairs)
        firsts, first_of = _distinct(keys)
        paid = 0
        parts: list[FloatArray] = []
        for start in range(0, len(firsts), self._save_every):
            some = firsts[start : start + self._save_every]
            ask = partial(self._ask_pairs, [pairs[at] for at in some], manner)
            scores, asked = await self._answers([keys[at] for at in some], ask, manner)
            parts.append(scores)
            paid += asked
        self._count(hits=len(pairs) - paid)
        return np.concatenate(parts)[first_of] if parts else np.empty(0)

    async def _answers(self, keys: Sequence[bytes], ask: Ask, manner: _Manner) -> tuple[FloatArray, int]:
        """The scores of distinct keys, and how many of them the scorer was asked for."""
        known: list[bytes | None] = [None] * len(keys)
        paid = 0
        missing = list(range(len(keys)))

        async def look_up(wanted: list[int]) -> list[int]:
            if not wanted:
                return []
            for at, score in zip(wanted, await manner.work(self._file.find, [keys[at] for at in wanted]), strict=True):
                known[at] = score
            return [at for at in wanted if known[at] is None]

        while missing := await look_up(missing):
            with self._claiming(keys, missing, manner) as (mine, others):
                # Whoever held a claim until just now has stored its scores since the first look.
                if asked := await look_up(mine):
                    fresh = dict(zip(asked, _as_bytes(await ask(asked)), strict=True))
                    paid += len(fresh)
                    self._count(misses=len(fresh))
                    await self._store({keys[at]: score for at, score in fresh.items()}, manner)
                    for at, score in fresh.items():
                        known[at] = score
            for other in others:
                await manner.wait(other)
            missing = [at for at in missing if known[at] is None]
        return _as_floats(known), paid

    async def _store(self, scores: Mapping[bytes, bytes], manner: _Manner) -> None:
        try:
            await manner.work(self._file.add, scores)
        except AdacurError as error:
            # Paid for and correct: the answer goes to the caller whatever becomes of the copy.
            warnings.warn(
                f"{len(scores)} scores were not stored and will be asked for again. {error}", CacheWarning, stacklevel=2
            )

    async def _ask_pairs(self, pairs: Sequence[Pair], manner: _Manner, missing: list[int]) -> FloatArray:
        asked = [pairs[at] for at in missing]
        return check_scores(await manner.score(self.scorer, asked), asked)

    async def _ask_grid(self, queries: Sequence[Query], items: Sequence[Item], missing: list[int]) -> FloatArray:
        unknown = np.zeros((len(queries), len(items)), dtype=np.bool_)
        unknown.flat[missing] = True
        grids = _full_grids(unknown)
        if not hasattr(self.scorer, "score_grid") or len(missing) < _FEWEST_PAIRS_PER_GRID * len(grids):
            every = [(queries[row], items[column]) for row, column in np.argwhere(unknown)]
            return check_scores(self.scorer.score(every), every)
        answers = [
            score_grid(self.scorer, [queries[row] for row in rows], [items[column] for column in columns])
            for rows, columns in grids
        ]
        scores = np.empty(unknown.shape, dtype=np.result_type(*answers))
        for (rows, columns), answer in zip(grids, answers, strict=True):
            scores[np.ix_(rows, columns)] = answer
        return scores[unknown]

    @contextlib.contextmanager
    def _claiming(
        self, keys: Sequence[bytes], missing: Sequence[int], manner: _Manner
    ) -> Iterator[tuple[list[int], set[_Claim]]]:
        """Say which keys are being asked for here; yields those, and the claims of others to wait for afterwards."""
        claim = _Claim(by_thread=isinstance(manner, _Blocking))
        mine: list[int] = []
        others: set[_Claim] = set()
        with self._lock:
            for at in missing:
                holder = self._claims.setdefault(keys[at], claim)
                if holder is claim or not manner.waits_for(holder):
                    mine.append(at)
                else:
                    others.add(holder)
        try:
            yield mine, others
        finally:
            with self._lock:
                for at in mine:
                    if self._claims.get(keys[at]) is claim:
                        del self._claims[keys[at]]
            claim.done.set_result(None)

    def _count(self, *, hits: int = 0, misses: int = 0) -> None:
        with self._lock:
            self.hits += hits
            self.misses += misses

    def _pair_keys(self, pairs: Sequence[Pair]) -> list[bytes]:
        name = self._told_apart_by
        digests: dict[tuple[bytes, str], bytes] = {}

        def digest(kind: bytes, text: str) -> bytes:
            if (kind, text) not in digests:
                digests[kind, text] = _digest(text, kind)
            return digests[kind, text]

        return [digest(b"query", name(query)) + digest(b"item", name(item)) for query, item in pairs]

    def _grid_keys(self, queries: Sequence[Query], items: Sequence[Item]) -> list[bytes]:
        rows = [_digest(self._told_apart_by(query), b"query") for query in queries]
        columns = [_digest(self._told_apart_by(item), b"item") for item in items]
        return [row + column for row in rows for column in columns]

    def _begin_in_child(self) -> None:
        self._lock = threading.Lock()
        self._claims = {}
        self._file.abandon_connection()


def past_cache(scorer: Scorer) -> Scorer:
    """What a cache in or below this scorer asks, else the scorer: old scores do not tell who answers today."""
    inner = _unwrapped(scorer)
    return inner.scorer if isinstance(inner, Cached) else scorer


def _unwrapped(scorer: Scorer) -> Scorer:
    # Only wrappers that pass scores on as they are: what another makes of them, only it can tell.
    while isinstance(scorer, Metered | SharedBatches):
        scorer = scorer.scorer
    return scorer


class _ScoreFile:
    """The scores of one scorer in a database; safe among threads and processes."""

    def __init__(self, path: Path, *, identity: str) -> None:
        self._path = path
        self._identity = identity
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._scorer = 0
        with self._connected():
            pass

    def find(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The score of each key, as bytes, or None."""
        found: list[bytes | None] = [None] * len(keys)
        for start in range(0, len(keys), _KEYS_PER_LOOK_UP):
            some = keys[start : start + _KEYS_PER_LOOK_UP]
            with self._connected() as connection:
                rows = connection.execute(_FIND, (b"".join(some), len(some), self._scorer)).fetchall()
            for number, score in rows:
                # SQLite keeps a text in a column of bytes as a text.
                if not isinstance(score, bytes) or len(score) not in (2, 4, 8):
                    raise FileFormatError(f"{self._path} holds a score that is no number. Give another path.")
                found[start + number] = score
        return found

    def add(self, scores: Mapping[bytes, bytes]) -> None:
        """Store a score per key, all of one size, all or none; what another process stored first stays."""
        # In the order of the table, so that each of its pages is visited once.
        keys = sorted(scores)
        joined = b"".join(scores[key] for key in keys)
        size = len(joined) // len(keys)
        with self._connected() as connection, _transaction(connection):
            connection.execute(_ADD, (b"".join(keys), len(keys), self._scorer, joined, size))

    def count(self) -> int:
        with self._connected() as connection:
            row = connection.execute("SELECT count(*) FROM scores WHERE scorer = ?", (self._scorer,)).fetchone()
        return int(row[0])

    def clear(self) -> None:
        with self._connected() as connection, _transaction(connection):
            connection.execute("DELETE FROM scores WHERE scorer = ?", (self._scorer,))

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._closing()
                self._connection = None

    def abandon_connection(self) -> None:
        """Leave to the parent of a fork what is the parent's: SQLite forbids even closing it here."""
        if self._connection is not None:
            self._closing.detach()
            _abandoned.append(self._connection)
        self._connection = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                if self._connection is None:
                    self._connection, self._scorer = self._open()
                yield self._connection
            except sqlite3.Error as error:
                raise self._explained(error) from error

    def _open(self) -> tuple[sqlite3.Connection, int]:
        # What was scored, and how, is nobody else's business; SQLite's files beside it get the same mode.
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
            self._make_ours(connection)
            _write_ahead(connection)
            # The newest scores may be lost in a power cut, never in a crash, and the file stays whole in both.
            connection.execute("PRAGMA synchronous = NORMAL")
            # SQLite's own 2 MB would be read over and over where keys are hashes.
            connection.execute(f"PRAGMA cache_size = -{_CACHE_BYTES // 1024}")
            scorer = self._numbered(connection)
        except BaseException:
            connection.close()
            raise
        self._closing = weakref.finalize(self, connection.close)
        return connection, scorer

    def _make_ours(self, connection: sqlite3.Connection) -> None:
        if self._is_ours(connection):
            return
        with _transaction(connection):
            # Another process may have made it meanwhile; what is neither empty nor ours is not touched.
            if not self._is_ours(connection):
                if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    raise FileFormatError(
                        f"{self._path} is an SQLite database, but no score cache. Give another path; it is left alone."
                    )
                for statement in _SCHEMA:
                    connection.execute(statement)

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        if connection.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            return False
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version != _VERSION:
            raise FileFormatError(
                f"{self._path} is a score cache of format {version}, and this adacur knows format {_VERSION}. "
                "Upgrade adacur, or give another path."
            )
        # A view or a trigger is SQL of somebody else, run by a look-up.
        tables = connection.execute("SELECT type, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        if any(kind != "table" or sql not in _SCHEMA for kind, sql in tables):
            raise FileFormatError(
                f"{self._path} holds tables that no score cache has. Give another path; it is left alone."
            )
        return True

    def _numbered(self, connection: sqlite3.Connection) -> int:
        fingerprint = _digest(self._identity, b"scorer")
        number = "SELECT id FROM scorers WHERE fingerprint = ?"
        if (row := connection.execute(number, (fingerprint,)).fetchone()) is None:
            new = "INSERT OR IGNORE INTO scorers (fingerprint, card) VALUES (?, ?)"
            connection.execute(new, (fingerprint, self._identity))
            row = connection.execute(number, (fingerprint,)).fetchone()
        return int(row[0])

    def _explained(self, error: sqlite3.Error) -> AdacurError:
        code = getattr(error, "sqlite_errorcode", 0)
        if code in _FULL:
            return StorageFull(f"There is no space for the score cache {self._path}: {error}. Free some.")
        if code & 0xFF == sqlite3.SQLITE_NOTADB:
            return FileFormatError(f"{self._path} is no score cache: {error}. Give another path; it is left alone.")
        if code & 0xFF == sqlite3.SQLITE_CORRUPT:
            return FileFormatError(
                f"The score cache {self._path} is damaged: {error}. Give another path, or delete the file and let the "
                "scores be asked for again."
            )
        if code & 0xFF == sqlite3.SQLITE_BUSY:
            return InputError(
                f"The score cache {self._path} was held by another process for over {_SECONDS_TO_WAIT:.0f} s. "
                "Try again, or give each its own file."
            )
        return InputError(
            f"The score cache {self._path} cannot be used: {error}. It must be a file in a folder that exists and can "
            "be written to."
        )


class _Claim:
    """Somebody is asking the scorer for a pair right now."""

    def __init__(self, *, by_thread: bool) -> None:
        self.by_thread = by_thread
        self.done: Future[None] = Future()
        # A running future cannot be cancelled by one of those who wait for it.
        self.done.set_running_or_notify_cancel()


class _Manner(Protocol):
    """How one flow serves both worlds: with calls that block, or with calls that are awaited."""

    async def work(self, function: Callable[..., T], *arguments: Any) -> T: ...

    async def score(self, scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray: ...

    async def wait(self, claim: _Claim) -> None: ...

    def waits_for(self, claim: _Claim) -> bool: ...


class _Blocking:
    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def score(self, scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
        return scorer.score(pairs)

    async def wait(self, claim: _Claim) -> None:
        claim.done.result()

    def waits_for(self, claim: _Claim) -> bool:
        # A coroutine may need this very thread, or the last of a pool, to get on: better to pay twice than to hang.
        return claim.by_thread and not _in_event_loop()


class _Awaiting:
    async def work(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(function, *arguments)

    async def score(self, scorer: Scorer, pairs: Sequence[Pair]) -> FloatArray:
        return await ascore(scorer, pairs)

    async def wait(self, claim: _Claim) -> None:
        await asyncio.wrap_future(claim.done)

    def waits_for(self, claim: _Claim) -> bool:
        return True


# Connections and claims belong to the process that made them; a forked child begins with neither.
_in_this_process: weakref.WeakSet[Cached] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []


def _begin_in_child() -> None:
    for cached in list(_in_this_process):
        cached._begin_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)


def _identity(scorer: Scorer, key: str | None) -> str:
    """What tells scorers apart, as text; fields that a card may get one day count too."""
    card = scorer.card
    # What was kept before cards had these two is still known where they say nothing, as of a service.
    newer = ("settings", "arithmetic")
    fields = {name: of for name, of in dataclasses.asdict(card).items() if of is not None or name not in newer}
    if not card.weights and key is None:
        # All lambdas have one name, and a function that was edited has kept its own. Where `code` cannot be read it
        # raises: a name alone would mix two scorers.
        fields["code"] = getattr(_unwrapped(scorer), "code", None)
    if card.weights:
        # They are who a model is, wherever it lies and whatever its folder is called.
        del fields["name"], fields["source"]
    return json.dumps(fields | {"key": key}, sort_keys=True)


def _id_and_text(record: Query | Item) -> str:
    return f"{len(record.id)} {record.id} {record.text}"


def _digest(text: str, kind: bytes) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=_DIGEST, person=kind).digest()


def _distinct(keys: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Where each distinct key occurs first, and for every key the number of its first."""
    firsts: dict[Any, int] = {}
    places: list[int] = []
    number_of: list[int] = []
    for at, key in enumerate(keys):
        number = firsts.setdefault(key, len(firsts))
        if number == len(places):
            places.append(at)
        number_of.append(number)
    return places, number_of


def _full_grids(unknown: npt.NDArray[np.bool_]) -> list[tuple[list[int], list[int]]]:
    """Rows and columns of grids that hold every unknown pair once and no known one."""

    def alike(mask: npt.NDArray[np.bool_]) -> list[tuple[list[int], list[int]]]:
        groups: dict[bytes, list[int]] = {}
        for row in np.flatnonzero(mask.any(axis=1)).tolist():
            groups.setdefault(mask[row].tobytes(), []).append(row)
        return [(rows, np.flatnonzero(mask[rows[0]]).tolist()) for rows in groups.values()]

    by_rows, by_columns = alike(unknown), alike(np.ascontiguousarray(unknown.T))
    return by_rows if len(by_rows) <= len(by_columns) else [(rows, columns) for columns, rows in by_columns]


def _as_bytes(scores: FloatArray) -> list[bytes]:
    # Numpy's long doubles differ between machines, and on some are float64.
    size = min(scores.dtype.itemsize, 8)
    joined = scores.astype(f"<f{size}").tobytes()
    return [joined[start : start + size] for start in range(0, len(joined), size)]


def _as_floats(scores: Sequence[bytes | None]) -> FloatArray:
    """The widest type among the scores holds them all without a change."""
    known = [score for score in scores if score is not None]
    sizes = [len(score) for score in known]
    values: FloatArray = np.empty(len(known), dtype=f"f{max(sizes)}")
    for size in set(sizes):
        at = [place for place, own in enumerate(sizes) if own == size]
        values[at] = np.frombuffer(b"".join(known[place] for place in at), dtype=f"<f{size}")
    return values


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


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once. Of all statements this is the one that does not wait its turn."""
    give_up = time.monotonic() + _SECONDS_TO_WAIT
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _completed(flow: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never waits for an event loop."""
    try:
        flow.send(None)
    except StopIteration as stop:
        return stop.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("A flow of blocking calls waited for an event loop.")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
