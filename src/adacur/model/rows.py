"""The features of all items: rows in floats, or in bytes with a scale per row, in memory or on a device."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, get_args

import numpy as np
from array_api_compat import array_namespace

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.acquire import nth_largest
from adacur.model.int8_matmul import Int8Weights, multiplies_int8
from adacur.model.on_device import DeviceRows, moved

Storage = Literal["float32", "float16", "int8"]
_STORAGES = get_args(Storage)
# Makes an array of this name, shape and dtype, to be filled.
Allocate = Callable[[str, tuple[int, ...], str], Any]

# Rows that are converted or multiplied at a time, so that no second copy of a matrix is made.
ROWS_PER_BLOCK = 4096
# A block that stays in the cache of one core while it is widened and multiplied.
_NUMBERS_PER_BLOCK = 131_072
# Rows that are multiplied as they are need no place in a cache: what counts is that calls are few.
_INT8_PER_BLOCK = 2_097_152
# Fewer numbers than this are multiplied before a second thread has started.
_NUMBERS_PER_THREAD = 4_000_000
# By the columns that lead, one item in sixteen (and at least these many) is chosen to be predicted by the others too.
_SHARE_IN_FRONT = 16
_FEWEST_IN_FRONT = 4096


def in_memory(name: str, shape: tuple[int, ...], dtype: str) -> Any:
    """Allocate in memory."""
    return np.empty(shape, dtype=dtype)


def check_storage(storage: str) -> None:
    """Refuse an unknown storage."""
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
    as BLAS may use. The blocks, and so the results, do not depend on the number of cores.
    """

    def __init__(self, values: Any, scales: FloatArray | None = None) -> None:
        # Plain views: slicing a np.memmap takes microseconds each time.
        self.values = np.asarray(values)
        self.scales = None if scales is None else np.asarray(scales)
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
        return rows if self.scales is None else rows * self.scales[positions][..., None]

    def product(
        self, weights: FloatArray, positions: IntArray | None = None, *, plus: FloatArray | None = None
    ) -> FloatArray:
        """Every row · weights, or only those at `positions`; `plus` is added to the products."""
        if not self._is_narrow:
            rows = self.values if positions is None else self.values[positions]
            product = np.asarray(rows @ weights.astype(self.values.dtype))
            if plus is not None:
                product += plus
            return product
        product = np.empty(len(self.values) if positions is None else len(positions), dtype=np.float32)
        in_place = self.values.dtype == np.int8 and multiplies_int8() and bool(np.isfinite(weights).all())
        height = self._height(_INT8_PER_BLOCK if in_place else _NUMBERS_PER_BLOCK)
        digits = Int8Weights(weights) if in_place else None
        weights = weights.astype(np.float32)

        def multiply(starts: range) -> None:
            for rows, block in self._blocks(positions, starts, height=height, widened=digits is None):
                if digits is None:
                    np.dot(block, weights, out=product[rows])
                else:
                    digits.times(block, out=product[rows])
                if self.scales is not None:
                    product[rows] *= self.scales[rows if positions is None else positions[rows]]
                if plus is not None:
                    product[rows] += plus[rows]

        shares = self._shares(len(product), height)
        if len(shares) == 1:
            multiply(shares[0])
        else:
            # Threads that end with the product, since a pool that lives on does not survive a fork.
            with ThreadPoolExecutor(len(shares)) as threads:
                list(threads.map(multiply, shares))
        return product

    def products(self, weights: FloatArray) -> FloatArray:
        """Products with many weights, shape (weights, rows): faster, but rounded by the size of the batch."""
        if not self._is_narrow:
            return np.asarray(weights.astype(self.values.dtype) @ self.values.T)
        products = np.empty((len(weights), len(self.values)), dtype=np.float32)
        weights = weights.astype(np.float32)
        height = self._height(_NUMBERS_PER_BLOCK)
        for rows, block in self._blocks(None, range(0, len(self.values), height), height=height):
            products[:, rows] = weights @ block.T
        return products if self.scales is None else np.multiply(products, self.scales, out=products)

    def _height(self, numbers: int) -> int:
        """Rows of a block of this many numbers."""
        # BLAS multiplies four rows at a time, and the rest more slowly.
        return max(4, numbers // max(1, self.shape[1]) // 4 * 4)

    def _shares(self, n_rows: int, height: int) -> list[range]:
        """The starts of blocks, shared out among as many threads as have enough to do."""
        starts = range(0, n_rows, height)
        n_threads = max(1, min(_blas_threads(), n_rows * self.values.shape[1] // _NUMBERS_PER_THREAD))
        share = max(1, -(-len(starts) // n_threads))
        return [starts[at : at + share] for at in range(0, len(starts), share)] or [starts]

    def _blocks(
        self, positions: IntArray | None, starts: range, *, height: int, widened: bool = True
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Blocks of rows without their scales, `widened` to float32 or as they are; valid until the next."""
        n_rows, width = len(self.values if positions is None else positions), self.values.shape[1]
        wide = np.empty((height, width), dtype=np.float32) if widened else None
        gathered = None if positions is None else np.empty((min(height, n_rows), width), dtype=self.values.dtype)
        for start in starts:
            rows = slice(start, min(start + height, n_rows))
            if positions is None or gathered is None:
                block = self.values[rows]
            else:
                # Positions are valid; only without a check of each does numpy write into `out` at once.
                block = np.take(self.values, positions[rows], axis=0, out=gathered[: rows.stop - start], mode="clip")
            if wide is not None:
                np.copyto(wide[: len(block)], block)
                block = wide[: len(block)]
            yield rows, block


class ItemFactors:
    """A matrix of features, a row per item: `parts` side by side, less `centre`, times `mixing` where there is one.

    It is read in two ways only: the rows of a few items, and predictions of all items. So predictions by d features
    read only as many columns as the parts have. Where the first of two parts is `leading`, they read the second only
    for the items that are in front by the first. All is computed where the parts are, in memory or on a device.
    """

    def __init__(
        self,
        parts: Sequence[RowSource | DeviceRows],
        centre: Any,
        *,
        mixing: Any = None,
        leading: bool = False,
    ) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)
        self.centre = centre
        self.mixing = mixing
        self.leading = leading
        self.n_features = len(centre) if mixing is None else mixing.shape[1]
        self._mixing32: Any = None
        if mixing is not None:
            xp = array_namespace(mixing)
            self._mixing32 = xp.astype(mixing, xp.float32)
        self._ends = list(itertools.accumulate((part.shape[1] for part in parts), initial=0))

    @property
    def n_items(self) -> int:
        """Items, and rows."""
        return int(self.parts[0].shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self.parts)

    def rows(self, at: Any, *more: Any) -> Any:
        """The features of the items at these places, float64, and `more` columns: another axis at the end."""
        xp, parts = array_namespace(at), [part.rows(at) for part in self.parts]
        if self.mixing is None:
            for part, (start, stop) in zip(parts, itertools.pairwise(self._ends), strict=True):
                part -= self.centre[start:stop]
        else:
            parts = [self.unpacked(xp.concat(parts, axis=-1))]
        return xp.concat([*parts, *more], axis=-1)

    def unpacked(self, stored: Any) -> Any:
        """Features from stored numbers, float64, which it may write to."""
        stored -= self.centre
        if self._mixing32 is None:
            return stored
        xp = array_namespace(stored)
        # Compressed rows are less precise than float32, in which a product takes half the time.
        return xp.astype(xp.astype(stored, xp.float32) @ self._mixing32, xp.float64)

    def stored_weights(self, weights: Any) -> Any:
        """The weights of the stored numbers, less their centre, that give features · `weights`."""
        return weights if self.mixing is None else weights @ self.mixing.T

    def predictions(self, weights: Any, means: Any) -> Any:
        """Every item's (features, mean, 1) · the weights of each query, (queries, items), in the parts' precision.

        Of a lone query in memory they are coarser for items that are not in front. Those of several are rounded by
        their number.
        """
        stored = self.stored_weights(weights[:, :-2])
        trusts, constants = weights[:, -2], weights[:, -1] - stored @ self.centre
        split = [stored[:, start:stop] for start, stop in itertools.pairwise(self._ends)]
        predicted: Any
        if len(weights) == 1 and isinstance(self.parts[0], PackedRows):
            predicted = self._of_one([some[0] for some in split], means.dtype.type(trusts[0]) * means)[None, :]
        else:
            products = (part.products(some) for part, some in zip(self.parts, split, strict=True))
            predicted = next(products)
            for other in products:
                predicted += other
            if isinstance(self.parts[0], DeviceRows):
                predicted.addcmul_(trusts.float()[:, None], means[None, :])
            else:
                # Row by row: all at once would take as much memory again.
                for row, trust in zip(predicted, trusts, strict=True):
                    row += means.dtype.type(trust) * means
        xp = array_namespace(predicted)
        predicted += xp.astype(constants, predicted.dtype)[:, None]
        return predicted

    def _of_one(self, weights: Sequence[FloatArray], means: FloatArray) -> FloatArray:
        """What is stored · weights, plus `means`, in memory."""
        cut = self.n_items - max(_FEWEST_IN_FRONT, self.n_items // _SHARE_IN_FRONT) if self.leading else 0
        predicted: FloatArray = self.parts[0].product(weights[0], plus=means)
        for part, some in zip(self.parts[1:], weights[1:], strict=True):
            if cut <= 0:
                predicted += part.product(some)
            else:
                # By value and not by place, so that the order of the items does not matter.
                in_front = np.flatnonzero(predicted >= nth_largest(predicted, self.n_items - cut))
                predicted[in_front] += part.product(some, in_front)
        return predicted

    def on(self, device: str) -> ItemFactors:
        """The same with its parts on a torch device."""
        parts = [DeviceRows.of(part, device=device) for part in self.parts]
        mixing = None if self.mixing is None else moved(self.mixing, device)
        return ItemFactors(parts, moved(self.centre, device), mixing=mixing)


@functools.cache
def _blas_threads() -> int:
    """The threads that BLAS runs on: the cores of this process, or fewer where the environment says so."""
    limits = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS, nor on Windows.
        cores = os.cpu_count() or 1
    return min([cores, *(int(number) for number in limits if number.isdecimal() and int(number))])
