"""A matrix at rest, a row per item: in floats, or in bytes with a scale per row."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError

__all__ = ["ROWS_PER_BLOCK", "Allocate", "PackedRows", "RowSource", "Storage", "check_storage", "in_memory"]

Storage = Literal["float32", "float16", "int8"]
_STORAGES = ("float32", "float16", "int8")
# Makes an array of this name, shape and dtype, to be filled.
Allocate = Callable[[str, tuple[int, ...], str], Any]

# Rows that are converted or multiplied at a time, so that no second copy of a matrix is made.
ROWS_PER_BLOCK = 4096
# A block that stays in the cache of one core while it is widened and multiplied.
_NUMBERS_PER_BLOCK = 131_072
# Fewer are multiplied before a second thread has started.
_NUMBERS_PER_THREAD = 4_000_000


def in_memory(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate in memory."""
    return np.empty(shape, dtype=dtype)


def check_storage(storage: str) -> None:
    """Refuse a storage that rows cannot be packed in."""
    if storage not in _STORAGES:
        raise InputError(f"storage must be one of {', '.join(_STORAGES)}; got {storage!r}.")


class RowSource(Protocol):
    """Numbers per item, read a few items at a time."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, as floats."""
        ...


class PackedRows:
    """Rows in memory or memory-mapped: float64, float32, float16, or int8 with `scales`, one per row.

    Products are in float32 at least. Narrower rows are widened a block at a time, never all at once, on as many cores
    as BLAS may use: the blocks, and so the results, are the same on any number.
    """

    def __init__(self, values: Any, scales: FloatArray | None = None) -> None:
        # A plain view: slicing a np.memmap takes microseconds each time.
        self.values = np.asarray(values)
        self.scales = scales
        self._is_narrow = self.values.dtype in (np.int8, np.float16)

    @classmethod
    def unfilled(
        cls, shape: tuple[int, int], *, storage: Storage, allocate: Allocate = in_memory, name: str = ""
    ) -> PackedRows:
        """Rows to be filled, in arrays called `name` and `name`_scales."""
        check_storage(storage)
        scales = allocate(f"{name}_scales", shape[:1], "float32") if storage == "int8" else None
        return cls(allocate(name, shape, storage), scales)

    def fill(self, start: int, block: FloatArray) -> None:
        """Narrow a block of rows and store it from row `start` on."""
        rows = slice(start, start + len(block))
        if self.scales is not None:
            largest = np.abs(block).max(axis=1, initial=0.0)
            self.scales[rows] = np.maximum(largest, np.finfo(np.float32).tiny * 127) / 127
            block = np.rint(block / self.scales[rows, None])
        self.values[rows] = block

    @property
    def shape(self) -> tuple[int, int]:
        """Items and features."""
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes, scales included."""
        return int(self.values.nbytes + (0 if self.scales is None else self.scales.nbytes))

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, float64."""
        rows: FloatArray = self.values[positions].astype(np.float64)
        return rows if self.scales is None else rows * self.scales[positions, None]

    def product(self, weights: FloatArray, positions: IntArray | None = None) -> FloatArray:
        """Every row · weights, or those at these positions."""
        if not self._is_narrow:
            rows = self.values if positions is None else self.values[positions]
            return np.asarray(rows @ weights.astype(self.values.dtype))
        product = np.empty(len(self.values) if positions is None else len(positions), dtype=np.float32)
        weights = weights.astype(np.float32)

        def multiply(starts: range) -> None:
            for rows, block in self._blocks(positions, starts):
                np.dot(block, weights, out=product[rows])
                if self.scales is not None:
                    product[rows] *= self.scales[rows if positions is None else positions[rows]]

        shares = self._shares(len(product))
        if len(shares) == 1:
            multiply(shares[0])
        else:
            # Threads that end with the product, since a pool that lives on does not survive a fork.
            with ThreadPoolExecutor(len(shares)) as threads:
                list(threads.map(multiply, shares))
        return product

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights, shape (weights, rows): faster, and rounded by the size of the batch."""
        if not self._is_narrow:
            return np.asarray(weights.astype(self.values.dtype) @ self.values.T)
        products = np.empty((len(weights), len(self.values)), dtype=np.float32)
        weights = weights.astype(np.float32)
        for rows, block in self._blocks():
            products[:, rows] = weights @ block.T
        return products if self.scales is None else np.multiply(products, self.scales, out=products)

    @property
    def _height(self) -> int:
        """Rows of a block."""
        # BLAS multiplies four rows at a time, and the rest more slowly.
        return max(4, _NUMBERS_PER_BLOCK // max(1, self.shape[1]) // 4 * 4)

    def _shares(self, n_rows: int) -> list[range]:
        """Starts of blocks, a share for each thread that has enough to do."""
        starts = range(0, n_rows, self._height)
        n_threads = max(1, min(_blas_threads(), n_rows * self.values.shape[1] // _NUMBERS_PER_THREAD))
        share = max(1, -(-len(starts) // n_threads))
        return [starts[at : at + share] for at in range(0, len(starts), share)] or [starts]

    def _blocks(
        self, positions: IntArray | None = None, starts: range | None = None
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Blocks of rows in float32, without their scales, each in the same memory as the last."""
        n_rows, height = len(self.values if positions is None else positions), self._height
        buffer = np.empty((height, self.values.shape[1]), dtype=np.float32)
        for start in range(0, n_rows, height) if starts is None else starts:
            rows = slice(start, min(start + height, n_rows))
            block = buffer[: rows.stop - start]
            np.copyto(block, self.values[rows if positions is None else positions[rows]])
            yield rows, block


@functools.cache
def _blas_threads() -> int:
    """The threads that BLAS runs on: the cores of this process, or fewer where the environment says so."""
    limits = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS, nor on Windows.
        cores = os.cpu_count() or 1
    return min([cores, *(int(number) for number in limits if number.isdecimal() and int(number))])
