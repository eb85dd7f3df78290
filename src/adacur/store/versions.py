"""Versions of an index: the parts each is made of, which rows and columns of them count, who reads them, and the
deletion of those that are no longer current or open.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.data.stored import read_array
from adacur.errors import DamagedIndex, NotAnIndex
from adacur.store.blocks import SCORES, ScoreBlocks, largest_block
from adacur.store.database import DATABASE_FILES, check_room
from adacur.store.manifest import (
    FIRST_MANIFEST,
    MANIFEST,
    VERSIONS,
    Manifest,
    PartRecord,
    home_of,
    read_manifest,
    read_part_manifest,
)
from adacur.store.writing import check_inside, check_no_links, damage_reported, locked, sync_tree, write_checksums

COMPRESSED = "gaussian"
# What a version, or an index as its build left it, keeps beside its manifest: made of its scores and items.
AT_HOME = ("first", COMPRESSED, "tuned.json", "relevance.json")
PARTS = "parts"
READERS = "readers.lock"
ROWS = "rows"
EXACT = "exact"
_CELLS = "cells.npy"
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A finished folder within an index. `rows` and `columns` are the places that its items and anchor queries have
    in the version, -1 for what does not count; in the order of the part, those of items ascend.
    """

    path: str
    folder: Path
    manifest: Manifest
    rows: IntArray
    columns: IntArray

    @classmethod
    def whole(
        cls, index: Path, path: str, *, first_row: int = 0, first_column: int = 0, manifest: Manifest | None = None
    ) -> Part:
        """A part of which everything counts."""
        manifest = manifest or read_part_manifest(index, path)
        return cls(
            path,
            index / path,
            manifest,
            first_row + np.arange(manifest.n_items),
            first_column + np.arange(manifest.n_anchors),
        )

    def record(self) -> PartRecord:
        """What a version's manifest says of it."""
        start = int(self.rows[0])
        follows = start >= 0 and bool((self.rows == start + np.arange(len(self.rows))).all())
        return PartRecord(self.path, start if follows else None, tuple(self.columns.tolist()))


def read_parts(index: Path, home: Path, manifest: Manifest) -> list[Part]:
    """The parts of a version."""
    parts = []
    # Files have room for what a part counts, once: a manifest could name a part a million times.
    if len({record.path for record in manifest.parts}) < len(manifest.parts):
        raise DamagedIndex(f"{home} names one of its parts more than once. Restore the folder from a copy.")
    for number, record in enumerate(manifest.parts):
        part = read_part_manifest(index, record.path)
        # Before an array as long as the manifest says is made.
        check_room(index / record.path, part)
        if record.start is not None:
            rows = record.start + np.arange(part.n_items)
        else:
            file = home / ROWS / f"{number}.npy"
            with damage_reported(str(file)):
                rows = read_array(file, kind="i").astype(np.int64)
        parts.append(Part(record.path, index / record.path, part, rows, np.array(record.columns, dtype=np.int64)))
    _check_tiled(parts, home, manifest)
    return parts


def write_parts(home: Path, parts: Sequence[Part]) -> tuple[PartRecord, ...]:
    """Write which items of each part count; the records of the parts for the manifest."""
    records = tuple(part.record() for part in parts)
    (home / ROWS).mkdir()
    for number, (part, record) in enumerate(zip(parts, records, strict=True)):
        if record.start is None:
            np.save(home / ROWS / f"{number}.npy", part.rows.astype(np.int32 if part.rows.max() < 2**31 else np.int64))
    return records


def live_blocks(
    parts: Sequence[Part], *, n_items: int, n_anchors: int, first: int = 0
) -> Iterator[tuple[int, FloatArray]]:
    """The scores that count, as stored, for items that follow one another: (position of the first, scores).

    Items from position `first` up to `n_items`.
    """
    if not n_anchors:
        return
    dtype = np.result_type(*(part.manifest.dtype for part in parts))
    height = largest_block(n_anchors, dtype)
    sources = [_PartScores(part) for part in parts if (part.columns >= 0).any()]
    for start in range(first, n_items, height):
        values = np.empty((min(height, n_items - start), n_anchors), dtype=dtype)
        for source in sources:
            source.fill(values, start)
        yield start, values


