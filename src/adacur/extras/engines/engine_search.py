"""Searches over items that live in a vector engine: nothing in this process grows with their number.

A round asks the engine for the best unscored items by the prediction's weights, and for the values of those that first
stages rank, whose predictions rise with their ranks. A search numbers the items as it meets them: these positions mean
nothing outside of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray, KeyArray
from adacur.errors import EngineRefused, EngineUnavailable
from adacur.extras.engines.engine_items import (
    EngineFirst,
    EngineItems,
    EngineWarning,
    LinearPrediction,
    linear_predictions,
)
from adacur.extras.engines.vector_store import Found, Key, Nearest
from adacur.first_stages.joined import reciprocal_ranks
from adacur.model.approximation import Posterior
from adacur.model.rank_slopes import RANKS_THAT_COUNT, SCORES_FOR_TERMS
from adacur.protocols import Acquisition, Approximation, Ranking
from adacur.records import Item, Query
from adacur.search.asktell import SHORTLIST, QueryBatch
from adacur.search.candidates import NONE, Candidates
from adacur.search.finish import LISTED
from adacur.search.plan import Place, Plan
from adacur.seeds import item_keys

# What a trace says of a search that ended because its engine failed.
STOPPED = "engine"
# Each round asks for the values of all items of all words, so fewer of a word than in memory.
_ITEMS_OF_A_TERM = 300


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

    def keys(self, positions: Iterable[int]) -> list[Key]:
        """The engine's keys of these items."""
        return [self._keys[position] for position in positions]

    def fetch(self, positions: IntArray) -> IntArray:
        """Read the texts and vectors of these items; returns the numbers of those that are gone."""
        engine, new = self.engine, [position for position in positions.tolist() if position not in self._items]
        keys = [self._keys[position] for position in new]
        items = engine.store.items(keys)
        rows = {} if engine.outline is None else engine.store.rows(engine.vector, keys)
        width = 0 if engine.outline is None else len(engine.outline.mean)
        if any(len(row) != width for row in rows.values()):
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
        return np.stack([self._rows[at] for at in positions.tolist()])


class CandidatesInEngine(Candidates):
    """The candidates of one query: the engine's best items by the last prediction, and those that first stages rank."""

    def __init__(self, touched: SeenItems, found: IntArray) -> None:
        self.touched = touched
        self.found = found
        self._n_items = touched.engine.n_items
        self._scored: set[int] = set()
        # By the last prediction: the items that are known, and their values, best first.
        self._predicted: dict[int, float] = {}

    @property
    def n_left(self) -> int:
        return max(0, self._n_items - len(self._scored))

    def from_first(self, n: int) -> IntArray:
        return self._unscored(self.found.tolist(), n)

    def questions(self, n: int, prediction: LinearPrediction) -> list[Nearest]:
        """Both questions that find the best n: the values of ranked items, and the best of the others."""
        ranked = {*self.found[:RANKS_THAT_COUNT].tolist(), *prediction.listed.tolist()}
        keys = self.touched.keys(sorted(ranked))
        scored = self.touched.keys(sorted(self._scored - ranked))
        return [
            Nearest(prediction.weights, len(keys), within=keys),
            Nearest(prediction.weights, n, without=[*keys, *scored]),
        ]

    def answered(self, prediction: LinearPrediction, found: Sequence[Found]) -> None:
        """Take the engine's answers to both questions."""
        predicted: dict[int, float] = {}
        for some in found:
            values = some.values.astype(np.float64) + prediction.constant
            predicted |= zip(self.touched.positions(some.keys).tolist(), values.tolist(), strict=True)
        for position, rise in zip(prediction.listed.tolist(), prediction.rises.tolist(), strict=True):
            # An item may have gone since the first stage named it.
            if position in predicted:
                predicted[position] += rise
        self._predicted = dict(sorted(predicted.items(), key=lambda one: -one[1]))

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, predicted: LinearPrediction
    ) -> tuple[IntArray, FloatArray]:
        positions = self._unscored(self._predicted, n)
        return positions, self.predictions(predicted, positions)

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """An engine cannot draw by our seed, so: the best by the last prediction, or a sample of the engine's own."""
        left_out, engine = set(without.tolist()), self.touched.engine
        positions = list(self._predicted)
        if not positions and engine.where is None:
            keys = engine.store.sample(n + len(left_out) + len(self._scored))
            positions = self.touched.positions(keys).tolist()
        return self._unscored([position for position in positions if position not in left_out], n)

    def predictions(self, predicted: LinearPrediction, positions: IntArray) -> FloatArray:
        return np.array([self._predicted.get(position, np.nan) for position in positions.tolist()])

    def _unscored(self, positions: Iterable[int], n: int) -> IntArray:
        """The first n of these that may be scored."""
        left = (position for position in positions if position not in self._scored)
        return np.array(list(islice(left, n)), dtype=np.intp)

    def scored(self, positions: IntArray) -> None:
        self._scored.update(positions.tolist())

    def keys(self, positions: IntArray) -> KeyArray:
        return item_keys([item.id for item in self.touched.at(positions.tolist())])

    def items(self, positions: IntArray) -> tuple[Item, ...]:
        return tuple(self.touched.at(positions.tolist()))


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
        predictions, engine = linear_predictions(approximation), self._touched.engine
        going = [at for at, search in enumerate(self.searches) if search.remaining]
        questions = []
        for at in going:
            n = self.searches[at].remaining[0]
            shortlist = n if self._plan.stop is None else max(SHORTLIST, n)
            questions += self._candidates[at].questions(shortlist, predictions[at])
        found = engine.store.best(engine.vector, questions, where=engine.where, exact=engine.exact)
        for place, at in enumerate(going):
            self._candidates[at].answered(predictions[at], found[2 * place : 2 * place + 2])
        return predictions


