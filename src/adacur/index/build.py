"""Scoring every item against every anchor query, block by block, so that nothing finished is ever lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
import shutil
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import (
    AdacurError,
    DamagedIndex,
    IndexFolderError,
    IndexLocked,
    IndexMismatch,
    InputError,
    NotAnIndex,
    ScorerError,
    ScorerFailed,
    StorageFull,
    StorageUnavailable,
)
from adacur.core.protocols import AnchorScores, Scorer, ScorerCard
from adacur.core.records import Item, Pair, Query, as_queries, check_item
from adacur.core.scores import check_scores
from adacur.engines import Engine, InThisProcess, WorkersLost
from adacur.index.blocks import BlockRecord, BlockRecords, Place, ScoreBlocks, digest_scores, place_of
from adacur.index.estimate import time_scorer
from adacur.index.folder import LOCK, IndexFolder, is_finished
from adacur.index.items import DATABASE, StoredItems, connect, error_is_full, load, read_texts, seal
from adacur.index.links import check_no_links
from adacur.index.manifest import (
    MANIFEST,
    Manifest,
    Origin,
    how_to_continue,
    read_manifest,
    sync_path,
    write_atomically,
    write_manifest,
)
from adacur.index.mirror import Mirror, place_named, refuse_url, to_build
from adacur.index.object_store import index_url
from adacur.index.probes import Drift, choose_probes, compare, same_scorer
from adacur.index.table import distinct_anchors
from adacur.index.workforce import Workforce
from adacur.scorers.asking import asking
from adacur.scorers.cached import past_cache
from adacur.scorers.grid import score_grid

__all__ = ["Progress", "build_scores", "save_table"]

_log = logging.getLogger("adacur.build")

_BLOCK_SECONDS = 20.0
_BLOCK_BYTES = 32 * 2**20
_MIN_BLOCK_ITEMS, _MAX_BLOCK_ITEMS = 16, 8192
_SAMPLE_ITEMS = 512
_SMALL_BUILD, _SMALL_BUILD_BLOCKS = 20_000, 16
_BLOCKS_PER_DEVICE = 8
_PAIRS_TO_RECOGNISE = 8
_GOES_ON = "Finished blocks are kept: the same call, or command, again goes on from there."
IT_IS_FINISHED = "It is finished; choose another path for the new index."
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
# Lets PyTerrier recognise the folder as an artifact.
_PYTERRIER = {"type": "adacur_index", "format": "adacur", "package_hint": "adacur"}


@dataclass(frozen=True, slots=True)
class _Block:
    """A unit of work: items that follow one another, to be scored against every anchor query."""

    number: int
    positions: range
    items: list[Item]


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores as they are stored, (items, anchor queries), and the seconds of work in them."""

    values: FloatArray
    seconds: float


