"""When a `find` has done enough, calibrated on anchor queries, each searched for as if it were new.

Anchor queries are scored against every item, so what a search for one of them misses is known. Of all limits at which
searches may stop, the cheapest is taken whose mean miss lies below what was asked for, with the confidence that was
asked for. Limits are tested one after another, from the longest search to shorter ones, until a test fails (learn then
test, in a fixed sequence): the first error takes one wrong test, so choosing costs no confidence. Each test is a bet
against the mean (Waudby-Smith and Ramdas, 2024); wherever tried, its bounds lay below those of Hoeffding and Bentkus.

The mean is over queries that have items above the line. Others miss nothing: counted in they would dilute a promise.
"""

from __future__ import annotations

import functools
import math
import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from adacur.arrays import BoolArray, FloatArray
from adacur.errors import InputError
from adacur.model.features import unit_vectors
from adacur.records import Query
from adacur.replay.held_out import exact_anchors
from adacur.replay.known_scores import KnownScores
from adacur.replay.searches import leaving_out
from adacur.search import AnchorIndex
from adacur.search.filters import allowed_by
from adacur.search.finding import NEVER, expected_above, plan_find
from adacur.search.methods import NO_SCORER
from adacur.search.places import InMemory
from adacur.search.plan import Plan
from adacur.search.rounds import search
from adacur.search.spending import Limits
from adacur.search.stopping import Standing
from adacur.seeds import item_keys, stream_key, uniform

# More anchor queries than these are not replayed: the bound hardly tightens, and replays take their time.
_MOST_QUERIES = 300
# From searches that hardly stop to those that hardly begin.
LIMITS = (NEVER, *np.geomspace(1e-6, 0.1, 80).tolist())
_MOST_NEEDED = 1_000_000
# Lines whose courses are kept for each version of an index.
_MOST_KEPT = 50
# So few of the anchor queries are as far from all others as a query that is said to be unlike them.
_FARTHEST = 0.01
# One at a time: each keeps a processor busy for some time.
_replaying = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Courses:
    """Replayed searches that were not stopped, a row per anchor query with items above the line, a column per round.

    - `calls`, `misses`: after the round, the calls and the share of items above the line that were not found;
    - `expected`, `worth`: the recall that was expected, and what the next call was expected to add to it;
    - `most`: the largest number of items above the line;
    - `nearest`: how like its nearest neighbour an anchor query is at least, but for few; None without embeddings.
    """

    calls: FloatArray
    misses: FloatArray
    expected: FloatArray
    worth: FloatArray
    most: int
    nearest: float | None

    def at(self, limit: float) -> tuple[FloatArray, FloatArray]:
        """The misses and the calls of searches that stop where the next call is worth no more than this."""
        return self._ended(self.worth <= limit)

    def expecting(self, recall: float) -> tuple[FloatArray, FloatArray]:
        """Those of searches that stop where this recall is expected."""
        return self._ended(self.expected >= recall)

    def _ended(self, stops: BoolArray) -> tuple[FloatArray, FloatArray]:
        stops[:, -1] = True
        rows, ends = np.arange(len(stops)), np.argmax(stops, axis=1)
        return self.misses[rows, ends], self.calls[rows, ends]


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """As `adacur.search.finding.Promise`; `calls` are the mean calls of the replayed searches."""

    limit: float | None = None
    recall: float = 0.0
    n: int = 0
    reasons: tuple[str, ...] = ()
    calls: float = 0.0
    _most: int = 0
    _is_far: Any = None

    def unlike(self, query: Query, found: int) -> str | None:
        """As for any promise."""
        if found > self._most:
            return (
                f"This query is unlike the anchor queries: it has {found:,} items above the line, and none of them has "
                f"more than {self._most:,}."
            )
        if self._is_far is not None and self._is_far(query):
            return "This query is unlike the anchor queries: no other is as far from all of them."
        return None


