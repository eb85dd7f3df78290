"""The features of all items, by which the Gaussian says how alike their scores are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from adacur.approximation.packed_rows import DeviceRows, PackedRows, Rows, Storage
from adacur.core.arrays import FloatArray, IntArray

__all__ = ["ItemFactors"]

_ROWS_PER_BLOCK = 4096
# One compressed column in four leads: they tell which items, one in sixteen and never few, are worth the others.
_LEADING = 4
_SHARE_IN_FRONT = 16
_FEWEST_IN_FRONT = 4096


class ItemFactors:
    """A matrix of features, a row per item: `parts` side by side, less `centre`, times `mixing` where there is one.

    Only two things are ever asked of it: the rows of a few items, and the product of all rows with a vector. So a
    product with d features reads only as many columns as the parts have. Where the first of two parts is `leading`,
    predictions read the second only for the items that are in front by the first.
    """

    def __init__(
        self, parts: Sequence[Rows], centre: FloatArray, *, mixing: FloatArray | None = None, leading: bool = False
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
        own = self._stored_weights(weights)
        leading, rest = (part for part in self.parts if isinstance(part, PackedRows))
        predicted = leading.product(own[: leading.shape[1]])
        predicted += means - float(self.centre @ own)
        cut = self.n_items - max(_FEWEST_IN_FRONT, self.n_items // _SHARE_IN_FRONT)
        if cut <= 0:
            predicted += rest.product(own[leading.shape[1] :])
        else:
            # By value and not by place, so that the order of the items does not matter.
            in_front = np.flatnonzero(predicted >= np.partition(predicted, cut)[cut])
            predicted[in_front] += rest.product(own[leading.shape[1] :], in_front)
        return predicted

    def product(self, weights: FloatArray) -> Any:
        """Every item's features · weights, in the precision of the parts and on their device."""
        own = self._stored_weights(weights)
        first, *others = (part.product(ws) for part, ws in zip(self.parts, np.split(own, self._ends), strict=True))
        first -= float(self.centre @ own)
        for other in others:
            first += other
        return first

    def products(self, weights: FloatArray) -> FloatArray:
        """The same for many weights at once, shape (weights, items): faster, and rounded by the size of the batch."""
        own = self._stored_weights(weights)
        split = np.split(own, self._ends, axis=-1)
        first, *others = (part.products(ws) for part, ws in zip(self.parts, split, strict=True))
        first -= (own @ self.centre).astype(first.dtype)[:, None]
        for other in others:
            first += other
        return first

    def precise_product(self, weights: FloatArray) -> FloatArray:
        """The same in float64, whatever the parts are stored in."""
        own = self._stored_weights(weights)
        split = np.split(own, self._ends)
        products = [part.precise_product(ws) for part, ws in zip(self.parts, split, strict=True)]
        return np.asarray(np.sum(products, axis=0) - self.centre @ own)

    def compressed(self, *, columns: int, storage: Storage, spread: FloatArray) -> ItemFactors:
        """The same features from so many `columns`, in `storage`: those that keep most of features · `spread`.

        No fewer columns than there are features means that nothing is mixed.
        """
        if columns >= self.n_features:
            kept = PackedRows.pack(self._blocks(), shape=(self.n_items, self.n_features), storage=storage)
            return ItemFactors([kept], np.zeros(self.n_features))
        inner = np.zeros((self.n_features, self.n_features))
        for block in self._blocks():
            inner += block.T @ block
        # The eigenvectors of spreadᵀ inner spread are the right singular vectors of features · spread. At these widths
        # a randomised decomposition would read the features more often and cost more.
        _, vectors = np.linalg.eigh(spread.T @ inner @ spread)
        vectors = vectors[:, : -columns - 1 : -1]
        turn = spread @ vectors
        parts = [
            PackedRows.pack(
                (block @ own for block in self._blocks()), shape=(self.n_items, own.shape[1]), storage=storage
            )
            for own in np.split(turn, [-(-columns // _LEADING)], axis=1)
        ]
        return ItemFactors(parts, np.zeros(columns), mixing=np.linalg.solve(spread.T, vectors).T, leading=True)

    def on(self, device: str) -> ItemFactors:
        """The same with its parts on a device that torch knows."""
        parts = [DeviceRows.of(part, device=device) if isinstance(part, PackedRows) else part for part in self.parts]
        return ItemFactors(parts, self.centre, mixing=self.mixing)

    def _stored_weights(self, weights: FloatArray) -> FloatArray:
        """The weights of the stored columns that weight the features by `weights`."""
        return weights if self.mixing is None else np.asarray(weights @ self.mixing.T)

    def _blocks(self) -> Iterator[FloatArray]:
        for start in range(0, self.n_items, _ROWS_PER_BLOCK):
            yield self.rows(np.arange(start, min(start + _ROWS_PER_BLOCK, self.n_items)))
