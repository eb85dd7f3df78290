"""Searches over items that live in a vector engine: nothing in this process grows with their number.

A round asks the engine for the best unscored items by the prediction's weights, and for the values of those that first
stages rank, whose predictions rise with their ranks. A search numbers the items as it meets them: these positions mean
nothing outside of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.errors import EngineRefused, EngineUnavailable, InputError
from adacur.extras.engines.engine_items import EngineFirst, EngineItems, EngineWarning
from adacur.extras.engines.linear_prediction import LinearPrediction, linear_predictions
from adacur.extras.engines.vector_store import Found, Key, Nearest
from adacur.first_stages.joined import reciprocal_ranks
from adacur.model.approximation import Posterior
from adacur.model.rank_slopes import RANKS_THAT_COUNT
from adacur.protocols import Acquisition, Approximation, Ranking
from adacur.records import Item, Query
from adacur.search.asktell import NONE, SHORTLIST, QueryBatch
from adacur.search.candidates import Candidates
from adacur.search.finish import LISTED
from adacur.search.plan import Plan
from adacur.seeds import item_keys

# What a trace says of a search that ended because its engine failed.
STOPPED = "engine"


class SeenItems:
    """The items that a search has met, numbered in that order, with texts and vectors of those that it scores."""

    def __init__(self, engine: EngineItems) -> None:
        self.engine = engine
        self._keys: list[Key] = []
        self._number: dict[Key, int] = {}
        self._items: dict[int, Item] = {}
        self._rows: dict[int, FloatArray] = {}
        self._tie_breakers: KeyArray = np.empty(0, dtype=np.uint64)

    def positions(self, keys: Sequence[Key]) -> IntArray:
        """The numbers of these items; new items get the next ones."""
        for key in keys:
            if key not in self._number:
                self._number[key] = len(self._keys)
                self._keys.append(key)
        return np.array([self._number[key] for key in keys], dtype=np.intp)

    def tie_breakers(self) -> KeyArray:
        """A random key per item met, derived from the engine's key: it does not depend on other queries."""
        new = item_keys([str(key) for key in self._keys[len(self._tie_breakers) :]])
        self._tie_breakers = np.concatenate([self._tie_breakers, new])
        return self._tie_breakers

    def keys(self, positions: IntArray) -> list[Key]:
        """The engine's keys of these items."""
        return [self._keys[position] for position in positions.tolist()]

    def fetch(self, positions: IntArray) -> IntArray:
        """Read the texts and vectors of these items; returns the numbers of those that are gone."""
        engine, new = self.engine, [position for position in positions.tolist() if position not in self._items]
        keys = [self._keys[position] for position in new]
        items = engine.store.items(keys)
        rows = {} if engine.outline is None else engine.store.rows(engine.vector, keys)
        if engine.outline is not None and any(len(row) != engine.outline.width for row in rows.values()):
            width = engine.outline.width
            raise EngineUnavailable(f"{engine.store.name} answered with vectors of another size than {width} numbers.")
        for position, key in zip(new, keys, strict=True):
            # An item without a word counts as gone: its score would say nothing.
            has_words = key in items and bool(items[key].text.strip())
            if has_words and (engine.outline is None or key in rows):
                self._items[position] = items[key]
                if key in rows:
                    self._rows[position] = rows[key]
        return np.array([position for position in new if position not in self._items], dtype=np.intp)

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items of these numbers, which were fetched."""
        return [self._items[position] for position in positions]

    def rows(self, positions: IntArray) -> FloatArray:
        """The vectors of these items, which were fetched."""
        assert self.engine.outline is not None
        return np.reshape([self._rows[at] for at in positions.tolist()], (len(positions), self.engine.outline.width))


class CandidatesInEngine(Candidates):
    """The candidates of one query: the engine's best items by the last prediction, and those that first stages rank."""

    def __init__(self, touched: SeenItems, found: IntArray) -> None:
        self.touched = touched
        self._engine = engine = touched.engine
        self.found = found
        self._n_items = engine.n_items
        self._scored: set[int] = set()
        # The last prediction: the items, and their values.
        self._known, self._values = NONE, np.empty(0)

    @property
    def n_left(self) -> int:
        return max(0, self._n_items - len(self._scored))

    def from_first(self, n: int) -> IntArray:
        left = (at for at in self.found.tolist() if self._may_score(at))
        return np.array(list(islice(left, n)), dtype=np.intp)

    def questions(self, n: int, prediction: LinearPrediction) -> list[Nearest]:
        """What to ask the engine to find the best n: the values of ranked items, and the best of the others."""
        assert self._engine.outline is not None
        weights, listed = self._engine.outline.weights(prediction), self._listed(prediction)
        keys = self.touched.keys(listed)
        within = [Nearest(weights, len(keys), within=keys)]
        scored = self.touched.keys(np.array(sorted(self._scored - set(listed.tolist())), dtype=np.intp))
        return [*within, Nearest(weights, n, without=[*keys, *scored])]

    def answered(self, prediction: LinearPrediction, found: Sequence[Found]) -> None:
        """Take the engine's answers to the questions."""
        known = [self.touched.positions(some.keys) for some in found]
        values = np.concatenate([some.values for some in found]).astype(np.float64) + prediction.constant
        self._known = np.concatenate(known)
        place = {position: at for at, position in enumerate(self._known.tolist())}
        rises = np.zeros(len(values))
        for position, rise in zip(prediction.listed.tolist(), prediction.rises.tolist(), strict=True):
            # An item may have gone since the first stage named it.
            if position in place:
                rises[place[position]] = rise
        self._values = values + rises

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, predicted: LinearPrediction
    ) -> tuple[IntArray, FloatArray]:
        may = np.array([self._may_score(at) for at in self._known.tolist()], dtype=np.bool_)
        order = np.argsort(-self._values[may], kind="stable")[:n]
        return self._known[may][order], self._values[may][order]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """An engine cannot draw by our seed, so: the best by the last prediction, or a sample of the engine's own."""
        left_out = set(without.tolist())
        positions = self._known[np.argsort(-self._values, kind="stable")]
        if not len(positions) and self._engine.where is None:
            keys = self._engine.store.sample(n + len(left_out) + len(self._scored))
            positions = self.touched.positions(keys)
        left = [at for at in positions.tolist() if self._may_score(at) and at not in left_out]
        return np.array(left[:n], dtype=np.intp)

    def predictions(self, predicted: LinearPrediction, positions: IntArray) -> FloatArray:
        values = dict(zip(self._known.tolist(), self._values.tolist(), strict=True))
        return np.array([values.get(position, np.nan) for position in positions.tolist()])

    def scored(self, positions: IntArray) -> None:
        self._scored.update(positions.tolist())

    def keys(self, positions: IntArray) -> KeyArray:
        return item_keys([item.id for item in self.touched.at(positions.tolist())])

    def items(self, positions: IntArray) -> tuple[Item, ...]:
        return tuple(self.touched.at(positions.tolist()))

    def _may_score(self, position: int) -> bool:
        return position not in self._scored

    def _listed(self, prediction: LinearPrediction) -> IntArray:
        """The items whose values are always needed: ranked ones."""
        return np.unique(np.concatenate([self.found[:RANKS_THAT_COUNT], prediction.listed]))


