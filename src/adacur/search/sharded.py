"""Search over an index whose items are spread over several workers: this side holds none of them.

Per round the queries' weights go out; each shard predicts for its own items and answers with its best; the best of
these are the best of all, since an acquisition that chooses by prediction and key chooses the same from the winners of
all parts as from the whole. Sums over all items are made of the sums of spans (`core.spans`), and shards begin and end
with spans, so that both sides get the same to the bit.
"""

from __future__ import annotations

import itertools
import socket
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adacur.approximation import (
    EmbeddingRegression,
    Features,
    Gaussian,
    ItemFactors,
    ScoreScale,
    Softmax,
    TopK,
    Uniform,
)
from adacur.approximation.gaussian import EmbedQueries, Outline
from adacur.approximation.item_factors import n_in_front
from adacur.core.arrays import BoolArray, FloatArray, IntArray, KeyArray
from adacur.core.budget import check_k, is_whole
from adacur.core.errors import IndexMismatch, InputError, NotAnIndex
from adacur.core.protocols import Approximation, Items
from adacur.core.records import Query, as_queries
from adacur.core.results import Hits
from adacur.core.spans import span_length, standard_deviation
from adacur.engines.standing import Opener, Standing, StandingActors
from adacur.first_stages import Dense
from adacur.first_stages.dense import QUERIES_AT_ONCE
from adacur.first_stages.ranking import best_first
from adacur.index import IndexFolder, place_named
from adacur.search.compression import is_compressed, read_features
from adacur.search.prospects import RANKS_THAT_COUNT, Chosen, Wish, rises
from adacur.search.shard import DIGITS, Kind, NotExtracted, Recipe, Shard, Winners, WishHere, edition_of

__all__ = ["ShardedDense", "ShardedScores", "Shards", "cuts", "open_shards"]

# What is fetched of an item stays for the rounds that follow: a few kilobytes each.
_ROWS_KEPT = 50_000
# The best n of what these choose from the parts are what they choose from the whole.
_BEST_OF_THE_BEST = (TopK, Softmax, Uniform)


