"""Whether a folder still holds what the build wrote."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from adacur.data.stored import check_seal
from adacur.errors import AdacurError, DamagedIndex
from adacur.store.blocks import SCORES, ScoreBlocks, digest_scores
from adacur.store.database import DATABASE, check_room, connect, digest_texts, read_texts
from adacur.store.folder import first_stage_folders
from adacur.store.manifest import MANIFEST, PARTS, Manifest, PartRecord, manifest_in
from adacur.store.parts import EXACT, REMOVED, read_parts
from adacur.store.versions import AT_HOME, MODEL, hold_version
from adacur.store.writing import check_files, digest_file, folder_at


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
    problems: list[Problem] = []
    checked = blocks = 0
    for name, record in {record.name: record for record in manifest.parts}.items():
        if name is None:
            continue
        file, folder = MANIFEST, index / PARTS / name
        try:
            part = manifest_in(folder)
            file = DATABASE
            # Before as many blocks are looked for as the manifest says.
            check_room(folder, n_items=record.items, n_anchors=record.anchors)
        except AdacurError as error:
            problems.append(Problem(_within(index, folder, file), str(error)))
            continue
        recorded: dict[int, tuple[str, int]] = {}
        wrong = [*_check_database(folder, part, record, recorded), *_check_blocks(folder, part, recorded)]
        problems += (replace(one, file=_within(index, folder, one.file)) for one in wrong)
        checked, blocks = checked + len(recorded), blocks + part.n_blocks
    stages = {folder.name: folder for folder in first_stage_folders(home)}
    for folder in (*stages.values(), home / MODEL):
        if folder.exists():
            problems += (Problem(_within(index, folder, file), what) for file, what in check_files(folder))
    removed = _check_digest(home, REMOVED, manifest.removed_items)
    problems += (replace(one, file=_within(index, home, one.file)) for one in removed)
    if not problems:
        try:
            read_parts(index, home, manifest)
        except AdacurError as error:
            problems.append(Problem(_within(index, home, MANIFEST), str(error)))
    said = {problem.file for problem in problems}
    problems += (one for one in _check_seals(index, home, manifest) if one.file not in said)
    missing = (name for name in manifest.first if name not in stages)
    problems += (Problem(_within(index, home, f"first/{name}"), "it is missing") for name in missing)
    return Report(tuple(problems), complete=manifest.status == "complete", blocks_checked=checked, blocks=blocks)


def _check_seals(index: Path, home: Path, manifest: Manifest) -> Iterator[Problem]:
    """Check the manifests, and what is stored of a tuning: JSON files that hold a digest of themselves."""
    parts = {index / PARTS / part.name / MANIFEST: None for part in manifest.parts if part.name is not None}
    of_home = [home / name for name in (MANIFEST, *AT_HOME) if name.endswith(".json")]
    for file in (index / MANIFEST, *of_home, *parts):
        try:
            check_seal(file)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield Problem(file.relative_to(index).as_posix(), str(error))


def _check_digest(folder: Path, file: str, digest: str | None) -> Iterator[Problem]:
    try:
        if digest_file(folder / file) != digest:
            yield Problem(file, "its content is not what was written")
    except OSError as error:
        yield Problem(file, f"it cannot be read: {error}")


def _within(index: Path, folder: Path, file: str) -> str:
    return (folder / file).relative_to(index).as_posix()


def _check_database(
    folder: Path, manifest: Manifest, record: PartRecord, recorded: dict[int, tuple[str, int]]
) -> Iterator[Problem]:
    """Check the texts, and gather the records of finished blocks in `recorded`."""
    try:
        with contextlib.closing(connect(folder)) as connection:
            for (what,) in connection.execute("PRAGMA integrity_check(10)"):
                if what != "ok":
                    yield Problem(DATABASE, str(what))
            for block, digest, pairs in connection.execute("SELECT block, digest, pairs FROM blocks ORDER BY block"):
                recorded[int(block)] = (str(digest), int(pairs))
            for table, count, digest in (
                ("items", record.items, manifest.items_digest),
                ("anchors", record.anchors, manifest.anchors_digest),
            ):
                rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                if rows != count:
                    yield Problem(DATABASE, f"it holds {rows} {table}; the manifest says {count}")
                elif digest_texts(read_texts(connection, table, folder=folder)) != digest:
                    yield Problem(DATABASE, f"an id or a text among its {table} is not the one that was scored")
            metadata = read_texts(connection, "items", folder=folder, column="metadata")
            if manifest.metadata_digest not in (None, digest_texts(metadata)):
                yield Problem(DATABASE, "the metadata of an item are not those that were stored")
    # A flipped byte can make any column of any row something else than it was.
    except (sqlite3.Error, AdacurError, ValueError, TypeError, AttributeError) as error:
        yield Problem(DATABASE, f"it cannot be read: {error}")


def _check_blocks(folder: Path, manifest: Manifest, recorded: dict[int, tuple[str, int]]) -> Iterator[Problem]:
    if manifest.status == "complete" and len(recorded) != manifest.n_blocks:
        yield Problem(DATABASE, f"it records {len(recorded)} finished blocks of {manifest.n_blocks}")
    if manifest.exact is not None:
        yield from _check_digest(folder, EXACT, manifest.exact)
    try:
        blocks = ScoreBlocks.open(folder, manifest)
    except DamagedIndex as error:
        yield Problem(f"{SCORES}/zarr.json", str(error))
        return
    # What is recorded is bounded by the database, whatever the manifest counts.
    for block, (digest, pairs) in recorded.items():
        if not 0 <= block < manifest.n_blocks:
            yield Problem(DATABASE, f"it records block {block} of {manifest.n_blocks}")
            continue
        file = blocks.chunk(block)
        try:
            values = blocks.read(block)
        except DamagedIndex as error:
            yield Problem(file, str(error), block)
            continue
        if pairs != values.size:
            yield Problem(DATABASE, f"block {block} is recorded with {pairs} pairs and has {values.size}", block)
        if digest != digest_scores(values):
            yield Problem(file, f"the scores of block {block} are not those that were recorded", block)
        rows = manifest.block(block)
        for probe in manifest.probes:
            if probe.item in rows and not (
                0 <= probe.anchor < manifest.n_anchors and values[probe.item - rows.start, probe.anchor] == probe.score
            ):
                yield Problem(MANIFEST, f"the remembered score of item {probe.item} is not the stored one", block)
