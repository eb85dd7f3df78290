"""A finished index folder, opened."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DamagedIndex, IncompleteIndex
from adacur.core.records import Query
from adacur.index.blocks import ScoreBlocks
from adacur.index.items import DATABASE, StoredItems, connect, read_texts, reading
from adacur.index.manifest import MANIFEST, Manifest, read_manifest

__all__ = ["COMPRESSED", "LOCK", "IndexFolder", "first_stage_folders", "is_finished"]

LOCK = "build.lock"
COMPRESSED = "gaussian"


class IndexFolder:
    """Items, anchor queries and anchor scores as a finished build left them."""

    def __init__(
        self, path: Path, *, manifest: Manifest, items: StoredItems, anchor_queries: tuple[Query, ...]
    ) -> None:
        self.path = path
        self.manifest = manifest
        self.items = items
        self.anchor_queries = anchor_queries
        self._reading = threading.Lock()
        self._matrix: FloatArray | None = None

    @classmethod
    def open(cls, path: str | Path) -> IndexFolder:
        """Open a folder without reading its scores; an unfinished one is refused."""
        folder = Path(path)
        if (folder / LOCK).exists() and not (folder / MANIFEST).exists():
            raise IncompleteIndex(
                f"The build of {folder} stopped before its first block. Run the same build again to start over."
            )
        manifest = read_manifest(folder)
        with contextlib.closing(connect(folder)) as connection, reading(folder):
            if manifest.status != "complete":
                done = connection.execute("SELECT count(*) FROM blocks").fetchone()[0]
                raise IncompleteIndex(
                    f"The build of {folder} has not finished: {done} of {manifest.n_blocks} blocks are done. "
                    "Run the same build again to continue where it stopped."
                )
            anchors = tuple(Query(id=id_, text=text) for id_, text in read_texts(connection, "anchors", folder=folder))
        items = StoredItems(folder)
        counted = (len(items), len(anchors))
        expected = (manifest.n_items, manifest.n_anchors)
        if counted != expected:
            raise DamagedIndex(
                f"{folder / DATABASE} holds {counted[0]} items and {counted[1]} anchor queries; its manifest says "
                f"{expected[0]} and {expected[1]}. Restore the folder from a copy, or build the index again elsewhere."
            )
        return cls(folder, manifest=manifest, items=items, anchor_queries=anchors)

    @property
    def matrix(self) -> FloatArray:
        """All scores in memory, (items, anchor queries), read when first asked for; float16 is widened to float32."""
        # A cached_property would let several threads read the whole matrix at once, each into memory of its own.
        with self._reading:
            if self._matrix is None:
                dtype = np.promote_types(self.manifest.dtype, np.float32)
                matrix = np.empty((self.manifest.n_items, self.manifest.n_anchors), dtype=dtype)
                for start, values in ScoreBlocks.open(self.path, self.manifest):
                    matrix[start : start + len(values)] = values
                self._matrix = matrix
            return self._matrix

    def first_names(self) -> tuple[str, ...]:
        """The first stages whose data lie in this folder, sorted."""
        return tuple(folder.name for folder in first_stage_folders(self.path))


def first_stage_folders(path: Path) -> list[Path]:
    """The folders of an index's first stages, sorted by name; a dot marks what is still being written."""
    return sorted(folder for folder in (path / "first").glob("[!.]*") if folder.is_dir())


def is_finished(path: str | Path) -> bool:
    """Whether a finished index lies there."""
    return (Path(path) / MANIFEST).exists() and read_manifest(Path(path)).status == "complete"