def cuts(n_items: int, n_shards: int) -> list[int]:
    """Where shards begin, and the end: about alike, at the beginnings of spans, and each with one whole span at least.

    A small index has fewer shards than were asked for.
    """
    length = span_length(n_items)
    n_spans = max(1, n_items // length)
    n_shards = min(n_shards, n_spans)
    return [*(length * (n_spans * shard // n_shards) for shard in range(n_shards)), n_items]


def open_shards(
    folder: IndexFolder,
    *,
    shards: int,
    address: str | None = None,
    device: str | None = None,
    engine: Callable[[Sequence[Opener]], Standing] | None = None,
) -> Shards:
    """Open an index in so many workers: Ray actors, or what `engine` makes of the openers."""
    if not is_whole(shards) or shards < 1:
        raise InputError(f"shards counts the workers that hold the items, 1 at least; got {shards!r}.")
    starts = cuts(len(folder.items), shards)
    # Of an index in an object store, the path is this machine's own copy of its small files.
    path = place_named(folder.path.resolve())
    openers = [_opener(path, start, stop, device) for start, stop in itertools.pairwise(starts)]
    gpus = 1 if device is not None and device.startswith("cuda") else 0
    workers = StandingActors(openers, address=address, gpus=gpus) if engine is None else engine(openers)
    try:
        return Shards(folder, workers, starts=starts, device=device)
    except BaseException:
        workers.close()
        raise


def _opener(path: str, start: int, stop: int, device: str | None) -> Opener:
    def opened() -> Shard:
        try:
            return Shard(path, start=start, stop=stop, device=device)
        except NotAnIndex as error:
            raise NotAnIndex(
                f"The worker on {socket.gethostname()} does not find the index: {error} Give a path that is the same "
                "place on every node, such as a shared file system."
            ) from error

    return opened


class Shards:
    """The shards of an index, asked all at once; every answer is from the edition that was opened."""

    def __init__(self, folder: IndexFolder, workers: Standing, *, starts: Sequence[int], device: str | None) -> None:
        self._folder = folder
        self._workers = workers
        self._starts = np.array(starts)
        self._device = device
        self._edition = edition_of(folder)
        self._outline: Outline | None = None
        self._opening = threading.RLock()
        self._fetched: dict[Kind, _Fetched] = {}
        self._gaussian: Features | None = None
        self._masks: tuple[BoolArray | None, list[Any]] = (None, [])
        self.anchors = ShardedScores(folder, self)
        # An index that the workers do not find, or not as it is here, is told before a search.
        self.has_vectors = all(self.ask("has_vectors"))

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def n_items(self) -> int:
        """Items in all shards."""
        return int(self._starts[-1])

    def close(self) -> None:
        """Dismiss the workers."""
        self._workers.close()

    def share(self, value: Any) -> Any:
        """What stands for a value in the arguments of several calls."""
        return self._workers.share(value)

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """Ask every shard the same."""
        return self.ask_each(method, [arguments] * len(self))

    def ask_each(self, method: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        """Ask shards, each with arguments of its own, None sparing it; who was started again is told what it lost."""
        try:
            return self._answers(method, arguments)
        except NotExtracted:
            self._answers("extract", [(self._outline,)] * len(self))
            return self._answers(method, arguments)

    def _answers(self, method: str, arguments: Sequence[tuple[Any, ...] | None]) -> list[Any]:
        asked = [None if own is None else (self._edition, method, *own) for own in arguments]
        answers = self._workers.call("answer", asked)
        for number, answer in enumerate(answers):
            if answer is not None and answer[0] != self._edition:
                raise IndexMismatch(
                    f"Shard {number} of {len(self)} has version {answer[0].version} ({answer[0].digest[:8]}) of "
                    f"{self._folder.path}, and this search began on version {self._edition.version} "
                    f"({self._edition.digest[:8]}): the index was changed meanwhile. Open it again."
                )
        return [None if answer is None else answer[1] for answer in answers]

    def split(self, positions: IntArray) -> list[IntArray]:
        """The places in `positions` of those that each shard holds."""
        owners = np.searchsorted(self._starts, positions, side="right") - 1
        return [np.flatnonzero(owners == number) for number in range(len(self))]

    def local(self, positions: IntArray) -> list[IntArray]:
        """These positions by shard, counted from its first item."""
        return [positions[own] - start for own, start in zip(self.split(positions), self._starts, strict=False)]

    def fetched(self, kind: Kind) -> _Fetched:
        """What is fetched of single items, of one kind."""
        with self._opening:
            return self._fetched.setdefault(kind, _Fetched(self, kind))

    def masks(self, allowed: BoolArray | None) -> list[Any]:
        """What stands for each shard's part of what a filter allows."""
        with self._opening:
            if allowed is None:
                return [None] * len(self)
            if self._masks[0] is not allowed:
                parts = [allowed[start:stop] for start, stop in itertools.pairwise(self._starts.tolist())]
                self._masks = allowed, [self.share(part.copy()) for part in parts]
            return self._masks[1]

    def prospects(
        self,
        candidates: Sequence[IntArray],
        *,
        allowed: BoolArray | None,
        approximation: Approximation | None,
        first_weight: float,
    ) -> ShardedProspects:
        """Prospects of queries with these candidates of the first stage, among items that are allowed, or all."""
        return ShardedProspects(
            self, candidates, allowed=allowed, approximation=approximation, first_weight=first_weight
        )

    def score_sample(self) -> FloatArray:
        """The anchor scores that a scale is made from, as `ScoreScale.sample` would have them."""
        n_rows = ScoreScale.sample_size(len(self._folder.anchor_queries))
        smallest = np.sort(np.concatenate(self.ask("smallest_keys", n_rows)))[:n_rows]
        return np.concatenate(self.ask("scores_up_to", int(smallest[-1])))

    def features(self, embed_queries: EmbedQueries | None) -> Features:
        """The Gaussian's features: what does not grow with the items is here, the rest is fetched where needed."""
        with self._opening:
            if self._gaussian is None:
                home = self._folder.home
                compressed = read_features(home, self._folder) if is_compressed(home) else None
                self._gaussian = self._remote(compressed) if compressed else self._extracted(embed_queries)
            return self._gaussian

    def _remote(self, features: Features) -> Features:
        factors = features.factors
        leading = factors.leading and self._device is None
        parts = [_Column(self, "features", number, part.shape) for number, part in enumerate(factors.parts)]
        return replace(
            features,
            means=_Column(self, "features", -1, (self.n_items,), dtype=features.means.dtype),  # type: ignore[arg-type]
            factors=ItemFactors(parts, factors.centre, mixing=factors.mixing, leading=leading),
            keys=None,
            lists=None,
        )

    def _extracted(self, embed_queries: EmbedQueries | None) -> Features:
        anchors = self._folder.anchor_queries
        sums = None
        if self.has_vectors:
            own = self.ask("vector_sums")
            sums = np.concatenate([part for part, _ in own]), np.concatenate([part for _, part in own])
        gaussian = Gaussian(embed_queries=embed_queries if self.has_vectors else None)
        scale = ScoreScale.of(self.score_sample())
        self._outline = outline = gaussian.outline(anchors, scale=scale, n_items=self.n_items, sums=sums)
        shared = self.share(outline)
        squares = np.concatenate(self.ask("extract", shared))
        widths = [len(anchors), *([len(outline.middle)] if sums is not None else [])]
        parts = [_Column(self, "features", number, (self.n_items, width)) for number, width in enumerate(widths)]
        dtype = np.promote_types(self._folder.manifest.dtype, np.float32)
        return outline.features(
            anchors,
            means=_Column(self, "features", -1, (self.n_items,), dtype=dtype),  # type: ignore[arg-type]
            factors=outline.factors(parts),
            variance=outline.variance(squares, self.n_items),
        )

    def gaussian(self, embed_queries: EmbedQueries | None) -> Gaussian:
        """The Gaussian approximator of this index."""
        features = self.features(embed_queries)
        return Gaussian(embed_queries=embed_queries if features.anchor_vectors is not None else None, features=features)

    def embedding_regression(self, dense: Dense) -> EmbeddingRegression:
        """AXN's approximator on the vectors of this index."""
        vectors: Any = _Column(self, "vectors", 0, (self.n_items, dense.shape[1]))
        return EmbeddingRegression(vectors, embed_queries=dense.embed_queries)


class ShardedScores:
    """The items and anchor queries of an index whose scores lie in shards; single rows of them are fetched."""

    def __init__(self, folder: IndexFolder, shards: Shards) -> None:
        self.items: Items = folder.items
        self.anchor_queries = folder.anchor_queries
        dtype = np.promote_types(folder.manifest.dtype, np.float32)
        self.matrix: Any = _Column(shards, "scores", 0, (shards.n_items, len(folder.anchor_queries)), dtype=dtype)


class ShardedDense:
    """A dense first stage whose vectors lie in shards."""

    name = "dense"

    def __init__(self, dense: Dense, shards: Shards) -> None:
        self._dense = dense
        self._shards = shards

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The k items with the highest dot product."""
        check_k(k)
        asked = as_queries(queries)
        found: list[Hits] = []
        for start in range(0, len(asked), QUERIES_AT_ONCE):
            block = asked[start : start + QUERIES_AT_ONCE]
            answers = self._shards.ask("nearest", self._dense.embed_queries(block), k)
            for query, parts in zip(block, zip(*answers, strict=True), strict=True):
                ids = [id_ for own, _ in parts for id_ in own]
                scores = np.concatenate([own for _, own in parts])
                best = best_first(scores, ids, k)
                found.append(Hits(query=query, ids=tuple(ids[at] for at in best.tolist()), scores=scores[best]))
        return found


@runtime_checkable
class _Weighted(Protocol):
    """An approximation whose predictions are products of item features with a few weights."""

    @property
    def items(self) -> Any: ...

    def weights(self) -> list[tuple[FloatArray, float]]: ...


class ShardedProspects:
    """Prospects that shards hold: here are only the positions that were scored."""

    def __init__(
        self,
        shards: Shards,
        candidates: Sequence[IntArray],
        *,
        allowed: BoolArray | None,
        approximation: Approximation | None,
        first_weight: float,
    ) -> None:
        self._shards = shards
        self._candidates = candidates
        self._allowed = allowed
        self._approximation: Any = approximation
        self._first_weight = first_weight
        self._kind = _kind_of(approximation)
        self._is_leading = bool(getattr(getattr(approximation, "items", None), "leading", False))
        left = shards.n_items if allowed is None else int(np.count_nonzero(allowed))
        self._left = [left] * len(candidates)
        self._pools: list[IntArray | None] = [None] * len(candidates)
        self._scored: list[IntArray] = [np.empty(0, dtype=np.intp)] * len(candidates)
        self._recipe: Recipe | None = None
        self._shared: Any = None
        self._rises: list[FloatArray | None] = [None] * len(candidates)
        self._known: list[dict[int, Any]] = [{} for _ in candidates]

    def n_left(self, query: int) -> int:
        """How many may still be scored."""
        return self._left[query]

    def are_left(self, query: int, positions: IntArray) -> BoolArray:
        """Which of these may still be scored."""
        left = ~np.isin(positions, self._scored[query])
        if self._allowed is not None:
            left &= self._allowed[positions]
        pool = self._pools[query]
        return left if pool is None else left & np.isin(positions, pool)

    def limit(self, positions: Sequence[IntArray]) -> None:
        """Let nothing but these be scored, per query."""
        self._pools = list(positions)
        self._left = [len(own) for own in positions]

    def mark_scored(self, positions: Sequence[IntArray]) -> None:
        """Leave these out from now on, per query."""
        for query, own in enumerate(positions):
            self._scored[query] = np.concatenate([self._scored[query], own])
            self._left[query] -= len(own)
        every = np.concatenate([*positions, np.empty(0, dtype=np.intp)])
        self._shards.fetched("keys").expect(every)
        if self._kind is not None:
            self._shards.fetched(self._kind).expect(every)

    def keys_at(self, positions: IntArray) -> KeyArray:
        """The random keys of these items."""
        return np.asarray(self._shards.fetched("keys").column(0, positions), dtype=np.uint64)

    def predict(self) -> None:
        """Predict anew, from what the approximation has been told."""
        recipe = self._new_recipe()
        in_front = n_in_front(self._shards.n_items)
        if self._is_leading and in_front < self._shards.n_items:
            recipe = replace(recipe, least=self._least(recipe, in_front))
        self._recipe, self._shared = recipe, self._shards.share(recipe)
        self._known = [{} for _ in self._candidates]
        watched = [own[:1] if self._first_weight else own[:0] for own in self._candidates]
        by_shard = zip(*(self._shards.local(own) for own in watched), strict=True)
        answers = self._shards.ask_each(
            "predict", [(self._shared, list(own), bool(self._first_weight)) for own in by_shard]
        )
        self._rises = [None] * len(self._candidates)
        for query, own in enumerate(self._candidates):
            if not self._first_weight or not len(own):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                spread = standard_deviation(np.concatenate([moments[query] for moments, _ in answers]))
            height = np.concatenate([seen[query] for _, seen in answers])
            self._rises[query] = rises(
                len(own[:RANKS_THAT_COUNT]),
                weight=self._first_weight,
                spread=spread,
                height=float(height[0]),
                dtype=height.dtype,
            )

    def choose(self, wishes: Sequence[Wish]) -> list[Chosen]:
        """What is wished for, of what is left: the best of each shard's best."""
        if not wishes:
            return []
        here = [self._wishes_here(wish) for wish in wishes]
        masks = self._shards.masks(self._allowed)
        answers = self._shards.ask_each(
            "choose", [(self._shared, [own[number] for own in here], mask) for number, mask in enumerate(masks)]
        )
        chosen = []
        for wish, own, parts in zip(wishes, here, zip(*answers, strict=True), strict=True):
            if any(part.unranked for part in parts) or not isinstance(wish.acquisition, _BEST_OF_THE_BEST):
                # What cannot be compared hides how far a shard's list would have to go, and who knows how others than
                # our own choose: all are looked at together.
                together = [(self._shared, one, mask) for one, mask in zip(own, masks, strict=True)]
                parts = tuple(self._shards.ask_each("everything", together))
            chosen.append(self._merged(wish, parts))
        return chosen

    def predicted_at(self, positions: Sequence[IntArray]) -> list[FloatArray]:
        """Predictions of these, per query."""
        missing = [
            np.array([at for at in own.tolist() if at not in known], dtype=np.intp)
            for own, known in zip(positions, self._known, strict=True)
        ]
        if any(len(own) for own in missing):
            by_shard = zip(*(self._shards.local(own) for own in missing), strict=True)
            answers = self._shards.ask_each("predicted_at", [(self._shared, list(own)) for own in by_shard])
            for query, own in enumerate(missing):
                for number, places in enumerate(self._shards.split(own)):
                    self._known[query] |= zip(own[places].tolist(), answers[number][query], strict=True)
        return [np.array([known[at] for at in own.tolist()]) for own, known in zip(positions, self._known, strict=True)]

    def all_predicted(self, query: int) -> FloatArray:
        """Predictions of every item, by position."""
        return np.concatenate(self._shards.ask("all_predicted", self._shared, query))

    def predict_precisely(self) -> FloatArray:
        """Predicted scores of every item, from all that the approximation has been told."""
        precise = np.concatenate(self._shards.ask("predict_precisely", self._new_recipe()), axis=1)
        return np.asarray(self._approximation.in_scores(precise))

    def _new_recipe(self) -> Recipe:
        assert self._kind is not None
        weights = self._approximation.weights()
        return Recipe(
            token=uuid.uuid4().hex,
            kind=self._kind,
            weights=np.stack([own for own, _ in weights]),
            constants=np.array([constant for _, constant in weights]),
        )

    def _least(self, recipe: Recipe, n: int) -> FloatArray:
        """Per query, the n-th largest of all coarse predictions, digit by digit."""
        n_queries = len(recipe.weights)
        prefixes, wanted = np.zeros(n_queries, dtype=np.int64), np.full(n_queries, n)
        every, shared = np.arange(n_queries), self._shards.share(recipe)
        for level, width in enumerate(DIGITS):
            answers = self._shards.ask("count_digits", shared, prefixes.tolist(), level)
            # The largest digit first.
            counts = np.asarray(np.sum(answers, axis=0, dtype=np.int64))[:, ::-1]
            up_to = np.cumsum(counts, axis=1)
            places = np.argmax(up_to >= wanted[:, None], axis=1)
            wanted = wanted - (up_to - counts)[every, places]
            prefixes = (prefixes << width) | (counts.shape[1] - 1 - places)
        keys = prefixes.astype(np.uint32)
        bits = np.where(keys >> np.uint32(31), keys ^ np.uint32(0x80000000), ~keys)
        return np.asarray(bits.astype(np.uint32).view(np.float32))

    def _wishes_here(self, wish: Wish) -> list[WishHere]:
        """A wish as each shard has to understand it."""
        pool = self._pools[wish.query]
        rise = self._rises[wish.query]
        known = wish.known[:RANKS_THAT_COUNT] if rise is not None else wish.known[:0]
        taken = self._shards.local(np.concatenate([self._scored[wish.query], wish.without]))
        pools = [None] * len(self._shards) if pool is None else self._shards.local(pool)
        raised, places = self._shards.local(known), self._shards.split(known)
        return [
            WishHere(
                wish.query,
                wish.n,
                wish.acquisition,
                wish.stream,
                taken=taken[number],
                pool=pools[number],
                raised=raised[number],
                by=np.empty(0) if rise is None else rise[places[number]],
            )
            for number in range(len(self._shards))
        ]

    def _merged(self, wish: Wish, parts: Sequence[Winners]) -> Chosen:
        positions, keys, predicted, raised = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("positions", "keys", "predicted", "raised")
        )
        has_predicted = self._recipe is not None
        order = wish.acquisition.choose(
            raised if has_predicted else np.empty(0),
            unscored=np.ones(len(positions), dtype=np.bool_),
            n=wish.n,
            keys=keys,
            stream=wish.stream,
        )
        if has_predicted:
            self._known[wish.query] |= zip(positions[order].tolist(), predicted[order], strict=True)
        return Chosen(positions[order], raised[order])


def _kind_of(approximation: Approximation | None) -> Kind | None:
    """What the rows are that an approximation weights."""
    if approximation is None:
        return None
    assert isinstance(approximation, _Weighted)
    items = approximation.items
    column = items.parts[0] if isinstance(items, ItemFactors) else items
    assert isinstance(column, _Column)
    return column.kind


class _Fetched:
    """What was fetched of single items lately; what is expected to be asked for comes with what is missing."""

    def __init__(self, shards: Shards, kind: Kind) -> None:
        self._shards = shards
        self._kind: Kind = kind
        self._rows: OrderedDict[int, tuple[Any, ...]] = OrderedDict()
        self._expected: set[int] = set()
        self._lock = threading.Lock()

    def expect(self, positions: IntArray) -> None:
        """Fetch these too when something is next missing."""
        with self._lock:
            self._expected |= set(positions.tolist()) - self._rows.keys()

    def column(self, number: int, positions: IntArray) -> Any:
        """One of the columns of these items."""
        with self._lock:
            wanted = positions.tolist()
            missing = {at for at in wanted if at not in self._rows}
            if missing:
                self._fetch(np.array(sorted(missing | self._expected), dtype=np.intp))
                self._expected = set()
            found = [self._rows[at][number] for at in wanted]
            # Only now, since all that is asked for at once may be more than is kept.
            while len(self._rows) > _ROWS_KEPT:
                self._rows.popitem(last=False)
        return found

    def _fetch(self, positions: IntArray) -> None:
        places = self._shards.split(positions)
        local = self._shards.local(positions)
        answers = self._shards.ask_each("rows", [(self._kind, own) if len(own) else None for own in local])
        for own, columns in zip(places, answers, strict=True):
            if columns is not None:
                self._rows.update(zip(positions[own].tolist(), zip(*columns, strict=True), strict=True))


class _Column:
    """Numbers per item that lie in shards, used like an array in the few ways in which a solve uses one."""

    def __init__(
        self, shards: Shards, kind: Kind, number: int, shape: tuple[int, ...], *, dtype: Any = np.float32
    ) -> None:
        self.kind: Kind = kind
        self.shape: Any = shape
        self.dtype = np.dtype(dtype)
        self._shards = shards
        self._number = number

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return 0

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, positions: IntArray) -> Any:
        found = self._shards.fetched(self.kind).column(self._number, positions)
        return np.array(found) if found else np.empty((0, *self.shape[1:]), dtype=self.dtype)

    def rows(self, positions: IntArray) -> FloatArray:
        return np.asarray(self[positions], dtype=np.float64)

    def product(self, weights: FloatArray) -> Any:
        raise InputError("The items of this index lie in shards; only a search goes through all of them.")

    products = precise_product = product
