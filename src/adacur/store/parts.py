"""What a version of an index is made of: parts, which are rectangles of scores and never written to again.

A part that brings items has their scores for the anchor queries that counted when it came; one that brings anchor
queries has their scores for the items that counted then. A version says where the rows and columns of each part lie in
it, or that they were removed, so that of every score that counts there is exactly one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.data.stored import read_array
from adacur.errors import DamagedIndex
from adacur.store.blocks import ScoreBlocks, largest_block
from adacur.store.manifest import PARTS, Manifest, manifest_in
from adacur.store.writing import damage_reported, digest_file, sync_path

PLACES = "places.npy"
EXACT = "exact.npy"
_PLACE = np.int32
_REMEDY = "Restore the folder from a copy."


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A folder of scores. `rows` and `columns` are the positions that its items and anchor queries have in the version,
    -1 for what was removed; both ascend.
    """

    folder: Path
    manifest: Manifest
    rows: IntArray
    columns: IntArray

    @classmethod
    def after(cls, parts: Sequence[Part], folder: Path) -> Part:
        """The part in a folder, added to these: what it brings comes last, and the rest is all that counts."""
        manifest, (n_items, n_anchors) = manifest_in(folder), shape_of(parts)
        rows = np.arange(manifest.n_items, dtype=_PLACE) + _PLACE(n_items * manifest.brings_items)
        columns = np.arange(manifest.n_anchors, dtype=_PLACE) + _PLACE(n_anchors * manifest.brings_anchors)
        return cls(folder, manifest, rows, columns)

    @property
    def shape(self) -> tuple[int, int]:
        """How many of its items and anchor queries count."""
        return int(np.count_nonzero(self.rows >= 0)), int(np.count_nonzero(self.columns >= 0))

    @property
    def is_needed(self) -> bool:
        """Whether anything counts that it brought: the texts of items or of anchor queries."""
        n_items, n_anchors = self.shape
        return bool((self.manifest.brings_items and n_items) or (self.manifest.brings_anchors and n_anchors))


def shape_of(parts: Sequence[Part]) -> tuple[int, int]:
    """How many items and anchor queries there are in a version of these parts."""
    n_items = sum(part.shape[0] for part in parts if part.manifest.brings_items)
    return n_items, sum(part.shape[1] for part in parts if part.manifest.brings_anchors)


def is_whole(parts: Sequence[Part]) -> bool:
    """Whether a version is one part of which nothing was removed."""
    return len(parts) == 1 and parts[0].shape == (len(parts[0].rows), len(parts[0].columns))


def without(
    parts: Sequence[Part], *, items: Sequence[int] | IntArray = (), anchors: Sequence[int] | IntArray = ()
) -> list[Part]:
    """Parts less the items and anchor queries at these positions; one of which nothing counts any more is left out."""
    n_items, n_anchors = shape_of(parts)
    rows, columns = _positions_without(items, n_items), _positions_without(anchors, n_anchors)
    fewer = [replace(part, rows=rows[part.rows], columns=columns[part.columns]) for part in parts]
    return [part for part in fewer if part.is_needed]


def _positions_without(gone: Sequence[int] | IntArray, n: int) -> IntArray:
    """Where n positions lie once some have gone: -1 for these, and at the end for what went before."""
    left = np.ones(n + 1, dtype=np.bool_)
    left[np.append(np.asarray(gone, dtype=np.intp), n)] = False
    return np.where(left, np.cumsum(left, dtype=_PLACE) - 1, -1).astype(_PLACE, copy=False)


def read_parts(index: Path, home: Path, manifest: Manifest) -> list[Part]:
    """The parts of a version; refused where they do not fit, before memory is taken for them."""
    file = home / PLACES
    with damage_reported(str(file)):
        # Whatever manifests count, this file must have room for it.
        places = read_array(file, kind="i").astype(_PLACE, copy=False)
        if digest_file(file) != manifest.places:
            raise ValueError("its content is not what was written")
    parts: list[Part] = []
    for name in manifest.parts:
        folder = index / PARTS / name
        about = manifest_in(folder)
        if manifest.status == "complete" != about.status:
            raise DamagedIndex(f"The part {name} of {home} is not finished. {_REMEDY}")
        rows, columns, places = np.split(places, [about.n_items, about.n_items + about.n_anchors])
        if (len(rows), len(columns)) != (about.n_items, about.n_anchors):
            raise DamagedIndex(f"{file} has no room for the part {name} of {home}. {_REMEDY}")
        parts.append(Part(folder, about, rows, columns))
    if len(places) or not _hold_once(parts, manifest.n_items, manifest.n_anchors):
        raise DamagedIndex(
            f"The parts of {home} do not make up the {manifest.n_items} items × {manifest.n_anchors} anchor queries "
            f"that its manifest counts. {_REMEDY}"
        )
    return parts


def _hold_once(parts: Sequence[Part], n_items: int, n_anchors: int) -> bool:
    """Whether parts bring each item and anchor query of a version once, in order, and hold as many scores as it has."""
    n_scores = sum(n * width for n, width in (part.shape for part in parts))
    if (*shape_of(parts), n_scores) != (n_items, n_anchors, n_items * n_anchors):
        return False
    for n, axis in (
        (n_items, [(part.rows, part.manifest.brings_items) for part in parts]),
        (n_anchors, [(part.columns, part.manifest.brings_anchors) for part in parts]),
    ):
        live = [(places[places >= 0], brings) for places, brings in axis]
        if any((places[1:] <= places[:-1]).any() or places.max(initial=-1) >= n for places, _ in live):
            return False
        brought = [places for places, brings in live if brings]
        if not np.array_equal(np.concatenate([*brought, np.empty(0, dtype=_PLACE)]), np.arange(n, dtype=_PLACE)):
            return False
    return all(places.min(initial=-1) >= -1 for part in parts for places in (part.rows, part.columns))


def write_places(home: Path, parts: Sequence[Part]) -> str:
    """Write where the rows and columns of each part lie in a version; the digest of the file."""
    np.save(home / PLACES, np.concatenate([places for part in parts for places in (part.rows, part.columns)]))
    sync_path(home / PLACES)
    return digest_file(home / PLACES)


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
        values = np.full((min(height, n_items - start), n_anchors), np.nan, dtype=dtype)
        for source in sources:
            source.fill(values, start)
        if np.isnan(values).any():
            # As many scores as are needed may still lie twice in one place and nowhere in another.
            raise DamagedIndex(f"No part has the scores of an item from position {start} on. {_REMEDY}")
        yield start, values
    for source in sources:
        source.check_recorded()


class _PartScores:
    """The scores of a part that count, read block by block as positions go up."""

    def __init__(self, part: Part) -> None:
        self._rows = np.flatnonzero(part.rows >= 0)
        self._positions = part.rows[self._rows]
        self._columns = np.flatnonzero(part.columns >= 0)
        self._places = part.columns[self._columns]
        self._height = part.manifest.block_items
        self._blocks = ScoreBlocks(part.folder, part.manifest)
        self._last: tuple[int, FloatArray] | None = None
        self._n_read = 0

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
            self._n_read += 1
        return self._last[1]

    def check_recorded(self) -> None:
        """Refuse blocks of another index, where all were read: one that nothing needs may be damaged."""
        if self._n_read == self._blocks.manifest.n_blocks:
            self._blocks.check_recorded()


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
    return _digest((part.manifest.items_digest, part.rows) for part in parts if part.manifest.brings_items)


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