def calibrated(
    index: AnchorIndex, plan: Plan, *, above: float, recall: float, confidence: float, filter_: Any = None
) -> Calibration:
    """The cheapest limit at which searches of this plan miss at most 1 − recall on average, with this confidence.

    Where none can be promised, the strongest promise is made of one way to search, which does not depend on what the
    replays found: with too few anchor queries as their model says, else with the whole budget.
    """
    if (why_not := _why_not(index, plan)) is not None:
        return Calibration(reasons=(why_not,))
    courses, doubt = _known_courses(index, plan, above, filter_), 1 - confidence
    n = len(courses.misses)
    if not n:
        none = f"No anchor query has an item that scores {above:g} or higher, so nothing tells when all are found."
        return Calibration(reasons=(none,))
    limit: float | None = None
    reasons: tuple[str, ...] = ()
    if n < (enough := needed(recall, confidence)):
        misses, calls = courses.expecting(recall)
        reasons = (
            f"To promise {100 * recall:.6g}% takes at least {enough:,} anchor queries with items above the line, and "
            f"this index has {n:,}. Add some, or give audit=… (--audit).",
        )
    else:
        passing = list(takewhile(lambda one: is_below(courses.at(one)[0], 1 - recall, doubt=doubt), LIMITS))
        limit = passing[-1] if passing else NEVER
        misses, calls = courses.at(limit)
        if not passing:
            spent, mean = int(calls.max()), 1 - float(misses.mean())
            reasons = (
                f"{n:,} anchor queries cannot promise {100 * recall:.6g}% within {spent:,} calls, which find "
                f"{mean:.1%} of their items. Raise the budget, add anchor queries, or give audit=… (--audit).",
            )
    promised = strongest(misses, doubt=doubt) if reasons else recall
    return Calibration(
        limit,
        promised,
        n if promised else 0,
        reasons,
        float(calls.mean()),
        courses.most,
        _distance_test(index, plan, courses),
    )


def find_costs(
    index: AnchorIndex,
    *,
    above: float,
    recalls: Sequence[float] = (0.8, 0.9, 0.95),
    budget: int | None = None,
    confidence: float = 0.9,
) -> dict[float, Calibration]:
    """What each recall of all items above a line costs here, by replayed anchor queries; no scorer is called.

    `calls` of a calibration are the mean of searches that promise the recall; `reasons` say why one cannot be promised.
    """
    costs: dict[float, Calibration] = {}
    for recall in recalls:
        plan = plan_find(index, above=above, recall=recall, budget=budget, confidence=confidence, scorer=NO_SCORER)
        if plan.model is None:
            raise InputError("This index has neither anchor queries nor dense vectors, so no search predicts anything.")
        costs[recall] = calibrated(index, plan, above=above, recall=recall, confidence=confidence)
    return costs


def is_below(misses: FloatArray, share: float, *, doubt: float) -> bool:
    """Whether the mean of what these are drawn from lies below a share, with at most this doubt.

    A fortune grows by a factor of 1 + bet · (share − miss) with each miss. Were the mean at least `share`, it would
    ever reach 1 / doubt with a chance of at most `doubt` (Ville). Bets depend on earlier misses alone.
    """
    if not 0 < share < 1:
        return share >= 1
    n = len(misses)
    before = np.arange(n)
    sums = np.cumsum(misses)
    means = (0.5 + sums) / (2 + before)
    squares = np.cumsum((misses - means) ** 2)
    variances = (0.25 + np.concatenate([[0.0], squares[:-1]])) / (1 + before)
    bets = np.minimum(np.sqrt(2 * math.log(1 / doubt) / (n * variances)), 0.99 / (1 - share))
    fortune = np.cumsum(np.log1p(bets * (share - misses)))
    return bool(fortune.max(initial=-math.inf) >= math.log(1 / doubt))


def strongest(misses: FloatArray, *, doubt: float) -> float:
    """The largest recall, in whole percent, that these misses can promise."""
    return next((share / 100 for share in range(99, 0, -1) if is_below(misses, 1 - share / 100, doubt=doubt)), 0.0)


@functools.cache
def needed(recall: float, confidence: float) -> int:
    """How many anchor queries a promise takes if they miss nothing; at most a million."""
    return 1 + bisect_left(
        range(1, _MOST_NEEDED), True, key=lambda n: is_below(np.zeros(n), 1 - recall, doubt=1 - confidence)
    )


def _why_not(index: AnchorIndex, plan: Plan) -> str | None:
    """Why anchor queries cannot be searched for; None if they can."""
    if not index.snapshot.in_memory:
        return "In a vector engine there are no anchor queries to calibrate a promise on."
    exact = np.flatnonzero(exact_anchors(index))
    if len(exact) < 2:
        return (
            f"A promise is calibrated on anchor queries, and this index has {len(exact)} that were scored against "
            "every item. Add some, or give audit=… (--audit), which checks each query by random calls."
        )
    try:
        if plan.first is not None:
            first: Any = plan.first
            first.search_parts([index.anchor_queries[int(exact[0])]], 1)
    except Exception as error:
        # It may still answer the queries of users.
        return f"The first stage cannot be asked about anchor queries ({error}), so no promise can be calibrated."
    return None


