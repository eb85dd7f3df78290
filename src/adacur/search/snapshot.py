"""One version of an index, with its first stages and models: what plans are made from."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError, UnknownName
from adacur.first_stages import FIRST_STAGES, AnyStage, Dense, Joined, Placed, Retriever, placed
from adacur.first_stages.joined import SEPARATOR, parts_of
from adacur.model import GaussianModel, PackedRows
from adacur.model.rank_slopes import RankSlopes
from adacur.protocols import AnchorScores, FirstStage, Scorer, ScorerCard, Vectors
from adacur.records import ItemList, document_numbers
from adacur.search.at_rest import store_at_rest
from adacur.search.filters import Filter
from adacur.search.finish import Documents, weight_beside
from adacur.search.index_stages import add_first_stages, learned_slopes
from adacur.search.methods import METHODS, Method
from adacur.search.places import InMemory
from adacur.search.relevance import Relevance, read_relevance
from adacur.search.tuned import JUDGED_METHODS, Tuning, near, read_tunings
from adacur.spelling import did_you_mean
from adacur.store import Drift, IndexFolder, save_table
from adacur.store.model_file import StoredModel, is_compressed, read_model

_Value = TypeVar("_Value")
# Words and meaning together are the better start at every budget tried (docs/design/ranks.md); then a dual encoder,
# then whatever the index has; random needs nothing.
_PREFERRED_FIRST = ("bm25+dense", "dense", "bm25")


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
        # By the stage that leads, since one that is passed to a search is placed anew each time.
        self._slopes: weakref.WeakKeyDictionary[Any, RankSlopes] = weakref.WeakKeyDictionary()
        self._joined: dict[str, Placed] = {}

    def close(self) -> None:
        """Close what was opened for this version."""

    @property
    def in_memory(self) -> bool:
        """Whether the items are here, by position, and not in a vector engine."""
        return True

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it can be searched by."""
        there = {"anchors": bool(self.anchors.anchor_queries), "vectors": "dense" in self._first}
        return tuple(
            name for name, method in METHODS.items() if not method.needs or any(there[one] for one in method.needs)
        )

    def place(self, method: Method, filter_: Filter | None) -> Any:
        """Where the items of a search are; refuses what cannot be done there, which in memory is nothing."""
        return InMemory(filter_)

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
            if self._device is not None and isinstance(source, Dense) and source.on_device is None:
                source.search_on(self._device)
            if not isinstance(entry, Placed) or entry.items is not self.anchors.items or entry.name != name:
                entry = Placed(source, self.anchors.items, name=name)
            self._first[name] = entry
            return entry

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

    def ranked_by_all(self, first: Any) -> Any:
        """This first stage, which also says how the other stages of this version rank the items."""
        if first is None:
            return None
        parts = parts_of(first)
        if len(parts) < first.n_stages:
            # Joined for items in another order.
            return first
        # One of the same name stands in for the version's own.
        there = {part.name for part in parts}
        names = [name for name in self._first if name not in there and self._answers_anything(name)]
        own = {part.name: part for name in names for part in parts_of(self.first_stage(name)) if part.name not in there}
        if not own:
            return first
        # In the same order whichever leads, so that the ranks are worth the same.
        everything = sorted((*parts, *own.values()), key=lambda part: part.name)
        return placed(Joined(everything, leader=first), self.anchors.items)

    def _answers_anything(self, name: str) -> bool:
        """Whether this first stage may be asked about a search that starts from another; found out once."""
        # An encoder may take long to open: searches of other stages go on.
        answers: bool = self.kept(f"answers anything: {name}", lambda: self.first_stage(name).answers_anything)
        return answers

    def documents(self) -> tuple[Documents, ...]:
        """The step that lets k count documents, where items are passages."""
        numbers = self._document_numbers()
        return () if numbers is None else (Documents(numbers),)

    @_cached
    def _document_numbers(self) -> IntArray | None:
        anchors = self.anchors
        if isinstance(anchors.items, ItemList):
            return anchors.items.documents
        if not isinstance(anchors, IndexFolder) or not anchors.manifest.documents:
            return None
        return document_numbers(anchors.items)

    def item_vectors(self) -> Vectors | None:
        """The item vectors of the dense first stage, where there is one that has them all."""
        return self.first_stage("dense").vectors() if "dense" in self._first else None

    @_cached
    def gaussian_model(self) -> GaussianModel:
        """The Gaussian of the anchor scores and item vectors, as it is stored; else made of them."""
        stored, vectors = self._stored_model(), self.item_vectors()
        if stored is None or not self.is_compressed:
            return self.uncompressed_model(device=self._device)
        embed_queries = vectors.embed_queries if vectors else None
        return GaussianModel(embed_queries=embed_queries, features=stored.features, device=self._device)

    @_cached
    def _stored_model(self) -> StoredModel | None:
        return read_model(self.anchors, self._all_vectors) if isinstance(self.anchors, IndexFolder) else None

    @_cached
    def _all_vectors(self) -> FloatArray:
        """All item vectors in memory, for several models."""
        vectors = self.item_vectors()
        assert vectors is not None
        return vectors.all_rows()

    def rank_slopes(self, first: Any) -> RankSlopes | None:
        """How scores depend on the ranks of this first stage, learned from anchor queries; None without either."""
        if first is None:
            return None
        if not self.anchors.anchor_queries:
            return RankSlopes.assumed(first.n_stages)
        if name := self._own_name(first):
            stored = self._stored_model()
            slopes = stored.slopes.get(name) if stored else None
            if slopes is not None and len(slopes.means) == first.n_stages:
                return slopes
            learned: RankSlopes = self.kept(f"slopes: {name}", lambda: self._learned(first))
            return learned
        leader = _leader_of(first)
        with self._learning:
            # Slopes of a stage that cannot be a weak key are learned anew for each search.
            with suppress(TypeError):
                slopes = self._slopes.get(leader)
                if slopes is not None and len(slopes.means) == first.n_stages:
                    return slopes
            slopes = self._learned(first)
            with suppress(TypeError):
                self._slopes[leader] = slopes
            return slopes

    def _learned(self, first: Placed) -> RankSlopes:
        return learned_slopes(self.gaussian_model(), self.anchors, first)

    def _own_name(self, first: Placed) -> str | None:
        """The names of the stages that this one is made of, where all are this version's own."""
        parts = parts_of(first)
        own = [getattr(self._first.get(part.name), "source", None) for part in parts]
        is_own = all(part.source is source for part, source in zip(parts, own, strict=True))
        return SEPARATOR.join(part.name for part in parts) if is_own else None

    def uncompressed_model(self, *, device: str | None = None) -> GaussianModel:
        """A Gaussian of the anchor scores themselves, compressed features or not."""
        vectors, stored = self.item_vectors(), None if self.is_compressed else self._stored_model()
        return GaussianModel(
            embeddings=PackedRows(self._all_vectors()) if vectors else None,
            embed_queries=vectors.embed_queries if vectors else None,
            features=stored.features if stored else None,
            device=device,
        )

    def usual_fuse(self, card: ScorerCard | None, *, first: str) -> float:
        """The first stage's weight in the order where no search and no judgement names one.

        As the index remembers it; else 0 for a scorer that is the truth, and 1 for one that is a witness, half as much
        beside words alone, which are the weaker witness.
        """
        remembered = self.anchors.manifest.fuse if isinstance(self.anchors, IndexFolder) else None
        if remembered is not None or card is None or not card.is_witness:
            return remembered or 0.0
        return weight_beside(first)

    @_cached
    def relevance(self) -> Relevance | None:
        """How to read the scores of this version: as stored with it, or from its anchor scores where that is quick."""
        return read_relevance(self.home, self.anchors, compute=self.in_memory and not self.is_compressed)

    def kept(self, key: str, make: Callable[[], Any]) -> Any:
        """What was made of this version under a key, made once; others wait meanwhile."""
        # Read without the lock first: what is known is not waited for while something else is made.
        if (value := self._cache.get(key)) is None:
            with self._learning:
                if (value := self._cache.get(key)) is None:
                    value = self._cache[key] = make()
        return value

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
        return next((tuning for tuning in near(self.tunings, k=k, budget=budget) if tuning.first == first), None)

    def chosen_first(self, *, k: int, budget: int, method: str) -> str:
        """The first stage that a search starts from where none is named: as tuned for about this k and budget."""
        tuned = (tuning.first_of(method) for tuning in near(self.tunings, k=k, budget=budget))
        return next((first for first in tuned if first is not None and self._has(first)), self.default_first)

    def tuned_start(
        self, first: str | AnyStage | None, fuse: float | None, *, k: int, budget: int, method: str
    ) -> tuple[str | AnyStage, float | None, tuple[str, ...]]:
        """The first stage of a search and `fuse`, from the tuning where they are open, and the names of these.

        What judgements chose for one first stage, no other uses.
        """
        taken: tuple[str, ...] = ()
        if first is None:
            first = self.chosen_first(k=k, budget=budget, method=method)
            taken = ("first",) if first != self.default_first else ()
        if fuse is not None or not isinstance(first, str) or method not in JUDGED_METHODS:
            return first, fuse, taken
        stage = self.stage(first)
        tuning = self.tuned(k=k, budget=budget, first=stage.name if stage else None)
        if tuning is None or tuning.judged is None:
            return first, fuse, taken
        return first, tuning.judged.fuse, (*taken, "fuse")

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
        fuse = self.anchors.manifest.fuse if isinstance(self.anchors, IndexFolder) else None
        folder = save_table(self.anchors, path, card=card, fuse=fuse)
        stages = {name: self.first_stage(name).stage for name in self._first}
        saved = {name: stage for name, stage in stages.items() if stage is not None and stage.name in FIRST_STAGES}
        add_first_stages(saved, folder)
        store_at_rest(Snapshot(folder, first=saved))

    def reread(self) -> None:
        """Drop all caches, because the folder has been written to."""
        with self._learning, self._lock:
            self._cache.clear()
            self._slopes.clear()


def _leader_of(first: Placed) -> Any:
    """What a search starts from: a stage that was passed to it, where it is not one of the version's own."""
    leader = getattr(first.source, "leader", None)
    return first.source if leader is None else leader.source
