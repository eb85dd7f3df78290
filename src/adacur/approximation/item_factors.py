"""The features of all items, whose products are the Gaussian model's prior covariance."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from adacur.approximation.on_device import DeviceRows
from adacur.approximation.packed_rows import Allocate, PackedRows, Storage, in_memory
from adacur.core.arrays import FloatArray, IntArray

__all__ = ["ItemFactors"]

# One compressed column in four leads: they tell which items, one in sixteen and never few, are worth the others.
_LEADING = 4
_SHARE_IN_FRONT = 16
_FEWEST_IN_FRONT = 4096


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
        self._mixing32 = None if mixing is None else mixing.astype(np.float32)
        self._ends = np.cumsum([part.shape[1] for part in parts])[:-1]

    @property
    def n_items(self) -> int:
        """Items, and rows."""
        return self.parts[0].shape[0]

    @property
    def n_features(self) -> int:
        """Features of an item, all parts together."""
        return len(self.centre) if self.mixing is None else self.mixing.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the parts."""
        return sum(part.nbytes for part in self.parts)

    def rows(self, positions: IntArray) -> FloatArray:
        """The features of these items, float64."""
        stored = np.hstack([part.rows(positions) for part in self.parts]) - self.centre
        if self._mixing32 is None:
            return stored
        # Compressed rows are less precise than float32, in which a product takes half the time.
        return (stored.astype(np.float32) @ self._mixing32).astype(np.float64)

    def predictions(self, weights: FloatArray, *, means: Any) -> Any:
        """Every item's mean and features · weights; coarser for items that are not in front."""
        if not self.leading:
            predicted = self.product(weights)
            predicted += means
            return predicted
        stored = self._stored_weights(weights)
        leading, rest = (part for part in self.parts if isinstance(part, PackedRows))
        of_leading, of_rest = np.split(stored, self._ends)
        predicted = leading.product(of_leading)
        predicted += means - float(self.centre @ stored)
        cut = self.n_items - max(_FEWEST_IN_FRONT, self.n_items // _SHARE_IN_FRONT)
        if cut <= 0:
            predicted += rest.product(of_rest)
        else:
            # By value and not by place, so that the order of the items does not matter.
            in_front = np.flatnonzero(predicted >= np.partition(predicted, cut)[cut])
            predicted[in_front] += rest.product(of_rest, in_front)
        return predicted

    def product(self, weights: FloatArray) -> Any:
        """Every item's features · weights, in the precision of the parts and on their device."""
        stored = self._stored_weights(weights)
        first, *others = (part.product(ws) for part, ws in zip(self.parts, np.split(stored, self._ends), strict=True))
        first -= float(self.centre @ stored)
        for other in others:
            first += other
        return first

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights at once, shape (weights, items): faster, and rounded by the size of the batch."""
        stored = self._stored_weights(weights)
        split = np.split(stored, self._ends, axis=-1)
        first, *others = (part.products(ws) for part, ws in zip(self.parts, split, strict=True))
        first -= (stored @ self.centre).astype(first.dtype)[:, None]
        for other in others:
            first += other
        return first

    @classmethod
    def packed(
        cls,
        blocks: Callable[[], Iterator[FloatArray]],
        *,
        n_items: int,
        inner: FloatArray,
        columns: int,
        storage: Storage,
        spread: FloatArray,
        allocate: Allocate = in_memory,
    ) -> ItemFactors:
        """Features that come in blocks of rows, in `columns` columns: those that keep most of features · `spread`.

        `inner` is features.T @ features. No fewer columns than there are features means that nothing is mixed. The
        blocks are read once, into "part0" and "part1" of `allocate`.
        """
        n_features = len(inner)
        whole = columns >= n_features
        turn, mixing = np.eye(n_features), None
        if not whole:
            # The eigenvectors of spreadᵀ inner spread are the right singular vectors of features · spread. At these
            # widths a randomised decomposition would read the features more often and cost more.
            _, vectors = np.linalg.eigh(spread.T @ inner @ spread)
            vectors = vectors[:, : -columns - 1 : -1]
            turn, mixing = spread @ vectors, np.linalg.solve(spread.T, vectors).T
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

    def _stored_weights(self, weights: FloatArray) -> FloatArray:
        """The weights of the stored columns that weight the features by `weights`."""
        return weights if self.mixing is None else np.asarray(weights @ self.mixing.T)
