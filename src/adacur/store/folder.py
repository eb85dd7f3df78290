"""A finished index folder, opened."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import DamagedIndex, IncompleteIndex
from adacur.records import Query
from adacur.store.blocks import SCORES, ScoreBlocks
from adacur.store.database import DATABASE, connect, read_texts
from adacur.store.items import PartItems, StoredItems
from adacur.store.manifest import CONTINUE, MANIFEST, PARTS, Manifest, read_manifest
from adacur.store.parts import Part, exact_cells, is_whole, live_blocks, read_parts
from adacur.store.versions import Reading, hold_version
from adacur.store.writing import LOCK, folder_at

_PARTS_KEPT_OPEN = 32
# The part that a build makes.
BUILT = "built"


@dataclass(eq=False, repr=False)
class IndexFolder:
    """Items, anchor queries and anchor scores of one version, which stays as it is when the index changes.

    `home` is where the version keeps its first stages, tunings and features; `parts` are the folders that hold its
    items and scores.
    """

    path: Path
    home: Path
    manifest: Manifest
    parts: Sequence[Part]
    items: StoredItems | PartItems
    anchor_queries: tuple[Query, ...]
    held: Reading | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock, init=False)
    _matrix: FloatArray | None = field(default=None, init=False)

    @classmethod
    def open(cls, path: str | Path) -> IndexFolder:
        """Open a folder without reading scores; an unfinished index is refused."""
        folder = folder_at(path)
        if (folder / LOCK).exists() and not (folder / MANIFEST).exists():
            check_lost_no_manifest(folder)
            raise IncompleteIndex(
                f"The build of {folder} stopped before its first block. Run the same build again to start over."
            )
        home, manifest, held = hold_version(folder)
        if manifest.status != "complete":
            done = len(ScoreBlocks(folder / PARTS / BUILT, manifest).finished())
            raise IncompleteIndex(
                f"The build of {folder} has not finished: {done} of {manifest.n_blocks} blocks are done. {CONTINUE}"
            )
        return cls.of_parts(folder, read_parts(folder, home, manifest), manifest=manifest, home=home, held=held)

    @classmethod
    def of_parts(
        cls,
        path: Path,
        parts: Sequence[Part],
        *,
        manifest: Manifest,
        home: Path,
        held: Reading | None = None,
    ) -> IndexFolder:
        """A version that is made of these parts."""
        anchors: list[Query] = []
        stores: list[StoredItems] = []
        for part in parts:
            # Parts are never written to again, so handles need not stay open; a process has some thousand of them.
            store = StoredItems(part.folder, keep_open=len(parts) <= _PARTS_KEPT_OPEN)
            texts = _anchors_of(part.folder)
            brought = len(part.rows) * part.manifest.brings_items, len(part.columns) * part.manifest.brings_anchors
            if (len(store), len(texts)) != brought:
                raise DamagedIndex(
                    f"{part.folder / DATABASE} holds {len(store)} items and {len(texts)} anchor queries; the manifest "
                    f"says {brought[0]} and {brought[1]}. Restore both from a copy, and keep the folder: its scores "
                    "may be whole."
                )
            anchors += (query for column, query in zip(part.columns, texts, strict=False) if column >= 0)
            if part.manifest.brings_items:
                stores.append(store)
        rows = [part.rows for part in parts if part.manifest.brings_items]
        items = stores[0] if is_whole(parts) else PartItems(stores, rows)
        return cls(path, home, manifest, parts, items, tuple(anchors), held)

    @property
    def version(self) -> int:
        """1 as the build left it, and one more with each change."""
        return self.manifest.version

    @property
    def matrix(self) -> FloatArray:
        """All scores in memory, (items, anchor queries), read once; float16 is widened to float32."""
        # A cached_property would let several threads read the whole matrix at once, each into memory of its own.
        with self._reading:
            if self._matrix is None:
                dtype = np.promote_types(self.manifest.dtype, np.float32)
                # Missing or truncated scores are refused before memory is taken for all that the manifests count.
                for part in self.parts:
                    ScoreBlocks(part.folder, part.manifest).check_sizes()
                matrix = np.empty((self.manifest.n_items, self.manifest.n_anchors), dtype=dtype)
                for start, values in self.blocks():
                    matrix[start : start + len(values)] = values
                self._matrix = matrix
            return self._matrix

    def blocks(self) -> Iterator[tuple[int, FloatArray]]:
        """All scores as stored, block by block: the position of the first item, and (items, anchor queries)."""
        if is_whole(self.parts):
            return iter(ScoreBlocks(self.parts[0].folder, self.parts[0].manifest))
        return live_blocks(self.parts, n_items=self.manifest.n_items, n_anchors=self.manifest.n_anchors)

    def exact_cells(self) -> BoolArray | None:
        """Which scores the scorer gave, (items, anchor queries); None where none was predicted."""
        return exact_cells(self.parts, n_items=self.manifest.n_items, n_anchors=self.manifest.n_anchors)

    def exact_anchors(self) -> BoolArray:
        """For each anchor query, whether the scorer gave all its scores. Read anew each time."""
        cells = self.exact_cells()
        return np.ones(self.manifest.n_anchors, dtype=np.bool_) if cells is None else np.asarray(cells.all(axis=0))

    @property
    def n_exact(self) -> int:
        """How many scores the scorer gave; the others were predicted. Read anew each time."""
        cells = self.exact_cells()
        return self.manifest.n_items * self.manifest.n_anchors if cells is None else int(np.count_nonzero(cells))

    def first_names(self) -> tuple[str, ...]:
        """The first stages whose data lie in this folder, sorted."""
        return tuple(folder.name for folder in first_stage_folders(self.home))

    def release(self) -> None:
        """Let the version be deleted once it is no longer the current one; nothing more may be read from this."""
        if self.held is not None:
            self.held.release()


def first_stage_folders(home: Path) -> list[Path]:
    """The folders of the first stages of a version, sorted; a dot marks what is still written."""
    return sorted(folder for folder in (home / "first").glob("[!.]*") if folder.is_dir())


def check_lost_no_manifest(folder: Path) -> None:
    """Refuse a folder that holds scores and no manifest: a build, which begins with it, did not leave it so."""
    if not (folder / MANIFEST).exists() and any((folder / PARTS).glob(f"*/{SCORES}/*.npy")):
        raise DamagedIndex(
            f"{folder} holds scores, but not its {MANIFEST}, which says which of them count. Restore that file from a "
            "copy, or choose another path for a new index."
        )


def is_finished(path: str | Path) -> bool:
    """Whether a finished index lies there."""
    return build_status(path) == "complete"


def build_status(path: str | Path) -> str | None:
    """ "building" or "complete"; None where no build has begun."""
    return read_manifest(Path(path)).status if (Path(path) / MANIFEST).exists() else None


def pairs_done(path: str | Path) -> int:
    """How many pairs a build that was begun in a folder has scored."""
    if build_status(path) != "building":
        return 0
    manifest = read_manifest(Path(path))
    return manifest.pairs(ScoreBlocks(Path(path) / PARTS / BUILT, manifest).finished())


def _anchors_of(folder: Path) -> tuple[Query, ...]:
    with contextlib.closing(connect(folder)) as connection:
        return tuple(Query(id=id_, text=text) for id_, text in read_texts(connection, "anchors", folder=folder))
