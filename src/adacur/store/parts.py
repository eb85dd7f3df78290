"""What a version of an index is made of: parts that only append items or anchor queries, and what was removed of them.

One that brings items has their scores for the anchor queries that counted when it came; one that brings anchor queries
has their scores for the items that counted then. So of every score that counts there is exactly one, whatever was
removed in between.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.data.stored import read_array
from adacur.errors import DamagedIndex
from adacur.store.blocks import ScoreBlocks, largest_block
from adacur.store.database import check_room
from adacur.store.manifest import PARTS, Manifest, PartRecord, manifest_in
from adacur.store.writing import damage_reported, digest_file, sync_path

REMOVED = "removed.npy"
EXACT = "exact.npy"
_COUNTS = np.iinfo(np.int32).max


@dataclass(frozen=True, eq=False)
class Axis:
    """Items or anchor queries in the order in which they came, those that were removed included.

    `added` counts those that each part brought. `until` has for each how many parts there were when it was removed,
    and a number larger than that while it counts.
    """

    added: tuple[int, ...]
    until: IntArray

    @classmethod
    def of(cls, added: Sequence[int], removed: IntArray) -> Axis:
        """From rows of (place, how many parts there were when it was removed), in the order of the places."""
        until: IntArray = np.full(sum(added), _COUNTS, dtype=np.int32)
        places, stamps = removed.T
        if len(removed) and not (places[0] >= 0 and places[-1] < len(until) and (np.diff(places) > 0).all()):
            raise ValueError("what is removed must be there, and each place be named once, in order")
        came = np.searchsorted(np.cumsum(added), places, side="right")
        if not ((came < stamps) & (stamps <= len(added))).all():
            raise ValueError("what is removed must have come before")
        until[places] = stamps
        return cls(tuple(added), until)

    def grown(self, n: int) -> Axis:
        """With one more part, which brings n."""
        return Axis((*self.added, n), np.concatenate([self.until, np.full(n, _COUNTS, dtype=np.int32)]))

    def without(self, positions: IntArray) -> Axis:
        """Less those at these positions of the version."""
        until = self.until.copy()
        until[np.flatnonzero(self.counts)[positions]] = len(self.added)
        return replace(self, until=until)

    @property
    def counts(self) -> BoolArray:
        """Which are in the version."""
        return np.asarray(self.until == _COUNTS)

    @property
    def removed(self) -> IntArray:
        """Rows of (place, how many parts there were when it was removed)."""
        places = np.flatnonzero(~self.counts)
        return np.stack([places, self.until[places].astype(np.int64)], axis=1)

    @cached_property
    def _positions(self) -> IntArray:
        return np.where(self.counts, np.cumsum(self.counts) - 1, -1)

    @cached_property
    def _ends(self) -> list[int]:
        return [0, *itertools.accumulate(self.added)]

    def brought_by(self, part: int) -> IntArray:
        """The positions in the version of what a part brought, -1 for what was removed since."""
        return self._positions[self._ends[part] : self._ends[part + 1]]

    def held_by(self, part: int) -> IntArray:
        """The same of what a part has scores of: what it brought, or else all that counted when it came."""
        if self.added[part]:
            return self.brought_by(part)
        before = self._ends[part]
        return self._positions[:before][self.until[:before] > part]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A folder of scores. `rows` and `columns` are the positions that its items and anchor queries have in the version,
    -1 for what was removed; both ascend. `items` and `anchors` count those that it brings, the texts of which it has.
    """

    folder: Path
    manifest: Manifest
    rows: IntArray
    columns: IntArray
    items: int
    anchors: int


@dataclass(frozen=True, eq=False)
class Layout:
    """The parts of a version, in the order in which they came; a part of which nothing counts has no name."""

    names: tuple[str | None, ...]
    items: Axis
    anchors: Axis

    @classmethod
    def of(
        cls,
        records: Sequence[PartRecord],
        removed_items: IntArray | None = None,
        removed_anchors: IntArray | None = None,
    ) -> Layout:
        """As a manifest has it."""
        none = np.empty((0, 2), dtype=np.int64)
        items = Axis.of([record.items for record in records], none if removed_items is None else removed_items)
        anchors = Axis.of([record.anchors for record in records], none if removed_anchors is None else removed_anchors)
        return cls(tuple(record.name for record in records), items, anchors)

    def grown(self, name: str, *, n_items: int = 0, n_anchors: int = 0) -> Layout:
        """With one more part, of new items or of new anchor queries."""
        return Layout((*self.names, name), self.items.grown(n_items), self.anchors.grown(n_anchors))

    def without(self, *, items: IntArray | None = None, anchors: IntArray | None = None) -> Layout:
        """Less the items or anchor queries at these positions of the version."""
        left = self.items if items is None else self.items.without(items)
        asked = self.anchors if anchors is None else self.anchors.without(anchors)
        return Layout(self.names, left, asked)

    @property
    def is_whole(self) -> bool:
        """Whether it is one part of which everything counts."""
        return len(self.names) == 1 and bool(self.items.counts.all() and self.anchors.counts.all())

    def needs(self, part: int) -> bool:
        """Whether anything counts that a part brought."""
        return bool((self.items.brought_by(part) >= 0).any() or (self.anchors.brought_by(part) >= 0).any())

    def records(self) -> tuple[PartRecord, ...]:
        """What the manifest of the version says of them."""
        return tuple(
            PartRecord(name if self.needs(part) else None, self.items.added[part], self.anchors.added[part])
            for part, name in enumerate(self.names)
        )

    def parts(self, index: Path) -> list[Part]:
        """The parts of which anything counts."""
        return [
            Part(
                index / PARTS / name,
                manifest_in(index / PARTS / name),
                self.items.held_by(part),
                self.anchors.held_by(part),
                self.items.added[part],
                self.anchors.added[part],
            )
            for part, name in enumerate(self.names)
            if name is not None and self.needs(part)
        ]


