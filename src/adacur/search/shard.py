"""One shard of an index: the items from one position up to another, and whatever is asked of them."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adacur.approximation import Features, Gaussian, ItemFactors, PackedRows
from adacur.approximation.gaussian import Outline, vector_sums
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.device_row import DeviceRow
from adacur.core.products import row_products
from adacur.core.protocols import Acquisition
from adacur.core.seeds import item_keys
from adacur.core.spans import span_length, span_moments
from adacur.first_stages import Dense, load_retriever
from adacur.index import COMPRESSED, IndexFolder
from adacur.search.compression import is_compressed, read_features

__all__ = [
    "DIGITS",
    "Edition",
    "Kind",
    "NotExtracted",
    "Recipe",
    "Shard",
    "Winners",
    "WishHere",
    "edition_of",
    "sortable",
]

Kind = Literal["scores", "vectors", "features", "keys"]
_ITEMS_AT_ONCE = 4096
_ROWS_PER_BLOCK = 4096
# Predictions of so many bytes are kept, for searches that go on at the same time; those made last, in any case.
_BYTES_KEPT = 1 << 28
# The 32 bits of a float, the highest first, in digits of so many.
DIGITS = (11, 11, 10)


@dataclass(frozen=True, slots=True)
class Edition:
    """Which state of an index a shard has read: shards of different editions must not answer together."""

    version: int
    digest: str


@dataclass(frozen=True, slots=True, eq=False)
class Recipe:
    """What predictions of a batch of queries are made from: `weights`, a row per query, and constants.

    Of predictions that are made in two steps, those of `least` or more get the second, or all of them. `token` names
    the batch and the round.
    """

    token: str
    kind: Kind
    weights: FloatArray
    constants: FloatArray
    least: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class WishHere:
    """What a `Wish` means to one shard: positions are its own, counted from its first item.

    Of the allowed items, `taken` ones are scored, or only those in `pool` are left. `raised` are to be higher by `by`.
    """

    query: int
    n: int
    acquisition: Acquisition
    stream: int
    taken: IntArray
    pool: IntArray | None
    raised: IntArray
    by: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Winners:
    """A shard's best: positions in the index, keys, predictions, and these raised.

    `unranked` counts predictions of unscored items that are no numbers, which no shard can rank by itself.
    """

    positions: IntArray
    keys: KeyArray
    predicted: FloatArray
    raised: FloatArray
    unranked: int = 0


class NotExtracted(RuntimeError):
    """A shard that was started again has not been told how to make its features."""


def edition_of(folder: IndexFolder) -> Edition:
    """The edition of an open index: its manifest, its vectors and its compressed features."""
    digest = hashlib.blake2b(repr(folder.manifest).encode(), digest_size=16)
    for part in (COMPRESSED, "first/dense"):
        file = folder.home / part / "checksums.json"
        digest.update(file.read_bytes() if file.exists() else b"none")
    return Edition(folder.version, digest.hexdigest())


class Shard:
    """Items `start` up to `stop` of an index, opened by path; of scores, features and vectors only theirs are read.

    What is asked of it is complete in itself, so that a shard which was started again answers like the one before;
    predictions are kept between calls only to spare making them again.
    """

    def __init__(self, path: str | Path, *, start: int, stop: int, device: str | None = None) -> None:
        self._folder = IndexFolder.open(path)
        self._edition = edition_of(self._folder)
        self._start, self._stop = start, stop
        self._length = span_length(len(self._folder.items))
        self._device = device
        self._features: Features | None = None
        self._kept: OrderedDict[tuple[str, bool], list[FloatArray]] = OrderedDict()
        self._lock = threading.RLock()

    def answer(self, wanted: Edition, method: str, *arguments: Any) -> tuple[Edition, Any]:
        """The edition of this shard and, where that is the one wanted, what one of the methods below returns."""
        with self._lock:
            return self._edition, getattr(self, method)(*arguments) if self._edition == wanted else None

    def has_vectors(self) -> bool:
        """Whether every item here has a dense vector."""
        return self._dense is not None

    def smallest_keys(self, n: int) -> KeyArray:
        """The n smallest keys of the items here."""
        return np.sort(self._keys)[:n]

    def scores_up_to(self, key: int) -> FloatArray:
        """Anchor scores of the items with this key or a smaller one."""
        return self._scores[self._keys <= np.uint64(key)]

    def vector_sums(self) -> tuple[FloatArray, FloatArray]:
        """Sums of each span of the vectors here."""
        return vector_sums(PackedRows(self._vectors), length=self._length)

    def extract(self, outline: Outline) -> FloatArray:
        """Make the features from the scores and vectors here; the sums of squares of each span."""
        means, residuals, squares = Gaussian().explained(self._scores, outline, length=self._length)
        parts = [PackedRows(residuals), *([PackedRows(self._vectors)] if len(outline.middle) else [])]
        # Neither who the anchor queries are nor the variance matters to a product.
        features = outline.features((), means=means, factors=outline.factors(parts), variance=0.0)
        self._features = self._placed(features)
        return squares

    def rows(self, kind: Kind, positions: IntArray) -> list[Any]:
        """What there is of these items, counted from the first here: columns that go side by side."""
        if kind == "keys":
            return [self._keys[positions]]
        if kind == "scores":
            return [self._scores[positions]]
        if kind == "vectors":
            return [self._vectors[positions]]
        features = self._made_features()
        return [*(_narrowed(part, positions) for part in features.factors.parts), features.means[positions]]

    def count_digits(self, recipe: Recipe, prefixes: Sequence[int], level: int) -> Any:
        """Per query, how many coarse predictions have each digit of this level, of those that begin with the prefix."""
        known = sum(DIGITS[:level])
        shift = 32 - known - DIGITS[level]
        counts = np.empty((len(prefixes), 1 << DIGITS[level]), dtype=np.uint32)
        for own, row, prefix in zip(counts, self._coarse(recipe), prefixes, strict=True):
            bits = sortable(row)
            if known:
                bits = bits[bits >> np.uint32(32 - known) == np.uint32(prefix)]
            digits = (bits >> np.uint32(shift)) & np.uint32((1 << DIGITS[level]) - 1)
            own[:] = np.bincount(digits, minlength=1 << DIGITS[level])
        return counts

    def predict(
        self, recipe: Recipe, watched: Sequence[IntArray], spreads: bool
    ) -> tuple[FloatArray | None, list[FloatArray]]:
        """Per query the moments of its predictions, where `spreads` are wanted, and the predictions watched."""
        rows = self._predictions(recipe)
        with np.errstate(over="ignore", invalid="ignore"):
            moments = np.stack([span_moments(row, self._length) for row in rows]) if spreads else None
        return moments, [row[own] for row, own in zip(rows, watched, strict=True)]

    def choose(self, recipe: Recipe | None, wishes: Sequence[WishHere], allowed: BoolArray | None) -> list[Winners]:
        """This shard's own best for each wish."""
        predictions = None if recipe is None else self._predictions(recipe)
        return [
            self._choose(None if predictions is None else predictions[wish.query], wish, allowed) for wish in wishes
        ]

    def _choose(self, predicted: FloatArray | None, wish: WishHere, allowed: BoolArray | None) -> Winners:
        unscored, raised = self._unscored(wish, allowed), _raised(predicted, wish)
        positions = wish.acquisition.choose(raised, unscored=unscored, n=wish.n, keys=self._keys, stream=wish.stream)
        no_values = np.empty(len(positions))
        return Winners(
            positions + self._start,
            self._keys[positions],
            no_values if predicted is None else predicted[positions],
            no_values if predicted is None else raised[positions],
            0 if predicted is None else int(np.count_nonzero(np.isnan(raised[unscored]))),
        )

    def everything(self, recipe: Recipe, wish: WishHere, allowed: BoolArray | None) -> Winners:
        """All unscored items, for a choice that takes them together."""
        predicted = self._predictions(recipe)[wish.query]
        at = np.flatnonzero(self._unscored(wish, allowed))
        return Winners(at + self._start, self._keys[at], predicted[at], _raised(predicted, wish)[at])

    def predicted_at(self, recipe: Recipe, positions: Sequence[IntArray]) -> list[FloatArray]:
        """Predictions of these items here, per query."""
        return [row[own] for row, own in zip(self._predictions(recipe), positions, strict=True)]

    def all_predicted(self, recipe: Recipe, query: int) -> FloatArray:
        """Predictions of all items here."""
        return self._predictions(recipe)[query]

    def predict_precisely(self, recipe: Recipe) -> FloatArray:
        """Predictions of all items here in float64, shape (queries, items)."""
        if recipe.kind == "features":
            features = self._made_features()
            products = [features.factors.precise_product(weights) for weights in recipe.weights]
            return np.stack(products) + recipe.constants[:, None] + features.means
        rows = self._scores if recipe.kind == "scores" else self._vectors
        precise = np.empty((len(recipe.weights), len(rows)))
        for start in range(0, len(rows), _ROWS_PER_BLOCK):
            block = rows[start : start + _ROWS_PER_BLOCK].astype(np.float64)
            for own, weights, constant in zip(precise, recipe.weights, recipe.constants, strict=True):
                own[start : start + len(block)] = row_products(block, weights) + constant
        return precise

    def nearest(self, vectors: FloatArray, k: int) -> list[tuple[tuple[str, ...], FloatArray]]:
        """The dense first stage's nearest among the items here."""
        assert self._dense is not None
        return self._dense.nearest(vectors, k)

    @cached_property
    def _keys(self) -> KeyArray:
        file = self._folder.home / COMPRESSED / "keys.npy"
        if file.exists():
            return np.array(np.load(file, mmap_mode="r")[self._start : self._stop])
        return np.concatenate([item_keys(ids) for _, ids in self._ids()])

    @cached_property
    def _scores(self) -> FloatArray:
        return self._folder.scores_between(self._start, self._stop)

    @cached_property
    def _vectors(self) -> FloatArray:
        assert self._dense is not None
        return self._dense.embeddings

    @cached_property
    def _dense(self) -> Dense | None:
        folder = self._folder.home / "first" / "dense"
        if not folder.exists():
            return None
        dense = load_retriever(folder)
        if not isinstance(dense, Dense) or len(dense.ids) != len(self._folder.items):
            return None
        # Vectors lie in the order of the index, unless somebody has put them there by hand.
        if all(list(dense.ids[start : start + len(ids)]) == ids for start, ids in self._ids()):
            return dense.among(np.arange(self._start, self._stop))
        own = {id_: position for start, ids in self._ids() for position, id_ in enumerate(ids, start - self._start)}
        rows = np.full(self._stop - self._start, -1)
        for row, id_ in enumerate(dense.ids):
            if id_ in own:
                rows[own[id_]] = row
        return dense.among(rows) if (rows >= 0).all() else None

    def _ids(self) -> Any:
        """Ids of the items here, some at a time, each time with the position of the first."""
        for start in range(self._start, self._stop, _ITEMS_AT_ONCE):
            some = range(start, min(start + _ITEMS_AT_ONCE, self._stop))
            yield start, [item.id for item in self._folder.items.at(some)]

    def _made_features(self) -> Features:
        if self._features is None:
            if is_compressed(self._folder.home):
                features = read_features(self._folder.home, self._folder)
                self._features = self._placed(_slice(features, self._start, self._stop))
            else:
                raise NotExtracted
        return self._features

    def _placed(self, features: Features) -> Features:
        return features if self._device is None else features.on(self._device)

    def _unscored(self, wish: WishHere, allowed: BoolArray | None) -> BoolArray:
        n_items = self._stop - self._start
        if wish.pool is not None:
            unscored = np.zeros(n_items, dtype=np.bool_)
            unscored[wish.pool] = True
        else:
            unscored = np.ones(n_items, dtype=np.bool_) if allowed is None else allowed.copy()
        unscored[wish.taken] = False
        return unscored

    def _coarse(self, recipe: Recipe) -> list[FloatArray]:
        features = self._made_features()
        factors = features.factors

        def make() -> list[FloatArray]:
            stored = [factors.stored_weights(own) for own in recipe.weights]
            return [factors.coarse_predictions(own, means=features.means) for own in stored]

        return self._kept_or(recipe, False, make)

    def _predictions(self, recipe: Recipe) -> list[FloatArray]:
        return self._kept_or(recipe, True, lambda: self._made_predictions(recipe))

    def _made_predictions(self, recipe: Recipe) -> list[FloatArray]:
        if recipe.kind == "features":
            features = self._made_features()
            if features.device_means is not None:
                return [
                    np.asarray(DeviceRow(features.factors.predictions(own, means=features.device_means).add_(constant)))
                    for own, constant in zip(recipe.weights, recipe.constants.tolist(), strict=True)
                ]
            rows = []
            for query, (weights, constant) in enumerate(zip(recipe.weights, recipe.constants, strict=True)):
                if features.factors.leading:
                    row = self._coarse(recipe)[query].copy()
                    stored = features.factors.stored_weights(weights)
                    features.factors.refine(row, stored, least=None if recipe.least is None else recipe.least[query])
                else:
                    row = features.factors.predictions(weights, means=features.means)
                row = row.astype(features.means.dtype, copy=False)
                row += row.dtype.type(constant)
                rows.append(row)
            self._kept.pop((recipe.token, False), None)
            return rows
        items = self._scores if recipe.kind == "scores" else self._vectors
        products = [row_products(items, own.astype(items.dtype)) for own in recipe.weights]
        if recipe.kind == "vectors":
            for row, constant in zip(products, recipe.constants, strict=True):
                row += row.dtype.type(constant)
        return products

    def _kept_or(self, recipe: Recipe, done: bool, make: Callable[[], list[FloatArray]]) -> list[FloatArray]:
        at = (recipe.token, done)
        if at not in self._kept:
            self._kept[at] = make()
            sizes = [sum(row.nbytes for row in rows) for rows in self._kept.values()]
            while len(sizes) > 1 and sum(sizes) > _BYTES_KEPT:
                self._kept.popitem(last=False)
                del sizes[0]
        self._kept.move_to_end(at)
        return self._kept[at]


