"""Scores at rest: an .npy file for each block of items, which ends with a digest of its scores."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray
from adacur.data.stored import read_array
from adacur.errors import DamagedIndex, InputError
from adacur.records import Pair
from adacur.store.manifest import Manifest
from adacur.store.writing import write_atomically

SCORES = "scores"
_BLOCK_BYTES = 32 * 2**20
MOST_BLOCK_ITEMS = 8192
_BLOCKS, _FEWEST_BLOCK_ITEMS = 512, 16
_DIGEST_BYTES = 16


class ScoreBlocks:
    """The scores of a part, block by block, shape (items of the block, anchor queries), as stored.

    A block is finished when its file is there, since files are written whole.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def finished(self) -> list[int]:
        """The blocks that are there, in order."""
        names = {file.stem for file in (self.folder / SCORES).glob("*.npy")}
        numbers = sorted(int(name) for name in names if name.isdecimal() and name == str(int(name)))
        return [number for number in numbers if number < self.manifest.n_blocks]

    def file(self, block: int) -> Path:
        """The file that holds a block."""
        return self.folder / SCORES / f"{block}.npy"

    def write(self, block: int, values: FloatArray) -> None:
        """Store a block; on return it is on the disk."""
        stream = io.BytesIO()
        np.save(stream, values)
        # Behind the array, where numpy does not look.
        stream.write(_digest(values))
        write_atomically(self.file(block), stream.getbuffer())

    def read(self, block: int) -> FloatArray:
        """A block, or an error that names it: missing, unreadable, or not as it was written."""
        file, shape, dtype = self.file(block), self._shape(block), np.dtype(self.manifest.dtype)
        try:
            values: FloatArray = read_array(file, kind="f", ndim=2)
            if values.shape != shape or values.dtype != dtype:
                raise ValueError(f"it holds {values.dtype} of shape {values.shape} and not {dtype} of {shape}")
            if self._digest_of(block) != _digest(values):
                raise ValueError("its scores are not those that were written")
            if not np.isfinite(values).all():
                raise ValueError("it holds scores that are not numbers")
        except FileNotFoundError:
            raise self._damaged(block, "its file is missing") from None
        except (OSError, ValueError) as error:
            raise self._damaged(block, str(error), may_be_whole=isinstance(error, OSError)) from error
        return values

    def digest(self) -> str:
        """A digest of all scores, by those of the blocks."""
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for block in range(self.manifest.n_blocks):
            digest.update(self._digest_of(block))
        return digest.hexdigest()

    def _digest_of(self, block: int) -> bytes:
        with self.file(block).open("rb") as stream:
            stream.seek(-_DIGEST_BYTES, os.SEEK_END)
            return stream.read()

    def check_sizes(self) -> None:
        """Refuse a file that is missing or cut short, without reading any."""
        for block in range(self.manifest.n_blocks):
            n_rows, n_anchors = self._shape(block)
            expected = n_rows * n_anchors * np.dtype(self.manifest.dtype).itemsize
            try:
                size = self.file(block).stat().st_size
            except OSError:
                raise self._damaged(block, "its file is missing") from None
            if size < expected:
                raise self._damaged(block, f"its file has {size} bytes, fewer than {expected}")

    def _shape(self, block: int) -> tuple[int, int]:
        return len(self.manifest.block(block)), self.manifest.n_anchors

    def _damaged(self, block: int, what: str, *, may_be_whole: bool = False) -> DamagedIndex:
        rows = self.manifest.block(block)
        remedy = "Restore it from a copy, or give these items to edit.replace, which scores no others."
        if self.manifest.status != "complete" and may_be_whole:
            remedy = "Make it readable, or delete it, and run the same build again: it scores no other block anew."
        elif self.manifest.status != "complete":
            remedy = "Run the same build again: it scores this block anew, and no other."
        return DamagedIndex(
            f"Block {block} (items {rows.start} to {rows.stop - 1}) of {self.folder} is damaged: {what}, "
            f"file {SCORES}/{block}.npy. {remedy}"
        )

    def tidy(self) -> None:
        """Remove half-written files; only while nothing else writes."""
        for left_over in (self.folder / SCORES).glob("*.partial"):
            left_over.unlink(missing_ok=True)

    def check_recorded(self) -> None:
        """Refuse blocks that are each whole and together not those of this manifest: exchanged, or of another index."""
        if self.manifest.scores_digest is not None and self.digest() != self.manifest.scores_digest:
            raise DamagedIndex(
                f"The blocks in {self.folder / SCORES} are not those that were recorded. If the folder was replaced "
                "since it was opened, open it again; else restore it from a copy."
            )

    def __iter__(self) -> Iterator[tuple[int, FloatArray]]:
        """Every block with the position of its first item."""
        for block in range(self.manifest.n_blocks):
            yield self.manifest.block(block).start, self.read(block)
        self.check_recorded()


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


def check_seed(seed: int) -> None:
    """Refuse what no generator begins with: it is first needed when all scores are paid for."""
    if not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed must be a whole number that is not negative; got {seed!r}.")


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


def _digest(values: FloatArray) -> bytes:
    """A digest of scores as they are stored."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return hashlib.blake2b(little.data, digest_size=_DIGEST_BYTES).digest()