class BatchInEngine(QueryBatch):
    """Searches that step together, with one request to the engine per step for all of them."""

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        candidates: Sequence[CandidatesInEngine],
        approximation: Approximation | None,
        listed: Sequence[FloatArray],
    ) -> None:
        super().__init__(plan, queries, k, candidates=candidates, approximation=approximation, listed=listed)
        self._candidates = candidates
        self._touched = candidates[0].touched

    @property
    def ended_early(self) -> bool:
        """Whether the engine failed after a search's last scores were told."""
        return any(search.stopped == STOPPED for search in self.searches)

    def items_at(self, positions: Sequence[int]) -> list[Item]:
        return self._touched.at(positions)

    def ask(self, *, seconds: float = 0.0) -> list[IntArray]:
        """As in memory; if the engine fails, searches that have scored something end with what they have."""
        begun = any(search.rounds for search in self.searches)
        try:
            if not begun and self._approximation is not None:
                sizes = [search.remaining[0] if search.remaining else 0 for search in self.searches]
                if any(len(one.from_first(n)) < n for one, n in zip(self._candidates, sizes, strict=True)):
                    # The first stage found too little: the rest of the first round is chosen by the prior.
                    self._predictions(self._approximation)
            batches = super().ask(seconds=seconds)
            gone = set(self._touched.fetch(np.unique(np.concatenate([*batches, NONE]))).tolist())
        except (EngineUnavailable, EngineRefused) as error:
            if not begun:
                raise
            self._end(error)
            self._batches = [NONE for _ in self.searches]
            return self._batches
        if gone:
            for at, search in enumerate(self.searches):
                lost = [position for position in batches[at].tolist() if position in gone]
                batches[at] = search.drop(np.array(lost, dtype=np.intp)) if lost else batches[at]
        return batches

    def tell(self, scores: Sequence[FloatArray], *, seconds: float = 0.0) -> None:
        """As in memory; if the engine fails, searches end with what they have."""
        try:
            super().tell(scores, seconds=seconds)
        except (EngineUnavailable, EngineRefused) as error:
            self._end(error)

    def _end(self, error: EngineUnavailable | EngineRefused) -> None:
        warnings.warn(f"{error} The search ends with what it has scored.", EngineWarning, stacklevel=4)
        for search in self.searches:
            if search.remaining:
                search.stop(STOPPED)

    def _predictions(self, approximation: Approximation) -> list[LinearPrediction]:
        assert isinstance(approximation, Posterior)
        predictions = linear_predictions(approximation)
        asked, questions = [], []
        for search, candidates, prediction in zip(self.searches, self._candidates, predictions, strict=True):
            if search.remaining:
                n = search.remaining[0] if self._plan.stop is None else max(SHORTLIST, search.remaining[0])
                some = candidates.questions(n, prediction)
                asked.append((candidates, prediction, len(some)))
                questions += some
        engine = self._touched.engine
        found = engine.store.best(engine.vector, questions, where=engine.where, exact=engine.exact)
        for candidates, prediction, n_questions in asked:
            candidates.answered(prediction, found[:n_questions])
            found = found[n_questions:]
        return predictions


