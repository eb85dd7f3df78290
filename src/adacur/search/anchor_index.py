"""The object users hold: anchor scores, a scorer and first stages, ready to search."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

import numpy as np

from adacur.approximation import EmbeddingRegression, Gaussian, Storage
from adacur.core.arrays import FloatArray
from adacur.core.budget import Budget, check_k, is_whole
from adacur.core.errors import BudgetError, InputError, ScorerFailed, UnknownName
from adacur.core.protocols import (
    Acquisition,
    AnchorScores,
    Approximator,
    Items,
    Retriever,
    SavedRetriever,
    Scorer,
    ScorerCard,
)
from adacur.core.records import Item, ItemList, Query
from adacur.core.results import Hits
from adacur.core.spelling import did_you_mean
from adacur.index import AnchorTable, Drift, save_table
from adacur.retrievers import Dense
from adacur.scorers import scorer as as_scorer
from adacur.search import rounds as loop
from adacur.search.compression import Compression, compress_features, drop_features, is_compressed, read_features
from adacur.search.first_stages import save_first_stage
from adacur.search.fusion import Fusion
from adacur.search.methods import ANNCUR, AdaCUR, Exact, Rerank, without_anchors
from adacur.search.plan import Filter, Plan
from adacur.search.replay import AnchorScorer, AsIfNew
from adacur.search.settings import default_settings
from adacur.search.tuned import keep_tuning, nearest_tuning, read_tunings, with_tuning
from adacur.search.tuning import Replay, Tuning, first_name, tune

__all__ = ["AnchorIndex", "SearchOptions"]

_METHODS: dict[str, Callable[..., AdaCUR | ANNCUR | Rerank]] = {
    "gaussian": AdaCUR,
    "adacur": AdaCUR,
    "anncur": ANNCUR,
    "axn": AdaCUR,
    "rerank": Rerank,
}
_EVERY = {"budget", "rounds", "deadline", "first", "pool", "filter", "seed"}
_PREDICTING = _EVERY | {"approximator", "approximate_scores", "keep_predictions"}
_ADAPTIVE = _PREDICTING | {"acquisition", "first_batch", "first_share", "first_weight", "fuse", "stop_when"}
# What each method can use; anything else is refused rather than ignored.
_OPTIONS = {
    "gaussian": _ADAPTIVE - {"approximator"},
    "adacur": _ADAPTIVE,
    "anncur": _PREDICTING | {"split"},
    "axn": _ADAPTIVE,
    "rerank": _EVERY | {"fuse"},
    "exact": {"filter", "seed", "fuse"},
}
_ROUNDS = 5
# A dual encoder is the better start where there is one; random needs nothing.
_PREFERRED_FIRST = ("dense", "multi-vector", "bm25", "tfidf")


class SearchOptions(TypedDict, total=False):
    """What the search methods of an index accept by name; `AnchorIndex.search` explains each."""

    budget: int | Budget
    rounds: int | None
    deadline: float | None
    method: str
    first: str | Retriever | None
    pool: int | None
    filter: Filter | None
    stop_when: float | None
    seed: int
    approximator: Approximator | None
    acquisition: Acquisition | None
    split: float
    first_batch: float
    first_share: float
    first_weight: float
    fuse: float | None
    approximate_scores: bool
    keep_predictions: bool


class AnchorIndex:
    """Items, their anchor scores, the scorer they came from and the first stages: what searches run on.

    Made by `adacur.build`, `adacur.load` or `AnchorIndex.from_arrays`. `first` maps names to first stages, or to
    functions that open them when they are first used; likewise `scorer` may be a function that opens one.
    """

    def __init__(
        self,
        anchors: AnchorScores,
        *,
        scorer: Scorer | Callable[[], tuple[Scorer, Drift | None]] | None = None,
        first: Mapping[str, Retriever | Callable[[], Retriever]] | None = None,
        card: ScorerCard | None = None,
        path: Path | None = None,
        drift: Drift | None = None,
        device: str | None = None,
    ) -> None:
        self._anchors = anchors
        self._scorer = scorer
        self._first = dict(first or {})
        self._card = card
        # Entered again by a first stage that needs the scorer to open.
        self._opening = threading.RLock()
        self._closed = False
        self._approximator: Gaussian | None = None
        self._fusion: Fusion | None = None
        self._regression: EmbeddingRegression | None = None
        self._device = device
        self._tunings: tuple[Tuning, ...] | None = None
        self._replay: Replay | None = None
        self.path = path
        self.drift = drift

    @classmethod
    def from_arrays(
        cls,
        *,
        items: Iterable[Item],
        anchor_queries: Iterable[Query],
        scores: FloatArray,
        scorer: Any = None,
        first: Mapping[str, Retriever] | None = None,
    ) -> AnchorIndex:
        """An index from known scores (R_anc: anchor queries × items), without calling a scorer."""
        table = AnchorTable.from_arrays(items=items, anchor_queries=anchor_queries, scores=scores)
        opened = None if scorer is None else as_scorer(scorer)
        return cls(table, scorer=opened, first=first, card=opened.card if opened else None)

    @classmethod
    def from_items(
        cls, items: Iterable[Item], *, scorer: Any = None, first: Mapping[str, Retriever] | None = None
    ) -> AnchorIndex:
        """An index without anchor queries, which costs no scorer call.

        With a dense first stage (`first={"dense": Dense.build(…)}`) searches predict from its item vectors; without
        one there is nothing to predict from, and a first stage is all that leads them.
        """
        held = ItemList(items)
        table = AnchorTable(held, (), np.empty((len(held), 0), dtype=np.float32))
        opened = None if scorer is None else as_scorer(scorer)
        return cls(table, scorer=opened, first=first, card=opened.card if opened else None)

    @property
    def items(self) -> Items:
        """The items, by position and by id."""
        return self._anchors.items

    @property
    def anchor_queries(self) -> Sequence[Query]:
        """The queries that every item was scored against."""
        return self._anchors.anchor_queries

    @property
    def matrix(self) -> FloatArray:
        """R_anc, item-major: shape (items, anchor queries)."""
        return self._anchors.matrix

    @property
    def card(self) -> ScorerCard | None:
        """Who scored this index, where that is known."""
        return self._card

    @property
    def first_stages(self) -> tuple[str, ...]:
        """Names that `first=` accepts."""
        return (*self._first, "random")

    @property
    def default_first(self) -> str:
        """The first stage that searches start from where none is named."""
        return next((name for name in _PREFERRED_FIRST if name in self._first), "random")

    @property
    def scorer(self) -> Scorer:
        """The scorer that searches call, opened when first used."""
        with self._opening:
            self._check_open()
            if self._scorer is None:
                raise InputError("This index has no scorer. Open it with one: adacur.load(path, scorer=…).")
            if not isinstance(self._scorer, Scorer):
                self._scorer, self.drift = self._scorer()
            return self._scorer

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        where = f" at {str(self.path)!r}" if self.path else ""
        return f"AnchorIndex({len(self.items)} items × {len(self.anchor_queries)} anchor queries{where})"

    def search(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """The best k items for a query, exactly scored, within `budget` scorer calls.

        Options:

        - `budget` (calls, default 100, or a Budget), `rounds` (5), `deadline` (seconds for the whole call, once scorer
          and first stage are open);
        - `method`: "gaussian" (default), "adacur" (the paper's), "anncur", "axn" (the dual encoder's vectors and no
          anchor scores), "rerank" or "exact";
        - `first`: name or retriever to start from (default: dense, multi-vector, bm25, tfidf or random, the first there
          is); `pool`: search only its best N; `first_batch`: the first round's share of the budget, `first_share`: the
          first stage's share of each later round, `first_weight`: its say beside the predictions (with
          "gaussian" these and the rounds are chosen for k, by `tune` where the index is tuned for about this k and
          budget; none of them with the others);
        - `fuse`: the first stage's weight in the final order (0; 0.5 is a good first try): one standard deviation among
          its best 100 counts as much as an exact score e^fuse times as rare. Hits are then ordered by `fused`;
        - `stop_when`: end a query's search early, after the round by which its top k is expected to have this recall
          (0.98, say; "gaussian", or "adacur" with a `Gaussian`). `budget` stays the most that is spent;
        - `filter`: a function of an item, or a collection of ids; `seed` (0);
        - `approximator` and `acquisition` (objects), `split` (ANNCUR's share of anchor items);
        - `approximate_scores` (Ŝ of all items in the trace), `keep_predictions` (Ŝ of every round in the trace).
        """
        return self.search_batch([query], k, **options)[0]

    def search_batch(self, queries: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
        """Like `search` for many queries: they move in lock-step and share scorer calls; same answers."""
        with self._in_use():
            return loop.search(self._plan(k, **options), queries, k)

    def replay(self, queries: Sequence[Query], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
        """Like `search_batch` for anchor queries, each as if it had never been one; no scorer is called."""
        with self._in_use():
            plan = self._plan(k, AnchorScorer(self), **options)
            approximator = None if plan.approximator is None else AsIfNew(plan.approximator)
            return loop.search(replace(plan, approximator=approximator), queries, k)

    def search_iter(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Iterator[Hits]:
        """Like `search`, yielding the hits so far after each round."""
        plan = self._plan(k, **options)

        def steps() -> Iterator[Hits]:
            with self._in_use():
                yield from loop.search_iter(plan, query, k)

        return steps()

    async def asearch(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """Like `search`, without holding up the event loop; searches that are awaited together share scorer calls.

        The trace's seconds of the scorer are then the time waited for it, its other callers included.
        """
        return (await self.asearch_batch([query], k, **options))[0]

    async def asearch_batch(
        self, queries: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hits]:
        """Like `search_batch`, without holding up the event loop."""
        with self._in_use():
            return await loop.asearch(await self._aplan(k, **options), queries, k)

    async def asearch_iter(
        self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> AsyncIterator[Hits]:
        """Like `search_iter`, without holding up the event loop."""
        with self._in_use():
            async for hits in loop.asearch_iter(await self._aplan(k, **options), query, k):
                yield hits

    def save(self, path: str | Path) -> None:
        """Write this index to a new folder, with the first stages that can be saved (BM25 and Dense can)."""
        self._check_open()
        if not self.anchor_queries:
            raise InputError("An index without anchor queries has nothing to save. Make it again from its items.")
        save_table(self._anchors, path, card=self._card)
        for name in self._first:
            retriever = self.first_stage(name)
            if isinstance(retriever, SavedRetriever):
                save_first_stage(retriever, Path(path), name=name)

    def compress(
        self, *, rank: int = 128, storage: Storage = "int8", k: int = 10, budget: int = 100, seed: int = 0
    ) -> Compression:
        """Keep the features of "gaussian" searches in the folder, in less memory, and measure what that costs.

        Of the anchor scores, what the dense first stage's vectors do not explain is kept in `rank` dimensions, and all
        in `storage` ("int8", "float16" or "float32"). Opened again, the index is then searched without reading its
        scores. The cost is the recall of the best k at this budget on held-out anchor queries; no scorer is called.
        """
        self._check_open()
        if self.path is None:
            raise InputError(
                "Compressed features are kept in an index folder; save this index first: index.save(path)."
            )
        compression = compress_features(
            self._anchors,
            path=self.path,
            gaussian=self._full_gaussian(),
            first=self._first_or_default(None),
            settings=default_settings(k),
            rank=rank,
            storage=storage,
            k=k,
            budget=budget,
            seed=seed,
        )
        self._approximator = None
        return compression

    def decompress(self) -> bool:
        """Remove what `compress` wrote; False where there was nothing."""
        self._check_open()
        dropped = self.path is not None and drop_features(self.path)
        self._approximator = None
        return dropped

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What this index is tuned for, by k and budget."""
        with self._opening:
            if self._tunings is None:
                found = () if self.path is None else read_tunings(self.path, anchor_queries=self.anchor_queries)
                self._tunings = found
            return self._tunings

    def tune(
        self,
        *,
        k: int = 10,
        budget: int = 100,
        queries: int = 100,
        seed: int = 0,
        quick: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tuning:
        """Choose the settings of "gaussian" for k items within a budget, and predict the recall of four methods.

        Up to `queries` anchor queries are searched for as if they had never been anchor queries; no scorer is called.
        Searches for about as many items within about as many calls (up to twice or half) use what was chosen, unless
        they start from another first stage. It is kept in the index folder, or in memory where there is none that can
        be written to. `quick` tries only what matters most; `progress` is told how many replays are done, of how many
        at most.
        """
        self._check_open()
        # A damaged file is told before the work and not after it.
        _ = self.tunings
        first, gaussian = self._first_or_default(None), self._gaussian()
        replay = self._replay
        if replay is None or not replay.serves(first, gaussian, queries=queries, seed=seed):
            replay = Replay(self._anchors, first=first, approximator=gaussian, queries=queries, seed=seed)
        tuning = tune(replay, k=k, budget=budget, quick=quick, progress=progress)
        with self._opening:
            self._replay = replay
            self._tunings = with_tuning(self.tunings, tuning)
            if self.path is not None:
                try:
                    self._tunings = keep_tuning(self.path, tuning, anchor_queries=self.anchor_queries)
                except OSError as error:
                    # An index may be served from where nobody can write.
                    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                        raise
        return tuning

    def first_stage(self, name: str) -> Retriever:
        """The first stage of this name, opened when first used."""
        with self._opening:
            self._check_open()
            if name not in self._first:
                raise UnknownName(
                    f"This index has no first stage {name!r}.{did_you_mean(name, self.first_stages)} "
                    f"It has: {', '.join(self.first_stages)}. "
                    "Others are chosen when the index is built."
                )
            entry = self._first[name]
            if not isinstance(entry, Retriever):
                entry = self._first[name] = entry()
            return entry

    def close(self) -> None:
        """Close the scorer, given or opened here, and let go of the first stages; searches are refused from now on.

        Searches under way in other threads end with an error. Items and anchor scores can still be read.
        """
        with self._opening:
            self._closed = True
            scorer, self._scorer = self._scorer, None
            self._first = {}
            self._replay = None
            self._approximator = None
            self._regression = None
        if callable(close := getattr(scorer, "close", None)):
            close()

    def __enter__(self) -> AnchorIndex:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError("This index has been closed. Open it again with adacur.load(path).")

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Tell whatever befalls a search whose index is closed under it as just that."""
        try:
            yield
        except Exception as error:
            # What a scorer says that is freed in mid-call depends on where it was.
            if self._closed and not isinstance(error, InputError):
                raise ScorerFailed(
                    "This index was closed while the search was under way. Close it when all searches have ended."
                ) from error
            raise

    async def _aplan(self, k: int, **options: Unpack[SearchOptions]) -> Plan:
        # The first search opens the scorer and the first stage, which may take seconds.
        return await asyncio.to_thread(self._plan, k, **options)

    def _plan(self, k: int, scorer: Scorer | None = None, /, **options: Unpack[SearchOptions]) -> Plan:
        self._check_open()
        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None and value is not False
        }
        method = given.pop("method", "gaussian")
        if method not in _OPTIONS:
            near = did_you_mean(str(method), _OPTIONS)
            raise UnknownName(f"There is no method {method!r}.{near} Choose one of: {', '.join(_OPTIONS)}.")
        # Exact search needs no first stage but to blend its scores in.
        takes = _OPTIONS[method] | ({"first"} if "fuse" in given else set())
        if useless := sorted(given.keys() - takes):
            raise InputError(
                f"Method {method!r} has no use for {', '.join(useless)}. It takes: {', '.join(sorted(takes))}."
            )
        if method in ("adacur", "anncur") and not self.anchor_queries and "approximator" not in given:
            raise InputError(
                f"Method {method!r} predicts from anchor queries, and this index has none. Use 'gaussian' or 'axn' "
                "with a dense first stage, or 'rerank'."
            )
        if method == "exact":
            check_k(k)
            fused = "fuse" in given
            return Exact(
                index=self,
                scorer=scorer or self.scorer,
                filter=given.get("filter"),
                first=self._first_or_default(given.get("first")) if fused else None,
                fuse=self._fused(given["fuse"]) if fused else None,
            ).plan
        rounds_given = "rounds" in given or isinstance(given.get("budget"), Budget)
        budget = _budget(given.pop("budget", 100), given.pop("rounds", None), given.pop("deadline", None))
        budget.check_k(k)
        first = self._first_or_default(given.pop("first", None))
        tuning = None
        if method == "gaussian":
            tuning = nearest_tuning(self.tunings, k=k, budget=budget.calls, first=first_name(first))
            settings = default_settings(k) if tuning is None else tuning.settings
            if not rounds_given:
                budget = replace(budget, rounds=min(budget.calls, settings.rounds))
            own = {
                "approximator": settings.approximator(self._gaussian()),
                "first_batch": settings.first_batch,
                "first_share": settings.first_share,
                "first_weight": settings.first_weight,
            }
            given = own | given
        if method == "axn" and "approximator" not in given:
            given["approximator"] = self._embedding_regression()
        if "fuse" in given:
            given["fuse"] = self._fused(given["fuse"])
        anchors = without_anchors(self) if method == "axn" else self
        plan = _METHODS[method](index=anchors, scorer=scorer or self.scorer, budget=budget, first=first, **given).plan
        return replace(plan, method=method, tuned_for=None if tuning is None else (tuning.k, tuning.budget))

    def _gaussian(self) -> Gaussian:
        """The Gaussian approximator of this index, with the dense first stage's embeddings where there is one."""
        dense = self.first_stage("dense") if "dense" in self._first else None
        with self._opening:
            if self._approximator is None:
                if self.path is not None and is_compressed(self.path):
                    features = read_features(self.path, self)
                    embed_queries = dense.embed_queries if isinstance(dense, Dense) and dense.has_encoder else None
                    self._approximator = Gaussian(embed_queries=embed_queries, features=features, device=self._device)
                else:
                    self._approximator = self._full_gaussian(device=self._device)
            return self._approximator

    def _full_gaussian(self, *, device: str | None = None) -> Gaussian:
        dense = self.first_stage("dense") if "dense" in self._first else None
        if not isinstance(dense, Dense) or set(dense.ids) != set(self.items.ids):
            return Gaussian(device=device)
        embed_queries = dense.embed_queries if dense.has_encoder else None
        return Gaussian(embeddings=dense.embeddings_of(self.items.ids), embed_queries=embed_queries, device=device)

    def _fused(self, weight: float) -> Fusion | None:
        if not weight:
            return None
        with self._opening:
            # What is learned from the anchor scores is the same for every weight.
            if self._fusion is None:
                self._fusion = Fusion.fit(self, weight=1.0)
            return replace(self._fusion, weight=weight)

    def _embedding_regression(self) -> EmbeddingRegression:
        with self._opening:
            if self._regression is None:
                dense = self.first_stage("dense") if "dense" in self._first else None
                if not isinstance(dense, Dense) or set(dense.ids) != set(self.items.ids):
                    raise InputError(
                        "Method 'axn' predicts from a dual encoder's vectors of all items, and this index has no such "
                        f"first stage; it has: {', '.join(self.first_stages)}. Build it with first=['dense'] and an "
                        "encoder, or pass approximator=EmbeddingRegression(…)."
                    )
                # One copy for both; compressed features hold none, and are not to be asked for here.
                compressed = self.path is not None and is_compressed(self.path)
                shared = None if compressed else self._gaussian().embeddings
                embeddings = dense.embeddings_of(self.items.ids) if shared is None else shared
                self._regression = EmbeddingRegression(embeddings, embed_queries=dense.embed_queries)
            return self._regression

    def _first_or_default(self, first: str | Retriever | None) -> Retriever | None:
        if first is None:
            first = self.default_first
        if not isinstance(first, str):
            return first
        # No retriever is needed to start at random: a search without candidates draws its own.
        return None if first == "random" and "random" not in self._first else self.first_stage(first)


def _budget(budget: int | Budget, rounds: int | None, deadline: float | None) -> Budget:
    if not isinstance(budget, Budget):
        if rounds is None:
            rounds = budget if is_whole(budget) and 0 < budget < _ROUNDS else _ROUNDS
        return Budget(calls=budget, rounds=rounds, deadline=deadline)
    if rounds is not None or deadline is not None:
        raise BudgetError("Give rounds and deadline inside the Budget, or a plain number as budget; not both.")
    return budget
