"""The object users hold: anchor scores, a scorer and first stages, ready to search."""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Unpack, overload

import numpy as np

from adacur.approximation import EmbeddingRegression, GaussianModel
from adacur.core.arrays import BoolArray, FloatArray
from adacur.core.errors import InputError, ScorerFailed, UnknownName
from adacur.core.protocols import (
    AnchorScores,
    FirstStage,
    Items,
    Scorer,
    ScorerCard,
    Vectors,
)
from adacur.core.records import Item, ItemList, Query, check_item
from adacur.core.results import Hits
from adacur.core.spelling import did_you_mean
from adacur.data import as_items
from adacur.first_stages import FIRST_STAGES, AnyStage, Placed, Retriever, placed
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
from adacur.index.compressed import is_compressed, read_features
from adacur.index.workers import check_workers
from adacur.scorers.opening import scorer as as_scorer
from adacur.search import rounds as loop
from adacur.search.editing import Edit, edit_index
from adacur.search.first_stages import save_first_stage, stages_in_memory
from adacur.search.fusion import Fusion
from adacur.search.plan import Plan
from adacur.search.planning import SearchOptions, plan_search
from adacur.search.search_log import SearchLog
from adacur.search.settings import GaussianSettings
from adacur.search.tuned import Tuning, nearest_tuning, read_tunings

__all__ = ["AnchorIndex", "Reopen"]

# A dual encoder is the better start where there is one; random needs nothing.
_PREFERRED_FIRST = ("dense", "bm25")


