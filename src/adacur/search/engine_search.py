"""Searches over items that live in a vector engine: nothing in this process grows with their number.

A round asks the engine for the best unscored items by the prediction's weights, and for the values of those that first
stages rank, whose predictions are raised. A search numbers the items as it meets them: these positions mean nothing
outside of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from adacur.approximation.engine_rows import Affine
from adacur.approximation.rank_slopes import RANKS_THAT_COUNT
from adacur.core.arrays import FloatArray, IntArray, KeyArray
from adacur.core.errors import EngineRefused, EngineUnavailable, InputError
from adacur.core.protocols import Acquisition, Approximation, Ranking
from adacur.core.records import Item, Query
from adacur.core.seeds import item_keys
from adacur.engines.vector_store import Found, Key, Nearest
from adacur.first_stages.joined import reciprocal_ranks
from adacur.search.adaptive import NONE, SHORTLIST, LockStep
from adacur.search.engine_items import EngineFirst, EngineItems, EngineWarning
from adacur.search.fusion import LISTED
from adacur.search.methods import Plan
from adacur.search.prospects import Prospects, raised_by


class Touched:
    """The items that a search has met, numbered in that order, with texts and rows of those that it scores."""

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
        """Read the texts and rows of these items; returns the numbers of those that are gone."""
        engine, new = self.engine, [position for position in positions.tolist() if position not in self._items]
        keys = [self._keys[position] for position in new]
        items = engine.store.items(keys)
        rows = {} if engine.outline is None else engine.store.rows(engine.vector, keys)
        if engine.outline is not None and any(len(row) != engine.outline.width for row in rows.values()):
            width = engine.outline.width
            raise EngineUnavailable(f"{engine.store.name} answered with rows of another size than {width} numbers.")
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
        """The rows of these items, which were fetched."""
        assert self.engine.outline is not None
        return np.reshape([self._rows[at] for at in positions.tolist()], (len(positions), self.engine.outline.width))


class EngineProspects(Prospects):
    """The prospects of one query: the engine's best items by the last prediction, and those that first stages rank."""

    def __init__(self, touched: Touched, candidates: IntArray, plan: Plan) -> None:
        self.touched = touched
        self._engine = engine = touched.engine
        self._first_weight = plan.first_weight
        self._first_share = plan.first_share
        self.candidates = candidates
        self._pool = None if plan.pool is None else set(candidates[: plan.pool].tolist())
        self._n_items = engine.n_items if self._pool is None else len(self._pool)
        self._scored: set[int] = set()
        # The last prediction: the items, their values, and the values as raised by the first stage.
        self._known, self._values, self._raised = NONE, np.empty(0), np.empty(0)

    @property
    def n_left(self) -> int:
        return max(0, self._n_items - len(self._scored))

    def from_first(self, n: int) -> IntArray:
        left = (at for at in self.candidates.tolist() if self._may_score(at))
        return np.array(list(islice(left, n)), dtype=np.intp)

    def questions(self, n: int, prediction: Affine) -> list[Nearest]:
        """What to ask the engine to find the best n: the values of ranked items, and the best of the others."""
        assert self._engine.outline is not None
        share = self.from_first(round(self._first_share * n))
        weights, listed = self._engine.outline.weights(prediction), self._listed(prediction, share)
        keys = self.touched.keys(listed)
        within = [Nearest(weights, len(keys), within=keys)]
        if self._pool is not None:
            return within
        scored = self.touched.keys(np.array(sorted(self._scored - set(listed.tolist())), dtype=np.intp))
        return [*within, Nearest(weights, n, without=[*keys, *scored])]

    def answered(self, prediction: Affine, found: Sequence[Found]) -> None:
        """Take the engine's answers to the questions."""
        outline = self._engine.outline
        assert outline is not None
        known = [self.touched.positions(some.keys) for some in found]
        values = np.concatenate([some.values for some in found]).astype(np.float64) + prediction.constant
        self._known = np.concatenate(known)
        place = {position: at for at, position in enumerate(self._known.tolist())}
        rises = np.zeros(len(values))
        for position, rise in zip(prediction.listed.tolist(), prediction.rises.tolist(), strict=True):
            # An item may have gone since the first stage named it.
            if position in place:
                rises[place[position]] = rise
        n_listed = len(known[0])
        deviation = outline.deviation(prediction, values[:n_listed], rises[:n_listed])
        self._values = values + rises
        self._raised = self._values.copy()
        ranked = [
            (rank, place[at]) for rank, at in enumerate(self.candidates[:RANKS_THAT_COUNT].tolist()) if at in place
        ]
        if ranked:
            ranks, places = (np.array(column, dtype=np.intp) for column in zip(*ranked, strict=True))
            rise = raised_by(
                ranks,
                self._values[places],
                deviation=deviation,
                first_weight=self._first_weight,
                n_scored=len(self._scored),
            )
            if rise is not None:
                self._raised[places] += rise

    def best(
        self, n: int, *, acquisition: Acquisition, stream: int, without: IntArray, predicted: Affine
    ) -> tuple[IntArray, FloatArray]:
        left_out = set(without.tolist())
        may = np.array([self._may_score(at) and at not in left_out for at in self._known.tolist()], dtype=np.bool_)
        order = np.argsort(-self._raised[may], kind="stable")[:n]
        return self._known[may][order], self._raised[may][order]

    def at_random(self, n: int, *, stream: int, without: IntArray) -> IntArray:
        """An engine cannot draw by our seed, so: the best by the last prediction, or a sample of the engine's own."""
        left_out = set(without.tolist())
        positions = self._known[np.argsort(-self._raised, kind="stable")]
        if not len(positions) and self._engine.where is None and self._pool is None:
            keys = self._engine.store.sample(n + len(left_out) + len(self._scored))
            positions = self.touched.positions(keys)
        left = [at for at in positions.tolist() if self._may_score(at) and at not in left_out]
        return np.array(left[:n], dtype=np.intp)

    def predictions(self, predicted: Affine, positions: IntArray) -> FloatArray:
        values = dict(zip(self._known.tolist(), self._values.tolist(), strict=True))
        return np.array([values.get(position, np.nan) for position in positions.tolist()])

    def scored(self, positions: IntArray) -> None:
        self._scored.update(positions.tolist())

    def keys(self, positions: IntArray) -> KeyArray:
        return item_keys([item.id for item in self.touched.at(positions.tolist())])

    def items(self, positions: IntArray) -> tuple[Item, ...]:
        return tuple(self.touched.at(positions.tolist()))

    def _may_score(self, position: int) -> bool:
        return position not in self._scored and (self._pool is None or position in self._pool)

    def _listed(self, prediction: Affine, share: IntArray) -> IntArray:
        """The items whose values are always needed: ranked ones, the first stage's share, and the pool."""
        pool = np.array([] if self._pool is None else sorted(self._pool), dtype=np.intp)
        return np.unique(np.concatenate([self.candidates[:RANKS_THAT_COUNT], prediction.listed, share, pool]))