ScoreBlock = Callable[[_Block], _Scored]
ChooseEngine = Callable[[Manifest, str, int, int], Engine[_Block, _Scored | BlockRecord]]
"""From the manifest, the name of this run, and the numbers of blocks and pairs that are left, to who scores them.

A block comes back as scores that are still to be stored, or as the record that they are.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a build is. `seconds` and `pairs_per_second` are of this run; `resumed_blocks` were found finished.

    `workers` are those at work now. Beside these pairs, `drift` was measured where the scorer had to be recognised by
    what it had scored before, and `timed` pairs were scored to choose the size of a block.
    """

    blocks_done: int
    blocks: int
    pairs_done: int
    pairs: int
    seconds: float
    pairs_per_second: float
    resumed_blocks: int
    workers: int = 1
    drift: Drift | None = None
    timed: int = 0

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this run; None before its first block."""
        return (self.pairs - self.pairs_done) / self.pairs_per_second if self.pairs_per_second else None


def build_scores(
    items: Iterable[Item],
    anchor_queries: Iterable[Query | str] | None,
    *,
    scorer: Scorer,
    path: str | Path,
    dtype: str = "float32",
    block_items: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    engine: str = "local",
    address: str | None = None,
    workers: int | None = None,
    origin: Origin | None = None,
) -> IndexFolder:
    """Score every item against every anchor query into a folder; the same call again continues a stopped build.

    With None for anchor queries nothing is scored: the folder holds the items alone.

    Items are read once, in order, and never held all at once. `block_items` counts the items between two
    save points, by default about 20 s of work; finding that out costs up to half a percent more scorer calls, or none
    for builds of up to 20,000 pairs. A continued build keeps the seed, block size and metadata it began with.
    While a block is scored, the next is read and the last is written; `progress` is called where they are written, in
    a thread of its own. A scorer with several `replicas()`, one per device, has larger builds shared out to a process
    each.

    `workers` processes of this machine score with a scorer each; with `engine="ray"`, actors of the Ray cluster at
    `address`, by default one started here and by default as many as it has room for. All of them must reach `path`.
    Whoever scores a block stores it and records that it did, so that no finished block depends on anybody's survival.
    `origin` is remembered: how the build was asked for.
    """
    workforce = Workforce(engine, address, workers)
    if dtype not in ("float32", "float16"):
        raise InputError(f"Scores are stored as float32 or float16; got dtype={dtype!r}.")
    if block_items is not None and block_items < 1:
        raise InputError(f"block_items counts items and must be at least 1; got {block_items}.")
    anchors = () if anchor_queries is None else distinct_anchors(as_queries(anchor_queries))
    url = index_url(path)
    folder = Path(path) if url is None else to_build(url)

    def choose_engine(
        manifest: Manifest, run: str, blocks_left: int, pairs_left: int
    ) -> Engine[_Block, _Scored | BlockRecord]:
        elsewhere = functools.partial(
            _scoring_elsewhere,
            card=scorer.card,
            anchors=anchors,
            place=place_of(folder.resolve()),
            manifest=manifest,
            run=run,
        )
        here: Callable[[_Block], _Scored | BlockRecord] = _scoring(scorer, anchors=anchors, dtype=dtype)
        left = {"blocks_left": blocks_left, "pairs_left": pairs_left}
        return workforce.employ(scorer, here=here, elsewhere=elsewhere, **left)

    drift: Drift | None = None
    timed = 0

    def told(now: Progress) -> None:
        if progress is not None:
            progress(replace(now, drift=drift, timed=timed))

    def choose_block_items(n_items: int) -> int:
        nonlocal timed
        if block_items:
            return block_items
        chosen, timed = _timed_block_items(
            folder, n_items, anchors, dtype=dtype, scorer=scorer, seed=seed, workforce=workforce
        )
        return chosen

    def recognise(pairs: Sequence[Pair], stored: FloatArray) -> None:
        nonlocal drift
        with asking(scorer):
            scores = check_scores(past_cache(scorer).score(pairs), pairs)
        built = read_manifest(folder).scorer
        drift = compare(stored, scores, dtype=dtype, where=place_named(folder), built=built, given=scorer.card)

    workforce.check(scorer)
    # A cluster takes seconds to start, and a finished index has no use for it.
    with contextlib.nullcontext() if is_finished(path) else workforce.at_hand():
        folder = _build(
            folder,
            items,
            anchors,
            check=check_item,
            choose_engine=choose_engine,
            recognise=recognise,
            choose_block_items=choose_block_items,
            card=scorer.card,
            dtype=dtype,
            seed=seed,
            progress=told,
            origin=origin,
        )
    return IndexFolder.open(folder)


def save_table(
    table: AnchorScores, path: str | Path, *, card: ScorerCard | None = None, origin: Origin | None = None
) -> IndexFolder:
    """Write anchor scores from memory as a finished folder; `card` says who scored them, `origin` how they came."""
    refuse_url(path, "Saving")
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise IndexMismatch(f"{folder} is in use already. Save to a new folder, or remove that one first.")
    matrix = table.matrix
    n_items, n_anchors = matrix.shape

    def stream() -> Iterator[Item]:
        for start in range(0, n_items, _MAX_BLOCK_ITEMS):
            yield from table.items.at(range(start, min(start + _MAX_BLOCK_ITEMS, n_items)))

    def look_up(block: _Block) -> _Scored | BlockRecord:
        return _Scored(matrix[block.positions.start : block.positions.stop], seconds=0.0)

    # Saving knows no resuming, so half a table must never be seen under the folder's name.
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        _build(
            partial,
            stream(),
            distinct_anchors(table.anchor_queries) if table.anchor_queries else (),
            check=lambda item: None,
            choose_engine=lambda *_: InThisProcess(look_up),
            choose_block_items=lambda n: min(n, _largest_block(n_anchors, matrix.dtype)),
            card=card,
            dtype=str(matrix.dtype),
            seed=0,
            progress=None,
            origin=origin,
        )
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    sync_path(folder.parent)
    return IndexFolder.open(folder)


def _build(
    folder: Path,
    items: Iterable[Item],
    anchors: Sequence[Query],
    *,
    check: Callable[[Item], None],
    choose_engine: ChooseEngine,
    recognise: Callable[[Sequence[Pair], FloatArray], None] | None = None,
    choose_block_items: Callable[[int], int],
    card: ScorerCard | None,
    dtype: str,
    seed: int,
    progress: Callable[[Progress], None] | None,
    origin: Origin | None = None,
) -> Path:
    mirror = Mirror.of(folder)
    in_store = mirror is not None and mirror.is_building
    # What is finished is compared before anybody opens it.
    check_no_links(folder)
    manifest = None if in_store else _begun(folder)
    if manifest is not None and manifest.status == "complete":
        _check_same(folder, manifest, items, anchors, check=check, card=card, dtype=dtype)
        return folder
    with locked(folder) as created, _Storage(folder) as storage:
        if mirror is not None:
            mirror.resume()
        # Another builder may have begun, or finished, while this one came to the door.
        manifest = _begun(folder)
        was_begun = manifest is not None
        if manifest is not None and in_store and not (folder / DATABASE).exists():
            _load_again(folder, manifest, items, anchors, check=check, card=card, dtype=dtype)
        elif manifest is not None:
            _check_same(folder, manifest, items, anchors, check=check, card=card, dtype=dtype)
            if manifest.status == "complete":
                return folder
        else:
            try:
                n_items, items_digest, anchors_digest = _load_afresh(folder, items, anchors, check=check)
            except Exception:
                _remove(folder, also_folder=created)
                raise
            manifest = Manifest(
                status="building",
                n_items=n_items,
                n_anchors=len(anchors),
                dtype=dtype,
                block_items=choose_block_items(n_items),
                items_digest=items_digest,
                anchors_digest=anchors_digest,
                scorer=card,
                seed=seed,
                origin=origin,
            )
            ScoreBlocks.create(folder, manifest)
            write_manifest(folder, manifest)
            if mirror is not None:
                mirror.begin()
        with contextlib.closing(connect(folder, writable=True)) as connection:
            blocks = ScoreBlocks.open(folder, manifest, writable=True)
            records = BlockRecords(folder, manifest)
            run = records.begin()
            with _one_transaction(connection):
                connection.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?)", map(astuple, records))
            # A name proves little where there are no weights to compare.
            if recognise is not None and not same_scorer(manifest.scorer, card):
                _recognise(manifest, blocks, connection, anchors, recognise=recognise)
            if was_begun:
                _log.info("Continuing the build in %s: finished blocks are not scored again.", place_named(folder))
            _score_blocks(
                folder,
                manifest,
                blocks,
                records,
                connection,
                run=run,
                choose_engine=functools.partial(choose_engine, manifest, run),
                progress=progress,
                storage=storage,
            )
            _finish(folder, manifest, blocks, records, connection, keep_records=mirror is not None)
        if mirror is not None:
            mirror.finish()
            # Not before the database with all of them is in the store.
            records.clear()
            return mirror.settle()
        return folder


@contextlib.contextmanager
def _one_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Thousands of rows at the price of one commit."""
    connection.execute("BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _recognise(
    manifest: Manifest,
    blocks: ScoreBlocks,
    connection: sqlite3.Connection,
    anchors: Sequence[Query],
    *,
    recognise: Callable[[Sequence[Pair], FloatArray], None],
) -> None:
    """Compare a few scores of a finished block, so that one index never holds the scores of two scorers."""
    finished = connection.execute("SELECT min(block) FROM blocks").fetchone()[0]
    if finished is None:
        return
    positions = manifest.block(finished)
    values, items = blocks.read(finished), _block_items(connection, positions)
    rows = np.linspace(0, len(positions) - 1, _PAIRS_TO_RECOGNISE).astype(int)
    columns = np.linspace(0, len(anchors) - 1, _PAIRS_TO_RECOGNISE).astype(int)
    places = sorted(set(zip(rows.tolist(), columns.tolist(), strict=True)))
    pairs = [(anchors[column], items[row]) for row, column in places]
    recognise(pairs, np.array([values[row, column] for row, column in places], dtype=np.float64))


