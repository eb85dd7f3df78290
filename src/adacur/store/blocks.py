"""Scores at rest: a Zarr array with one chunk per block of items. NaN is a score that is not there yet."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.errors import DamagedIndex, InputError
from adacur.records import Pair
from adacur.store.manifest import DTYPES, Manifest
from adacur.store.writing import sync_path

if TYPE_CHECKING:
    import zarr

SCORES = "scores.zarr"
_BLOCK_BYTES = 32 * 2**20
MOST_BLOCK_ITEMS = 8192
_BLOCKS, _FEWEST_BLOCK_ITEMS = 512, 16
# What zarr and its codecs raise on bytes that are not a chunk, or on metadata that is not an array's.
_UNREADABLE = (ValueError, TypeError, LookupError, OSError, RuntimeError, ArithmeticError, AttributeError, MemoryError)
_REMEDY = "Restore it from a copy, and keep the folder: the blocks beside it are as they were."


class ScoreBlocks:
    """The scores of a folder, block by block, shape (items of the block, anchor queries), as stored."""

    def __init__(self, folder: Path, manifest: Manifest, array: zarr.Array[Any]) -> None:
        self.folder = folder
        self.manifest = manifest
        self._array = array

    @classmethod
    def create(cls, folder: Path, manifest: Manifest) -> ScoreBlocks:
        """An array in which nothing is scored yet."""
        import zarr
        from zarr.codecs import Crc32cCodec

        array = zarr.create_array(
            store=folder / SCORES,
            shape=(manifest.n_items, manifest.n_anchors),
            # A chunk is at least one wide, also of an index without anchor queries, which has no chunk.
            chunks=(manifest.block_items, max(1, manifest.n_anchors)),
            dtype=manifest.dtype,
            compressors=[Crc32cCodec()],
            fill_value=float("nan"),
        )
        sync_path(folder / SCORES / "zarr.json")
        sync_path(folder / SCORES)
        return cls(folder, manifest, array)

    @classmethod
    def open(cls, folder: Path, manifest: Manifest, *, writable: bool = False) -> ScoreBlocks:
        """The array of a folder; refused where it is not the one that the manifest describes."""
        import zarr

        try:
            _check_codecs(folder)
            array = zarr.open_array(store=folder / SCORES, mode="r+" if writable else "r", zarr_format=3)
            actual = (array.shape, array.chunks, str(array.dtype))
        except _UNREADABLE as error:
            raise DamagedIndex(f"{folder / SCORES} cannot be opened as an array: {error}. {_REMEDY}") from error
        width = manifest.n_anchors
        expected = ((manifest.n_items, width), (manifest.block_items, max(1, width)), manifest.dtype)
        if actual != expected:
            raise DamagedIndex(
                f"{folder / SCORES} has shape, chunks and dtype {actual}; its manifest says {expected}. {_REMEDY}"
            )
        return cls(folder, manifest, array)

    def chunk(self, block: int) -> str:
        """The file that holds a block, by its name within the index."""
        return f"{SCORES}/c/{block}/0"

    def write(self, block: int, values: FloatArray) -> None:
        """Store a block; on return it is on the disk."""
        rows = self.manifest.block(block)
        chunk = self.folder / self.chunk(block)
        # The last chunk is not full, so zarr would read what an interrupted run left there, and might fail on it.
        chunk.unlink(missing_ok=True)
        self._array[rows.start : rows.stop] = values
        for path in (chunk, chunk.parent, chunk.parent.parent):
            sync_path(path)

    def read(self, block: int, *, digest: str | None = None) -> FloatArray:
        """A block, or an error that names it: missing, unreadable, with NaN or infinity, or with another digest."""
        rows = self.manifest.block(block)
        self._check_size(block)
        try:
            values: FloatArray = np.asarray(self._array[rows.start : rows.stop])
        except _UNREADABLE as error:
            raise self._damaged(block, f"its chunk cannot be read ({error})") from error
        if not np.isfinite(values).all():
            raise self._damaged(block, "it holds scores that are not numbers")
        if digest not in (None, digest_scores(values)):
            raise self._damaged(block, "its scores are not those that were recorded")
        return values

    def check_sizes(self) -> None:
        """Refuse a chunk that is missing or cut short, without reading any."""
        for block in range(self.manifest.n_blocks):
            self._check_size(block)

    def _check_size(self, block: int) -> None:
        # Zarr allocates a whole chunk, as large as the metadata say, before it looks for the file.
        manifest = self.manifest
        expected = manifest.block_items * manifest.n_anchors * np.dtype(manifest.dtype).itemsize
        try:
            size = (self.folder / self.chunk(block)).stat().st_size
        except OSError:
            raise self._damaged(block, "its chunk is missing") from None
        if size < expected:
            raise self._damaged(block, f"its chunk cannot be read (it has {size} bytes, fewer than {expected})")

    def _damaged(self, block: int, what: str) -> DamagedIndex:
        rows = self.manifest.block(block)
        remedy = "Restore it from a copy, or give these items to edit.replace, which scores no others."
        if self.manifest.status != "complete":
            remedy = "Run the same build again: it scores this block anew, and no other."
        return DamagedIndex(
            f"Block {block} (items {rows.start} to {rows.stop - 1}) of {self.folder} is damaged: {what}, "
            f"file {self.chunk(block)}. {remedy}"
        )

    def tidy(self) -> None:
        """Remove half-written files beside the chunks; only while nothing else writes."""
        for left_over in (self.folder / SCORES / "c").glob("*/*.partial"):
            left_over.unlink(missing_ok=True)

    def __iter__(self) -> Iterator[tuple[int, FloatArray]]:
        """Every block with the position of its first item."""
        return ((self.manifest.block(block).start, self.read(block)) for block in range(self.manifest.n_blocks))


def largest_block(n_anchors: int, dtype: Any) -> int:
    """The most items of a block, which must fit in memory many times over."""
    return max(1, min(MOST_BLOCK_ITEMS, _BLOCK_BYTES // (max(1, n_anchors) * int(np.dtype(dtype).itemsize))))


def usual_block(n_items: int, n_anchors: int, dtype: Any) -> int:
    """The items of a block where none is asked for: what a kill loses is one in 512 of the work, or a few items."""
    return min(max(_FEWEST_BLOCK_ITEMS, -(-n_items // _BLOCKS)), largest_block(n_anchors, dtype), n_items)


def check_dtype(dtype: str) -> None:
    """Refuse what scores cannot be stored as."""
    if dtype not in ("float32", "float16"):
        raise InputError(f"dtype must be float32 or float16; got {dtype!r}.")


def as_stored(scores: FloatArray, dtype: str, pair_at: Callable[[tuple[int, ...]], Pair]) -> FloatArray:
    """Scores in the dtype of the index; refused where one does not fit, with the pair named, or all become 0."""
    with np.errstate(over="ignore"):
        values: FloatArray = scores.astype(dtype)
    beyond = np.argwhere(np.isinf(values))
    if len(beyond):
        at = tuple(beyond[0].tolist())
        query, item = pair_at(at)
        raise InputError(
            f"{dtype} holds numbers up to {np.finfo(dtype).max:g}; query {query.id!r} and item {item.id!r} score "
            f"{scores[at]:g}. Build in another folder with a wider dtype."
        )
    if scores.any() and not values.any():
        raise InputError(
            f"{dtype} holds no numbers below {np.finfo(dtype).smallest_subnormal:g} but 0, and the largest of "
            f"{scores.size} scores is {np.abs(scores).max():g}. Build in another folder with a wider dtype, or "
            "multiply the scores by a constant."
        )
    return values


def digest_scores(values: FloatArray) -> str:
    """A digest of scores as they are stored."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return hashlib.blake2b(little.data, digest_size=16).hexdigest()


def _check_codecs(folder: Path) -> None:
    """Refuse an array that is not coded as `create` has it: zarr would load whatever code its codecs name."""
    about = json.loads((folder / SCORES / "zarr.json").read_bytes())
    codecs = [codec["name"] for codec in about["codecs"]]
    if codecs not in (["bytes"], ["bytes", "crc32c"]) or about.get("storage_transformers"):
        raise ValueError(f"its codecs are {codecs}, not 'bytes' and 'crc32c'")
    if about["data_type"] not in DTYPES:
        raise ValueError(f"its data type is {about['data_type']!r}, and must be one of {DTYPES}")
