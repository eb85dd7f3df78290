"""Whether a folder still holds what the build wrote."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adacur.data.stored import check_seal
from adacur.errors import AdacurError, DamagedIndex
from adacur.seeds import item_keys
from adacur.store.blocks import SCORES, ScoreBlocks, digest_scores
from adacur.store.database import (
    DATABASE,
    KEYS,
    check_room,
    connect,
    digest_recorded,
    digest_texts,
    every_id,
    read_texts,
)
from adacur.store.folder import first_stage_folders
from adacur.store.items import StoredItems
from adacur.store.manifest import MANIFEST, PARTS, Manifest, PartRecord, manifest_in
from adacur.store.parts import EXACT, REMOVED, read_parts
from adacur.store.versions import AT_HOME, MODEL, hold_version
from adacur.store.writing import check_files, digest_file, folder_at

_Found = tuple[Path, str, int | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in `file` that is not as the build wrote it; `block` where it concerns a block of scores."""

    file: str
    what: str
    block: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `verify`. An unfinished build is not damage: it is `ok` without being `complete`."""

    problems: tuple[Problem, ...]
    complete: bool = False
    blocks_checked: int = 0
    blocks: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems


def verify(path: str | Path) -> Report:
    """Read all that searches of an index read, and report what is not as it was written.

    Of an index that was changed, the current version is read, and all of every part that it is made of.
    """
    index = folder_at(path)
    try:
        home, manifest, held = hold_version(index)
    except AdacurError as error:
        return Report((Problem(MANIFEST, str(error)),))
    try:
        return _verify(index, home, manifest)
    finally:
        held.release()


def _verify(index: Path, home: Path, manifest: Manifest) -> Report:
    found: list[_Found] = []
    checked = blocks = 0
    for name, record in {record.name: record for record in manifest.parts}.items():
        if name is None:
            continue
        file, folder = index / PARTS / name / MANIFEST, index / PARTS / name
        try:
            part = manifest_in(folder)
            file = folder / DATABASE
            # Before as many blocks are looked for as the manifest says.
            check_room(folder, n_items=record.items, n_anchors=record.anchors)
        except AdacurError as error:
            found.append((file, str(error), None))
            continue
        recorded: dict[int, tuple[str, int]] = {}
        found += [*_check_database(folder, part, record, recorded), *_check_blocks(folder, part, recorded)]
        checked, blocks = checked + len(recorded), blocks + part.n_blocks
    stages = {folder.name: folder for folder in first_stage_folders(home)}
    for folder in (*stages.values(), home / MODEL):
        if folder.exists():
            found += ((folder / file, what, None) for file, what in check_files(folder))
    found += _check_digest(home / REMOVED, manifest.removed_items)
    if not found:
        try:
            read_parts(index, home, manifest)
        except AdacurError as error:
            found.append((home / MANIFEST, str(error), None))
    said = {file for file, _, _ in found}
    found += (one for one in _check_seals(index, home, manifest) if one[0] not in said)
    found += ((home / "first" / name, "it is missing", None) for name in manifest.first if name not in stages)
    problems = tuple(Problem(file.relative_to(index).as_posix(), what, block) for file, what, block in found)
    return Report(problems, complete=manifest.status == "complete", blocks_checked=checked, blocks=blocks)


def _check_seals(index: Path, home: Path, manifest: Manifest) -> Iterator[_Found]:
    """Check the manifests, and what is stored of a tuning: JSON files that hold a digest of themselves."""
    parts = {index / PARTS / part.name / MANIFEST: None for part in manifest.parts if part.name is not None}
    of_home = [home / name for name in (MANIFEST, *AT_HOME) if name.endswith(".json")]
    for file in (index / MANIFEST, *of_home, *parts):
        try:
            check_seal(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield file, str(error), None


def _check_digest(file: Path, digest: str | None) -> Iterator[_Found]:
    try:
        if digest_file(file) != digest:
            yield file, "its content is not what was written", None
    except OSError as error:
        yield file, f"it cannot be read: {error}", None


def _check_database(
    folder: Path, manifest: Manifest, record: PartRecord, recorded: dict[int, tuple[str, int]]
) -> Iterator[_Found]:
    """Check the texts and the keys of items, and gather the records of finished blocks in `recorded`."""
    file = folder / DATABASE
    try:
        with contextlib.closing(connect(folder)) as connection:
            for (what,) in connection.execute("PRAGMA integrity_check(10)"):
                if what != "ok":
                    yield file, str(what), None
            for block, digest, pairs in connection.execute("SELECT block, digest, pairs FROM blocks ORDER BY block"):
                recorded[int(block)] = (str(digest), int(pairs))
            for table, count, digest in (
                ("items", record.items, manifest.items_digest),
                ("anchors", record.anchors, manifest.anchors_digest),
            ):
                rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                if rows != count:
                    yield file, f"it holds {rows} {table}; the manifest says {count}", None
                elif digest_texts(read_texts(connection, table, folder=folder)) != digest:
                    yield file, f"an id or a text among its {table} is not the one that was scored", None
            metadata = read_texts(connection, "items", folder=folder, column="metadata")
            if manifest.metadata_digest not in (None, digest_texts(metadata)):
                yield file, "the metadata of an item are not those that were stored", None
            if manifest.scores_digest not in (None, digest_recorded(connection)):
                yield file, "the digests of its blocks are not those that were recorded", None
            if not np.array_equal(StoredItems(folder, keep_open=False).keys, item_keys(every_id(connection, folder))):
                yield folder / KEYS, "they are not the keys of its items", None
    # A flipped byte can make any column of any row something else than it was.
    except (sqlite3.Error, AdacurError, ValueError, TypeError, AttributeError) as error:
        yield file, f"it cannot be read: {error}", None


def _check_blocks(folder: Path, manifest: Manifest, recorded: dict[int, tuple[str, int]]) -> Iterator[_Found]:
    if manifest.status == "complete" and len(recorded) != manifest.n_blocks:
        yield folder / DATABASE, f"it records {len(recorded)} finished blocks of {manifest.n_blocks}", None
    if manifest.exact is not None:
        yield from _check_digest(folder / EXACT, manifest.exact)
    try:
        blocks = ScoreBlocks.open(folder, manifest)
    except DamagedIndex as error:
        yield folder / SCORES / "zarr.json", str(error), None
        return
    # What is recorded is bounded by the database, whatever the manifest counts.
    for block, (digest, pairs) in recorded.items():
        if not 0 <= block < manifest.n_blocks:
            yield folder / DATABASE, f"it records block {block} of {manifest.n_blocks}", None
            continue
        file = folder / blocks.chunk(block)
        try:
            values = blocks.read(block)
        except DamagedIndex as error:
            yield file, str(error), block
            continue
        if pairs != values.size:
            yield folder / DATABASE, f"block {block} is recorded with {pairs} pairs and has {values.size}", block
        if digest != digest_scores(values):
            yield file, f"the scores of block {block} are not those that were recorded", block
        rows = manifest.block(block)
        for probe in manifest.probes:
            if probe.item in rows and not (
                0 <= probe.anchor < manifest.n_anchors and values[probe.item - rows.start, probe.anchor] == probe.score
            ):
                yield folder / MANIFEST, f"the remembered score of item {probe.item} is not the stored one", block