def _scoring(scorer: Scorer, *, anchors: Sequence[Query], dtype: str) -> ScoreBlock:
    def score(block: _Block) -> _Scored:
        started = time.perf_counter()
        with asking(scorer):
            scores = score_grid(scorer, anchors, block.items)
        seconds = time.perf_counter() - started
        return _Scored(np.ascontiguousarray(_as_stored(scores, dtype, anchors, block.items).T), seconds)

    return score


def _opened_scoring(
    open_scorer: Callable[[], Scorer], *, card: ScorerCard, anchors: Sequence[Query], dtype: str
) -> ScoreBlock:
    """Called in a process of its own, with a scorer of its own."""
    try:
        scorer = open_scorer()
    except AdacurError:
        raise
    except Exception as error:
        raise ScorerFailed(
            f"Scorer {card.name!r} could not be opened in a second process: {type(error).__name__}: {error}"
        ) from error
    # One index never holds the scores of two scorers.
    if _comparable(scorer.card) != _comparable(card):
        raise ScorerFailed(f"The scorers of all processes must be alike; got {scorer.card} beside {card}.")
    return _scoring(scorer, anchors=anchors, dtype=dtype)


def _scoring_elsewhere(
    open_scorer: Callable[[], Scorer],
    *,
    card: ScorerCard,
    anchors: Sequence[Query],
    place: Place,
    manifest: Manifest,
    run: str,
) -> Callable[[_Block], BlockRecord]:
    """Called in a process of its own, perhaps on a machine of its own, which stores what it scores."""
    records = BlockRecords(place, manifest)
    records.join(run)
    blocks = ScoreBlocks.open(place, manifest, writable=True)
    score = _opened_scoring(open_scorer, card=card, anchors=anchors, dtype=manifest.dtype)

    def score_and_keep(block: _Block) -> BlockRecord:
        # Whoever had it before may have died between its record and its answer.
        if (record := records.get(block.number)) is not None:
            return record
        scored = score(block)
        records.check_run(run)
        return _keep(blocks, records, block.number, scored)

    return score_and_keep