class EngineLockStep(LockStep):
    """Searches that step together, with one request to the engine per step for all of them."""

    def __init__(
        self,
        plan: Plan,
        queries: Sequence[Query],
        k: int,
        *,
        prospects: Sequence[EngineProspects],
        approximation: Approximation | None,
    ) -> None:
        super().__init__(plan, queries, k, prospects=prospects, approximation=approximation)
        self._prospects = prospects
        self._touched = prospects[0].touched

    def items_at(self, positions: Sequence[int]) -> list[Item]:
        return self._touched.at(positions)

    def ask(self, *, seconds: float = 0.0) -> list[IntArray]:
        """As in memory; if the engine fails, searches that have scored something end with what they have."""
        begun = any(search.rounds for search in self.searches)
        try:
            if not begun and self._approximation is not None:
                sizes = [search.remaining[0] if search.remaining else 0 for search in self.searches]
                if any(len(one.from_first(n)) < n for one, n in zip(self._prospects, sizes, strict=True)):
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
                search.stop("engine")

    def _predictions(self, approximation: Approximation) -> list[Affine]:
        predictions: list[Affine] = approximation.affine()  # type: ignore[attr-defined]
        asked, questions = [], []
        for search, prospects, prediction in zip(self.searches, self._prospects, predictions, strict=True):
            if search.remaining:
                n = search.remaining[0] if self._plan.stop_when is None else max(SHORTLIST, search.remaining[0])
                some = prospects.questions(n, prediction)
                asked.append((prospects, prediction, len(some)))
                questions += some
        engine = self._touched.engine
        found = engine.store.best(engine.vector, questions, where=engine.where, exact=engine.exact)
        for prospects, prediction, n_questions in asked:
            prospects.answered(prediction, found[:n_questions])
            found = found[n_questions:]
        return predictions


def begin_in_engine(plan: Plan, queries: Sequence[Query], k: int) -> tuple[EngineLockStep, list[FloatArray]]:
    """Ask the first stages, and begin a search of each query; also the first stage's scores, where these are fused."""
    engine, first = plan.engine, plan.first
    assert isinstance(engine, EngineItems)
    assert isinstance(first, EngineFirst)
    if plan.calls >= engine.n_items:
        # All items can be afforded, and some may have been added since the collection was opened.
        engine = replace(engine, n_items=engine.store.count(engine.where))
    touched = Touched(engine)
    ranks_count = plan.first_weight or plan.uses_ranks or first.n_stages > 1
    depth = max(plan.pool or plan.calls, RANKS_THAT_COUNT if ranks_count else 0, LISTED if plan.fuse else 0)
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
    approximation = None
    if plan.approximator is not None:
        if engine.outline is None or plan.anchors is None:
            raise InputError(f"{engine.store.name} has no vectors to predict from. Search with method='rerank'.")
        ranks = {"ranks": lists} if plan.uses_ranks else {}
        features = engine.outline.features(touched.rows)
        approximation = plan.approximator.begin(plan.anchors, queries, features=features, **ranks)  # type: ignore[call-arg]
    prospects = [EngineProspects(touched, ranking.positions, plan) for ranking in rankings]
    steps = EngineLockStep(plan, queries, k, prospects=prospects, approximation=approximation)
    return steps, [ranking.scores for ranking in rankings if plan.fuse]