def exact_cells(parts: Sequence[Part], *, n_items: int, n_anchors: int) -> BoolArray | None:
    """Which scores the scorer gave, (items, anchor queries); None where it gave them all."""
    if not any(_is_partly_predicted(part) for part in parts):
        return None
    cells = np.ones((n_items, n_anchors), dtype=np.bool_)
    for part, rows, exact in _exact_rows(parts):
        cells[np.ix_(rows, part.columns[part.columns >= 0])] = exact
    return cells


def exact_anchors(parts: Sequence[Part], *, n_anchors: int) -> BoolArray:
    """For each anchor query, whether the scorer gave all its scores; read in blocks, whatever the number of items."""
    anchors = np.ones(n_anchors, dtype=np.bool_)
    for part, _, exact in _exact_rows(parts):
        anchors[part.columns[part.columns >= 0]] &= exact.all(axis=0)
    return anchors


def n_exact_cells(parts: Sequence[Part]) -> int:
    """How many of the scores that count the scorer gave; read in blocks, whatever the number of items."""
    whole = [part for part in parts if not _is_partly_predicted(part)]
    given = sum(np.count_nonzero(part.rows >= 0) * np.count_nonzero(part.columns >= 0) for part in whole)
    return int(given) + sum(int(np.count_nonzero(exact)) for _, _, exact in _exact_rows(parts))


def _is_partly_predicted(part: Part) -> bool:
    return (part.folder / EXACT / _CELLS).exists()


def _exact_rows(parts: Sequence[Part]) -> Iterator[tuple[Part, IntArray, BoolArray]]:
    """Parts with predicted scores: places of some items in the version, and which of their scores that count are exact.

    Read in blocks of items.
    """
    for part in filter(_is_partly_predicted, parts):
        rows, columns, packed = np.flatnonzero(part.rows >= 0), np.flatnonzero(part.columns >= 0), _cells(part)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            some = rows[start : start + _ROWS_AT_ONCE]
            bits = np.unpackbits(packed[some], axis=1, count=part.manifest.n_anchors)
            yield part, part.rows[some], bits[:, columns].astype(np.bool_)


