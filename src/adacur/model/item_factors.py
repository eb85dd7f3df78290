"""What predictions are made of: the scale on which scores are modelled, and the features of all items.

Cross-encoders squeeze most pairs into a narrow band (logits near −11, probabilities near 0) and spread the few that
matter. On the scale −log(share of anchor scores above), each step up means equally rarer at every height, and a scorer
that gives logits is modelled exactly like one that gives their sigmoids. Products of features are the Gaussian model's
prior covariance. Their rows are stored in floats, or in bytes with a scale per row.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.errors import InputError
from adacur.model.acquire import nth_largest
from adacur.model.int8_matmul import Int8Weights, multiplies_int8
from adacur.model.on_device import DeviceRows
from adacur.requirements import require

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
# A quarter of the compressed columns lead: by them, one item in sixteen (and at least these many) is chosen to be
# predicted by the other columns too.
_LEADING = 4
_SHARE_IN_FRONT = 16
_FEWEST_IN_FRONT = 4096
# Scores rarer than one in ten thousand are hardly told apart: there are few of them, and their order is chance.
RAREST = 1e-4
_SAMPLE = 1_000_000
KNOTS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class ScoreScale:
    """A strictly rising, piecewise linear map between `scores` and `rarities`; beyond its ends it goes on straight."""

    scores: FloatArray
    rarities: FloatArray

    @classmethod
    def sample(cls, keys: KeyArray, *, n_anchors: int) -> IntArray:
        """Ascending positions of enough items to estimate the scale from."""
        n_rows = max(1, _SAMPLE // max(1, n_anchors))
        if n_rows >= len(keys):
            return np.arange(len(keys))
        # By key and not by position: the scale must not depend on the order of the items.
        return np.sort(np.argpartition(keys, n_rows)[:n_rows])

    @classmethod
    def of(cls, scores: FloatArray, *, rarest: float = RAREST) -> ScoreScale:
        """The scale of these scores, whatever their shape; those rarer than `rarest` are hardly told apart."""
        values = np.sort(np.asarray(scores, dtype=np.float64), axis=None)
        steps = np.unique(values)
        if len(steps) < 2:
            return cls.plain()
        if len(steps) > KNOTS:
            # Dense where scores are rare: the top decides, and the bulk needs few knots.
            share = np.concatenate([np.linspace(0, 1, KNOTS // 2), 1 - np.geomspace(1 / len(values), 1, KNOTS // 2)])
            steps = np.unique(values[np.minimum((share * len(values)).astype(np.intp), len(values) - 1)])
        below, up_to = np.searchsorted(values, steps, side="left"), np.searchsorted(values, steps, side="right")
        above = 1 - (below + up_to) / (2 * len(values))
        return cls(steps, np.log1p(rarest) - np.log(above + rarest))

    @classmethod
    def plain(cls) -> ScoreScale:
        """The identity."""
        return cls(np.array([0.0, 1.0]), np.array([0.0, 1.0]))

    def rarity(self, scores: FloatArray) -> FloatArray:
        """Scores on this scale, in float64."""
        return _along(np.asarray(scores, dtype=np.float64), self.scores, self.rarities)

    def score(self, rarities: FloatArray) -> FloatArray:
        """The scores of these rarities, in float64."""
        return _along(np.asarray(rarities, dtype=np.float64), self.rarities, self.scores)


def _along(values: FloatArray, source: FloatArray, target: FloatArray) -> FloatArray:
    """Piecewise linear from `source` to `target`; beyond the ends with the mean slope of the whole."""
    inside = np.interp(values, source, target)
    slope = (target[-1] - target[0]) / (source[-1] - source[0])
    return np.asarray(inside + slope * (values - np.clip(values, source[0], source[-1])))


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
        return rows if self.scales is None else rows * self.scales[positions, None]

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

    It is read in two ways only: the rows of a few items, and the product of all rows with a vector. So a product with
    d features reads only as many columns as the parts have. Where the first of two parts is `leading`, predictions read
    the second only for the items that are in front by the first.
    """

    def __init__(
        self,
        parts: Sequence[PackedRows | DeviceRows],
        centre: FloatArray,
        *,
        mixing: FloatArray | None = None,
        leading: bool = False,
    ) -> None:
        self.parts = tuple(parts)
        self.centre = centre
        self.mixing = mixing
        self.leading = leading
        self.n_features = len(centre) if mixing is None else mixing.shape[1]
        self._small: tuple[Any, ...] | None = None
        self._mixing32 = None if mixing is None else mixing.astype(np.float32)
        self._ends = np.cumsum([part.shape[1] for part in parts])[:-1]

    @property
    def n_items(self) -> int:
        """Items, and rows."""
        return self.parts[0].shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self.parts)

    def rows(self, positions: IntArray) -> FloatArray:
        """The features of these items, float64."""
        if isinstance(self.parts[0], DeviceRows):
            return self.parts[0].on_host(self.rows_here, positions)
        return self.unpacked(self.stored(positions))

    def stored(self, positions: IntArray) -> FloatArray:
        """The stored numbers of these items, float64."""
        return np.hstack([part.rows(positions) for part in self.parts])

    def unpacked(self, stored: FloatArray) -> FloatArray:
        """Features from stored numbers, float64."""
        stored = stored - self.centre
        if self._mixing32 is None:
            return stored
        # Compressed rows are less precise than float32, in which a product takes half the time.
        return (stored.astype(np.float32) @ self._mixing32).astype(np.float64)

    def stored_weights(self, weights: FloatArray) -> FloatArray:
        """The weights of the stored numbers, less their centre, that give features · `weights`."""
        return weights if self.mixing is None else np.asarray(weights @ self.mixing.T)

    def predictions(self, weights: FloatArray, *, means: Any) -> Any:
        """Every item's mean + features · weights; coarser for items that are not in front."""
        if not self.leading:
            predicted = self.product(weights)
            predicted += means
            return predicted
        stored = self.stored_weights(weights)
        leading, rest = (part for part in self.parts if isinstance(part, PackedRows))
        of_leading, of_rest = np.split(stored, self._ends)
        predicted = leading.product(of_leading, plus=means)
        if constant := float(self.centre @ stored):
            predicted -= constant
        cut = self.n_items - max(_FEWEST_IN_FRONT, self.n_items // _SHARE_IN_FRONT)
        if cut <= 0:
            predicted += rest.product(of_rest)
        else:
            # By value and not by place, so that the order of the items does not matter.
            in_front = np.flatnonzero(predicted >= nth_largest(predicted, self.n_items - cut))
            predicted[in_front] += rest.product(of_rest, in_front)
        return predicted

    def product(self, weights: FloatArray) -> Any:
        """Every item's features · weights, in the precision of the parts and on their device."""
        stored = self.stored_weights(weights)
        first, *others = (part.product(ws) for part, ws in zip(self.parts, np.split(stored, self._ends), strict=True))
        first -= float(self.centre @ stored)
        for other in others:
            first += other
        return first

    def products(self, weights: FloatArray) -> FloatArray:
        """Products with many weights, shape (weights, items): faster, but rounded by the size of the batch."""
        stored = self.stored_weights(weights)
        split = np.split(stored, self._ends, axis=-1)
        first, *others = (part.products(ws) for part, ws in zip(self.parts, split, strict=True))
        first -= (stored @ self.centre).astype(first.dtype)[:, None]
        for other in others:
            first += other
        return first

    def products_here(self, weights: Any) -> Any:
        """Every item's features · weights for many float64 weights, float32 (weights, items), on the parts' device."""
        mixing = self._on(weights.device)[1]
        stored = weights if mixing is None else weights @ mixing.T
        starts = [0, *self._ends.tolist(), stored.shape[1]]
        products: Any = None
        for part, (start, stop) in zip(self.parts, itertools.pairwise(starts), strict=True):
            assert isinstance(part, DeviceRows)
            some = part.products_here(stored[:, start:stop].float())
            products = some if products is None else products.add_(some)
        return products.sub_((stored @ self._on(weights.device)[0]).float()[:, None])

    def rows_here(self, at: Any) -> Any:
        """The features of the items at these places, float64, on the parts' device."""
        centre, mixing = self._on(at.device)
        rows = [part.rows_here(at) for part in self.parts if isinstance(part, DeviceRows)]
        stored = (rows[0] if len(rows) == 1 else require("torch", extra="torch").cat(rows, 1)) - centre
        # As on the host: compressed rows are less precise than float32.
        return stored if mixing is None else (stored.float() @ mixing.float()).double()

    def _on(self, device: Any) -> tuple[Any, Any]:
        """Centre and mixing on a device, sent there once."""
        if self._small is None:
            torch = require("torch", extra="torch")
            small = (self.centre, self.mixing)
            self._small = tuple(None if one is None else torch.from_numpy(np.array(one)).to(device) for one in small)
        return self._small[0], self._small[1]

    @classmethod
    def packed(
        cls,
        blocks: Callable[[], Iterator[FloatArray]],
        *,
        n_items: int,
        inner: FloatArray,
        columns: int,
        storage: Storage,
        root: FloatArray,
        allocate: Allocate = in_memory,
    ) -> ItemFactors:
        """Features that come in blocks of rows, in `columns` columns: those that keep most of features · `root`.

        `root` is a square root of the covariance of the features' weights, and `inner` is features.T @ features. No
        fewer columns than there are features means that nothing is mixed. The blocks are read once, into "part0" and
        "part1" of `allocate`.
        """
        n_features = len(inner)
        whole = columns >= n_features
        turn, mixing = np.eye(n_features), None
        if not whole:
            # The eigenvectors of rootᵀ inner root are the right singular vectors of features · root. At these
            # widths a randomised decomposition would read the features more often and cost more.
            _, vectors = np.linalg.eigh(root.T @ inner @ root)
            vectors = vectors[:, : -columns - 1 : -1]
            turn, mixing = root @ vectors, np.linalg.solve(root.T, vectors).T
        ends = [n_features] if whole else [-(-columns // _LEADING), columns]
        parts = [
            PackedRows.unfilled((n_items, stop - start), storage=storage, allocate=allocate, name=f"part{number}")
            for number, (start, stop) in enumerate(itertools.pairwise([0, *ends]))
        ]
        start = 0
        for block in blocks():
            turned = block if whole else block @ turn
            for part, columns_of_part in zip(parts, np.split(turned, ends[:-1], axis=1), strict=True):
                part.fill(start, columns_of_part)
            start += len(block)
        return cls(parts, np.zeros(ends[-1]), mixing=mixing, leading=not whole)

    def on(self, device: str) -> ItemFactors:
        """The same with its parts on a torch device."""
        parts = [DeviceRows.of(part, device=device) if isinstance(part, PackedRows) else part for part in self.parts]
        return ItemFactors(parts, self.centre, mixing=self.mixing)


@functools.cache
def _blas_threads() -> int:
    """The threads that BLAS runs on: the cores of this process, or fewer where the environment says so."""
    limits = [os.environ.get(name, "") for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")]
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # Not on macOS, nor on Windows.
        cores = os.cpu_count() or 1
    return min([cores, *(int(number) for number in limits if number.isdecimal() and int(number))])
