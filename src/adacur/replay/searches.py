"""The one machine of this room: queries whose scores are known, searched as if they were new, each way once.

`tune`, `try_collection`, `evaluate` and certificates measure what these searches find.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import numpy as np

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError, UnknownName
from adacur.first_stages import Placed
from adacur.first_stages.joined import SEPARATOR
from adacur.model import GaussianModel
from adacur.model.acquire import best_positions
from adacur.model.rank_slopes import RankSlopes
from adacur.protocols import AnchorScores, Approximation, Approximator, Items, Ranking, Scorer, ScorerCard
from adacur.records import Pair, Query, as_queries
from adacur.replay.measures import Qrels, exact_scores, judged_quality, kth_best, recall_above
from adacur.results import Hits
from adacur.search import AnchorIndex
from adacur.search.finish import LISTED, Answer, Documents, Fuse, Top, listed_by
from adacur.search.methods import AdaCUR, Method, method_named, options_of
from adacur.search.plan import Plan
from adacur.search.planning import SearchOptions, plan_search
from adacur.search.rounds import search
from adacur.search.stopping import FIRST_BATCH, NEVER, ROUNDS, Stop
from adacur.search.tuned import USUAL_ROUNDS, GaussianSettings
from adacur.seeds import item_keys, stream_key, uniform
from adacur.store import AnchorTable, IndexFolder

_KNOWN = ScorerCard(name="known scores", backend="none")


class KnownScores:
    """The scorer of a replay: scores of shape (items, queries), looked up by position where both are the same items.

    With the `card` of the scorer that they are of, searches take the rounds that they would take with that scorer.
    """

    def __init__(
        self, queries: Sequence[Query], items: Items, scores: FloatArray, *, card: ScorerCard = _KNOWN
    ) -> None:
        self.card = card
        self._columns = {query.id: column for column, query in enumerate(queries)}
        self._items = items
        self._scores = scores

    @classmethod
    def of(cls, anchors: AnchorScores) -> KnownScores:
        """Those of anchor queries."""
        return cls(anchors.anchor_queries, anchors.items, anchors.matrix)

    def columns(self, queries: Sequence[Query]) -> IntArray:
        """The places of these queries among those whose scores are known."""
        if unknown := [query.id for query in queries if query.id not in self._columns]:
            raise UnknownName(f"Only queries with known scores can be replayed; {unknown[0]!r} has none.")
        return np.array([self._columns[query.id] for query in queries], dtype=np.intp)

    def least(self, queries: Sequence[Query], k: int) -> FloatArray:
        """Of each query, the score that the best k of all known ones have at least; NaN is not known."""
        columns = np.ascontiguousarray(self._scores[:, self.columns(queries)].T)
        rows = (row[~np.isnan(row)] for row in columns)
        return np.array([kth_best(row[None], min(k, len(row)))[0] for row in rows])

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        positions = self._items.positions(item.id for _, item in pairs)
        return np.asarray(self._scores[positions, self.columns([query for query, _ in pairs])])

    def score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        """One score per pair, without a text."""
        if items is not self._items:
            positions = self._items.positions(items.ids[at] for at in positions.tolist())
        return np.asarray(self._scores[positions, self.columns(queries)[query_of]])


def held_out(anchors: AnchorScores, n: int, *, seed: int = 0) -> IntArray:
    """The positions of up to n anchor queries, by a draw that does not depend on their order."""
    keys = item_keys(query.id for query in anchors.anchor_queries)
    return np.sort(best_positions(uniform(stream_key(seed, "held out"), keys), min(n, len(keys)), keys=keys))


def some_anchors(anchors: AnchorScores, which: IntArray) -> AnchorTable:
    """The anchor queries at these positions, in memory."""
    queries = tuple(anchors.anchor_queries[at] for at in which.tolist())
    return AnchorTable(anchors.items, queries, np.ascontiguousarray(anchors.matrix[:, which]))


def exact_anchors(index: AnchorIndex) -> BoolArray:
    """For each anchor query, whether the scorer gave all its scores; of a logged search most are predicted."""
    anchors = index.anchors
    every = np.ones(len(index.anchor_queries), dtype=np.bool_)
    return anchors.exact_anchors() if isinstance(anchors, IndexFolder) else every


def check_exact(index: AnchorIndex, queries: Sequence[Query] | None = None) -> None:
    """Refuse to take predicted scores for the truth: of these anchor queries, or of any."""
    exact = exact_anchors(index)
    predicted = {index.anchor_queries[at].id for at in np.flatnonzero(~exact).tolist()}
    if predicted if queries is None else predicted & {query.id for query in queries}:
        raise InputError(
            f"Only {exact.sum()} of the {len(exact)} anchor queries were scored against every item; of the others "
            "most scores are predicted, and a search for them cannot be checked against the truth. Measure recall "
            "on queries of your own."
        )


def check_anchors(index: AnchorIndex, purpose: str, *, fewest: int = 1) -> None:
    """Refuse an index with fewer anchor queries than this purpose needs, and say how to add some."""
    if not index.snapshot.in_memory:
        raise InputError(f"{purpose} works on the folder of an index, and the items of this one are in an engine.")
    there = len(index.anchor_queries)
    if there < fewest:
        where = "INDEX" if index.path is None else str(index.path)
        raise InputError(
            f"{purpose} needs anchor queries, at least {fewest}; this index has {there}. Add some: adacur index "
            f"add {where} --anchors FILE, or edit.add_anchors(queries) in Python."
        )


class Way(NamedTuple):
    """A way to search: a method, or "gaussian" with these settings, from a first stage, with so many calls.

    A method that needs no number of calls has 0. `fuse` is the first stage's weight in the order.
    """

    method: str | GaussianSettings
    first: str | None = None
    budget: int = 0
    fuse: float = 0.0


class Searches:
    """What each way to search finds for some queries, and how good that is. Every way is searched once.

    An anchor query, known by its text, is left out of its own predictions and looked up; of others the `scorer` is
    asked. What was tuned before has no say.

    - `stages`: first stages by name, each asked once for each query; None is a random start;
    - `model`, `slopes`: what "gaussian" with settings predicts by;
    - `qrels`, `measure`: what people judged, and how the order is measured by it.
    """

    def __init__(
        self,
        anchors: AnchorScores,
        queries: Sequence[Query],
        *,
        k: int,
        stages: Mapping[str | None, Placed | None],
        scorer: Scorer | Callable[[], Any] | None = None,
        model: GaussianModel | None = None,
        slopes: Callable[[Placed], RankSlopes | None] = lambda first: None,
        qrels: Qrels | None = None,
        measure: str = "nDCG@10",
        seed: int = 0,
    ) -> None:
        self.queries, self.k, self.qrels, self.measure = queries, k, qrels or {}, measure
        self.stages = {name: None if stage is None else Asked(stage) for name, stage in stages.items()}
        single = {name: stage for name, stage in self.stages.items() if name and stage and SEPARATOR not in name}
        self._scorer = KnownScores.of(anchors) if scorer is None else scorer
        self._index = AnchorIndex(anchors, scorer=self._scorer, first=single)
        self._index.snapshot.tunings = ()
        self._model, self._slopes, self._seed = model, slopes, seed
        self._least: dict[int, FloatArray] = {}
        self._scored: dict[tuple[Way, bool], list[Hits]] = {}
        self._qualities: dict[Way, FloatArray] = {}

    @property
    def n_items(self) -> int:
        """How many items there are."""
        return len(self._index)

    def has(self, way: Way) -> bool:
        """Whether this was searched, in whatever order."""
        return (_plain(way), False) in self._scored

    def scored(self, way: Way, *, to_the_end: bool = False) -> list[Hits]:
        """The hits of each query in the scorer's order, whatever the way's.

        A search with settings goes `to_the_end` in the small rounds of `effort`, and notes what it could know after
        each.
        """
        key = _plain(way), to_the_end
        if key not in self._scored:
            stage = self.stages.get(way.first)
            options: SearchOptions = {"budget": way.budget or None, "method": self._method(way, stage, to_the_end)}
            options |= {"first": "random" if stage is None else stage, "fuse": 0.0}
            if way.method == "exact":
                options["first"] = None
            k = min(self.k, way.budget or self.n_items)
            self._scored[key] = searched(self._index, self.queries, k, **options)
        return self._scored[key]

    def recalls(self, way: Way, k: int | None = None) -> FloatArray:
        """Of each query, the share of the scorer's best k that is found."""
        k = min(k or self.k, self.n_items)
        found = [exact_scores(hits, self._index.scorer) for hits in self.scored(way)]
        return recall_above(found, self.least(k), k=k)

    def least(self, k: int) -> FloatArray:
        """Of each query, the score that the true top k have at least."""
        if k not in self._least:
            assert isinstance(self._scorer, KnownScores)
            self._least[k] = self._scorer.least(self.queries, k)
        return self._least[k]

    def quality(self, way: Way) -> FloatArray:
        """Of each query, what the judges think of the order; NaN where nobody judged."""
        if way not in self._qualities:
            self._qualities[way] = judged_quality(self.hits(way), self.qrels, measures=[self.measure])[self.measure]
        return self._qualities[way]

    def hits(self, way: Way) -> list[Hits]:
        """The hits of each query, in the order of the way."""
        scored, stage = self.scored(way), self.stages.get(way.first)
        if stage is None or not way.fuse:
            return scored
        rankings = stage.search(self.queries, min(self.n_items, LISTED))
        return [self._ordered(hits, ranking, way) for hits, ranking in zip(scored, rankings, strict=True)]

    def _ordered(self, hits: Hits, ranking: Ranking, way: Way) -> Hits:
        listed, listed_scores = listed_by(ranking, allowed=np.broadcast_to(np.True_, self.n_items))
        positions, exact = all_scored(hits)
        items = self._index.items
        answer = Answer(
            hits.query,
            self.k,
            positions,
            exact,
            np.empty(0, dtype=np.intp),
            listed,
            listed_scores,
            items_at=items.at,
            keys_of=lambda where: items.keys[where],
            trace=hits.trace,
            n_left=0,
            goes_on=False,
        )
        return Top()(Fuse(way.fuse)(answer)).hits()

    def _method(self, way: Way, stage: Placed | None, to_the_end: bool) -> Method:
        if isinstance(way.method, str):
            return method_named(way.method, **({"seed": self._seed} if "seed" in options_of(way.method) else {}))
        assert self._model is not None
        settings, make = way.method, AdaCUR
        if to_the_end:
            settings, make = replace(settings, rounds=ROUNDS, first_batch=FIRST_BATCH), _ToTheEnd
        slopes = None if stage is None else self._slopes(stage)
        return method_of(settings, self._model, slopes=slopes, seed=self._seed, make=make)


