"""Whether a folder still holds what the build wrote."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adacur.data.stored import check_seal
from adacur.errors import AdacurError
from adacur.records import repeats
from adacur.seeds import item_keys
from adacur.store.blocks import SCORES, ScoreBlocks
from adacur.store.database import (
    DATABASE,
    KEYS,
    connect,
    digest_texts,
    every_id,
    read_texts,
)
from adacur.store.folder import IndexFolder, first_stage_folders
from adacur.store.items import StoredItems
from adacur.store.manifest import MANIFEST, PARTS, Manifest, manifest_in
from adacur.store.parts import EXACT, PLACES, read_parts
from adacur.store.versions import AT_HOME, MODEL, hold_version
from adacur.store.writing import check_files, digest_file, folder_at

_MISSING_SHOWN = 100
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
    for folder in (index / PARTS / name for name in dict.fromkeys(manifest.parts)):
        with _noted(found, folder / MANIFEST):
            part = manifest_in(folder)
            blocks += part.n_blocks
            _check_database(folder, part, found)
            checked += _check_blocks(folder, part, found)
    stages = {folder.name: folder for folder in first_stage_folders(home)}
    for folder in (*stages.values(), home / MODEL):
        if folder.exists():
            found += ((folder / file, what, None) for file, what in check_files(folder))
    _check_digest(home / PLACES, manifest.places, found)
    if not found:
        with _noted(found, home / MANIFEST):
            version = IndexFolder.of_parts(index, read_parts(index, home, manifest), manifest=manifest, home=home)
            # Within a part, its database sees to that. Ids take much memory, so keys are compared first.
            twice = len(version.parts) > 1 and len(np.unique(version.items.keys)) < len(version.items)
            for ids in (version.items.ids if twice else (), [query.id for query in version.anchor_queries]):
                if len(set(ids)) < len(ids):
                    found.append((home / MANIFEST, f"of the ids in its parts, {repeats(ids)} more than once", None))
    # JSON files that hold a digest of themselves: manifests, and what is stored of a tuning.
    sealed = {index, home, *(index / PARTS / name for name in manifest.parts)}
    for file in (*(folder / MANIFEST for folder in sealed), *(home / name for name in AT_HOME if ".json" in name)):
        if file.exists() and all(other != file for other, _, _ in found):
            with _noted(found, file):
                check_seal(file)
    found += ((home / "first" / name, "it is missing", None) for name in manifest.first if name not in stages)
    problems = tuple(Problem(file.relative_to(index).as_posix(), what, block) for file, what, block in found)
    return Report(problems, complete=manifest.status == "complete", blocks_checked=checked, blocks=blocks)


@contextlib.contextmanager
def _noted(found: list[_Found], file: Path, block: int | None = None) -> Iterator[None]:
    """Note what reading a file raises: a flipped byte can make anything of anything."""
    try:
        yield
    except (AdacurError, ValueError) as error:
        found.append((file, str(error), block))
    except (OSError, sqlite3.Error, TypeError, AttributeError) as error:
        found.append((file, f"it cannot be read: {error}", block))


def _check_digest(file: Path, digest: str | None, found: list[_Found]) -> None:
    with _noted(found, file):
        if digest_file(file) != digest:
            found.append((file, "its content is not what was written", None))


def _check_database(folder: Path, manifest: Manifest, found: list[_Found]) -> None:
    """Check the texts and the keys of items."""
    file = folder / DATABASE
    with _noted(found, file), contextlib.closing(connect(folder)) as connection:
        wrong = [str(what) for (what,) in connection.execute("PRAGMA integrity_check(10)") if what != "ok"]
        found += ((file, what, None) for what in wrong)
        for table, count, digest in (
            ("items", manifest.n_items * manifest.brings_items, manifest.items_digest),
            ("anchors", manifest.n_anchors * manifest.brings_anchors, manifest.anchors_digest),
        ):
            rows = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            if rows != count:
                found.append((file, f"it holds {rows} {table}; the manifest says {count}", None))
            elif digest_texts(read_texts(connection, table, folder=folder)) != digest:
                found.append((file, f"an id or a text among its {table} is not the one that was scored", None))
        metadata = read_texts(connection, "items", folder=folder, column="metadata")
        if manifest.metadata_digest not in (None, digest_texts(metadata)):
            found.append((file, "the metadata of an item are not those that were stored", None))
        if not np.array_equal(StoredItems(folder, keep_open=False).keys, item_keys(every_id(connection, folder))):
            found.append((folder / KEYS, "they are not the keys of its items", None))


def _check_blocks(folder: Path, manifest: Manifest, found: list[_Found]) -> int:
    """Check the scores of blocks; how many are there."""
    blocks, n_found = ScoreBlocks(folder, manifest), len(found)
    there = set(blocks.finished())
    if manifest.exact is not None:
        _check_digest(folder / EXACT, manifest.exact, found)
    missing = (block for block in range(manifest.n_blocks) if manifest.status == "complete" and block not in there)
    # A manifest may count more than any disk holds.
    for block in (*sorted(there), *itertools.islice(missing, _MISSING_SHOWN)):
        with _noted(found, blocks.file(block), block):
            values, rows = blocks.read(block), manifest.block(block)
            for probe in (probe for probe in manifest.probes if probe.item in rows):
                if values[probe.item - rows.start, probe.anchor] != probe.score:
                    what = f"the remembered score of item {probe.item} is not the stored one"
                    found.append((folder / MANIFEST, what, block))
    if manifest.scores_digest is not None and len(found) == n_found and blocks.digest() != manifest.scores_digest:
        found.append((folder / SCORES, "its blocks are not those that were recorded", None))
    return len(there)
