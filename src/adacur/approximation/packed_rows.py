"""A matrix at rest, a row per item: in floats, in bytes with a scale per row, or on a GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require

__all__ = ["DeviceRows", "PackedRows", "Room", "RowSource", "Rows", "Storage", "check_storage", "in_memory"]

Storage = Literal["float32", "float16", "int8"]
_STORAGES = ("float32", "float16", "int8")
# A block that stays in the cache of one core while it is widened and multiplied.
_NUMBERS_PER_BLOCK = 131_072
# Fewer are multiplied before a second thread has started.
_NUMBERS_PER_THREAD = 4_000_000
_ROWS_PER_TRANSFER = 65_536
# What a float16 leaves of a number is smaller by so much.
_LOWER_HALF = 2.0**11


# Where rows are to lie: an array of this name, shape and dtype, to be filled.
Room = Callable[[str, tuple[int, ...], str], Any]


def in_memory(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Room in memory."""
    return np.empty(shape, dtype=dtype)


def check_storage(storage: str) -> None:
    """Refuse what rows cannot be stored in."""
    if storage not in _STORAGES:
        raise InputError(f"storage is one of {', '.join(_STORAGES)}; got {storage!r}.")


class RowSource(Protocol):
    """Numbers per item, read a few items at a time."""

    @property
    def shape(self) -> tuple[int, int]: ...

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, as floats."""
        ...


class Rows(RowSource, Protocol):
    """What the features of all items are asked for; rows are float64."""

    @property
    def nbytes(self) -> int: ...

    def product(self, weights: FloatArray) -> Any:
        """Every row · weights, on the device that holds the rows."""
        ...

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights, shape (weights, rows): faster, and rounded by the size of the batch."""
        ...

    def precise_product(self, weights: FloatArray) -> FloatArray:
        """The same in float64."""
        ...


class PackedRows:
    """Rows in memory or memory-mapped: float64, float32, float16, or int8 with `scales`, one per row.

    Products are in float32 at least. Rows of less are widened a block at a time, never all at once, on as many cores
    as BLAS may use: the blocks, and so the results, are the same on any number.
    """

    def __init__(self, values: Any, scales: FloatArray | None = None) -> None:
        # A plain view: slicing a np.memmap takes microseconds each time.
        self.values = np.asarray(values)
        self.scales = scales
        self._is_narrow = self.values.dtype in (np.int8, np.float16)

    @classmethod
    def pack(cls, blocks: Iterator[FloatArray], *, shape: tuple[int, int], storage: Storage) -> PackedRows:
        """Blocks of rows below one another, each narrowed as it comes."""
        packed, start = cls.unfilled(shape, storage=storage), 0
        for block in blocks:
            packed.fill(start, block)
            start += len(block)
        return packed

    @classmethod
    def unfilled(
        cls, shape: tuple[int, int], *, storage: Storage, room: Room = in_memory, name: str = ""
    ) -> PackedRows:
        """Room for so many rows, called `name` and `name`_scales."""
        check_storage(storage)
        scales = room(f"{name}_scales", shape[:1], "float32") if storage == "int8" else None
        return cls(room(name, shape, storage), scales)

    def fill(self, start: int, block: FloatArray) -> None:
        """Narrow a block of rows and put it where it begins."""
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

        def multiply(span: range) -> None:
            for rows, block in self._blocks(np.float32, positions, span):
                np.dot(block, weights, out=product[rows])
            if self.scales is not None:
                own = slice(span.start, span.stop)
                product[own] *= self.scales[own if positions is None else positions[own]]

        spans = self._spans(len(product))
        if len(spans) == 1:
            multiply(spans[0])
        else:
            # Threads that end with the product, since a pool that is kept does not survive a fork.
            with ThreadPoolExecutor(len(spans)) as threads:
                list(threads.map(multiply, spans))
        return product

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights, shape (weights, rows): faster, and rounded by the size of the batch."""
        if not self._is_narrow:
            return np.asarray(weights.astype(self.values.dtype) @ self.values.T)
        products = np.empty((len(weights), len(self.values)), dtype=np.float32)
        weights = weights.astype(np.float32)
        for rows, block in self._blocks(np.float32):
            products[:, rows] = weights @ block.T
        return products if self.scales is None else np.multiply(products, self.scales, out=products)

    def precise_product(self, weights: FloatArray) -> FloatArray:
        """The same in float64."""
        product = np.empty(len(self.values))
        for rows, block in self._blocks(np.float64):
            np.dot(block, weights, out=product[rows])
        return product if self.scales is None else product * self.scales

    @property
    def _height(self) -> int:
        """Rows of a block."""
        # BLAS multiplies four rows at a time, and the rest more slowly.
        return max(4, _NUMBERS_PER_BLOCK // max(1, self.shape[1]) // 4 * 4)

    def _spans(self, n_rows: int) -> list[range]:
        """Starts of blocks, a share for each thread that has enough to do."""
        starts = range(0, n_rows, self._height)
        n_threads = max(1, min(_blas_threads(), n_rows * self.values.shape[1] // _NUMBERS_PER_THREAD))
        share = max(1, -(-len(starts) // n_threads))
        return [starts[at : at + share] for at in range(0, len(starts), share)] or [starts]

    def _blocks(
        self, dtype: type[np.floating[Any]], positions: IntArray | None = None, starts: range | None = None
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Blocks of rows without their scales, each in the same memory as the last."""
        n_rows, height = len(self.values if positions is None else positions), self._height
        room = np.empty((height, self.values.shape[1]), dtype=dtype)
        for start in range(0, n_rows, height) if starts is None else starts:
            rows = slice(start, min(start + height, n_rows))
            block = room[: rows.stop - start]
            np.copyto(block, self.values[rows if positions is None else positions[rows]])
            yield rows, block