def write_exact_cells(folder: Path, exact: Callable[[int, int], BoolArray], *, shape: tuple[int, ...]) -> None:
    """Keep which scores of a part are the scorer's, a bit each, as `exact(start, stop)` gives them for some items."""
    (folder / EXACT).mkdir()
    n_items, n_anchors = shape
    header = {"descr": "|u1", "fortran_order": False, "shape": (n_items, -(-n_anchors // 8))}
    # Not through a memory map: on a full disk, that ends the process without an error.
    with (folder / EXACT / _CELLS).open("wb") as cells:
        np.lib.format.write_array_header_1_0(cells, header)
        for start in range(0, n_items, _ROWS_AT_ONCE):
            cells.write(np.packbits(exact(start, min(start + _ROWS_AT_ONCE, n_items)), axis=1).tobytes())
    write_checksums(folder / EXACT)
    sync_tree(folder / EXACT)


def _cells(part: Part) -> Any:
    """The bits of a part's scores, one row per item, left on the disk."""
    file, shape = part.folder / EXACT / _CELLS, (part.manifest.n_items, -(-part.manifest.n_anchors // 8))
    with damage_reported(str(file)):
        packed = read_array(file, kind="u", ndim=2, mapped=True)
        if packed.shape != shape or packed.dtype != np.uint8:
            raise ValueError(f"it has shape {packed.shape} and not {shape}")
        return packed


class Reading:
    """Keeps the version that it was opened on from being deleted, until released or forgotten."""

    def __init__(self, descriptor: int | None) -> None:
        self.release = weakref.finalize(self, _close, descriptor)


def hold_version(index: Path) -> tuple[Path, Manifest, Reading]:
    """The home of the current version, its manifest, and a hold on it."""
    if not os.path.lexists(index / MANIFEST):
        # Any folder may hold links: that this is no index is said first.
        read_manifest(index)
    check_no_links(index)
    while True:
        home = home_of(index)
        held = Reading(_locked_for_reading(home))
        manifest = read_manifest(index)
        # While a lock is waited for, the version may have been left and pruned; one that is current is safe. So is
        # the manifest that was read meanwhile: that of the first build moves when a version takes its place.
        if home_of(index) == home:
            return home, manifest, held
        held.release()


@contextlib.contextmanager
def _without_readers(home: Path) -> Iterator[bool]:
    """Whether no reader has this version open; while the block runs, none can open it."""
    try:
        descriptor = os.open(_lock_file(home), os.O_RDONLY)
    except OSError as error:
        # Without this file there is no reader; where it cannot be opened, there may be one.
        yield isinstance(error, FileNotFoundError)
        return
    try:
        yield _lock(descriptor, exclusive=True)
    finally:
        os.close(descriptor)


def _lock_file(home: Path) -> Path:
    # An index that was never changed has no file for this, and perhaps lies where nothing can be written.
    return home / READERS if (home / READERS).exists() else home / SCORES / "zarr.json"


def _locked_for_reading(home: Path) -> int | None:
    try:
        descriptor = os.open(_lock_file(home), os.O_RDONLY)
    except OSError:
        return None
    if not _lock(descriptor, exclusive=False):
        os.close(descriptor)
        return None
    return descriptor


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    try:
        import fcntl
    except ImportError:
        return True  # Windows deletes no file that is open.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    except OSError:
        return False
    return True


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


class _PartScores:
    """The scores of a part that count, read block by block as positions go up."""

    def __init__(self, part: Part) -> None:
        self._rows = np.flatnonzero(part.rows >= 0)
        self._positions = part.rows[self._rows]
        self._columns = np.flatnonzero(part.columns >= 0)
        self._places = part.columns[self._columns]
        self._height = part.manifest.block_items
        self._blocks = ScoreBlocks.open(part.folder, part.manifest)
        self._last: tuple[int, FloatArray] | None = None

    def fill(self, values: FloatArray, start: int) -> None:
        """Put the scores of positions from `start` on in their places."""
        low, high = np.searchsorted(self._positions, [start, start + len(values)])
        rows, positions = self._rows[low:high], self._positions[low:high]
        for block in np.unique(rows // self._height).tolist():
            inside = rows // self._height == block
            stored = self._read(block)[np.ix_(rows[inside] - block * self._height, self._columns)]
            values[np.ix_(positions[inside] - start, self._places)] = stored

    def _read(self, block: int) -> FloatArray:
        if self._last is None or self._last[0] != block:
            self._last = block, self._blocks.read(block)
        return self._last[1]


def _check_tiled(parts: Sequence[Part], home: Path, manifest: Manifest) -> None:
    """Every score of a version lies in exactly one part, and every item in one or more."""
    # Anchor queries that the same parts have are looked at together: with their scores, as many times as all items.
    holders: dict[int, list[int]] = {}
    places = 0
    for number, part in enumerate(parts):
        rows, columns = part.rows[part.rows >= 0], part.columns[part.columns >= 0]
        fits = (
            len(part.rows) == part.manifest.n_items
            and len(part.columns) == part.manifest.n_anchors
            and bool((part.rows >= -1).all())
            and bool((np.diff(rows) > 0).all())
            and (not len(rows) or rows[-1] < manifest.n_items)
            and bool((columns < manifest.n_anchors).all())
        )
        if not fits:
            raise DamagedIndex(
                f"What {home} says of the part {part.path!r} does not fit it. Restore the folder from a copy."
            )
        places += len(rows)
        for column in columns.tolist():
            holders.setdefault(column, []).append(number)
    # Without anchor queries there are no scores that would tell.
    once = manifest.n_anchors > 0
    groups = set(map(tuple, holders.values())) if once else {tuple(range(len(parts)))}
    # Before memory is taken for as many items as the manifest says.
    if (
        places < manifest.n_items
        or len(holders) < manifest.n_anchors
        or not all(
            _cover(manifest.n_items, [parts[number].rows for number in numbers], once=once) for numbers in groups
        )
    ):
        raise DamagedIndex(
            f"The parts of {home} hold {places} items, and not each score of the {manifest.n_items} items × "
            f"{manifest.n_anchors} anchor queries once, as its manifest counts them. Restore the folder from a copy."
        )


def _cover(n_items: int, places: Iterable[IntArray], *, once: bool) -> bool:
    """Whether these positions together are those of all items, and each there `once`."""
    seen = np.zeros(n_items, dtype=np.bool_)
    for rows in places:
        rows = rows[rows >= 0]
        if once and seen[rows].any():
            return False
        seen[rows] = True
    return bool(seen.all())


def places_of(index: Path, home: Path) -> set[str]:
    """The files and folders that a version is made of, by their names within the index; some may not be there.

    Besides these an index has only its manifest, `pt_meta.json` and its lock.
    """
    places, parts = set(AT_HOME), {"."}
    if home != index:
        places = {home.relative_to(index).as_posix()}
        try:
            parts = {part.path for part in read_manifest(home).parts}
        except NotAnIndex:
            parts = set()  # It was never written to the end.
    first_build = {FIRST_MANIFEST, SCORES, EXACT, *DATABASE_FILES} if "." in parts else set()
    return places | first_build | parts - {"."}


def prune(path: str | Path) -> None:
    """Delete the versions that are neither current nor open anywhere, and the parts that only they used."""
    with locked(Path(path)):
        prune_locked(Path(path))


def prune_locked(index: Path, *, unused_parts: bool = False) -> None:
    """The same, by a process that holds the lock of the index.

    `unused_parts` deletes the parts that no version ever used as well: scores that an interrupted addition paid for.
    """
    home = home_of(index)
    current = int(home.name) if home != index else 1
    homes = [folder for folder in (index / VERSIONS).glob("*") if folder.is_dir()]
    if (index / FIRST_MANIFEST).exists():
        homes.append(index)
    used, unused = places_of(index, home), set()
    with contextlib.ExitStack() as held:
        for old in homes:
            if old == home:
                continue
            if old != index and (not old.name.isdecimal() or int(old.name) > current):
                # A version that was never switched to: its parts are scores that were paid for.
                unused.add(f"{VERSIONS}/{old.name}")
            elif held.enter_context(_without_readers(old)):
                unused |= places_of(index, old)
            else:
                used |= places_of(index, old)
        if unused_parts:
            unused |= {f"{PARTS}/{part.name}" for part in (index / PARTS).glob("*")}
        # Left behind by what was interrupted while it was written whole, or while it was deleted.
        for left_over in (*(index / PARTS).glob(".*"), *index.glob(".*.gone")):
            _delete(index, left_over)
        # Versions after their parts: what is left of one says which they were, should this be interrupted.
        for name in sorted(unused - used, key=lambda name: (name == FIRST_MANIFEST, name.startswith(VERSIONS))):
            _delete(index, index / name)


def _delete(index: Path, path: Path) -> None:
    """Delete a file or folder of an index, out of sight at once, and of a link only the link.

    One that another process holds open, on a system where that matters, stays.
    """
    if not path.exists() and not path.is_symlink():
        return
    check_inside(index, path)
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        if not path.name.startswith("."):
            gone = path.with_name(f".{path.name}.{uuid.uuid4().hex}.gone")
            path.rename(gone)
            path = gone
        shutil.rmtree(path)
