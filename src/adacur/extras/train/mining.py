"""Mining: a search with the model as it is finds the items that it wrongly likes, and some that it likes rightly."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import is_whole
from adacur.data import split_queries
from adacur.errors import InputError
from adacur.extras.train.judged_queries import JudgedQueries
from adacur.first_stages import AnyStage
from adacur.model import GaussianModel
from adacur.protocols import Items, Scorer
from adacur.records import ItemList, Query
from adacur.scorers.calling import score_grid
from adacur.scores import score_pairs
from adacur.search import AnchorIndex, Gaussian
from adacur.search.plan import Plan
from adacur.search.snapshot import Snapshot
from adacur.seeds import stream_key
from adacur.store import AnchorTable

_log = logging.getLogger(__name__)
_LEAST_CALLS = 40_000
_LIST = "set_aside.jsonl"
_CALLS_PER_SEARCH = 100
# Of these the best are kept; the others are what the search only looked at.
_KEPT = 50
_MOST_ANCHORS, _FEWEST_ANCHORS = 200, 50
_FEWEST_ITEMS = 2 * _CALLS_PER_SEARCH
# Of mondo's top 50 a search of 100 calls finds .66 in two rounds, .69 in three and .72 in five, at 50 anchor queries.
_ROUNDS = 3
_ITEMS_AT_ONCE = 4096
_QUERIES_AT_ONCE = 1024
# A person reads a few dozen.
_LISTED = 50


@dataclass(frozen=True, slots=True)
class MiningBudget:
    """What one mining scores: the index, anchors × items, and then the searches."""

    anchors: int
    items: int
    queries: int
    calls_per_search: int

    @property
    def calls(self) -> int:
        return self.anchors * self.items + self.queries * self.calls_per_search

    def describe(self, *, n_items: int, n_queries: int) -> str:
        """The cost in words, and what is sampled."""
        sampled = [f"a sample of the {n_items:,} items"] if self.items < n_items else []
        sampled += [f"a sample of the {n_queries:,} queries"] if self.queries < n_queries else []
        return (
            f"{self.anchors:,} anchor queries × {self.items:,} items and {self.queries:,} searches of "
            f"{self.calls_per_search} calls, {self.calls:,} pairs{', of ' + ' and '.join(sampled) if sampled else ''}"
        )


def plan_mining(n_queries: int, n_items: int, *, calls: int | None, usual: int = 0) -> MiningBudget:
    """A mining of at most `calls` scorer calls: half for searches, what they leave for the index.

    Where that is too little, some of the queries are searched, and the index holds a sample of the items. Without a
    number the `usual` one is taken, or more where it would be too little to be of use.
    """
    if calls is None:
        calls = max(usual, _LEAST_CALLS)
    elif not is_whole(calls):
        raise InputError(f"mining_calls must be a whole number; got {calls!r}.")
    per_search = min(_CALLS_PER_SEARCH, n_items)
    queries = min(n_queries, calls // 2 // per_search)
    left = calls - queries * per_search
    fewest, most = min(_FEWEST_ANCHORS, n_queries), min(_MOST_ANCHORS, n_queries)
    anchors = min(most, max(fewest, left // n_items))
    items = min(n_items, left // anchors)
    if queries < 1 or items < min(n_items, _FEWEST_ITEMS):
        need = 2 * max(per_search, fewest * min(n_items, _FEWEST_ITEMS))
        raise InputError(
            f"Mining needs an index of at least {fewest} anchor queries × {min(n_items, _FEWEST_ITEMS)} items, so "
            f"mining_calls must be at least {need:,}; got {calls:,}. Raise it, or train in one turn: turns=1."
        )
    return MiningBudget(anchors, items, queries, per_search)


@dataclass(frozen=True, slots=True)
class SetAside:
    """An item that may be relevant although nobody judged it so, and why it is thought to be.

    `looks` says how often it was seen to outscore the best relevant item, whose score is `liked`.
    """

    place: int
    position: int
    liked: float
    score: float
    because: str
    looks: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class Mined:
    """What a mining found: per query positions, best first, and their scores (none where a query was not searched).

    `liked` is the score of the query's best relevant item; `margin` is what must lie between two scores to count.
    """

    positions: list[IntArray]
    scores: list[FloatArray]
    liked: FloatArray
    margin: float

    def outscoring(self) -> list[IntArray]:
        """Per query, the items that outscore every relevant one by the margin."""
        return [
            positions[scores > liked + self.margin]
            for positions, scores, liked in zip(self.positions, self.scores, self.liked, strict=True)
        ]

    def all_outscoring(self, because: str) -> list[SetAside]:
        """The same as one list, with scores."""
        return [
            SetAside(place, int(position), float(self.liked[place]), float(score), because)
            for place, (positions, scores) in enumerate(zip(self.positions, self.scores, strict=True))
            for position, score in zip(positions, scores, strict=True)
            if score > self.liked[place] + self.margin
        ]

    def save(self, file: Path) -> None:
        """Write it, whole or not at all."""
        sizes = [len(row) for row in self.positions]
        partial = file.with_name(file.name + ".partial")
        with partial.open("wb") as stream:
            np.savez(
                stream,
                sizes=sizes,
                positions=np.concatenate(self.positions).astype(np.int32),
                scores=np.concatenate(self.scores),
                liked=self.liked,
                margin=self.margin,
            )
        os.replace(partial, file)

    @classmethod
    def load(cls, file: Path) -> Mined:
        """Read what `save` wrote."""
        with np.load(file) as stored:
            cuts = np.cumsum(stored["sizes"])[:-1]
            positions, scores = stored["positions"].astype(np.intp), stored["scores"]
            return cls(
                np.split(positions, cuts), np.split(scores, cuts), liked=stored["liked"], margin=float(stored["margin"])
            )


def mine(
    scorer: Scorer,
    judged: JudgedQueries,
    items: Items,
    *,
    first: AnyStage | None,
    plan: MiningBudget,
    seed: int,
    progress: bool = False,
) -> Mined:
    """What searches with this scorer like best for the queries, without what is relevant to them."""
    best = found_by_search(scorer, judged.queries, items, first=first, plan=plan, seed=seed, progress=progress)
    positions: list[IntArray] = []
    scores: list[FloatArray] = []
    for (of_query, its_scores), relevant in zip(best, judged.relevant, strict=True):
        kept = np.flatnonzero(~np.isin(of_query, relevant))[:_KEPT]
        positions.append(of_query[kept])
        scores.append(its_scores[kept])
    liked = liked_scores(scorer, judged, items, [place for place, row in enumerate(positions) if len(row)])
    return Mined(positions, scores, liked, margin_of(scores))


def found_by_search(
    scorer: Scorer,
    queries: Sequence[Query],
    items: Items,
    *,
    first: AnyStage | None,
    plan: MiningBudget,
    seed: int,
    progress: bool = False,
) -> list[tuple[IntArray, FloatArray]]:
    """Per query, positions of all that a search scored, best first, and their scores; none where none was made."""
    index, at = _index(scorer, queries, items, first=first, plan=plan, seed=seed, progress=progress)
    searched = {query.id for query in _drawn(queries, plan.queries, seed=seed)}
    places = [place for place, query in enumerate(queries) if query.id in searched]
    best: list[tuple[IntArray, FloatArray]] = [(np.empty(0, np.intp), np.empty(0, np.float32)) for _ in queries]
    calls = plan.calls_per_search
    for some in _parts(places, _QUERIES_AT_ONCE, "mine: search", " queries", progress):
        asked = [queries[place] for place in some]
        answers = index.search(asked, calls, budget=calls, method=Together(rounds=_ROUNDS), fuse=0)
        for place, hits in zip(some, answers, strict=True):
            best[place] = at[index.items.positions(hits.ids)], np.asarray(hits.scores, np.float32)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Together(Gaussian):
    """Searches that predict for all queries in one product, which is many times faster and rounds by their number."""

    def plan(self, base: Plan, source: Snapshot, *, k: int) -> Plan:
        plan = Gaussian.plan(self, base, source, k=k)
        assert plan.model is not None
        assert isinstance(plan.model.approximator, GaussianModel)
        return replace(plan, model=replace(plan.model, approximator=plan.model.approximator.in_one_product()))


def _index(
    scorer: Scorer,
    queries: Sequence[Query],
    items: Items,
    *,
    first: AnyStage | None,
    plan: MiningBudget,
    seed: int,
    progress: bool,
) -> tuple[AnchorIndex, IntArray]:
    """An index in memory of all items or of a sample, and where its items are among all."""
    anchors = _drawn(queries, plan.anchors, seed=seed)
    at = np.arange(len(items))
    if plan.items < len(items):
        at = np.sort(np.random.default_rng(stream_key(seed, "mined items")).choice(len(items), plan.items, False))
        # It speaks of all items, and what it finds is shown as near misses anyway.
        first = None
    held = items if plan.items == len(items) else ItemList(items.at(at.tolist()))
    scores = np.empty((plan.items, len(anchors)), np.float32)
    for some in _parts(list(range(plan.items)), _ITEMS_AT_ONCE, "mine: index", " items", progress):
        scores[some[0] : some[-1] + 1] = score_grid(scorer, anchors, held.at(some)).T
    stages = {} if first is None else {getattr(first, "name", "first"): first}
    table = AnchorTable(held, tuple(anchors), scores)
    return AnchorIndex(table, scorer=scorer, first=stages, card=scorer.card), at


def _drawn(queries: Sequence[Query], n: int, *, seed: int) -> Sequence[Query]:
    """At most n queries at random; the same text only once among them, unless all are taken."""
    if n >= len(queries):
        return queries
    different = len({" ".join(query.text.casefold().split()) for query in queries})
    return split_queries(queries, anchors=min(n, different), seed=seed).anchors


def _parts(of: list[int], size: int, name: str, unit: str, progress: bool) -> Iterator[list[int]]:
    from tqdm import tqdm

    with tqdm(total=len(of), desc=name, unit=unit, disable=not progress) as bar:
        for start in range(0, len(of), size):
            yield of[start : start + size]
            bar.update(len(of[start : start + size]))


def liked_scores(scorer: Scorer, judged: JudgedQueries, items: Items, places: Sequence[int]) -> FloatArray:
    """The score of each query's best relevant item; NaN of queries at other places, which nothing outscores."""
    pairs = [(judged.queries[place], item) for place in places for item in items.at(judged.relevant[place].tolist())]
    scores = score_pairs(scorer, pairs)
    liked = np.full(len(judged), np.nan, np.float32)
    start = 0
    for place in places:
        end = start + len(judged.relevant[place])
        liked[place] = scores[start:end].max()
        start = end
    return liked


