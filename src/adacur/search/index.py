"""The object users hold: anchor scores, a scorer and first stages, ready to search."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Unpack, overload

from adacur.arrays import FloatArray
from adacur.data import as_items
from adacur.errors import InputError, ScorerFailed
from adacur.first_stages import AnyStage, Placed
from adacur.first_stages.encoders import encoder as open_encoder
from adacur.names import EXPLAIN, named
from adacur.protocols import AnchorScores, Items, Scorer, ScorerCard
from adacur.records import Item, ItemList, Query, as_queries, check_item
from adacur.results import Hits
from adacur.scorers.by_name import scorer as open_scorer
from adacur.search import rounds
from adacur.search.editing import edit_index
from adacur.search.finding import ABOUT, FindOptions, plan_find
from adacur.search.index_stages import stages_in_memory
from adacur.search.plan import Plan
from adacur.search.planning import SearchOptions, plan_search
from adacur.search.snapshot import Reopen, Snapshot
from adacur.search.tuned import Tuning
from adacur.store import AnchorTable, Drift, Edit, IndexFolder, On

_MakePlan = Callable[[], Plan]
_Asked = Query | str | Sequence[Query | str]


class SearchWatcher(Protocol):
    """Sees every search of an index, as the search log of a server does."""

    def add(self, answers: Sequence[Hits], *, items: Items, card: ScorerCard) -> int:
        """Take the hits of a search; how many of its queries were noted."""
        ...


class AnchorIndex:
    """Items, their anchor scores, the scorer they came from and the first stages: what searches run on.

    Made by `adacur.build`, `adacur.load`, `from_arrays` or `from_items`. `first` maps names to first stages; these and
    `scorer` may be functions that open them at their first use. `reopen` lets the index follow its edits; `recognised`
    says that the scorer is the one that built it. Searches are written to `log`, which `learn` refreshes the index
    from. A `snapshot` replaces `first` and `device` where the items live in an engine.
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
        log: SearchWatcher | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self.path = path
        self.card = card
        self.drift = drift
        self.recognised = recognised
        self.reopen = reopen
        self._device = device
        self._snapshot: Snapshot | None = snapshot or Snapshot(anchors, first=first, home=path, device=device)
        self.anchors = anchors
        self._scorer = scorer
        self._log = log
        # Re-entered where one scorer wraps that of another index.
        self._opening = threading.RLock()

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
        opened = None if scorer is None else open_scorer(scorer)
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

        - `first`: "bm25", "dense" (with `encoder`, whose item vectors searches predict from), objects, or several
        """
        held = ItemList([check_item(item) for item in as_items(items)])
        stages = stages_in_memory(first, held, encoder=open_encoder(encoder), progress=progress)
        opened = None if scorer is None else open_scorer(scorer)
        return cls(AnchorTable.of_items(held), scorer=opened, first=stages, card=opened.card if opened else None)

    # A text is a sequence of texts to type checkers; the first overload is the one that it means.
    @overload
    def search(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    def search(self, query: Sequence[Query | str], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]: ...

    def search(self, query: _Asked, k: int = 10, **options: Unpack[SearchOptions]) -> Hits | list[Hits]:
        """The best k items for a query, or for each of several, exactly scored, within a budget of scorer calls.

        Several queries step together and share scorer calls; their answers are the same as one by one. Equal queries
        (id and text) are searched and paid for once. An error that ends a search carries the `hits` so far.

        - `budget`: calls per query (as tuned by judgements, or 100; for `Exact()`, every item), or a `Budget` with a
          deadline;
        - `method`: `Gaussian(…)` (the default; `Rerank()` where there is nothing to predict from), `AdaCUR(…)`,
          `ANNCUR(…)`, `Rerank(…)`, `FirstOnly()` (0 calls) or `Exact()`; a name such as "rerank" is short for
          one with defaults;
        - `first`: what to start from: the name of a first stage, several joined by their ranks ("bm25+dense"), or an
          object (default: as tuned, or "bm25+dense", "dense", "bm25", "random", the first of these that it has);
        - `fuse`: the first stage's weight in the order of hits, in standard deviations; 0 is the scorer's own order. By
          default as tuned by judgements, or as the index was built with, or 1 for a reranker (one witness; .5 beside
          BM25 alone) and 0 for a function, known scores and a judge (the truth);
        - `filter`: metadata that items must have ({"lang": "en", "year": [2023, 2024]}), a function of an item, or a
          collection of ids: only these items are scored. In a vector engine, metadata or a filter of its own;
        - `effort`: "auto" spends what a question needs, on average as good as the whole budget (.005 of recall less);
          a number is the mean recall to reach. The index must be tuned;
        - `min_relevance`, `min_score`: leave out hits below; there may be none. `hits.verdict` says how good they are.
        """
        *_, hits = self._steps(partial(plan_search, self, k, **options), query, k, every_round=False)
        return _each(query, hits)

    @overload
    def find(self, query: Query | str, **options: Unpack[FindOptions]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    def find(self, query: Sequence[Query | str], **options: Unpack[FindOptions]) -> list[Hits]: ...

    def find(self, query: _Asked, **options: Unpack[FindOptions]) -> Hits | list[Hits]:
        """All items that score `above` or higher, exactly scored and best first, at a recall that is certified.

        A search ends when little is expected to be missing. `hits.certificate` says what is promised, and on what
        grounds: on average over queries where anchor queries tell when to end, for this query by an `audit`, or nothing
        where the model is all there is. Several queries step together, as in `search`.

        - `recall`: the share of these items to find, below 1; 1.0 needs a budget of every item, and scores it;
        - `budget`: the most calls per query (1,000), or a `Budget`; most searches end before;
        - `audit`: this many of the calls are drawn at random at the end, which certifies each query by itself;
        - `confidence`: the chance that a promise is kept, over such draws or those of the anchor queries;
        - `first`, `filter`: as for `search`. Where items are passages, a hit is the best one of its document, and
          recall counts passages.
        """
        *_, hits = self._steps(partial(plan_find, self, **options), query, ABOUT, every_round=False)
        return _each(query, hits)

    def search_iter(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Iterator[Hits]:
        """Like `search` for one query, yielding the hits so far after each round."""
        return (hits[0] for hits in self._steps(partial(plan_search, self, k, **options), query, k))

    def find_iter(self, query: Query | str, **options: Unpack[FindOptions]) -> Iterator[Hits]:
        """Like `find` for one query, yielding the hits so far after each round."""
        return (hits[0] for hits in self._steps(partial(plan_find, self, **options), query, ABOUT))

    def _steps(self, make: _MakePlan, query: _Asked, k: int, *, every_round: bool = True) -> Iterator[list[Hits]]:
        started, plan = time.monotonic(), make()
        with self.searching(plan) as answers:
            for hits in rounds.search_iter(plan, _distinct(query), k, started=started, every_round=every_round):
                answers[:] = hits
                yield hits

    @overload
    async def asearch(self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    async def asearch(self, query: Sequence[Query | str], k: int = 10, **rest: Unpack[SearchOptions]) -> list[Hits]: ...

    async def asearch(self, query: _Asked, k: int = 10, **options: Unpack[SearchOptions]) -> Hits | list[Hits]:
        """Like `search`, without blocking the event loop; the trace's scorer seconds count the wait for the scores."""
        steps = self._asteps(partial(plan_search, self, k, **options), query, k, every_round=False)
        return _each(query, [hits async for hits in steps][-1])

    @overload
    async def afind(self, query: Query | str, **options: Unpack[FindOptions]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    async def afind(self, query: Sequence[Query | str], **options: Unpack[FindOptions]) -> list[Hits]: ...

    async def afind(self, query: _Asked, **options: Unpack[FindOptions]) -> Hits | list[Hits]:
        """Like `find`, without blocking the event loop."""
        steps = self._asteps(partial(plan_find, self, **options), query, ABOUT, every_round=False)
        return _each(query, [hits async for hits in steps][-1])

    async def asearch_iter(
        self, query: Query | str, k: int = 10, **options: Unpack[SearchOptions]
    ) -> AsyncGenerator[Hits, None]:
        """Like `search_iter`, without blocking the event loop."""
        async with aclosing(self._asteps(partial(plan_search, self, k, **options), query, k)) as steps:
            async for hits in steps:
                yield hits[0]

    async def afind_iter(self, query: Query | str, **options: Unpack[FindOptions]) -> AsyncGenerator[Hits, None]:
        """Like `find_iter`, without blocking the event loop."""
        async with aclosing(self._asteps(partial(plan_find, self, **options), query, ABOUT)) as steps:
            async for hits in steps:
                yield hits[0]

    async def _asteps(
        self, make: _MakePlan, query: _Asked, k: int, *, every_round: bool = True
    ) -> AsyncGenerator[list[Hits], None]:
        started = time.monotonic()
        # The first search opens the scorer and the first stage, which may take seconds.
        plan = await asyncio.to_thread(make)
        with self.searching(plan) as answers:
            # Closed here, not by the garbage collector: a search that is given up must make no more calls.
            steps = rounds.asearch_iter(plan, _distinct(query), k, started=started, every_round=every_round)
            async with aclosing(steps):
                async for hits in steps:
                    answers[:] = hits
                    yield hits

    def explain(self, hits: Hits) -> list[Any]:
        """Why each item of a search is a hit; no scorer is called.

        The ranks and scores of the first stage, the predicted score, and the item's scores for the anchor queries most
        like this one.
        """
        explanations: list[Any] = named(EXPLAIN)(self.snapshot, hits)
        return explanations

    def edit(self, *, executor: On = None, progress: bool = True) -> AbstractContextManager[Edit]:
        """Change the index: `with index.edit() as edit:`, then edit.add, replace, remove, add_anchors and the like.

        At the end of the block all changes become one new version of the folder, and this index moves on to it.
        Searches under way, and others that have the folder open, stay on theirs. An error in the block changes nothing.

        - `executor`: where new pairs are scored, as for `adacur.build`; `progress`: show bars.
        """
        return edit_index(self, executor=executor, progress=progress)

    def close(self) -> None:
        """Close the scorer, and refuse searches from now on; those under way end with an error.

        Items and anchor scores can still be read.
        """
        with self._opening:
            scorer, self._scorer = self._scorer, None
            snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()
        if callable(close := getattr(scorer, "close", None)):
            close()

    @property
    def snapshot(self) -> Snapshot:
        """The version that new searches use, with its first stages and models; an error once the index is closed."""
        snapshot = self._snapshot
        if snapshot is None:
            raise InputError("This index has been closed. Open it again with adacur.load(path).")
        return snapshot

    @property
    def scorer(self) -> Scorer:
        """The scorer that searches call, opened at its first use."""
        with self._opening:
            _ = self.snapshot
            if self._scorer is None:
                raise InputError("This index has no scorer. Open it with one: adacur.load(path, scorer=…).")
            if not isinstance(self._scorer, Scorer):
                self._scorer, self.drift = self._scorer()
            return self._scorer

    @property
    def items(self) -> Items:
        """The items, by position and by id."""
        return self.anchors.items

    @property
    def anchor_queries(self) -> Sequence[Query]:
        """The queries that every item was scored against."""
        return self.anchors.anchor_queries

    @property
    def matrix(self) -> FloatArray:
        """R_anc, item-major: shape (items, anchor queries)."""
        return self.anchors.matrix

    @property
    def version(self) -> int:
        """The version of the folder; 1 as it was built, or in memory."""
        return self.anchors.version if isinstance(self.anchors, IndexFolder) else 1

    @property
    def first_stages(self) -> tuple[str, ...]:
        """Names that `first=` accepts."""
        return self.snapshot.first_stages

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What this index is tuned for, by k and budget."""
        return self.snapshot.tunings

    def first_stage(self, name: str) -> Placed:
        """The first stage of this name, opened at its first use."""
        return self.snapshot.first_stage(name)

    def save(self, path: str | Path) -> None:
        """Write this index to a new folder, with the first stages that can be saved."""
        self.snapshot.save(Path(path), card=self.card)

    def with_scorer(self, wrap: Callable[[Scorer], Scorer]) -> AnchorIndex:
        """The same index with the scorer `wrap(scorer)`, made at its first use; all else is shared."""
        other = copy.copy(self)
        other._scorer = lambda: (wrap(self.scorer), self.drift)
        return other

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        where = f" at {str(self.path)!r}" if self.path else ""
        return f"AnchorIndex({len(self.items)} items × {len(self.anchor_queries)} anchor queries{where})"

    def __enter__(self) -> AnchorIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def searching(self, plan: Plan) -> Iterator[list[Hits]]:
        """Collects the hits of a search, and logs them at its end, even if it was cancelled."""
        answers: list[Hits] = []
        try:
            yield answers
        except Exception as error:
            answers[:] = getattr(error, "hits", ()) or answers
            # A scorer that is closed in mid-call may raise anything.
            if self._snapshot is None and not isinstance(error, InputError):
                closed = ScorerFailed(
                    "This index was closed while the search was under way. Close it when all searches have ended."
                )
                closed.hits = tuple(answers)
                raise closed from error
            raise
        finally:
            if self._log is not None and plan.purse.calls:
                self._log.add(answers, items=plan.items, card=plan.scorer.card)


def _distinct(query: _Asked) -> list[Query]:
    return list(dict.fromkeys(as_queries([query] if isinstance(query, Query | str) else query)))


def _each(query: _Asked, answers: Sequence[Hits]) -> Hits | list[Hits]:
    """The answer, or that to each query, of which equal ones were searched once."""
    if isinstance(query, Query | str):
        return answers[0]
    found = {hits.query: hits for hits in answers}
    return [replace(found[one]) for one in as_queries(query)]