class InEngine(Place):
    """The items of a collection."""

    # Positions are numbers of one group of queries alone.
    by_position = False

    def __init__(self, engine: EngineItems) -> None:
        self.engine = engine

    def settings(self) -> Mapping[str, Any]:
        return {"filtered": self.engine.where is not None, "engine": self.engine.store.name}

    def gave_up(self, error: Exception) -> str | None:
        """An engine that does not answer any more ends what is left, with a warning."""
        if not isinstance(error, EngineRefused | EngineUnavailable):
            return None
        warnings.warn(f"{error} The other queries have no hits.", EngineWarning, stacklevel=2)
        return STOPPED

    def begin(self, plan: Plan, k: int, queries: Sequence[Query]) -> BatchInEngine:
        engine, first = self.engine, plan.first
        assert isinstance(first, EngineFirst)
        calls = plan.purse.calls
        if calls >= engine.n_items:
            # All items can be afforded, and some may have been added since the collection was opened.
            engine = replace(engine, n_items=engine.store.count(engine.where))
        touched = SeenItems(engine)
        depth = _depth(plan, k, engine, first)
        answers = [stage.search(queries, depth, where=engine.where) for stage in first.stages]
        lists = [[touched.positions(found.keys) for found in of_query] for of_query in zip(*answers, strict=True)]
        if first.n_stages == 1:
            rankings = [Ranking(some, one.values) for (some,), one in zip(lists, answers[0], strict=True)]
        else:
            rankings = [reciprocal_ranks(some, depth, keys=touched.tie_breakers()) for some in lists]
        if not calls and rankings:
            gone = touched.fetch(np.unique(np.concatenate([one.positions for one in rankings])))
            left = [~np.isin(one.positions, gone) for one in rankings]
            rankings = [Ranking(one.positions[at], one.scores[at]) for one, at in zip(rankings, left, strict=True)]
        approximation = None
        if plan.model is not None:
            assert engine.outline is not None
            features = engine.outline.features(touched.rows)
            approximation = plan.model.begin(queries, lists, _terms(plan, queries, touched), features=features)
        candidates = [CandidatesInEngine(touched, one.positions) for one in rankings]
        listed = [one.scores for one in rankings if plan.listed or not calls]
        return BatchInEngine(plan, queries, k, candidates=candidates, approximation=approximation, listed=listed)


def _depth(plan: Plan, k: int, engine: EngineItems, first: EngineFirst) -> int:
    """How many items to ask of each first stage."""
    calls = plan.purse.calls
    if not calls:
        # Some may be without a word.
        return min(engine.n_items, max(k, LISTED))
    ranks = RANKS_THAT_COUNT if plan.uses_ranks or first.n_stages > 1 else 0
    return min(engine.n_items, max(calls, ranks, plan.listed))


def _terms(plan: Plan, queries: Sequence[Query], touched: SeenItems) -> list[list[Ranking]]:
    """Per query, what each of its words adds to items, where a first stage searches by words."""
    engine, first = touched.engine, plan.first
    assert isinstance(first, EngineFirst)
    if plan.purse.calls < SCORES_FOR_TERMS:
        return []
    return [
        [
            Ranking(touched.positions(found.keys), found.values)
            for stage in first.stages
            for found in stage.terms(query, _ITEMS_OF_A_TERM, where=engine.where)
        ]
        for query in queries
    ]