def read_parts(index: Path, home: Path, manifest: Manifest) -> tuple[Layout, list[Part]]:
    """How a version is laid out, and its parts; refused where they do not fit, before memory is taken for them."""
    file = home / REMOVED
    with damage_reported(str(file)):
        removed = read_array(file, kind="i", ndim=2).astype(np.int64)
        asked = np.array(manifest.removed_anchors, dtype=np.int64).reshape(-1, 2)
        if removed.shape[1] != 2 or digest_file(file) != manifest.removed_items:
            raise ValueError("its content is not what was written")
    records = manifest.parts
    names = [record.name for record in records if record.name is not None]
    # Files have room for what a part counts, once: a manifest could name a part a million times.
    if len(set(names)) < len(names):
        raise DamagedIndex(f"{home} names one of its parts more than once. Restore the folder from a copy.")
    for record in records:
        if record.name is not None:
            check_room(index / PARTS / record.name, n_items=record.items, n_anchors=record.anchors)
    n_gone = sum(record.items for record in records if record.name is None)
    counted = sum(record.items for record in records) - len(removed), sum(one.anchors for one in records) - len(asked)
    if counted != (manifest.n_items, manifest.n_anchors) or n_gone > len(removed):
        raise DamagedIndex(
            f"The parts of {home} hold {counted[0]} items × {counted[1]} anchor queries, and its manifest counts "
            f"{manifest.n_items} × {manifest.n_anchors}. Restore the folder from a copy."
        )
    with damage_reported(f"What {home} says of its parts"):
        layout = Layout.of(records, removed, asked)
        parts = layout.parts(index)
    lacking = any(name is None and layout.needs(number) for number, name in enumerate(layout.names))
    if lacking or any(
        (len(part.rows), len(part.columns)) != (part.manifest.n_items, part.manifest.n_anchors) for part in parts
    ):
        raise DamagedIndex(f"What {home} says of its parts does not fit them. Restore the folder from a copy.")
    return layout, parts


def write_removed_items(home: Path, items: Axis) -> str:
    """Write which items were removed, and give the digest; anchor queries are few, and the manifest has them."""
    np.save(home / REMOVED, items.removed)
    sync_path(home / REMOVED)
    return digest_file(home / REMOVED)


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


def exact_cells(parts: Sequence[Part], *, n_items: int, n_anchors: int) -> BoolArray | None:
    """Which scores the scorer gave, (items, anchor queries); None where it gave them all."""
    if all(part.manifest.exact is None for part in parts):
        return None
    cells = np.ones((n_items, n_anchors), dtype=np.bool_)
    for part in parts:
        if part.manifest.exact is None:
            continue
        file, shape = part.folder / EXACT, (part.manifest.n_items, part.manifest.n_anchors)
        with damage_reported(str(file)):
            exact = read_array(file, kind="b", ndim=2, mapped=True)
            if exact.shape != shape:
                raise ValueError(f"it has shape {exact.shape} and not {shape}")
        rows, columns = part.rows >= 0, part.columns >= 0
        cells[np.ix_(part.rows[rows], part.columns[columns])] = exact[np.ix_(rows, columns)]
    return cells


def digest_items(parts: Iterable[Part]) -> str:
    """A digest of the items of several parts."""
    return _digest((part.manifest.items_digest, part.rows) for part in parts if part.items)


def digest_scores(parts: Iterable[Part]) -> str:
    """A digest of the scores that count in several parts."""
    return _digest((str(part.manifest.scores_digest), part.rows, part.columns) for part in parts)


def _digest(parts: Iterable[tuple[str | IntArray, ...]]) -> str:
    """Of digests and places, since reading all that they stand for would take longer than most changes."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        for what in part:
            digest.update(what.encode() if isinstance(what, str) else np.ascontiguousarray(what, dtype="<i8").data)
    return digest.hexdigest()
