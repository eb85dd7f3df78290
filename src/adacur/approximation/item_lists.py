"""Items in lists of those alike: predictions for the most promising lists only, when that is near enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from adacur.approximation.item_factors import ItemFactors
from adacur.approximation.packed_rows import PackedRows
from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require

__all__ = ["ItemLists", "NearRow"]

# FAISS asks for 39 rows a list at least, and says that more than 256 are wasted.
_ROWS_PER_LIST = 64
_ITERATIONS = 10
_ROWS_PER_BLOCK = 65_536
# Items whose predictions tell how far all predictions spread.
_SAMPLE = 4096
_SHARE_IN_FRONT = 16
_FEWEST_IN_FRONT = 4096


class ItemLists:
    """The items by list: list i holds `positions[starts[i]:starts[i + 1]]`, around `centroids[i]`.

    A centroid is the mean of the leading columns of its items and, as one column more, of their own means: its product
    with the weights of a query is the mean of their predictions, and by that lists are chosen. `sample` holds positions
    of items drawn by chance.
    """

    def __init__(self, centroids: FloatArray, starts: IntArray, positions: Any, sample: IntArray) -> None:
        self.centroids = centroids
        self.starts = starts
        self.positions = positions
        self.sample = sample

    @classmethod
    def of(cls, factors: ItemFactors, means: FloatArray, *, n_lists: int | None = None, seed: int = 0) -> ItemLists:
        """Lists by k-means, as many as the root of the items where not said."""
        n_items = factors.n_items
        n_lists = round(n_items**0.5) if n_lists is None else n_lists
        if not 1 <= n_lists <= n_items:
            raise InputError(f"lists are at least 1 and at most as many as the items, {n_items}; got {n_lists}.")
        faiss = require("faiss", extra="faiss")
        # FAISS takes none that is larger, and none takes one below 0.
        seed %= 2**31
        draws = np.random.default_rng(seed).permutation(n_items)
        taught = np.sort(draws[: _ROWS_PER_LIST * n_lists])
        leading = factors.parts[0]

        def rows(positions: IntArray) -> FloatArray:
            own = means[positions, None]
            return np.ascontiguousarray(np.hstack([leading.rows(positions), own]), dtype=np.float32)

        kmeans = faiss.Kmeans(
            leading.shape[1] + 1, n_lists, niter=_ITERATIONS, seed=seed, min_points_per_centroid=1, verbose=False
        )
        kmeans.train(rows(taught))
        lists = np.empty(n_items, dtype=np.int32)
        for start in range(0, n_items, _ROWS_PER_BLOCK):
            some = np.arange(start, min(start + _ROWS_PER_BLOCK, n_items))
            lists[some] = kmeans.index.search(rows(some), 1)[1][:, 0]
        # Stable: within a list items stay in their order, and reading them goes forward.
        order = np.argsort(lists, kind="stable").astype(np.int32 if n_items < 2**31 else np.int64)
        starts = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=n_lists))])
        return cls(np.asarray(kmeans.centroids), starts, order, np.sort(draws[:_SAMPLE]))

    def __len__(self) -> int:
        return len(self.centroids)

    def best(self, weights: FloatArray, *, probe: int) -> IntArray:
        """Positions of the items in the `probe` best lists, in order; `weights` are those of the stored columns."""
        width = self.centroids.shape[1] - 1
        heights = self.centroids[:, :width] @ weights[:width].astype(np.float32) + self.centroids[:, width]
        # Items that are all alike leave lists empty, with a centroid as high as theirs.
        heights[np.diff(self.starts) == 0] = -np.inf
        chosen = np.argsort(-heights, kind="stable")[:probe]
        found = [self.positions[self.starts[own] : self.starts[own + 1]] for own in chosen.tolist()]
        return np.sort(np.concatenate(found)).astype(np.intp)

    def row(self, factors: ItemFactors, weights: FloatArray, *, means: FloatArray, level: float, probe: int) -> NearRow:
        """Predictions of the items in the best lists, and of any other when it is asked for."""
        own = factors.stored_weights(weights)
        offset = level - float(factors.centre @ own)
        leading, *others = (part for part in factors.parts if isinstance(part, PackedRows))
        ends = np.cumsum([part.shape[1] for part in factors.parts])[:-1]

        def predicted(positions: IntArray, *, by_all: bool = True) -> FloatArray:
            first, *rest = np.split(own, ends)
            values = leading.product(first, positions) + means[positions] + np.float32(offset)
            for part, weight in zip(others, rest, strict=True) if by_all else ():
                values += part.product(weight, positions)
            return np.asarray(values, dtype=np.float32)

        positions = self.best(own, probe=probe)
        values = predicted(positions, by_all=False)
        cut = len(values) - max(_FEWEST_IN_FRONT, len(values) // _SHARE_IN_FRONT)
        in_front = np.arange(len(values)) if cut <= 0 else np.flatnonzero(values >= np.partition(values, cut)[cut])
        values[in_front] = predicted(positions[in_front])
        return NearRow(positions, values, n_items=factors.n_items, predicted=predicted, sample=self.sample)


class NearRow:
    """Predictions for some of the items, used like an array of all in the few ways a search uses predictions.

    Others are predicted when they are asked for by position; as a whole array, they are −∞.
    """

    def __init__(
        self,
        positions: IntArray,
        values: FloatArray,
        *,
        n_items: int,
        predicted: Callable[[IntArray], FloatArray],
        sample: IntArray,
    ) -> None:
        self._positions = positions
        self._values = values
        self._n_items = n_items
        self._predicted = predicted
        self._sample = sample

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the predictions."""
        return self._values.dtype

    def __len__(self) -> int:
        return self._n_items

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> FloatArray:
        whole = np.full(self._n_items, -np.inf, dtype=dtype or self.dtype)
        whole[self._positions] = self._values
        return whole

    def __getitem__(self, positions: IntArray) -> FloatArray:
        at, known = self._places(positions)
        values = np.empty(len(positions), dtype=self.dtype)
        values[known] = self._values[at[known]]
        if not known.all():
            values[~known] = self._predicted(np.asarray(positions)[~known])
        return values

    def __setitem__(self, positions: IntArray, values: FloatArray) -> None:
        at, known = self._places(positions)
        self._values[at[known]] = values[known]
        more = np.asarray(positions)[~known]
        order = np.argsort(np.concatenate([self._positions, more]), kind="stable")
        self._positions = np.concatenate([self._positions, more])[order]
        self._values = np.concatenate([self._values, values[~known].astype(self.dtype)])[order]

    def copy(self) -> NearRow:
        """A row of its own."""
        return NearRow(
            self._positions,
            self._values.copy(),
            n_items=self._n_items,
            predicted=self._predicted,
            sample=self._sample,
        )

    def std(self) -> float:
        """How far the predictions of all items spread, by a sample of them."""
        return float(self._predicted(self._sample).std())

    def among_largest(self, n: int) -> IntArray:
        """Positions of the n largest values and of all that tie with the last of them; no more than are known."""
        if n <= 0 or n >= len(self._values):
            return self._positions if n > 0 else self._positions[:0]
        cut = len(self._values) - n
        # Not `>=`: whatever cannot be compared is left to others to judge.
        return self._positions[np.flatnonzero(~(self._values < np.partition(self._values, cut)[cut]))]

    def _places(self, positions: IntArray) -> tuple[IntArray, Any]:
        at = np.minimum(np.searchsorted(self._positions, positions), max(0, len(self._positions) - 1))
        return at, self._positions[at] == positions if len(self._positions) else np.zeros(len(at), dtype=np.bool_)