def _known_courses(index: AnchorIndex, plan: Plan, above: float, filter_: Any) -> Courses:
    """The courses of a plan's searches, replayed once for each version of an index.

    They are kept in memory alone: what a folder says of itself may come from a stranger, and edits change it.
    """
    if filter_ is not None and not isinstance(filter_, Mapping):
        # A function says nothing of what it lets through.
        return _courses(index, plan, above)
    settings = {name: value for name, value in plan.settings().items() if name not in ("recall", "confidence")}
    key = f"{above!r} {plan.purse.audit} {filter_!r} {settings!r}"
    known: dict[str, Courses] = index.snapshot.kept("courses", dict)
    with _replaying:
        if key not in known:
            known[key] = _courses(index, plan, above)
            # Clients of a server may ask for any line.
            for oldest in list(known)[:-_MOST_KEPT]:
                del known[oldest]
        return known[key]


def _courses(index: AnchorIndex, plan: Plan, above: float) -> Courses:
    anchors, place = index.anchors, plan.candidates
    assert isinstance(place, InMemory)
    every = np.flatnonzero(exact_anchors(index))
    ids = [index.anchor_queries[at].id for at in every.tolist()]
    # In an order that says nothing of the queries, since a bet on one depends on those before it.
    draws = uniform(stream_key(plan.seed, "certificate"), item_keys(ids))
    columns = every[np.argsort(draws, kind="stable")[:_MOST_QUERIES]]
    allowed = np.ones(len(anchors.items), np.bool_) if place.filter is None else allowed_by(place.filter, anchors.items)
    totals = np.array([_above(anchors.matrix, column, above, allowed) for column in columns.tolist()])
    columns, totals = columns[totals > 0], totals[totals > 0]
    hits = search(_unstopped(plan, KnownScores.of(anchors), above), [index.anchor_queries[at] for at in columns], 1)
    n_rounds = max((len(one.trace.rounds) for one in hits), default=0)
    calls, misses, expected, worth = (np.zeros((len(hits), n_rounds)) for _ in range(4))
    for row, (one, total) in enumerate(zip(hits, totals.tolist(), strict=True)):
        rounds = one.trace.rounds
        calls[row, : len(rounds)] = np.cumsum([len(round_.exact) for round_ in rounds])
        found = np.cumsum([np.count_nonzero(round_.exact >= above) for round_ in rounds])
        misses[row, : len(rounds)] = 1 - found / total
        noted: list[Any] = [round_.expected_recall for round_ in rounds[:-1]]
        if noted:
            expected[row, : len(noted)], worth[row, : len(noted)] = np.array(noted).T
        # Its last round ends a search, however many others have.
        expected[row, len(noted) :], worth[row, len(noted) :] = math.inf, -math.inf
    vectors = _anchor_vectors(index, plan)
    nearest = None
    if vectors is not None and len(vectors) > 1:
        likeness = vectors @ vectors.T
        np.fill_diagonal(likeness, -np.inf)
        nearest = float(np.quantile(likeness.max(axis=1), _FARTHEST, method="lower"))
    return Courses(calls, misses, expected, worth, int(totals.max(initial=0)), nearest)


def _above(matrix: Any, column: int, above: float, allowed: BoolArray) -> int:
    return int(np.count_nonzero((matrix[:, column] >= above) & allowed))


def _unstopped(plan: Plan, known: KnownScores, above: float) -> Plan:
    """The plan for anchor queries, with what was expected noted in each round."""
    purse = Limits(plan.purse.calls - plan.purse.audit)
    return replace(leaving_out(plan, known), scorer=known, purse=purse, stop=_Noting(above), finish=())


@dataclass(frozen=True, slots=True)
class _Noting:
    """Never ends a search, and notes both expectations in the place of one."""

    above: float

    def after(self, now: Standing) -> tuple[Any, bool]:
        return expected_above(now, self.above), False

    def settings(self) -> Mapping[str, Any]:
        return {}


def _anchor_vectors(index: AnchorIndex, plan: Plan) -> FloatArray | None:
    model: Any = plan.model.approximator if plan.model else None
    if getattr(model, "embed_queries", None) is None:
        return None
    vectors: FloatArray | None = model.features_of(index.anchors).anchor_vectors
    return vectors


def _distance_test(index: AnchorIndex, plan: Plan, courses: Courses) -> Any:
    """Whether a query is farther from all anchor queries than nearly all of these are from the others."""
    vectors = _anchor_vectors(index, plan)
    if vectors is None or courses.nearest is None:
        return None
    model: Any = plan.model.approximator if plan.model else None
    nearest = courses.nearest

    def is_far(query: Query) -> bool:
        own = unit_vectors(model.embed_queries, [query])
        return bool(own is not None and float((own @ vectors.T).max()) < nearest - 1e-6)

    return is_far