def _keep(blocks: ScoreBlocks, records: BlockRecords, block: int, scored: _Scored) -> BlockRecord:
    blocks.write(block, scored.values)
    # The record comes after the chunk is on the disk: a chunk without a record is scored again, never trusted.
    record = BlockRecord(block, digest_scores(scored.values), scored.values.size, scored.seconds)
    records.add(record)
    return record


def _score_blocks(
    folder: Path,
    manifest: Manifest,
    blocks: ScoreBlocks,
    records: BlockRecords,
    connection: sqlite3.Connection,
    *,
    run: str,
    choose_engine: Callable[[int, int], Engine[_Block, _Scored | BlockRecord]],
    progress: Callable[[Progress], None] | None,
    storage: _Storage,
) -> None:
    """Read the next block and write the last one while a block is scored.

    The scorer runs in this thread, or in processes of its own that store their blocks themselves; reading and writing
    each have a thread and a connection that nobody else uses meanwhile. Only one finished block may wait to be written.
    """
    done = {block for (block,) in connection.execute("SELECT block FROM blocks")}
    left = [block for block in range(manifest.n_blocks) if block not in done]
    resumed = len(done)
    pairs = manifest.n_items * manifest.n_anchors
    pairs_done = pairs_resumed = sum(len(manifest.block(block)) for block in done) * manifest.n_anchors
    began = time.perf_counter()
    engine: Engine[_Block, _Scored | BlockRecord] | None = None
    storage.told(resumed, manifest.n_blocks)

    def report() -> None:
        if progress is None:
            return
        seconds = time.perf_counter() - began
        progress(
            Progress(
                blocks_done=len(done),
                blocks=manifest.n_blocks,
                pairs_done=pairs_done,
                pairs=pairs,
                seconds=seconds,
                pairs_per_second=(pairs_done - pairs_resumed) / max(seconds, 1e-9),
                resumed_blocks=resumed,
                workers=1 if engine is None else engine.workers,
            )
        )

    def keep(block: int, scored: _Scored | BlockRecord) -> None:
        nonlocal pairs_done
        if isinstance(scored, BlockRecord):
            record = scored
        else:
            records.check_run(run)
            record = _keep(blocks, records, block, scored)
        done.add(block)
        pairs_done += record.pairs
        storage.told(len(done), manifest.n_blocks)
        # Whether or not there is room for this: the record is what counts.
        connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?)", astuple(record))
        report()

    report()
    if not left:
        return
    engine = choose_engine(len(left), pairs - pairs_done)
    # However this ends, the engine is stopped first and what was scored is then still written.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="adacur-write") as writer,
        contextlib.closing(engine.run(_read_blocks(folder, manifest, left))) as scoring,
    ):
        writing: Future[None] | None = None
        try:
            for block, scored in scoring:
                last, writing = writing, writer.submit(keep, block.number, scored)
                # Names that live on into the next turn would keep a block in memory for nothing.
                del block, scored
                if last is not None:
                    last.result()
        except WorkersLost as error:
            raise ScorerFailed(f"{error} {_GOES_ON}") from error
        except ScorerError as error:
            if done or writing is not None:
                error.args = (f"{error} {_GOES_ON}",)
            raise
        if writing is not None:
            writing.result()


