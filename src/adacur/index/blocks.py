"""Scores at rest: one Zarr chunk per block of items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DamagedIndex
from adacur.index.manifest import Manifest, sync_path

if TYPE_CHECKING:
    import zarr

__all__ = ["SCORES", "ScoreBlocks", "digest_scores"]

SCORES = "scores.zarr"
# What zarr and its codecs raise on bytes that are not a chunk, or on metadata that is not an array's.
_UNREADABLE = (ValueError, TypeError, LookupError, OSError, RuntimeError, ArithmeticError, AttributeError)


class ScoreBlocks:
    """The scores of a folder, block by block, shape (items of the block, anchor queries), as stored."""

    def __init__(self, folder: Path, manifest: Manifest, array: zarr.Array[Any]) -> None:
        self._folder = folder
        self._manifest = manifest
        self._array = array

    @classmethod
    def create(cls, folder: Path, manifest: Manifest) -> ScoreBlocks:
        """An array in which nothing is scored yet."""
        import zarr
        from zarr.codecs import Crc32cCodec

        array = zarr.create_array(
            store=folder / SCORES,
            shape=(manifest.n_items, manifest.n_anchors),
            chunks=(manifest.block_items, manifest.n_anchors),
            dtype=manifest.dtype,
            compressors=[Crc32cCodec()],
            fill_value=float("nan"),
        )
        sync_path(folder / SCORES / "zarr.json")
        sync_path(folder / SCORES)
        return cls(folder, manifest, array)

    @classmethod
    def open(cls, folder: Path, manifest: Manifest, *, writable: bool = False) -> ScoreBlocks:
        """The array of a folder; refused where it is not the one that the manifest speaks of."""
        import zarr

        try:
            array = zarr.open_array(store=folder / SCORES, mode="r+" if writable else "r", zarr_format=3)
            found = (array.shape, array.chunks, str(array.dtype))
        except _UNREADABLE as error:
            raise DamagedIndex(f"{folder / SCORES} cannot be opened as an array: {error}. {_REMEDY}") from error
        width = manifest.n_anchors
        expected = ((manifest.n_items, width), (manifest.block_items, width), manifest.dtype)
        if found != expected:
            raise DamagedIndex(
                f"{folder / SCORES} has shape, chunks and dtype {found}; its manifest says {expected}. {_REMEDY}"
            )
        return cls(folder, manifest, array)

    def chunk(self, block: int) -> Path:
        """The file that holds a block."""
        return self._folder / SCORES / "c" / str(block) / "0"

    def write(self, block: int, values: FloatArray) -> None:
        """Store a block; on return it is on the disk."""
        rows = self._manifest.block(block)
        chunk = self.chunk(block)
        # The last chunk is not full, so zarr would read what an interrupted run left there, and might choke on it.
        for left_over in chunk.parent.glob("*"):
            left_over.unlink()
        self._array[rows.start : rows.stop] = values
        for path in (chunk, chunk.parent, chunk.parent.parent):
            sync_path(path)

    def read(self, block: int) -> FloatArray:
        """A block, or an error that names it: missing, unreadable, or with a score that is not a number."""
        rows = self._manifest.block(block)
        what = ""
        try:
            values: FloatArray = np.asarray(self._array[rows.start : rows.stop])
        except _UNREADABLE as error:
            what = f"its chunk cannot be read ({error})"
        else:
            if np.isfinite(values).all():
                return values
            what = "it holds scores that are not numbers" if self.chunk(block).is_file() else "its chunk is missing"
        raise DamagedIndex(
            f"Block {block} (items {rows.start} to {rows.stop - 1}) of {self._folder} is damaged: {what}, "
            f"file {self.chunk(block).relative_to(self._folder)}. {_REMEDY}"
        )

    def __iter__(self) -> Iterator[tuple[int, FloatArray]]:
        """Every block with the position of its first item."""
        return ((self._manifest.block(block).start, self.read(block)) for block in range(self._manifest.n_blocks))


_REMEDY = "Restore it from a copy, or build the index again elsewhere."


def digest_scores(values: FloatArray) -> str:
    """A digest of scores as they are stored."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return hashlib.blake2b(little.data, digest_size=16).hexdigest()
