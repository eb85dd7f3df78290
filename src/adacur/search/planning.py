"""From an index and the options of a search to a plan, and the snapshot of an index that plans are made from."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adacur.approximation import EmbeddingRegression, GaussianModel
from adacur.approximation.rank_slopes import RankSlopes
from adacur.core.arrays import BoolArray, IntArray
from adacur.core.budget import Budget, check_k
from adacur.core.errors import BudgetError, InputError, UnknownName
from adacur.core.protocols import AnchorScores, FirstStage, Scorer, ScorerCard, Vectors
from adacur.core.records import ItemList, Query, document_numbers
from adacur.core.spelling import did_you_mean
from adacur.first_stages import FIRST_STAGES, AnyStage, Dense, Joined, Placed, Retriever, placed
from adacur.first_stages.joined import SEPARATOR
from adacur.index import Drift, IndexFolder, save_table
from adacur.index.compressed import is_compressed, read_features
from adacur.search.effort import Effort, check_effort
from adacur.search.engine_items import EngineItems
from adacur.search.filters import Filter
from adacur.search.first_stages import learned_slopes, save_first_stage
from adacur.search.fusion import Fusion
from adacur.search.methods import Exact, First, Method, Plan, method_named, with_effort
from adacur.search.options import USUAL_CALLS
from adacur.search.relevance import Relevance, check_floors, read_relevance
from adacur.search.spending import Spending
from adacur.search.tuned import JUDGED_METHODS, REACH, Tuning, read_tunings

if TYPE_CHECKING:
    from adacur.search.anchor_index import AnchorIndex

_Value = TypeVar("_Value")
# As long as a question usually is.
_USUAL_QUERY = "what is the usual length of a question?"
# Words and meaning together are the better start at every budget tried (docs/decisions/0065); then a dual encoder, then
# whatever the index has; random needs nothing.
_PREFERRED_FIRST = ("bm25+dense", "dense", "bm25")
_FARTHEST = math.log(REACH) + 1e-9


def plan_search(
    index: AnchorIndex,
    k: int = 10,
    *,
    budget: int | str | Budget | None = None,
    method: str | Method | None = None,
    first: str | AnyStage | First | None = None,
    filter: Filter | None = None,  # noqa: A002
    min_relevance: float | None = None,
    min_score: float | None = None,
    effort: Effort | None = None,
    scorer: Scorer | None = None,
) -> Plan:
    """What a search with these options does; `plan.settings()` names it as traces do. Calls no scorer.

    Refuses whatever the search would refuse before its first call, except for its query and filter. `scorer` replaces
    that of the index.
    """
    # One version throughout: an edit may move the index on to another at any time.
    snapshot = index.snapshot
    chosen = method_named(method) if isinstance(method, str) else method or method_named(snapshot.default_method)
    is_exact = isinstance(chosen, Exact)
    start = first if isinstance(first, First) else First(first)
    # An exact search needs a first stage only to fuse its scores in.
    needs_first = not is_exact or bool(start.fuse) or start.stage is not None
    tuned: tuple[str, ...] = ()
    if budget is None:
        budget = len(index) if is_exact else snapshot.usual_calls(k, method=chosen.name)
        tuned = ("budget",) if budget != USUAL_CALLS and not is_exact else ()
    spend = Budget.of(budget)
    # Otherwise the scorer is opened last: it takes the longest.
    spending = Spending.of(spend, index.scorer if scorer is None else scorer) if spend.is_counted else None
    calls, most = _calls(spending, snapshot, k) if spend.calls is None else (spend.calls, spend.calls)
    if not is_exact:
        start, also_tuned = snapshot.tuned_start(start, k=k, budget=calls, method=chosen.name)
        tuned = (*tuned, *also_tuned)
    snapshot.check(chosen, filter)
    relevance = snapshot.relevance()
    check_floors(min_relevance, min_score, relevance)
    engine = None if snapshot.engine is None else snapshot.engine.filtered(filter)
    base = Plan(
        method=chosen.name,
        items=snapshot.anchors.items,
        scorer=index.scorer if scorer is None else scorer,
        calls=calls,
        deadline=spend.deadline,
        first=snapshot.stage(start.stage) if needs_first else None,
        pool=start.pool,
        fuse=snapshot.fusion(start.fuse) if start.fuse else None,
        filter=filter,
        tuned=tuned,
        engine=engine,
        relevance=relevance,
        min_relevance=min_relevance,
        min_score=min_score,
        spending=spending,
        documents=snapshot.documents(),
    )
    check_k(k, None if is_exact else calls)
    plan = chosen.plan(base, snapshot, k=k)
    if effort is not None:
        check_effort(effort)
        if plan.documents is not None:
            raise InputError(
                "effort is learned from items, and here k counts documents, of which items are passages. Leave it out."
            )
        tuning = snapshot.tuned(k=k, budget=plan.calls, first=plan.first.name if plan.first else None)
        plan = with_effort(plan, effort, tuning, k=k)
    return plan if most == calls else replace(plan, calls=most)


def _calls(spending: Spending | None, snapshot: Snapshot, k: int) -> tuple[int, int]:
    """The calls that a budget of tokens or money alone is expected to pay for, and the most that it could."""
    assert spending is not None
    if snapshot.engine is not None:
        raise BudgetError("In a vector engine a budget must limit calls as well as tokens or cost. Give calls=.")
    items = snapshot.anchors.items
    expected, cheapest = spending.usual_calls(Query("expected", _USUAL_QUERY), items, len(items))
    # Where the price is per search, one unit may pay for a hundred items.
    limits = (spending.tokens, None if spending.counts_requests else spending.units)
    if (most := min((n for n in limits if n is not None), default=k)) < k:
        raise BudgetError(
            f"Only scored items are returned, and k={k} of them take at least {k} tokens and calls; the budget pays "
            f"for {most}. Raise it, or lower k."
        )
    return min(len(items), max(k, expected)), min(len(items), max(k, 2 * cheapest))


@dataclass(frozen=True, slots=True)
class Reopen:
    """How to open the scorer and the first stages of another version of an index."""

    scorer: Callable[[IndexFolder], tuple[Scorer, Drift | None]]
    first: Callable[[IndexFolder], Mapping[str, Callable[[], FirstStage]]]


def _cached(make: Callable[[Any], _Value]) -> Callable[[Any], _Value]:
    """A method of a snapshot that runs at its first call; its value is cached, None too."""

    @functools.wraps(make)
    def method(snapshot: Snapshot) -> _Value:
        with snapshot._lock:
            if make.__name__ not in snapshot._cache:
                snapshot._cache[make.__name__] = make(snapshot)
            value: _Value = snapshot._cache[make.__name__]
            return value

    return method


class Snapshot:
    """Anchor scores and first stages of one version; models and tunings are made or read at their first use, once.

    - `first`: first stages by name, or functions that open them;
    - `home`: the folder of this version with its tunings and compressed features, where there is one;
    - `device`: where "gaussian" searches predict, by torch's name.

    A search stays on the snapshot that it began on, whatever becomes of the index.
    """

    def __init__(
        self,
        anchors: AnchorScores,
        *,
        first: Mapping[str, Any] | None = None,
        home: Path | None = None,
        device: str | None = None,
    ) -> None:
        self.anchors = anchors
        self.home = anchors.home if isinstance(anchors, IndexFolder) else home
        self._first = dict(first or {})
        self._device = device
        # Entered again by a model that needs a first stage.
        self._lock = threading.RLock()
        # Taken before the other, never after it. Learning asks a first stage, which may take long; searches go on.
        self._learning = threading.RLock()
        self._cache: dict[str, Any] = {}
        # By the stage itself, since one that is passed to a search is placed anew each time.
        self._slopes: weakref.WeakKeyDictionary[Any, RankSlopes] = weakref.WeakKeyDictionary()
        self._joined: dict[str, Placed] = {}
        # The vector engine that holds the items, if they are not here: see engine_index.py.
        self.engine: EngineItems | None = None

    def close(self) -> None:
        """Close what was opened for this version."""

    def check(self, method: Method, filter_: Filter | None) -> None:
        """Refuse what cannot be done where the items are: in memory, nothing is refused."""

    @property
    def named_stages(self) -> tuple[str, ...]:
        """The first stages that this version has."""
        return tuple(self._first)

    @property
    def first_stages(self) -> tuple[str, ...]:
        """Names that `first=` accepts; others join some of them, such as "bm25+dense"."""
        return (*self._first, *((self.all_joined,) if self.all_joined else ()), "random")

    @property
    def all_joined(self) -> str | None:
        """The name of all first stages together, where there are several."""
        return SEPARATOR.join(sorted(self._first)) if len(self._first) > 1 else None

    @property
    def default_first(self) -> str:
        """The first stage that searches start from where none is named and no tuning has chosen one."""
        return next((name for name in (*_PREFERRED_FIRST, *self._first) if self._has(name)), "random")

    @property
    def default_method(self) -> str:
        """The method of searches where none is named: "rerank" where there is nothing to predict from."""
        return "gaussian" if self.anchors.anchor_queries or "dense" in self._first else "rerank"

    def stage(self, first: str | AnyStage | None) -> Any:
        """A first stage by name, or the object placed here; the default for None. None for a random start."""
        if first is None:
            first = self.default_first
        if not isinstance(first, str):
            return placed(first, self.anchors.items)
        # A search without candidates draws its own at random.
        return None if first == "random" and "random" not in self._first else self.first_stage(first)

    def first_stage(self, name: str) -> Placed:
        """The first stage of this name, opened when first used."""
        if joined := self._joined_stages(name):
            return joined
        with self._lock:
            if name not in self._first:
                raise UnknownName(
                    f"This index has no first stage {name!r}.{did_you_mean(name, self.first_stages)} It has: "
                    f"{', '.join(self.first_stages)}. Others are chosen when the index is built. Unless it was changed "
                    "since, the same `adacur build` with them named as well (--first bm25,dense) adds them, and no "
                    "anchor query is scored again."
                )
            entry = self._first[name]
            if not isinstance(entry, Retriever):
                entry = entry()
            source = entry.source if isinstance(entry, Placed) else entry
            if self._device is not None and isinstance(source, Dense) and not source.is_on_device:
                source.search_on(self._device)
            if not isinstance(entry, Placed) or entry.items is not self.anchors.items or entry.name != name:
                entry = Placed(source, self.anchors.items, name=name)
            self._first[name] = entry
            return entry

    def opened_stages(self) -> dict[str, Any]:
        """The first stages that are open, by name, for another version with the same items."""
        with self._lock:
            return {name: stage for name, stage in self._first.items() if isinstance(stage, Retriever)}

    def _joined_stages(self, name: str) -> Placed | None:
        """The first stages that a name such as "bm25+dense" joins, as one; None for other names."""
        parts = sorted(name.split(SEPARATOR))
        if name in self._first or len(parts) < 2 or len(set(parts)) < len(parts) or not set(parts) <= set(self._first):
            return None
        with self._lock:
            # Sorted, since a tuning knows them by one name.
            name = SEPARATOR.join(parts)
            if name not in self._joined:
                self._joined[name] = placed(Joined([self.first_stage(part) for part in parts]), self.anchors.items)
            return self._joined[name]

    @_cached
    def documents(self) -> IntArray | None:
        """The number of each item's document, by position; None where every item is its own document."""
        anchors = self.anchors
        if isinstance(anchors.items, ItemList):
            return anchors.items.documents
        if self.engine is not None or not isinstance(anchors, IndexFolder) or not anchors.manifest.documents:
            return None
        return document_numbers(anchors.items)

    def item_vectors(self) -> Vectors | None:
        """The item vectors of the dense first stage, where there is one that has them all."""
        return self.first_stage("dense").vectors() if "dense" in self._first else None

    @_cached
    def gaussian_model(self) -> GaussianModel:
        """The Gaussian of the anchor scores and item vectors: from compressed features where there are any."""
        if not self.is_compressed or self.home is None:
            return self.uncompressed_model(device=self._device)
        vectors, features = self.item_vectors(), read_features(self.home, self.anchors)
        embed_queries = vectors.embed_queries if vectors else None
        return GaussianModel(embed_queries=embed_queries, features=features, device=self._device)

    def rank_slopes(self, first: Any) -> RankSlopes | None:
        """How scores depend on the ranks of this first stage, learned from anchor queries; None without either."""
        if first is None or not self.anchors.anchor_queries:
            return None
        if (slopes := self._known_slopes(first)) is not None:
            return slopes
        with self._learning:
            # Another search may have learned them meanwhile.
            if (slopes := self._known_slopes(first)) is None:
                slopes = learned_slopes(self.gaussian_model(), self.anchors, first)
                with suppress(TypeError):
                    self._slopes[first.source] = slopes
            return slopes

    def _known_slopes(self, first: Placed) -> RankSlopes | None:
        # Slopes of a stage that cannot be a weak key are learned anew for each search.
        with suppress(TypeError):
            return self._slopes.get(first.source)
        return None

    def uncompressed_model(self, *, device: str | None = None) -> GaussianModel:
        """A Gaussian of the anchor scores themselves, compressed features or not."""
        vectors = self.item_vectors()
        if vectors is None:
            return GaussianModel(device=device)
        return GaussianModel(embeddings=vectors.all_rows(), embed_queries=vectors.embed_queries, device=device)

    @_cached
    def embedding_regression(self) -> EmbeddingRegression:
        """The regression on the dense first stage's vectors; an error where there are none."""
        vectors = self.item_vectors()
        if vectors is None or vectors.embed_queries is None:
            raise InputError(
                "Method 'axn' predicts from a dual encoder's vectors of all items, and this index has no such "
                f"first stage; it has: {', '.join(self.first_stages)}. Build it with first=['dense'] and an "
                "encoder, or pass approximator=EmbeddingRegression(…)."
            )
        # Both models share one copy; compressed features hold none.
        shared = None if self.is_compressed else self.gaussian_model().embeddings
        embeddings = vectors.all_rows() if shared is None else shared
        return EmbeddingRegression(embeddings, embed_queries=vectors.embed_queries)

    def fusion(self, weight: float) -> Fusion:
        """How to blend the first stage into the final order with this weight."""
        return replace(self._unit_fusion(), weight=weight)

    @_cached
    def _unit_fusion(self) -> Fusion:
        # What is learned from the anchor scores is the same for every weight.
        return Fusion.fit(self.anchors, weight=1.0)

    @_cached
    def relevance(self) -> Relevance | None:
        """How to read the scores of this version: as stored with it, or from its anchor scores where that is quick."""
        return read_relevance(self.home, self.anchors, compute=self.engine is None and not self.is_compressed)

    def set_relevance(self, relevance: Relevance) -> None:
        """Read the scores of this version like this from now on."""
        with self._lock:
            self._cache["relevance"] = relevance

    @property
    def tunings(self) -> tuple[Tuning, ...]:
        """What this version is tuned for, by k and budget."""
        return self._tunings()

    @tunings.setter
    def tunings(self, tunings: tuple[Tuning, ...]) -> None:
        with self._lock:
            self._cache["_tunings"] = tunings

    @_cached
    def _tunings(self) -> tuple[Tuning, ...]:
        return () if self.home is None else read_tunings(self.home, anchor_queries=self.anchors.anchor_queries)

    def tuned(self, *, k: int, budget: int, first: str | None) -> Tuning | None:
        """The tuning for about this k and budget from this first stage, the nearest; None where there is none."""
        return next((tuning for tuning in self._near(k, budget) if tuning.first == first), None)

    def chosen_first(self, *, k: int, budget: int, method: str) -> str:
        """The first stage that a search starts from where none is named: as tuned for about this k and budget."""
        near = (tuning.first_of(method) for tuning in self._near(k, budget))
        return next((first for first in near if first is not None and self._has(first)), self.default_first)

    def usual_calls(self, k: int, *, method: str) -> int:
        """The budget of a search that names none: the one that judgements chose for about this k, at most the usual.

        A folder may come from anybody: it can lower the cost of a search, and not raise it.
        """
        judged = [tuning for tuning in self.tunings if tuning.judged and method in JUDGED_METHODS]
        near = [one for one in judged if abs(math.log(one.k / k)) <= _FARTHEST]
        chosen = min(near, key=lambda one: abs(math.log(one.k / k))).budget if near else USUAL_CALLS
        return min(max(k, chosen), USUAL_CALLS)

    def tuned_start(self, start: First, *, k: int, budget: int, method: str) -> tuple[First, tuple[str, ...]]:
        """The start of a search with its open options filled in from the tuning, and the names of these.

        Judgements choose `fuse` and `pool` for one first stage, and no other uses them.
        """
        taken: tuple[str, ...] = ()
        if start.stage is None:
            start = replace(start, stage=self.chosen_first(k=k, budget=budget, method=method))
            taken = ("first",) if start.stage != self.default_first else ()
        if not isinstance(start.stage, str) or method not in JUDGED_METHODS:
            return start, taken
        stage = self.stage(start.stage)
        tuning = self.tuned(k=k, budget=budget, first=stage.name if stage else None)
        if tuning is None or tuning.judged is None:
            return start, taken
        if start.fuse is None and tuning.judged.fuse:
            start, taken = replace(start, fuse=tuning.judged.fuse), (*taken, "fuse")
        if start.pool is None and tuning.judged.pool and method != "rerank":
            # In the same proportion to the budget as when it was chosen.
            pool = min(len(self.anchors.items), max(k, round(tuning.judged.pool * budget / tuning.budget)))
            start, taken = replace(start, pool=pool), (*taken, "pool")
        return start, taken

    def _near(self, k: int, budget: int) -> list[Tuning]:
        """The tunings whose k and budget are each within a factor of two, by |log k ratio| + |log budget ratio|.

        A tuning by judgements also serves the budgets between the one that it chose and the largest that it tried.
        """
        near = []
        for tuning in self.tunings:
            largest = tuning.judged.largest if tuning.judged else tuning.budget
            nearest = min(max(budget, tuning.budget), largest)
            apart = abs(math.log(tuning.k / k)), abs(math.log(nearest / budget))
            if tuning.n_queries and max(apart) <= _FARTHEST:
                near.append((sum(apart), tuning))
        return [tuning for _, tuning in sorted(near, key=lambda one: one[0])]

    def _has(self, first: str) -> bool:
        return first in self._first or set(first.split(SEPARATOR)) <= set(self._first)

    @property
    def is_compressed(self) -> bool:
        """Whether the folder holds compressed features."""
        return self.home is not None and is_compressed(self.home)

    def exact_cells(self) -> BoolArray | None:
        """Which scores (items, anchor queries) the scorer gave and were not predicted; None where it gave all."""
        return self.anchors.exact_cells() if isinstance(self.anchors, IndexFolder) else None

    def save(self, path: Path, *, card: ScorerCard | None) -> None:
        """Write this version to a new folder, with the first stages that can be saved."""
        cells = self.exact_cells()
        if cells is not None and not cells.all():
            # In a new folder, predicted scores would be taken for the scorer's.
            raise InputError(f"Some scores of this index are predicted; copy its folder {self.home} instead.")
        save_table(self.anchors, path, card=card)
        for name in self._first:
            stage = self.first_stage(name).stage
            if stage is not None and stage.name in FIRST_STAGES:
                save_first_stage(stage, path, name=name)

    def reread(self) -> None:
        """Drop all caches, because the folder has been written to."""
        with self._learning, self._lock:
            self._cache.clear()
            self._slopes.clear()