def _finish(
    folder: Path,
    manifest: Manifest,
    blocks: ScoreBlocks,
    records: BlockRecords,
    connection: sqlite3.Connection,
    *,
    keep_records: bool,
) -> None:
    recorded: dict[int, str] = dict(connection.execute("SELECT block, digest FROM blocks"))

    def read_back() -> Iterator[tuple[int, FloatArray]]:
        for block in range(manifest.n_blocks):
            try:
                values = blocks.read(block)
                if digest_scores(values) != recorded[block]:
                    raise DamagedIndex(
                        f"The scores of block {block} of {place_named(folder)} are not those that were recorded."
                    )
            except DamagedIndex as error:
                records.remove(block)
                connection.execute("DELETE FROM blocks WHERE block = ?", (block,))
                raise DamagedIndex(f"{error} Or run the same build again: it will score this block anew.") from error
            yield manifest.block(block).start, values

    probes = choose_probes(read_back, seed=manifest.seed)
    blocks.tidy()
    seal(connection)
    # The database has them all by now.
    if not keep_records:
        records.clear()
    write_atomically(folder / "pt_meta.json", json.dumps(_PYTERRIER))
    origin = None if manifest.origin is None else replace(manifest.origin, command=(), folder="")
    write_manifest(folder, replace(manifest, status="complete", probes=probes, origin=origin))