class Asked(Placed):
    """A first stage that is asked once for each query."""

    def __init__(self, stage: Placed) -> None:
        super().__init__(stage.source, stage.items, name=stage.name)
        self._asked = stage
        self._known: dict[Query, tuple[int, Ranking, list[IntArray]]] = {}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """At most k items per query."""
        return self.search_parts(queries, k)[0]

    def search_parts(self, queries: Sequence[Query | str], k: int) -> tuple[list[Ranking], list[list[IntArray]]]:
        """At most k items per query, and per query the positions that each of its stages answered with."""
        asked = as_queries(queries)
        if new := [query for query in asked if query not in self._known or self._known[query][0] < k]:
            answers = zip(new, *self._asked.search_parts(new, k), strict=True)
            self._known |= {query: (k, ranking, lists) for query, ranking, lists in answers}
        known = [self._known[query] for query in asked]
        rankings = [Ranking(positions[:k], scores[:k]) for _, (positions, scores), _ in known]
        return rankings, [lists for _, _, lists in known]


def searched(index: AnchorIndex, queries: Sequence[Query], k: int, **options: Unpack[SearchOptions]) -> list[Hits]:
    """The hits of each query as if it were new: one with the text of an anchor query is that one, and is looked up."""
    anchors = {query.text: query for query in index.anchor_queries}
    known = dict.fromkeys(anchors[query.text] for query in queries if query.text in anchors)
    new = {query.text: query for query in queries if query.text not in anchors}
    found = replay(index, list(known), k, **options) if known else []
    found += index.search(list(new.values()), k, **options) if new else []
    by_text = {hits.query.text: hits for hits in found}
    return [replace(by_text[query.text], query=query) for query in queries]