def sortable(values: FloatArray) -> Any:
    """Whole numbers in the order of these float32, what is no number being the largest."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    keys = bits ^ np.where(bits >> np.uint32(31), np.uint32(0xFFFFFFFF), np.uint32(0x80000000))
    keys[np.isnan(values)] = 0xFFFFFFFF
    return keys


def _raised(predicted: FloatArray | None, wish: WishHere) -> FloatArray:
    if predicted is None:
        return np.empty(0)
    if not len(wish.raised):
        return predicted
    raised = predicted.copy()
    raised[wish.raised] = predicted[wish.raised] + wish.by
    return raised


def _narrowed(part: Any, positions: IntArray) -> FloatArray:
    """These rows, in float32 where that is what they are made of."""
    rows: FloatArray = part.rows(positions)
    is_wide = isinstance(part, PackedRows) and (part.scales is not None or part.values.dtype == np.float64)
    return rows if is_wide or not isinstance(part, PackedRows) else rows.astype(np.float32)


def _slice(features: Features, start: int, stop: int) -> Features:
    parts = [
        PackedRows(part.values[start:stop], None if part.scales is None else part.scales[start:stop])
        for part in features.factors.parts
        if isinstance(part, PackedRows)
    ]
    factors = features.factors
    return replace(
        features,
        means=np.asarray(features.means[start:stop]),
        factors=ItemFactors(parts, factors.centre, mixing=factors.mixing, leading=factors.leading),
        keys=None,
        lists=None,
    )
