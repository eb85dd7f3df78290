"""A matrix at rest, a row per item: in floats, in bytes with a scale per row, or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require

__all__ = ["DeviceRows", "PackedRows", "Rows", "Storage"]

Storage = Literal["float32", "float16", "int8"]
_STORAGES = ("float32", "float16", "int8")
# A block that stays in the cache of one core while it is widened and multiplied.
_NUMBERS_PER_BLOCK = 131_072
_ROWS_PER_TRANSFER = 65_536
# What a float16 leaves of a number is smaller by so much.
_LOWER_HALF = 2.0**11


class Rows(Protocol):
    """What the features of all items are asked for."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, float64."""
        ...

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

    Products are in float32 at least. Rows of less are widened a block at a time, never all at once.
    """

    def __init__(self, values: Any, scales: FloatArray | None = None) -> None:
        self.values = values
        self.scales = scales
        self._is_narrow = values.dtype in (np.int8, np.float16)

    @classmethod
    def pack(cls, blocks: Iterator[FloatArray], *, shape: tuple[int, int], storage: Storage) -> PackedRows:
        """Blocks of rows below one another, each narrowed as it comes."""
        if storage not in _STORAGES:
            raise InputError(f"storage is one of {', '.join(_STORAGES)}; got {storage!r}.")
        values = np.empty(shape, dtype=storage)
        scales = np.empty(shape[0], dtype=np.float32) if storage == "int8" else None
        start = 0
        for block in blocks:
            rows = slice(start, start + len(block))
            if scales is not None:
                largest = np.abs(block).max(axis=1, initial=0.0)
                scales[rows] = np.maximum(largest, np.finfo(np.float32).tiny * 127) / 127
                values[rows] = np.rint(block / scales[rows, None])
            else:
                values[rows] = block
            start += len(block)
        return cls(values, scales)

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
        if not self._is_narrow and positions is None:
            return np.asarray(self.values @ weights.astype(self.values.dtype))
        product = np.empty(len(self.values) if positions is None else len(positions), dtype=np.float32)
        weights = weights.astype(np.float32)
        for rows, block in self._blocks(np.float32, positions):
            np.matmul(block, weights, out=product[rows])
        if self.scales is not None:
            product *= self.scales if positions is None else self.scales[positions]
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
            np.matmul(block, weights, out=product[rows])
        return product if self.scales is None else product * self.scales

    def _blocks(
        self, dtype: type[np.floating[Any]], positions: IntArray | None = None
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Blocks of rows without their scales, each in the same memory as the last."""
        width = max(1, self.values.shape[1])
        height = max(1, _NUMBERS_PER_BLOCK // width)
        room = np.empty((height, self.values.shape[1]), dtype=dtype)
        for start in range(0, len(self.values if positions is None else positions), height):
            rows = slice(start, start + height)
            narrow = self.values[rows if positions is None else positions[rows]]
            block = room[: len(narrow)]
            np.copyto(block, narrow)
            yield slice(start, start + len(block)), block


class DeviceRows:
    """Rows in a torch tensor on a GPU, or on any device that torch knows: float32 or float16."""

    def __init__(self, values: Any) -> None:
        torch = require("torch", extra="torch")
        self._values = values
        self._is_narrow = values.dtype == torch.float16
        # Elsewhere, and before torch 2.8, a product of halves is rounded to halves.
        self._widens = values.is_cuda and torch.__version__ >= (2, 8)

    @classmethod
    def of(cls, packed: PackedRows, *, device: str) -> DeviceRows:
        """The same rows there; bytes become float16, which tells their steps apart."""
        torch = require("torch", extra="torch")
        dtype = torch.float16 if packed.values.dtype in (np.int8, np.float16) else torch.float32
        values = torch.empty(packed.shape, dtype=dtype, device=device)
        for start in range(0, len(packed.values), _ROWS_PER_TRANSFER):
            rows = slice(start, start + _ROWS_PER_TRANSFER)
            # A copy, since torch does not take what it may not write to, such as a file.
            block = torch.from_numpy(np.array(packed.values[rows])).to(device)
            if packed.scales is not None:
                block = block.float() * torch.from_numpy(packed.scales[rows, None]).to(device)
            values[rows] = block
        return cls(values)

    @property
    def shape(self) -> tuple[int, int]:
        """Items and features."""
        return self._values.shape[0], self._values.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self._values.nbytes)

    def rows(self, positions: IntArray) -> FloatArray:
        """These rows, float64, on the host."""
        torch = require("torch", extra="torch")
        at = torch.from_numpy(np.array(positions, dtype=np.int64)).to(self._values.device)
        return np.asarray(self._values[at].cpu().numpy(), dtype=np.float64)

    def product(self, weights: FloatArray) -> Any:
        """Every row · weights: a float32 tensor on the device."""
        if not self._is_narrow:
            return self._values @ self._values.new_tensor(weights)
        torch = require("torch", extra="torch")
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
        return product