def replay(index: AnchorIndex, queries: Sequence[Query], k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]:
    """Search for anchor queries of an index, each as if it were new; no scorer is called.

    `options` are those of `AnchorIndex.search`, but for `fuse`: recall is that of the scorer's own top k. Where items
    are passages, k counts these.
    """
    started = time.monotonic()
    check_anchors(index, "Replaying")
    check_exact(index, queries)
    known = KnownScores.of(index.anchors)
    plan = plan_search(index, k, **options | {"fuse": 0.0}, scorer=known)
    # An index knows the true best items, and not documents.
    plan = replace(plan, finish=tuple(step for step in plan.finish if not isinstance(step, Documents)))
    return [exact_scores(hits, known) for hits in search(leaving_out(plan, known), queries, k, started=started)]


def leaving_out(plan: Plan, known: KnownScores) -> Plan:
    """The plan for anchor queries, each as if it were new."""
    if plan.model is None:
        return plan
    return replace(plan, model=replace(plan.model, approximator=_LeavingOut(plan.model.approximator, known)))


def all_scored(hits: Hits) -> tuple[IntArray, FloatArray]:
    """All that a search has scored: positions, and exact scores."""
    rounds = hits.trace.rounds
    return np.concatenate([one.positions for one in rounds]), np.concatenate([one.exact for one in rounds])