def _begun(folder: Path) -> Manifest | None:
    """What was begun in a folder; None where a build may begin."""
    if (folder / MANIFEST).exists():
        manifest = read_manifest(folder)
        if manifest.parts:
            raise IndexMismatch(
                f"{folder} has been changed since it was built, and is at version {manifest.version}. Open it with "
                "adacur.load, change it with add, remove and the like, or choose another path for a new index."
            )
        return manifest
    if folder.exists() and not folder.is_dir():
        raise NotAnIndex(f"{folder} is a file. Choose another path for the index.")
    if folder.is_dir() and not (folder / LOCK).exists() and not Mirror.of(folder) and any(folder.iterdir()):
        raise NotAnIndex(f"{folder} holds other files and is not an index. Choose a new or empty folder.")
    return None


@contextlib.contextmanager
def locked(folder: Path, *, wait: float = 0.0) -> Iterator[bool]:
    """Hold a folder against other builders; yields whether it was created for this.

    Whoever holds it already is waited for at most `wait` seconds.

    The kernel lets go of the lock when its holder dies, however it dies. Of an index in a store, what is changed in the
    folder that stands for it is put there at the end.
    """
    from filelock import FileLock, Timeout

    if (mirror := Mirror.of(folder)) is not None:
        with mirror.writing(wait=wait):
            yield False
        return
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    # The lock is opened for writing, and what follows writes beside it.
    check_no_links(folder)
    sync_path(folder.parent)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise IndexLocked(
            f"Another process is building in {folder}. Wait until it has finished, or choose another path."
        ) from None
    try:
        yield created
    finally:
        lock.release()


