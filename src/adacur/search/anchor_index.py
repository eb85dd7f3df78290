"""The object users hold: anchor scores, a scorer and first stages, ready to search."""

from __future__ import annotations

import asyncio
import copy
import errno
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, Unpack

import numpy as np

from adacur.approximation import EmbeddingRegression, GaussianModel, Storage
from adacur.core.arrays import BoolArray, FloatArray
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
from adacur.core.records import Item, ItemList, Query, check_item
from adacur.core.results import Hits
from adacur.core.spelling import did_you_mean
from adacur.data import as_items
from adacur.first_stages import Dense
from adacur.first_stages.opening import encoder as open_encoder
from adacur.index import (
    AnchorTable,
    Drift,
    IndexFolder,
    On,
    Origin,
    check_scorer,
    save_table,
)
from adacur.index.workers import check_workers
from adacur.scorers.opening import scorer as as_scorer
from adacur.search import rounds as loop
from adacur.search.compression import (
    Compression,
    ItemVectors,
    KeyedItems,
    compress_features,
    drop_features,
    is_compressed,
    read_features,
)
from adacur.search.editing import Edit, edit_index
from adacur.search.first_stages import save_first_stage, stages_in_memory
from adacur.search.fusion import Fusion
from adacur.search.methods import ANNCUR, AdaCUR, Exact, Rerank, without_anchors
from adacur.search.plan import Filter, Plan
from adacur.search.replay import AnchorScorer, AsIfNew
from adacur.search.search_log import SearchLog
from adacur.search.settings import default_settings
from adacur.search.tuned import keep_tuning, nearest_tuning, read_tunings, with_tuning
from adacur.search.tuning import FEWEST_QUERIES, Replay, Tuning, first_name, tune

__all__ = ["AnchorIndex", "Reopen", "SearchOptions"]

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
    "exact": {"budget", "filter", "seed", "fuse"},
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


@dataclass(frozen=True, slots=True)
class Reopen:
    """How to open the scorer and the first stages of another version of an index."""

    scorer: Callable[[IndexFolder], tuple[Scorer, Drift | None]]
    first: Callable[[IndexFolder], Mapping[str, Callable[[], Retriever]]]