def method_of(
    settings: GaussianSettings,
    model: GaussianModel,
    *,
    slopes: RankSlopes | None = None,
    seed: int = 0,
    make: type[AdaCUR] = AdaCUR,
) -> AdaCUR:
    """The method that searches with these settings of "gaussian" and this model."""
    return make(
        rounds=settings.rounds or USUAL_ROUNDS,
        seed=seed,
        approximator=model.with_slopes(slopes),
        first_batch=settings.first_batch,
    )


class _ToTheEnd(AdaCUR):
    """Expects a recall after each round, and never ends for it."""

    def plan(self, base: Plan, source: Any, *, k: int) -> Plan:
        return replace(super().plan(base, source, k=k), stop=Stop(NEVER))


class _LeavingOut:
    """An approximator that leaves each anchor query out of its own predictions."""

    def __init__(self, approximator: Approximator, known: KnownScores) -> None:
        self._approximator: Any = approximator
        self._known = known

    @property
    def slopes(self) -> RankSlopes | None:
        """What it makes of ranks."""
        return getattr(self._approximator, "slopes", None)

    def begin(self, anchors: AnchorScores, queries: Sequence[Query], **ranks: Any) -> Approximation:
        """A fresh approximation for these queries."""
        begin = self._approximator.begin
        if not anchors.anchor_queries:
            approximation: Approximation = begin(anchors, queries, **ranks)
            return approximation
        if not hasattr(self._approximator, "replay"):
            raise InputError(f"{self._approximator!r} cannot leave a query out, so anchor queries cannot be replayed.")
        left_out: Approximation = self._approximator.replay(anchors, self._known.columns(queries), **ranks)
        return left_out

    def __repr__(self) -> str:
        return repr(self._approximator)


def _plain(way: Way) -> Way:
    return way._replace(fuse=0.0)