class _Storage:
    """Tells a full disk as what it is, with what is safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._safe = "nothing is"

    def told(self, done: int, blocks: int) -> None:
        """Remember how much is safe."""
        self._safe = f"{done} of {blocks} blocks are"

    def __enter__(self) -> _Storage:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        full = (isinstance(error, OSError) and error.errno in _NO_SPACE) or (
            isinstance(error, sqlite3.Error) and error_is_full(error)
        )
        if full:
            raise StorageFull(
                f"The disk that holds {self._folder} is full; {self._safe} safely stored. "
                "Free some space and run the same build again: it continues where it stopped."
            ) from error
        if isinstance(error, StorageUnavailable):
            raise StorageUnavailable(
                f"{error} {self._safe.capitalize()} safely stored; the same build again continues where it stopped."
            ) from error
        if isinstance(error, sqlite3.Error):
            raise IndexFolderError(f"{self._folder / DATABASE} cannot be used: {error}.") from error


def _load_afresh(
    folder: Path, items: Iterable[Item], anchors: Sequence[Query], *, check: Callable[[Item], None]
) -> tuple[int, str, str]:
    _remove(folder, keep_lock=True)
    with contextlib.closing(connect(folder, writable=True)) as connection:
        return load(connection, items, anchors, check=check)


def _load_again(
    folder: Path,
    manifest: Manifest,
    items: Iterable[Item],
    anchors: Sequence[Query],
    *,
    check: Callable[[Item], None],
    card: ScorerCard | None,
    dtype: str,
) -> None:
    """Bring the items of a build that was begun on another machine here, and refuse others."""
    # A folder that this is interrupted in must not pass for one that has its items.
    (folder / MANIFEST).unlink()
    try:
        with contextlib.closing(connect(folder, writable=True)) as connection:
            n_items, items_digest, anchors_digest = load(connection, items, anchors, check=check)
        differences = _other_settings(manifest, card=card, dtype=dtype)
        if len(anchors) != manifest.n_anchors:
            differences.append(_other_count("anchor queries", now=len(anchors), then=manifest.n_anchors))
        elif anchors_digest != manifest.anchors_digest:
            differences.append("the anchor queries are others")
        if n_items != manifest.n_items:
            differences.append(_other_count("items", now=n_items, then=manifest.n_items))
        elif items_digest != manifest.items_digest:
            differences.append("the items, or their order, are others")
        _refuse(folder, manifest, differences)
    except BaseException:
        (folder / DATABASE).unlink(missing_ok=True)
        raise
    write_manifest(folder, manifest)


def _remove(folder: Path, *, keep_lock: bool = False, also_folder: bool = False) -> None:
    """Remove what a build that never reached its manifest left behind, and nothing else."""
    ScoreBlocks.discard(folder)
    BlockRecords.discard(folder)
    names = [DATABASE + suffix for suffix in ("", "-wal", "-shm", "-journal")]
    for name in names if keep_lock else [*names, LOCK]:
        (folder / name).unlink(missing_ok=True)
    if also_folder:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _check_same(
    folder: Path,
    manifest: Manifest,
    items: Iterable[Item],
    anchors: Sequence[Query],
    *,
    check: Callable[[Item], None],
    card: ScorerCard | None,
    dtype: str,
) -> None:
    """Refuse to continue with anything but what the folder was begun with; the folder is not touched."""

    def given() -> Iterator[tuple[str, str]]:
        for item in items:
            check(item)
            yield item.id, item.text

    differences = _other_settings(manifest, card=card, dtype=dtype)
    with contextlib.closing(connect(folder)) as connection:
        asked = ((query.id, query.text) for query in anchors)
        stored = read_texts(connection, "anchors", folder=folder)
        differences += _difference("anchor query", asked, stored, several="anchor queries")
        stored = read_texts(connection, "items", folder=folder)
        differences += _difference("item", given(), stored, several="items")
    _refuse(folder, manifest, differences)


def _comparable(card: ScorerCard) -> ScorerCard:
    """A card without what may differ between the machines of one build."""
    return replace(card, source=None, arithmetic=card.arithmetic if card.saturates else None)


def _other_settings(manifest: Manifest, *, card: ScorerCard | None, dtype: str) -> list[str]:
    # Builds begun before cards had settings, or on another processor, go on where the scores agree.
    undecided = {"source", "arithmetic"} | ({"settings"} if manifest.scorer and not manifest.scorer.settings else set())
    differences = [
        f"scorer {name}: {ours!r} in the folder, {theirs!r} now"
        for name in (field.name for field in fields(ScorerCard) if field.name not in undecided)
        if (ours := getattr(manifest.scorer, name, None)) != (theirs := getattr(card, name, None))
    ]
    if manifest.dtype != dtype:
        differences.append(f"dtype: {manifest.dtype!r} in the folder, {dtype!r} now")
    return differences


def _refuse(folder: Path, manifest: Manifest, differences: Sequence[str]) -> None:
    if differences:
        if manifest.status == "complete":
            remedy = IT_IS_FINISHED
        else:
            remedy = f"Choose another path, or continue it as it was begun. {how_to_continue(manifest.origin)}"
        raise IndexMismatch(f"{place_named(folder)} was built from something else: {'; '.join(differences)}. {remedy}")


def _difference(
    kind: str, given: Iterable[tuple[str, str]], stored: Iterable[tuple[str, str]], *, several: str
) -> list[str]:
    """The counts where they differ, since that alone explains it; else the first that differs, if any."""
    n_now = n_then = 0
    first: list[str] = []
    for position, (now, then) in enumerate(zip_longest(given, stored)):
        n_now += now is not None
        n_then += then is not None
        if first or now is None or then is None or now == then:
            continue
        if now[0] != then[0]:
            first = [f"{kind} {position}: id {then[0]!r} in the folder, {now[0]!r} now"]
        else:
            at = next((at for at, (a, b) in enumerate(zip(then[1], now[1], strict=False)) if a != b), None)
            at = min(len(then[1]), len(now[1])) if at is None else at
            first = [
                f"{kind} {now[0]!r}: the texts differ from character {at + 1:,} on: {_around(then[1], at)} in the "
                f"folder, {_around(now[1], at)} now"
            ]
            if kind == "item":
                first[0] += " (other --text-field or --id-field options give other texts)"
    return first if n_now == n_then else [_other_count(several, now=n_now, then=n_then)]


def _other_count(several: str, *, now: int, then: int) -> str:
    return f"it has {then:,} {several}, and {now:,} are asked for now"


def _around(text: str, at: int) -> str:
    """The text near a place in it."""
    start, stop = max(0, at - 30), at + 30
    return repr(("…" if start else "") + text[start:stop] + ("…" if stop < len(text) else ""))


def _as_stored(scores: FloatArray, dtype: str, anchors: Sequence[Query], items: Sequence[Item]) -> FloatArray:
    with np.errstate(over="ignore"):
        values = scores.astype(dtype)
    beyond = np.isinf(values)
    if beyond.any():
        row, column = (int(at[0]) for at in np.nonzero(beyond))
        raise InputError(
            f"{dtype} holds numbers up to {np.finfo(dtype).max:g}; query {anchors[row].id!r} and item "
            f"{items[column].id!r} score {scores[row, column]:g}. Build in another folder with a wider dtype."
        )
    check_not_lost(scores, values)
    return values


def check_not_lost(scores: FloatArray, stored: FloatArray) -> None:
    """Refuse to store scores that are too small for their dtype: all of them would be 0."""
    if scores.any() and not stored.any():
        raise InputError(
            f"{stored.dtype} holds no numbers below {np.finfo(stored.dtype).smallest_subnormal:g} but 0, and the "
            f"largest of {scores.size} scores is {np.abs(scores).max():g}. Build in another folder with a wider dtype, "
            "or multiply the scores by a constant."
        )


def _timed_block_items(
    folder: Path,
    n_items: int,
    anchors: Sequence[Query],
    *,
    dtype: str,
    scorer: Scorer,
    seed: int,
    workforce: Workforce,
) -> tuple[int, int]:
    """The items of a block, and the calls to time a sample; a small build is cut into a few blocks without any."""
    pairs = n_items * len(anchors)
    if pairs <= _SMALL_BUILD:
        return min(n_items, max(_MIN_BLOCK_ITEMS, -(-n_items // _SMALL_BUILD_BLOCKS))), 0
    sample = StoredItems(folder).at(np.linspace(0, n_items - 1, min(n_items, _SAMPLE_ITEMS)).astype(int))
    timing = time_scorer(sample, anchors, scorer=scorer, seed=seed, seconds=1.0, most_calls=pairs // 200)
    chosen = block_items_for(
        timing.pairs_per_second * workforce.speed(scorer),
        n_items=n_items,
        n_anchors=len(anchors),
        dtype=dtype,
        devices=workforce.size(scorer),
    )
    return chosen, timing.calls_used


def block_items_for(pairs_per_second: float, *, n_items: int, n_anchors: int, dtype: str, devices: int = 1) -> int:
    """How many items make a block of some 20 s of a device: short enough to lose, long enough to keep it busy.

    `pairs_per_second` is that of all devices. Several get at least eight blocks each, lest some wait for the last.
    """
    wanted = int(pairs_per_second / devices * _BLOCK_SECONDS / n_anchors)
    if devices > 1:
        wanted = min(wanted, -(-n_items // (devices * _BLOCKS_PER_DEVICE)))
    return min(max(_MIN_BLOCK_ITEMS, wanted), _largest_block(n_anchors, np.dtype(dtype)), n_items)


def _largest_block(n_anchors: int, dtype: np.dtype[Any]) -> int:
    return max(1, min(_MAX_BLOCK_ITEMS, _BLOCK_BYTES // (max(1, n_anchors) * dtype.itemsize)))


def _read_blocks(folder: Path, manifest: Manifest, numbers: Iterable[int]) -> Iterator[_Block]:
    with contextlib.closing(connect(folder)) as connection:
        for number in numbers:
            positions = manifest.block(number)
            yield _Block(number, positions, _block_items(connection, positions))


def _block_items(connection: sqlite3.Connection, positions: range) -> list[Item]:
    rows = connection.execute(
        "SELECT id, text, metadata FROM items WHERE position >= ? AND position < ? ORDER BY position",
        (positions.start, positions.stop),
    )
    return [Item(id=id_, text=text, metadata=json.loads(metadata)) for id_, text, metadata in rows]