@dataclass(frozen=True, slots=True, eq=False)
class InEngine:
    """The items of a collection."""

    engine: EngineItems
    keys: KeyArray | None = None

    def open(self, plan: Plan, k: int) -> OpenEngine:
        """Ready for searches of this plan."""
        return OpenEngine(self, plan, k)

    def settings(self) -> Mapping[str, Any]:
        filtered, name = self.engine.where is not None, self.engine.store.name
        return {"filtered": filtered, "engine": name}


class OpenEngine:
    """Begins searches among the items of a collection."""

    # Positions are numbers of one group of queries alone.
    by_position = False

    def __init__(self, place: InEngine, plan: Plan, k: int) -> None:
        self._place, self._plan, self._k = place, plan, k

    @property
    def together(self) -> int:
        return self._plan.together

    def gave_up(self, error: Exception) -> str | None:
        """An engine that does not answer any more ends what is left, with a warning."""
        if not isinstance(error, EngineRefused | EngineUnavailable):
            return None
        warnings.warn(f"{error} The other queries have no hits.", EngineWarning, stacklevel=2)
        return STOPPED

    def begin(self, queries: Sequence[Query]) -> BatchInEngine:
        """Ask the first stages, and begin a search of each query."""
        plan, engine, first = self._plan, self._place.engine, self._plan.first
        assert isinstance(first, EngineFirst)
        calls = plan.purse.calls
        if calls >= engine.n_items:
            # All items can be afforded, and some may have been added since the collection was opened.
            engine = replace(engine, n_items=engine.store.count(engine.where))
        touched = SeenItems(engine)
        ranks_count = plan.uses_ranks or first.n_stages > 1
        depth = max(calls, RANKS_THAT_COUNT if ranks_count else 0, plan.listed)
        if not calls:
            # Some may be without a word.
            depth = max(self._k, LISTED)
        depth = min(engine.n_items, depth)
        answers = [stage.search(queries, depth, where=engine.where) for stage in first.stages]
        lists, rankings = [], []
        for of_query in zip(*answers, strict=True):
            positions = [touched.positions(found.keys) for found in of_query]
            lists.append([some[:RANKS_THAT_COUNT] for some in positions])
            if len(positions) == 1:
                rankings.append(Ranking(positions[0], of_query[0].values))
            else:
                rankings.append(reciprocal_ranks(positions, depth, keys=touched.tie_breakers()))
        if not calls and rankings:
            gone = touched.fetch(np.unique(np.concatenate([ranking.positions for ranking in rankings])))
            left = [~np.isin(ranking.positions, gone) for ranking in rankings]
            rankings = [
                Ranking(one.positions[kept], one.scores[kept]) for one, kept in zip(rankings, left, strict=True)
            ]
        approximation = None
        if plan.model is not None:
            if engine.outline is None:
                raise InputError(f"{engine.store.name} has no vectors to predict from. Search with method='rerank'.")
            approximation = plan.model.begin(queries, lists, features=engine.outline.features(touched.rows))
        candidates = [CandidatesInEngine(touched, ranking.positions) for ranking in rankings]
        listed = [ranking.scores for ranking in rankings if plan.listed or not calls]
        return BatchInEngine(plan, queries, self._k, candidates=candidates, approximation=approximation, listed=listed)