def margin_of(scores: Sequence[FloatArray]) -> float:
    """One standard deviation of scores about their query's mean: every scorer has its own scale."""
    spread = [row - row.mean() for row in scores if len(row)]
    return float(np.concatenate(spread).std()) if spread else 0.0


def twice(earlier: Mined, now: Mined) -> list[SetAside]:
    """Items that outscored every relevant one by the margin in two minings, one after the other."""
    before = earlier.outscoring()
    found = now.all_outscoring("in two minings")
    return [replace(one, looks=2) for one in found if one.position in before[one.place]]


def likeliest(found: Sequence[SetAside]) -> list[SetAside]:
    """One item of each query: that of the most looks and, of these, the highest score; in this order.

    Where many items outscore the relevant one, the model is wrong and not the judgements.
    """
    best: dict[int, SetAside] = {}
    for one in sorted(found, key=lambda one: (-one.looks, one.liked - one.score)):
        best.setdefault(one.place, one)
    return list(best.values())


def list_set_aside(found: Sequence[SetAside], judged: JudgedQueries, items: Items, folder: Path) -> None:
    """List items for a person to judge, as texts: one item of a query, and at most 50 in all; no file for none."""
    file = folder / _LIST
    file.unlink(missing_ok=True)
    listed = likeliest(found)[:_LISTED]
    if not listed:
        return
    with file.open("w", encoding="utf-8") as stream:
        for one in listed:
            query = judged.queries[one.place]
            relevant, item = items.at([int(judged.relevant[one.place][0]), one.position])
            row = {
                "query": query.id,
                "query_text": query.text,
                "positive": relevant.id,
                "positive_text": relevant.text,
                "positive_score": round(one.liked, 4),
                "item": item.id,
                "item_text": item.text,
                "score": round(one.score, 4),
                "because": one.because,
            }
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
    _log.warning(
        "%s items outscore the relevant item of their query by a margin: missing judgements, or mistakes. The %d "
        "most likely to be judgements, one of a query, are in %s.",
        f"{len(found):,}",
        len(listed),
        file,
    )


def still_preferred(scorer: Scorer, judged: JudgedQueries, items: Items, mined: Mined) -> Mined:
    """The items of a mining that outscored the relevant ones, scored again: those that still do outscore them."""
    rows = mined.outscoring()
    places = [place for place, row in enumerate(rows) if len(row)]
    if not places:
        return replace(mined, positions=rows, scores=[np.empty(0, np.float32) for _ in rows])
    pairs = [(judged.queries[place], item) for place in places for item in items.at(rows[place].tolist())]
    again = np.split(score_pairs(scorer, pairs), np.cumsum([len(rows[place]) for place in places])[:-1])
    scores = [np.empty(0, np.float32) for _ in rows]
    for place, of_query in zip(places, again, strict=True):
        scores[place] = of_query
    return Mined(rows, scores, liked_scores(scorer, judged, items, places), mined.margin)