class DeviceRows:
    """Rows in a torch tensor on a GPU, or on any device that torch knows: float32, float16, or int8 with `scales`."""

    def __init__(self, values: Any, scales: Any = None) -> None:
        torch = require("torch", extra="torch")
        self._values = values
        self._scales = scales
        self._is_narrow = values.dtype == torch.float16
        # Elsewhere, and before torch 2.8, a product of halves is rounded to halves.
        self._widens = values.is_cuda and torch.__version__ >= (2, 8)

    @classmethod
    def of(cls, packed: PackedRows, *, device: str) -> DeviceRows:
        """The same rows there; where bytes cannot be multiplied fast they become float16, which tells them apart."""
        torch = require("torch", extra="torch")
        stay = packed.scales is not None and _multiplies_bytes(torch.device(device))
        dtype = torch.float16 if packed.values.dtype in (np.int8, np.float16) else torch.float32
        values = torch.empty(packed.shape, dtype=torch.int8 if stay else dtype, device=device)
        for start in range(0, len(packed.values), _ROWS_PER_TRANSFER):
            rows = slice(start, start + _ROWS_PER_TRANSFER)
            # A copy, since torch does not take what it may not write to, such as a file.
            block = torch.from_numpy(np.array(packed.values[rows])).to(device)
            if packed.scales is not None and not stay:
                block = block.float() * torch.from_numpy(np.array(packed.scales[rows, None])).to(device)
            values[rows] = block
        return cls(values, torch.from_numpy(np.array(packed.scales)).to(device) if stay else None)

    @property
    def shape(self) -> tuple[int, int]:
        """Items and features."""
        return self._values.shape[0], self._values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device, scales included."""
        return int(self._values.nbytes + (0 if self._scales is None else self._scales.nbytes))

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, float64, on the host."""
        torch = require("torch", extra="torch")
        at = torch.from_numpy(np.array(positions, dtype=np.int64)).to(self._values.device)
        rows = np.asarray(self._values[at].cpu().numpy(), dtype=np.float64)
        return rows if self._scales is None else rows * self._scales[at, None].cpu().numpy()

    def product(self, weights: FloatArray) -> Any:
        """Every row · weights: a float32 tensor on the device."""
        torch = require("torch", extra="torch")
        if self._scales is not None:
            from adacur.approximation.int8_on_gpu import product

            column = torch.from_numpy(weights.astype(np.float32)).to(self._values.device)
            return product(torch, self._values, self._scales, column)
        if not self._is_narrow:
            return self._values @ self._values.new_tensor(weights)
        if not self._widens:
            column = torch.from_numpy(weights.astype(np.float32)).to(self._values.device)
            return torch.cat([block.float() @ column for block in self._values.split(_ROWS_PER_TRANSFER)])
        scale = float(np.abs(weights).max(initial=0.0)) or 1.0
        high = (weights / scale).astype(np.float16)
        # Weights in two halves are as good as float32; eight columns are what tensor cores take without padding.
        halves = np.zeros((len(weights), 8), dtype=np.float16)
        halves[:, 0], halves[:, 1] = high, (weights / scale - high) * _LOWER_HALF
        columns = torch.from_numpy(halves).to(self._values.device)
        both = torch.mm(self._values, columns, out_dtype=torch.float32)
        return both[:, 0].add(both[:, 1], alpha=1 / _LOWER_HALF).mul_(scale)

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights, shape (weights, rows), on the host."""
        return np.stack([self.product(own).cpu().numpy() for own in weights])

    def precise_product(self, weights: FloatArray) -> FloatArray:
        """The same in float64, on the host."""
        product = np.empty(len(self._values))
        for start in range(0, len(product), _ROWS_PER_TRANSFER):
            block = self._values[start : start + _ROWS_PER_TRANSFER].cpu().numpy()
            product[start : start + len(block)] = block.astype(np.float64) @ weights
        return product if self._scales is None else product * self._scales.cpu().numpy()


def _multiplies_bytes(device: Any) -> bool:
    """Whether bytes are multiplied there as they are, in half the time of float16."""
    if device.type != "cuda":
        return False
    try:
        from adacur.approximation.int8_on_gpu import runs_on
    except ImportError:
        return False
    return runs_on(device)


@functools.cache
def _blas_threads() -> int:
    """The threads that BLAS runs on: the cores of this process, or fewer where the environment says so."""
    limits = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS, nor on Windows.
        cores = os.cpu_count() or 1
    return min([cores, *(int(number) for number in limits if number.isdecimal() and int(number))])