@dataclass(frozen=True, slots=True)
class Reopen:
    """How to open the scorer and the first stages of another version of an index."""

    scorer: Callable[[IndexFolder], tuple[Scorer, Drift | None]]
    first: Callable[[IndexFolder], Mapping[str, Callable[[], FirstStage]]]


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
        first: Mapping[str, Any] | None = None,
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
        first: Mapping[str, AnyStage] | None = None,
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
        first: Any = "bm25",
        encoder: Any = None,
        progress: bool = True,
    ) -> AnchorIndex:
        """An index without anchor queries, which costs no scorer call; `adacur.build(items, 0, …)` makes one on disk.

        `first` is what searches start from: "bm25", "dense" (with `encoder`), objects,
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
            self.check_open()
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

    # A text is a sequence of texts to type checkers; the first overload is the one that it means.
    @overload
    def search(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    def search(self, query: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]: ...

    def search(
        self, query: Query | str | Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits | list[Hits]:
        """The best k items for a query, or for each of several, exactly scored, within a budget of scorer calls.

        Several queries step together and share scorer calls; their answers are the same as one by one.

        - `budget`: calls per query (100; for `Exact()`, every item), or a `Budget` with a deadline;
        - `method`: `Gaussian(…)` (the default; `Rerank()` where there is nothing to predict from), `AdaCUR(…)`,
          `ANNCUR(…)`, `AXN(…)`, `Rerank(…)` or `Exact()`; a name such as "rerank" is short for one with defaults;
        - `first`: what to start from: `First(…)`, or the name of a first stage, or an object (default: dense,
          multi-vector, bm25, tfidf or random, the first that the index has);
        - `filter`: a function of an item, or a collection of ids: only these items are scored.
        """
        with self._in_use():
            plan = plan_search(self, k, **options)
            if isinstance(query, Query | str):
                return self._logged(plan, loop.search(plan, [query], k))[0]
            return self._logged(plan, loop.search(plan, query, k))

    def search_iter(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Iterator[Hits]:
        """Like `search`, yielding the hits so far after each round."""
        plan = plan_search(self, k, **options)

        def steps() -> Iterator[Hits]:
            with self._in_use(), self._logging_last(plan) as seen:
                for hits in loop.search_iter(plan, query, k):
                    seen[:] = [hits]
                    yield hits

        return steps()

    @overload
    async def asearch(  # type: ignore[overload-overlap]
        self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits: ...

    @overload
    async def asearch(
        self, query: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hits]: ...

    async def asearch(
        self, query: Query | str | Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]
    ) -> Hits | list[Hits]:
        """Like `search`, without holding up the event loop; searches that are awaited together share scorer calls.

        The trace's seconds of the scorer are then the time waited for it, its other callers included.
        """
        with self._in_use():
            # The first search opens the scorer and the first stage, which may take seconds.
            plan = await asyncio.to_thread(plan_search, self, k, **options)
            alone = isinstance(query, Query | str)
            hits = await loop.asearch(plan, [query] if isinstance(query, Query | str) else query, k)
            hits = await asyncio.to_thread(self._logged, plan, hits)
            return hits[0] if alone else hits

    async def asearch_iter(
        self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> AsyncGenerator[Hits, None]:
        """Like `search_iter`, without holding up the event loop."""
        with self._in_use():
            plan = await asyncio.to_thread(plan_search, self, k, **options)
            with self._logging_last(plan) as seen:
                async for hits in loop.asearch_iter(plan, query, k):
                    seen[:] = [hits]
                    yield hits

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

    def save(self, path: str | Path) -> None:
        """Write this index to a new folder, with the first stages that can be saved (BM25 and Dense can)."""
        self.check_open()
        if (cells := self.exact_cells()) is not None and not cells.all():
            # In a new folder predicted scores would pass for the scorer's.
            raise InputError(f"Some scores of this index are predicted; copy its folder {self.path} instead.")
        save_table(self._anchors, path, card=self._card)
        for name in self._first:
            stage = self.first_stage(name).stage
            if stage is not None and stage.name in FIRST_STAGES:
                save_first_stage(stage, Path(path), name=name)

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What this index is tuned for, by k and budget."""
        with self._opening:
            if self._tunings is None:
                home = self.home
                self._tunings = () if home is None else read_tunings(home, anchor_queries=self.anchor_queries)
            return self._tunings

    @tunings.setter
    def tunings(self, tunings: tuple[Tuning, ...]) -> None:
        self._tunings = tunings

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
        self.check_writable()
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
            self._approximator = self._fusion = self._regression = self._tunings = None

    def _recognised_scorer(self, version: IndexFolder, on: On) -> tuple[Scorer, int]:
        """The scorer, known to be the one that built the index, and the calls that took."""
        was_open = isinstance(self._scorer, Scorer)
        check_workers(on, self.scorer)
        drifts = [None if was_open else self.drift]
        if not self._recognised:
            drifts.append(check_scorer(version, self.scorer))
        self._recognised = True
        return self.scorer, sum(drift.n_probes for drift in drifts if drift is not None)

    def _stages(self, version: IndexFolder) -> Mapping[str, FirstStage]:
        """The first stages of a version, opened; those at hand where it is this one."""
        if version.version == self.version:
            stages = {name: self.first_stage(name).stage for name in self._first}
            return {name: stage for name, stage in stages.items() if stage is not None}
        assert self._reopen is not None
        return {name: opened() for name, opened in self._reopen.first(version).items()}

    @property
    def home(self) -> Path | None:
        """The folder of this version's first stages, tunings and compressed features."""
        return self._anchors.home if isinstance(self._anchors, IndexFolder) else self.path

    def first_stage(self, name: str) -> Placed:
        """The first stage of this name, opened when first used."""
        with self._opening:
            self.check_open()
            if name not in self._first:
                raise UnknownName(
                    f"This index has no first stage {name!r}.{did_you_mean(name, self.first_stages)} "
                    f"It has: {', '.join(self.first_stages)}. "
                    "Others are chosen when the index is built. Unless it was changed since, the same `adacur build` "
                    "with them named as well (--first bm25,dense) adds them, and no anchor query is scored again."
                )
            entry = self._first[name]
            if not isinstance(entry, Placed):
                stage = entry if isinstance(entry, Retriever) else entry()
                entry = self._first[name] = placed(stage, self.items)
            return entry

    def close(self) -> None:
        """Close the scorer, given or opened here, and let go of the first stages; searches are refused from now on.

        Searches under way in other threads end with an error. Items and anchor scores can still be read.
        """
        with self._opening:
            self._closed = True
            scorer, self._scorer = self._scorer, None
            self._first = {}
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

    def check_open(self) -> None:
        """Refuse an index that has been closed."""
        if self._closed:
            raise InputError("This index has been closed. Open it again with adacur.load(path).")

    def writable_home(self) -> Path:
        """The folder to store what belongs to this version in; refused where there is none."""
        self.check_writable()
        if self.home is None:
            raise InputError("This index is not in a folder. Save it first, and open it: index.save(path).")
        return self.home

    @property
    def is_read_only(self) -> bool:
        """Whether the folder must stay as it is."""
        return self._read_only

    def check_writable(self) -> None:
        """Refuse to change the folder of an index that was opened for reading."""
        self.check_open()
        if self._read_only:
            raise InputError(
                f"This index was opened for reading, and {self.path} stays as it is. Change a copy of that folder; of "
                "an index of the hub, adacur.integrations.hub.from_pretrained(…, folder=…) makes one."
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

    @property
    def anchors(self) -> AnchorScores:
        """The anchor scores that searches predict from."""
        return self._anchors

    @property
    def opening(self) -> threading.RLock:
        """Held while parts of the index are opened, and while it moves to another version."""
        return self._opening

    def gaussian_model(self) -> GaussianModel:
        """The Gaussian of this index's anchor scores and item vectors, or of its compressed features."""
        with self._opening:
            if self._approximator is None:
                self._approximator = self._compressed_model() or self.uncompressed_model(device=self._device)
            return self._approximator

    def item_vectors(self) -> Vectors | None:
        """The dense first stage's vectors of all items; None where it has none, or not of all."""
        return self.first_stage("dense").vectors() if "dense" in self._first else None

    def forget_features(self) -> None:
        """Make or read the features of "gaussian" searches again when they are next needed."""
        self._approximator = None

    def tuned(self, *, k: int, budget: int, first: str | None) -> tuple[GaussianSettings, tuple[int, int]] | None:
        """The settings tuned for about this k and budget, and the k and budget that they were tuned for."""
        tuning = nearest_tuning(self.tunings, k=k, budget=budget, first=first)
        return None if tuning is None else (tuning.settings, (tuning.k, tuning.budget))

    def _compressed_model(self) -> GaussianModel | None:
        if self.home is None or not is_compressed(self.home):
            return None
        vectors = self.item_vectors()
        embed_queries = vectors.embed_queries if vectors else None
        features = read_features(self.home, self)
        return GaussianModel(embed_queries=embed_queries, features=features, device=self._device)

    def uncompressed_model(self, *, device: str | None = None) -> GaussianModel:
        """The Gaussian of the anchor scores and item vectors, whatever is compressed."""
        vectors = self.item_vectors()
        if vectors is None:
            return GaussianModel(device=device)
        return GaussianModel(embeddings=vectors.all_rows(), embed_queries=vectors.embed_queries, device=device)

    def fusion(self, weight: float) -> Fusion:
        """How to blend the first stage into the final order with this weight."""
        with self._opening:
            # What is learned from the anchor scores is the same for every weight.
            if self._fusion is None:
                self._fusion = Fusion.fit(self._anchors, weight=1.0)
            return replace(self._fusion, weight=weight)

    def embedding_regression(self) -> EmbeddingRegression:
        """The regression on the dense first stage's vectors; an error where there are none."""
        with self._opening:
            if self._regression is None:
                vectors = self.item_vectors()
                if vectors is None or vectors.embed_queries is None:
                    raise InputError(
                        "Method 'axn' predicts from a dual encoder's vectors of all items, and this index has no such "
                        f"first stage; it has: {', '.join(self.first_stages)}. Build it with first=['dense'] and an "
                        "encoder, or pass approximator=EmbeddingRegression(…)."
                    )
                # One copy for both; compressed features hold none, and are not to be asked for here.
                compressed = self.home is not None and is_compressed(self.home)
                shared = None if compressed else self.gaussian_model().embeddings
                embeddings = vectors.all_rows() if shared is None else shared
                self._regression = EmbeddingRegression(embeddings, embed_queries=vectors.embed_queries)
            return self._regression

    def stage(self, first: str | AnyStage | None) -> Placed | None:
        """A first stage by name or as given; the default for None. None where a search starts at random."""
        if first is None:
            first = self.default_first
        if not isinstance(first, str):
            return placed(first, self.items)
        # No retriever is needed to start at random: a search without candidates draws its own.
        if first == "random" and "random" not in self._first:
            return None
        return self.first_stage(first)
