"""Scoring every item against every anchor query, block by block; a finished block is never scored again."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import (
    AdacurError,
    DamagedIndex,
    IndexMismatch,
    InputError,
    ScorerError,
    ScorerFailed,
)
from adacur.protocols import AnchorScores, Items, Scorer, ScorerCard
from adacur.records import Item, Query, as_queries
from adacur.scorers.calling import score_grid
from adacur.store.anchor_table import distinct_anchors
from adacur.store.blocks import ScoreBlocks, as_stored, check_dtype, digest_scores, largest_block
from adacur.store.database import DATABASE_FILES, connect, count_documents, load, seal
from adacur.store.estimate import (
    MOST_LOOKED_AT,
    Estimate,
    block_items_for,
    blocks_of_small_build,
    count_cut,
    estimate,
)
from adacur.store.executor import Executor, InThisProcess, WorkersLost
from adacur.store.folder import IndexFolder, is_finished
from adacur.store.items import StoredItems
from adacur.store.manifest import Manifest, Origin, Probe, write_manifest
from adacur.store.probes import Drift, choose_probes, compare_scores, same_scorer
from adacur.store.progress import Progress, ProgressReports
from adacur.store.source import Source, begun, check_same, comparable
from adacur.store.workers import On, check_workers, connected_to, executor_for
from adacur.store.writing import (
    LOCK,
    check_no_links,
    folder_at,
    full_disk_reported,
    is_in_use,
    locked,
    made_whole,
    remove_files,
    write_atomically,
)

_log = logging.getLogger("adacur.build")

_SAMPLE_ITEMS = 512
_SMALL_BUILD = 20_000
_PAIRS_TO_RECOGNISE = 8
_CONTINUES = "Finished blocks are kept: the same call, or command, again goes on from there."
# Lets PyTerrier recognise the folder as an artifact.
_PYTERRIER = {"type": "adacur_index", "format": "adacur", "package_hint": "adacur"}


@dataclass(frozen=True, slots=True)
class _Block:
    """A unit of work: items that follow one another, to be scored against every anchor query."""

    number: int
    items: list[Item]


@dataclass(frozen=True, slots=True)
class _Scored:
    """Scores as they are stored, (items, anchor queries), and the seconds of work in them."""

    values: FloatArray
    seconds: float


_ScoreBlock = Callable[[_Block], _Scored]
_ChooseExecutor = Callable[[int], Executor[_Block, _Scored]]
"""From the number of blocks that are left to the executor that scores them."""
Completes = Callable[[Path, Items], Mapping[str, Any]]
"""Adds to a folder whose scores are all stored what belongs to its build; the fields of the manifest that say so."""


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
    executor: On = None,
    origin: Origin | None = None,
    completes: Completes | None = None,
) -> IndexFolder:
    """Score every item against every anchor query into a folder; the same call again continues a stopped build.

    Items are read once, in order, and never held all at once. While a block is scored, the next is read and the last
    is written. A continued build keeps the seed, block size and metadata it began with.

    - anchor_queries: None scores nothing; the folder then holds the items alone.
    - block_items: items between two save points, by default about 20 s of work; finding that out costs up to half a
      percent more scorer calls, or none for builds of up to 20,000 pairs.
    - progress: called after each block, in the thread that writes them.
    - executor: None for this process, or `Ray(…)`. Workers send scores back, and only this process writes to `path`.
    - origin: the fields of its file, remembered in the manifest.
    - completes: what else belongs to the build, such as first stages. Called when all is scored; then the manifest is
      sealed.
    """
    folder = folder_at(path)
    check_dtype(dtype)
    if block_items is not None and block_items < 1:
        raise InputError(f"block_items must be at least 1; got {block_items}.")
    check_workers(executor, scorer)
    anchors = () if anchor_queries is None else distinct_anchors(as_queries(anchor_queries))
    reports = ProgressReports(progress)

    def choose_executor(blocks_left: int) -> Executor[_Block, _Scored]:
        return executor_for(
            executor,
            scorer,
            here=_scoring(scorer, anchors=anchors, dtype=dtype),
            elsewhere=functools.partial(_scoring_elsewhere, card=scorer.card, anchors=anchors, dtype=dtype),
            blocks_left=blocks_left,
        )

    def choose_block_items(n_items: int) -> int:
        pairs = n_items * len(anchors)
        size: dict[str, Any] = {"n_items": n_items, "n_anchors": len(anchors)}
        cost = Estimate(**size, pairs=pairs, bytes=pairs * np.dtype(dtype).itemsize)
        if block_items is None and pairs > _SMALL_BUILD:
            sample = StoredItems(folder).at(np.linspace(0, n_items - 1, min(n_items, _SAMPLE_ITEMS)).astype(int))
            limits: dict[str, Any] = {"seconds": 1.0, "most_calls": pairs // 200}
            cost = estimate(sample, anchors, scorer=scorer, **size, dtype=dtype, seed=seed, **limits, executor=executor)
        reports.timed = cost.calls_used
        if anchors:
            _log.info("%s", cost.summary())
        if block_items or not cost.calls_used:
            return block_items or blocks_of_small_build(n_items)
        return block_items_for(cost.pairs_per_second, **size, dtype=dtype, workers=cost.workers)

    def complete(path: Path, items: Items) -> Mapping[str, Any]:
        n_cut = count_cut(scorer, anchors, items)
        if n_cut:
            _log.warning("%s", cut_in_words(n_cut, len(items), scorer.card))
        return {"cut": n_cut} | dict(completes(path, items) if completes else {})

    # A cluster takes seconds to start, and a finished index has no use for it.
    with contextlib.nullcontext() if is_finished(folder) else connected_to(executor):
        _build(
            folder,
            Source(items, anchors, card=scorer.card, dtype=dtype, seed=seed, origin=origin),
            choose_executor=choose_executor,
            choose_block_items=choose_block_items,
            scorer=scorer,
            reports=reports,
            completes=complete,
        )
    return IndexFolder.open(folder)


def cut_in_words(n_cut: int, n_items: int, card: ScorerCard | None) -> str:
    """How many items are cut, and what to do about it."""
    about = "about " if n_items > MOST_LOOKED_AT else ""
    limit = card and (card.max_item_tokens or card.max_tokens)
    tokens = f" ({limit:,} tokens{'' if card and card.max_item_tokens else ' with the query'})" if limit else ""
    return (
        f"{about}{n_cut:,} of {n_items:,} items are longer than the scorer takes{tokens}: the rest of them is not read."
    )


def save_table(table: AnchorScores, path: str | Path, *, card: ScorerCard | None = None, **facts: Any) -> IndexFolder:
    """Write anchor scores from memory as a finished folder; `card` names their scorer, `facts` go into its manifest."""
    matrix = table.matrix

    def rows(start: int, stop: int) -> FloatArray:
        return matrix[start:stop]

    return save_rows(table.items, table.anchor_queries, rows, dtype=str(matrix.dtype), path=path, card=card, **facts)


def save_rows(
    items: Items,
    anchors: Sequence[Query],
    rows: Callable[[int, int], FloatArray],
    *,
    dtype: str,
    path: str | Path,
    card: ScorerCard | None = None,
    **facts: Any,
) -> IndexFolder:
    """The same from `rows(start, stop)`: scores of items in these positions, (items, anchor queries), read in order."""
    folder = folder_at(path)
    if is_in_use(folder):
        raise IndexMismatch(f"{folder} is in use already. Save to a new folder, or remove that one first.")
    block_items = min(len(items), largest_block(len(anchors), dtype))

    def look_up(block: _Block) -> _Scored:
        start = block.number * block_items
        return _Scored(rows(start, start + len(block.items)), seconds=0.0)

    queries = distinct_anchors(anchors) if anchors else ()
    # Saving cannot be resumed, so half a table must never be seen under the folder's name.
    with made_whole(folder) as unfinished:
        _build(
            unfinished,
            Source(items, queries, card=card, dtype=dtype, check=lambda item: None),
            choose_executor=lambda *_: InThisProcess(look_up),
            choose_block_items=lambda _: block_items,
            reports=ProgressReports(None),
            completes=lambda *_: facts,
        )
    return IndexFolder.open(folder)


def _build(
    folder: Path,
    source: Source,
    *,
    choose_executor: _ChooseExecutor,
    choose_block_items: Callable[[int], int],
    reports: ProgressReports,
    completes: Completes,
    scorer: Scorer | None = None,
) -> None:
    # Before anything in a finished folder is opened.
    check_no_links(folder)
    manifest = begun(folder)
    if manifest is not None and manifest.status == "complete":
        check_same(folder, manifest, source)
        return
    with locked(folder) as created, full_disk_reported(folder, reports.summary):
        # Another process may have begun, or finished, before this one got the lock.
        manifest = begun(folder)
        if manifest is None:
            manifest = _begin(folder, source, choose_block_items, created=created)
        else:
            check_same(folder, manifest, source)
            if manifest.status == "complete":
                return
            _log.info("Continuing the build in %s: finished blocks are not scored again.", folder)
        with contextlib.closing(connect(folder, writable=True)) as connection:
            blocks = ScoreBlocks.open(folder, manifest, writable=True)
            # A name proves little where there are no weights to compare.
            if scorer is not None and not same_scorer(manifest.scorer, scorer.card):
                reports.drift = _recognise(blocks, connection, source.anchors, scorer)
            _score_blocks(blocks, connection, choose_executor=choose_executor, reports=reports)
            probes = _choose_probes(blocks, connection)
        blocks.tidy()
        write_atomically(folder / "pt_meta.json", json.dumps(_PYTERRIER))
        facts = completes(folder, StoredItems(folder, keep_open=False))
        write_manifest(folder, replace(manifest, status="complete", probes=probes, **facts))


def _begin(folder: Path, source: Source, choose_block_items: Callable[[int], int], *, created: bool) -> Manifest:
    """Store the items and anchor queries, an array without scores, and the manifest, which comes last."""
    _remove(folder)
    try:
        with contextlib.closing(connect(folder, writable=True)) as connection:
            n_items, *digests = load(connection, source.items, source.anchors, check=source.check)
            documents = count_documents(connection)
    except Exception:
        _remove(folder)
        remove_files(folder, LOCK)
        if created:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    manifest = Manifest(
        status="building",
        n_items=n_items,
        n_anchors=len(source.anchors),
        dtype=source.dtype,
        block_items=choose_block_items(n_items),
        items_digest=digests[0],
        metadata_digest=digests[1],
        anchors_digest=digests[2],
        scorer=source.card,
        seed=source.seed,
        origin=source.origin,
        documents=documents,
    )
    ScoreBlocks.create(folder, manifest)
    write_manifest(folder, manifest)
    return manifest


def _remove(folder: Path) -> None:
    """Remove what a build that never reached its manifest left behind, and nothing else."""
    ScoreBlocks.discard(folder)
    remove_files(folder, *DATABASE_FILES)


def _recognise(
    blocks: ScoreBlocks, connection: sqlite3.Connection, anchors: Sequence[Query], scorer: Scorer
) -> Drift | None:
    """Compare a few scores of a finished block, so that one index never holds the scores of two scorers."""
    finished = connection.execute("SELECT min(block) FROM blocks").fetchone()[0]
    if finished is None:
        return None
    values, items = _read_back(blocks, connection, finished), _block_items(connection, blocks.manifest.block(finished))
    rows, columns = (np.linspace(0, n - 1, _PAIRS_TO_RECOGNISE).astype(int) for n in (len(items), len(anchors)))
    rows, columns = np.unique([rows, columns], axis=1)
    pairs = [(anchors[column], items[row]) for row, column in zip(rows, columns, strict=True)]
    return compare_scores(scorer, pairs, values[rows, columns], blocks.manifest, where=blocks.folder)


def _scoring(scorer: Scorer, *, anchors: Sequence[Query], dtype: str) -> _ScoreBlock:
    def score(block: _Block) -> _Scored:
        started = time.perf_counter()
        scores = score_grid(scorer, anchors, block.items)
        seconds = time.perf_counter() - started
        values = as_stored(scores, dtype, lambda at: (anchors[at[0]], block.items[at[1]]))
        return _Scored(np.ascontiguousarray(values.T), seconds)

    return score


def _scoring_elsewhere(
    open_scorer: Callable[[], Scorer], *, card: ScorerCard, anchors: Sequence[Query], dtype: str
) -> _ScoreBlock:
    """Called in another process, perhaps on another machine."""
    try:
        scorer = open_scorer()
    except AdacurError:
        raise
    except Exception as error:
        raise ScorerFailed(
            f"Scorer {card.name!r} could not be opened in a second process: {type(error).__name__}: {error}"
        ) from error
    # One index never holds the scores of two scorers.
    if comparable(scorer.card) != comparable(card):
        raise ScorerFailed(f"The scorers of all processes must be alike; got {scorer.card} beside {card}.")
    return _scoring(scorer, anchors=anchors, dtype=dtype)


def _score_blocks(
    blocks: ScoreBlocks, connection: sqlite3.Connection, *, choose_executor: _ChooseExecutor, reports: ProgressReports
) -> None:
    """Read the next block and write the last one while a block is scored.

    The scorer runs in this thread, or in other processes; reading and writing each have a thread and a connection of
    their own. Only one finished block may wait to be written.
    """
    manifest = blocks.manifest
    done = {block for (block,) in connection.execute("SELECT block FROM blocks")}
    left = [block for block in range(manifest.n_blocks) if block not in done]
    pairs = manifest.n_items * manifest.n_anchors
    pairs_done = sum(len(manifest.block(block)) for block in done) * manifest.n_anchors
    reports.begin(blocks=manifest.n_blocks, pairs=pairs, blocks_done=len(done), pairs_done=pairs_done)
    if not left:
        return
    executor = choose_executor(len(left))

    def store(block: int, scored: _Scored) -> None:
        blocks.write(block, scored.values)
        # The record comes after the chunk is on the disk: a chunk without a record is scored again, never trusted.
        record = (block, digest_scores(scored.values), scored.values.size, scored.seconds)
        connection.execute("INSERT INTO blocks VALUES (?, ?, ?, ?)", record)
        reports.add(blocks=1, pairs=scored.values.size, workers=executor.workers)

    # However this ends, the executor is stopped first and what was scored is then still written.
    with (
        ThreadPoolExecutor(1, thread_name_prefix="adacur-write") as writer,
        contextlib.closing(executor.run(_read_blocks(blocks, left))) as scoring,
    ):
        writing: Future[None] | None = None
        try:
            for block, scored in scoring:
                last, writing = writing, writer.submit(store, block.number, scored)
                # Names that live on into the next turn would keep a block in memory for nothing.
                del block, scored
                if last is not None:
                    last.result()
        except WorkersLost as error:
            raise ScorerFailed(f"{error} {_CONTINUES}") from error
        except ScorerError as error:
            if reports.now.blocks_done or writing is not None:
                error.args = (f"{error} {_CONTINUES}",)
            raise
        if writing is not None:
            writing.result()


def _choose_probes(blocks: ScoreBlocks, connection: sqlite3.Connection) -> tuple[Probe, ...]:
    """Read all scores once more, and choose those by which the scorer is recognised; then seal the database."""
    manifest = blocks.manifest
    written = (
        (manifest.block(block).start, _read_back(blocks, connection, block)) for block in range(manifest.n_blocks)
    )
    probes = choose_probes(written, seed=manifest.seed)
    seal(connection)
    return probes


def _read_back(blocks: ScoreBlocks, connection: sqlite3.Connection, block: int) -> FloatArray:
    """The scores of a finished block; one that is damaged is finished no more."""
    digest = connection.execute("SELECT digest FROM blocks WHERE block = ?", (block,)).fetchone()[0]
    try:
        return blocks.read(block, digest=digest)
    except DamagedIndex:
        connection.execute("DELETE FROM blocks WHERE block = ?", (block,))
        raise


def _read_blocks(blocks: ScoreBlocks, numbers: Iterable[int]) -> Iterator[_Block]:
    with contextlib.closing(connect(blocks.folder)) as connection:
        for number in numbers:
            yield _Block(number, _block_items(connection, blocks.manifest.block(number)))


def _block_items(connection: sqlite3.Connection, positions: range) -> list[Item]:
    rows = connection.execute(
        "SELECT id, text, metadata FROM items WHERE position >= ? AND position < ? ORDER BY position",
        (positions.start, positions.stop),
    )
    return [Item(id=id_, text=text, metadata=json.loads(metadata)) for id_, text, metadata in rows]