class AnchorIndex:
    """Items, their anchor scores, the scorer they came from and the first stages: what searches run on.

    Made by `adacur.build`, `adacur.load` or `AnchorIndex.from_arrays`. `first` maps names to first stages, or to
    functions that open them when they are first used; likewise `scorer` may be a function that opens one. `reopen`
    lets the index follow its own changes; `recognised` says that the scorer is known to be the one that built it.
    What searches paid for is written to `log`.
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
        reopen: Reopen | None = None,
        recognised: bool = False,
        log: SearchLog | None = None,
    ) -> None:
        self._anchors = anchors
        self._scorer = scorer
        self._first = dict(first or {})
        self._card = card
        # Entered again by a first stage that needs the scorer to open.
        self._opening = threading.RLock()
        self._closed = False
        self._approximator: GaussianModel | None = None
        self._fusion: Fusion | None = None
        self._regression: EmbeddingRegression | None = None
        self._device = device
        self._tunings: tuple[Tuning, ...] | None = None
        self._replay: Replay | None = None
        self._reopen = reopen
        self._recognised = recognised
        self._log = log
        self._read_only = False
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
        cls,
        items: Iterable[Item | str] | str | Path,
        *,
        scorer: Any = None,
        first: str | Retriever | Sequence[str | Retriever] | Mapping[str, Retriever] = "bm25",
        encoder: Any = None,
        progress: bool = True,
    ) -> AnchorIndex:
        """An index without anchor queries, which costs no scorer call; `adacur.build(items, 0, …)` makes one on disk.

        `first` is what searches start from: "bm25", "tfidf", "dense" or "multi-vector" (with `encoder`), objects,
        several of these, or objects by name; "random" for none. With a dense one searches predict from its item
        vectors; else there is nothing to predict from, and its best are re-ranked.
        """
        given = list(as_items(items))
        for item in given:
            check_item(item)
        held = ItemList(given)
        stages = stages_in_memory(first, held, encoder=open_encoder(encoder), progress=progress)
        table = AnchorTable(held, (), np.empty((len(held), 0), dtype=np.float32))
        opened = None if scorer is None else as_scorer(scorer)
        return cls(table, scorer=opened, first=stages, card=opened.card if opened else None)

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

    def exact_cells(self) -> BoolArray | None:
        """Which entries of `matrix` the scorer gave and nobody predicted; None where it gave them all."""
        return self._anchors.exact_cells() if isinstance(self._anchors, IndexFolder) else None

    @property
    def origin(self) -> Origin | None:
        """The fields of the file that this index was built from; None where that was not a file, or is not known."""
        return self._anchors.manifest.origin if isinstance(self._anchors, IndexFolder) else None

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
    def default_method(self) -> str:
        """The method of searches where none is named: "rerank" where there is nothing to predict from."""
        return "gaussian" if self.anchor_queries or "dense" in self._first else "rerank"

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
        - `method`: "gaussian" (default; "rerank" without anchor queries and item vectors), "adacur" (the paper's),
          "anncur", "axn" (the dual encoder's vectors and no anchor scores), "rerank" or "exact" (all items; a budget,
          if given, must cover them);
        - `first`: name or retriever to start from (default: dense, multi-vector, bm25, tfidf or random, the first there
          is); `pool`: search only its best N; `first_batch`: the first round's share of the budget, `first_share`: the
          first stage's share of each later round, `first_weight`: its say beside the predictions (with
          "gaussian" these and the rounds are chosen for k, by `tune` where the index is tuned for about this k and
          budget; none of them with the others);
        - `fuse`: the first stage's weight in the final order (0; 0.5 is a good first try): one standard deviation among
          its best 100 counts as much as an exact score e^fuse times as rare. Hits are then ordered by `fused`;
        - `stop_when`: end a query's search early, after the round by which its top k is expected to have this recall
          (0.98, say; "gaussian", or "adacur" with a `GaussianModel`). `budget` stays the most that is spent;
        - `filter`: a function of an item, or a collection of ids; `seed` (0);
        - `approximator` and `acquisition` (objects), `split` (ANNCUR's share of anchor items);
        - `approximate_scores` (Ŝ of all items in the trace), `keep_predictions` (Ŝ of every round in the trace).
        """
        return self.search_batch([query], k, **options)[0]

    def search_batch(self, queries: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
        """Like `search` for many queries: they move in lock-step and share scorer calls; same answers."""
        with self._in_use():
            plan = self._plan(k, **options)
            return self._logged(plan, loop.search(plan, queries, k))

    def replay(self, queries: Sequence[Query], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
        """Like `search_batch` for anchor queries, each as if it had never been one; no scorer is called."""
        self._check_exact(queries)
        with self._in_use():
            plan = self._plan(k, AnchorScorer(self._anchors), **options)
            approximator = None if plan.approximator is None else AsIfNew(plan.approximator)
            return loop.search(replace(plan, approximator=approximator), queries, k)

    def explain(self, k: int = 10, **options: Unpack[SearchOptions]) -> dict[str, Any]:
        """What a search with these options would do, as its trace will name it; calls no scorer.

        Refuses what the search would refuse before its first call, its query and filter aside.
        """
        return self._plan(k, **options).settings()

    def with_scorer(self, wrap: Callable[[Scorer], Scorer]) -> AnchorIndex:
        """The same index searching with `wrap(scorer)`, called when the scorer is first used; all else is shared."""

        def wrapped() -> tuple[Scorer, Drift | None]:
            return wrap(self.scorer), self.drift

        other = copy.copy(self)
        other._scorer = wrapped
        return other

    def read_only(self) -> AnchorIndex:
        """The same index, which leaves its folder as it is: changes are refused, and tunings kept in memory."""
        other = copy.copy(self)
        other._read_only = True
        return other

    def search_iter(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Iterator[Hits]:
        """Like `search`, yielding the hits so far after each round."""
        plan = self._plan(k, **options)

        def steps() -> Iterator[Hits]:
            with self._in_use(), self._logging_last(plan) as seen:
                for hits in loop.search_iter(plan, query, k):
                    seen[:] = [hits]
                    yield hits

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
            plan = await self._aplan(k, **options)
            return await asyncio.to_thread(self._logged, plan, await loop.asearch(plan, queries, k))

    async def asearch_iter(
        self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> AsyncGenerator[Hits, None]:
        """Like `search_iter`, without holding up the event loop."""
        with self._in_use():
            plan = await self._aplan(k, **options)
            with self._logging_last(plan) as seen:
                async for hits in loop.asearch_iter(plan, query, k):
                    seen[:] = [hits]
                    yield hits

    def save(self, path: str | Path) -> None:
        """Write this index to a new folder, with the first stages that can be saved (BM25 and Dense can)."""
        self._check_open()
        if not all(self._exact_anchors()):
            # In a new folder predicted scores would pass for the scorer's.
            raise InputError(f"Some scores of this index are predicted; copy its folder {self.path} instead.")
        save_table(self._anchors, path, card=self._card)
        for name in self._first:
            retriever = self.first_stage(name)
            if isinstance(retriever, SavedRetriever):
                save_first_stage(retriever, Path(path), name=name)

    def compress(
        self,
        *,
        rank: int = 128,
        storage: Storage = "int8",
        k: int = 10,
        budget: int = 100,
        seed: int = 0,
    ) -> Compression:
        """Keep the features of "gaussian" searches in the folder, in less memory, and measure what that costs.

        Of the anchor scores, what the dense first stage's vectors do not explain is kept in `rank` dimensions, and all
        in `storage` ("int8", "float16" or "float32"). Opened again, the index is then searched without reading its
        scores. The cost is the recall of the best k at this budget on held-out anchor queries; no scorer is called.
        """
        self._check_open()
        self._check_writable()
        if self.path is None:
            raise InputError(
                "Compressed features are kept in an index folder; save this index first: index.save(path)."
            )
        self.check_anchors("Compressing")
        self._check_exact()
        dense = self.first_stage("dense") if "dense" in self._first else None
        vectors = ItemVectors.of(dense, self.items) if isinstance(dense, Dense) else None
        compression = compress_features(
            self._anchors,
            path=self._home or self.path,
            vectors=vectors,
            embed_queries=dense.embed_queries if vectors and isinstance(dense, Dense) and dense.has_encoder else None,
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
        self._check_writable()
        dropped = self._home is not None and drop_features(self._home)
        self._approximator = None
        return dropped

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What this index is tuned for, by k and budget."""
        with self._opening:
            if self._tunings is None:
                found = () if self._home is None else read_tunings(self._home, anchor_queries=self.anchor_queries)
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

        A budget above the number of items is taken as that number: every search is then exact, and nothing is kept.

        Up to `queries` anchor queries are searched for as if they had never been anchor queries; no scorer is called.
        Searches for about as many items within about as many calls (up to twice or half) use what was chosen, unless
        they start from another first stage. It is kept in the index folder, or in memory where there is none that can
        be written to. `quick` tries only what matters most; `progress` is told how many replays are done, of how many
        at most.
        """
        self._check_open()
        self.check_anchors("Tuning")
        # A damaged file is told before the work and not after it.
        _ = self.tunings
        anchors, first, gaussian = self._truth()
        # A budget of every item is exact, whatever was replayed.
        if budget < len(self):
            self._check_enough(len(anchors.anchor_queries), queries)
        replay = self._replay
        if replay is None or not replay.serves(first, gaussian, queries=queries, seed=seed):
            replay = Replay(anchors, first=first, approximator=gaussian, queries=queries, seed=seed)
        tuning = tune(replay, k=k, budget=budget, quick=quick, progress=progress)
        if tuning.is_exact:
            return tuning
        with self._opening:
            self._replay = replay
            self._tunings = with_tuning(self.tunings, tuning)
            if self._home is not None and not self._read_only:
                try:
                    self._tunings = keep_tuning(self._home, tuning, anchor_queries=self.anchor_queries)
                except OSError as error:
                    # An index may be served from where nobody can write.
                    if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                        raise
        return tuning

    @property
    def version(self) -> int:
        """Which version of its folder this index is; 1 as it was built, or where there is none."""
        return self._anchors.version if isinstance(self._anchors, IndexFolder) else 1

    def edit(self, *, on: On = None, progress: bool = True) -> AbstractContextManager[Edit]:
        """Change the index: `with index.edit() as edit:`, then edit.add, replace, remove, add_anchors and the like.

        All changes of the block become one new version of the folder, at its end; this index moves on to it, and so
        does every later `load`. Searches under way, and others that have the folder open, stay on theirs. An error in
        the block changes nothing.

        - on: where new pairs are scored, as for `adacur.build`.
        - progress: show bars.
        """
        return edit_index(self, on=on, progress=progress)

    def _editable_path(self) -> Path:
        self._check_open()
        self._check_writable()
        if self.path is None or self._reopen is None:
            raise InputError(
                "Only an index in a folder can be changed. Save this one, and open it: index.save(path), "
                "adacur.load(path)."
            )
        return self.path

    def _follow(self, folder: IndexFolder) -> None:
        """Move on to another version."""
        assert self._reopen is not None
        with self._opening:
            self._anchors = folder
            self._first = dict(self._reopen.first(folder))
            if self._scorer is not None and not isinstance(self._scorer, Scorer):
                # Opened later, it is recognised by the scores of this version; and the old one can be let go.
                self._scorer = functools.partial(self._reopen.scorer, folder)
            self._approximator = self._fusion = self._regression = self._tunings = self._replay = None

    def _recognised_scorer(self, version: IndexFolder, on: On) -> tuple[Scorer, int]:
        """The scorer, known to be the one that built the index, and the calls that took."""
        was_open = isinstance(self._scorer, Scorer)
        check_workers(on, self.scorer)
        drifts = [None if was_open else self.drift]
        if not self._recognised:
            drifts.append(check_scorer(version, self.scorer))
        self._recognised = True
        return self.scorer, sum(drift.n_probes for drift in drifts if drift is not None)

    def _stages(self, version: IndexFolder) -> Mapping[str, Retriever]:
        """The first stages of a version, opened; those at hand where it is this one."""
        if version.version == self.version:
            return {name: self.first_stage(name) for name in self._first}
        assert self._reopen is not None
        return {name: opened() for name, opened in self._reopen.first(version).items()}

    @property
    def _home(self) -> Path | None:
        """The folder with what belongs to this version: first stages, tunings, compressed features."""
        return self._anchors.home if isinstance(self._anchors, IndexFolder) else self.path

    def first_stage(self, name: str) -> Retriever:
        """The first stage of this name, opened when first used."""
        with self._opening:
            self._check_open()
            if name not in self._first:
                raise UnknownName(
                    f"This index has no first stage {name!r}.{did_you_mean(name, self.first_stages)} "
                    f"It has: {', '.join(self.first_stages)}. "
                    "Others are chosen when the index is built. Unless it was changed since, the same `adacur build` "
                    "with them named as well (--first bm25,dense) adds them, and no anchor query is scored again."
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

    def _check_writable(self) -> None:
        if self._read_only:
            raise InputError(
                f"This index was opened for reading, and {self.path} stays as it is. Change a copy of that folder; of "
                "an index of the hub, adacur.from_pretrained(…, folder=…) makes one."
            )

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

    def _logged(self, plan: Plan, found: list[Hits]) -> list[Hits]:
        if self._log is not None:
            self._log.add(found, items=plan.items, card=plan.scorer.card)
        return found

    @contextmanager
    def _logging_last(self, plan: Plan) -> Iterator[list[Hits]]:
        """Log what was seen last, also where nobody waits for the end."""
        seen: list[Hits] = []
        try:
            yield seen
        finally:
            self._logged(plan, seen)

    def check_anchors(self, what: str) -> None:
        """Refuse what needs anchor queries where there are none, and say how to get them."""
        if not self.anchor_queries:
            where = "INDEX" if self.path is None else str(self.path)
            raise InputError(
                f"{what} needs anchor queries, and this index has none. Give it some: adacur add-anchors {where} "
                "QUERIES, or index.add_anchors(queries) in Python."
            )

    def _check_enough(self, there: int, queries: int) -> None:
        """Refuse to tune by so few anchor queries that noise would choose."""
        if there < FEWEST_QUERIES:
            where = "INDEX" if self.path is None else str(self.path)
            raise InputError(
                f"Tuning needs at least {FEWEST_QUERIES} anchor queries, and this index has {there}. Give it at least "
                f"{FEWEST_QUERIES - there} more: adacur add-anchors {where} QUERIES, or index.add_anchors(queries) in "
                "Python."
            )
        if queries < FEWEST_QUERIES:
            raise InputError(
                f"Tuning replays at least {FEWEST_QUERIES} anchor queries; got queries = {queries}. Leave it out, or "
                f"let it be from {FEWEST_QUERIES} to {there}."
            )

    def _check_exact(self, queries: Sequence[Query] | None = None) -> None:
        """Refuse to take predicted scores for the truth: of these anchor queries, or of any."""
        exact = self._exact_anchors()
        predicted = {query.id for query, own in zip(self.anchor_queries, exact, strict=True) if not own}
        if predicted if queries is None else predicted & {query.id for query in queries}:
            raise InputError(
                f"Only {sum(exact)} of the {len(exact)} anchor queries were scored against every item; of the others "
                "most scores are predicted, and a search for them cannot be checked against the truth. Measure recall "
                "on queries of your own, or on an index that was built without sparse."
            )

    def _truth(self) -> tuple[AnchorScores, Retriever | None, GaussianModel]:
        """What replays may search on: the anchor queries whose every score is the scorer's.

        The others are left out altogether, for their predicted scores have seen those of the queries replayed.
        """
        first = self._first_or_default(None)
        exact = np.flatnonzero(self._exact_anchors())
        if len(exact) == len(self.anchor_queries):
            return self._anchors, first, self._gaussian()
        if len(exact) < FEWEST_QUERIES:
            self._check_exact()
        anchors = tuple(self.anchor_queries[at] for at in exact.tolist())
        table = AnchorTable(self.items, anchors, np.ascontiguousarray(self.matrix[:, exact]))
        return table, first, self._full_gaussian()

    def _exact_anchors(self) -> list[bool]:
        """Of each anchor query, whether all its scores are the scorer's."""
        cells = self.exact_cells()
        whole = np.ones(len(self.anchor_queries)) if cells is None else np.asarray(cells.all(axis=0))
        return [bool(own) for own in whole]

    async def _aplan(self, k: int, **options: Unpack[SearchOptions]) -> Plan:
        # The first search opens the scorer and the first stage, which may take seconds.
        return await asyncio.to_thread(self._plan, k, **options)

    def _plan(self, k: int, scorer: Scorer | None = None, /, **options: Unpack[SearchOptions]) -> Plan:
        # A search under way stays on the version it began on: no change may come between what a plan is made of.
        with self._opening:
            return self._planned(k, scorer, **options)

    def _planned(self, k: int, scorer: Scorer | None, /, **options: Unpack[SearchOptions]) -> Plan:
        self._check_open()
        given: dict[str, Any] = {
            name: value for name, value in options.items() if value is not None and value is not False
        }
        method = given.pop("method", self.default_method)
        if method not in _OPTIONS:
            near = did_you_mean(str(method), _OPTIONS)
            raise UnknownName(f"There is no method {method!r}.{near} Choose one of: {', '.join(_OPTIONS)}.")
        # Exact search needs no first stage but to blend its scores in.
        takes = _OPTIONS[method] | ({"first"} if "fuse" in given else set())
        if useless := sorted(given.keys() - takes):
            raise InputError(
                f"Method {method!r} does not take {', '.join(useless)}. It takes: {', '.join(sorted(takes))}."
            )
        if method in ("adacur", "anncur") and not self.anchor_queries and "approximator" not in given:
            raise InputError(
                f"Method {method!r} predicts from anchor queries, and this index has none. Use 'gaussian' or 'axn' "
                "with a dense first stage, or 'rerank'."
            )
        if method == "exact":
            check_k(k)
            self._check_exact_budget(given.get("budget"))
            fused = "fuse" in given
            exact = Exact(
                index=self._anchors,
                scorer=scorer or self.scorer,
                filter=given.get("filter"),
                first=self._first_or_default(given.get("first")) if fused else None,
                fuse=self._fused(given["fuse"]) if fused else None,
            )
            return exact.plan
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
        anchors = without_anchors(self._anchors) if method == "axn" else self._anchors
        plan = _METHODS[method](index=anchors, scorer=scorer or self.scorer, budget=budget, first=first, **given).plan
        if method == "gaussian" and (keys := self._gaussian().keys) is not None:
            plan = replace(plan, items=KeyedItems(plan.items, keys))
        return replace(plan, method=method, tuned_for=None if tuning is None else (tuning.k, tuning.budget))

    def _check_exact_budget(self, budget: int | Budget | None) -> None:
        """A budget is a wall for exact search too: one that does not cover every item is refused."""
        calls = budget.calls if isinstance(budget, Budget) else budget
        if calls is not None and (not is_whole(calls) or calls < len(self.items)):
            raise BudgetError(
                f"Method 'exact' scores all {len(self.items):,} items, and a budget of {calls} does not cover them. "
                "Leave the budget out, or choose another method."
            )

    def _gaussian(self) -> GaussianModel:
        """The Gaussian approximator of this index, with the dense first stage's embeddings where there is one."""
        dense = self.first_stage("dense") if "dense" in self._first else None
        with self._opening:
            if self._approximator is None:
                if self._home is not None and is_compressed(self._home):
                    features = read_features(self._home, self)
                    embed_queries = dense.embed_queries if isinstance(dense, Dense) and dense.has_encoder else None
                    self._approximator = GaussianModel(
                        embed_queries=embed_queries, features=features, device=self._device
                    )
                else:
                    self._approximator = self._full_gaussian(device=self._device)
            return self._approximator

    def _full_gaussian(self, *, device: str | None = None) -> GaussianModel:
        dense = self.first_stage("dense") if "dense" in self._first else None
        if not isinstance(dense, Dense) or set(dense.ids) != set(self.items.ids):
            return GaussianModel(device=device)
        embed_queries = dense.embed_queries if dense.has_encoder else None
        return GaussianModel(embeddings=dense.embeddings_of(self.items.ids), embed_queries=embed_queries, device=device)

    def _fused(self, weight: float) -> Fusion | None:
        if not weight:
            return None
        with self._opening:
            # What is learned from the anchor scores is the same for every weight.
            if self._fusion is None:
                self._fusion = Fusion.fit(self._anchors, weight=1.0)
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
                compressed = self._home is not None and is_compressed(self._home)
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
        if first == "random" and "random" not in self._first:
            return None
        return self.first_stage(first)


def _budget(budget: int | Budget, rounds: int | None, deadline: float | None) -> Budget:
    if not isinstance(budget, Budget):
        if rounds is None:
            rounds = budget if is_whole(budget) and 0 < budget < _ROUNDS else _ROUNDS
        return Budget(calls=budget, rounds=rounds, deadline=deadline)
    if rounds is not None or deadline is not None:
        raise BudgetError("Give rounds and deadline inside the Budget, or a plain number as budget; not both.")
    return budget
