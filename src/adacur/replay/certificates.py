"""When a `find` has done enough, calibrated on anchor queries, each searched for as if it were new.

Anchor queries are scored against every item, so what a search for one of them misses is known. Of all limits at which
searches may stop, the cheapest is taken whose mean miss lies below what was asked for, with the confidence that was
asked for. Limits are tested one after another, from the longest search to shorter ones, until a test fails (learn then
test, in a fixed sequence): the first error takes one wrong test, so choosing costs no confidence.

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
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm

from adacur.arrays import BoolArray, FloatArray, IntArray
from adacur.errors import InputError
from adacur.model.features import unit_vectors
from adacur.records import Query
from adacur.replay.searches import KnownScores, exact_anchors, leaving_out
from adacur.results import Hits
from adacur.search import AnchorIndex
from adacur.search.filters import allowed_by
from adacur.search.finding import NEVER, LineStop, Promise, expected_above, in_all, plan_find
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
# Where in the limits replays end, one after another until a promise can be kept. Each takes about twice as long as the
# one before, and searches for all anchor queries to the end of their budget a hundred times as long.
_ENDS = (64, 57, 50, 43, 36, 22, 0)
# So many queries are replayed at once, which is quicker than one by one.
_AT_ONCE = 25
# The variance of misses that bets are made for, in units of the share. Anchor queries of three collections have .1 to
# .5; bets for the upper end promise most for the fewest calls, as a query of which all is missed ruins large ones.
_USUAL_VARIANCE = 0.5
_MOST_NEEDED = 1_000_000
# Replays that are kept for each version of an index.
_MOST_KEPT = 50
# So few of the anchor queries are as far from all others as a query that is said to be unlike them.
_FARTHEST = 0.01
# One at a time: each keeps a processor busy for some time.
_replaying = threading.Lock()


class Ended(NamedTuple):
    """What was missed, called and expected at the ends of searches."""

    misses: FloatArray
    calls: FloatArray
    expected: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Courses:
    """Replayed searches, a row per anchor query with items above the line, a column per round.

    - `calls`, `misses`: after the round, the calls and the share of items above the line that were not found;
    - `expected`, `worth`: the recall that was expected, and what the next call was expected to add to it.

    Searches that end earlier stay as they are.
    """

    calls: FloatArray
    misses: FloatArray
    expected: FloatArray
    worth: FloatArray

    @classmethod
    def of(cls, hits: Sequence[Hits], totals: IntArray, *, above: float) -> Courses:
        """Those of searches that noted both expectations, for queries with so many items above the line."""
        n_rounds = max(len(one.trace.rounds) for one in hits)
        rows = []
        for one, total in zip(hits, totals.tolist(), strict=True):
            rounds = one.trace.rounds
            calls = np.cumsum([len(round_.exact) for round_ in rounds])
            found = np.cumsum([np.count_nonzero(round_.exact >= above) for round_ in rounds])
            # The last calls of a budget are followed by no prediction.
            noted: list[Any] = [round_.expected_recall for round_ in rounds if round_.expected_recall is not None]
            noted += [(noted[-1][0] if noted else 0.0, -math.inf)] * (len(rounds) - len(noted))
            row = np.stack([calls, 1 - found / total, *np.array(noted).T])
            rows.append(np.pad(row, ((0, 0), (0, n_rounds - len(rounds))), mode="edge"))
        return cls(*np.stack(rows, axis=1))

    def at(self, limit: float) -> Ended:
        """Searches that stop where the next call is worth no more than this."""
        return self._ended(self.worth <= limit)

    def expecting(self, recall: float) -> Ended:
        """Those that stop where this recall is expected."""
        return self._ended(self.expected >= recall)

    def passing(self, limits: Sequence[float], share: float, *, doubt: float) -> list[float]:
        """The limits, in order, up to the first at which the mean miss is not certain to lie below this share."""
        return list(takewhile(lambda limit: is_below(self.at(limit).misses, share, doubt=doubt), limits))

    def _ended(self, stops: BoolArray) -> Ended:
        ends = np.where(stops.any(axis=1), np.argmax(stops, axis=1), stops.shape[1] - 1)
        return Ended(*(values[np.arange(len(ends)), ends] for values in (self.misses, self.calls, self.expected)))


def calibrated(
    index: AnchorIndex, plan: Plan, *, above: float, recall: float, confidence: float, filter_: Any = None
) -> Promise:
    """The cheapest limit at which searches of this plan miss at most 1 − recall on average, with this confidence.

    Where none can be promised, the strongest promise is made of one way to search, which does not depend on what the
    replays found: with too few anchor queries as their model says, else with the whole budget.
    """
    if (why_not := _why_not(index, plan)) is not None:
        return Promise(reasons=(why_not,))
    replays, share, doubt = _Replays(index, plan, above, filter_), 1 - recall, 1 - confidence
    if not (n := len(replays.columns)):
        none = f"No anchor query has an item that scores {above:g} or higher, so nothing tells when all are found."
        return Promise(reasons=(none,))
    limit: float | None = None
    reasons: tuple[str, ...] = ()
    if n < (enough := needed(recall, confidence)):
        ended = replays.courses(LineStop(above, recall)).expecting(recall)
        reasons = (
            f"To promise {100 * recall:.6g}% takes at least {enough:,} anchor queries with items above the line, and "
            f"this index has {n:,}. Add some, or give audit=… (--audit).",
        )
    else:
        # Fewer misses never fail a test that more of them pass: what passes at one end passes before it, unreplayed.
        for end in _ENDS:
            courses = replays.courses(LineStop(above, 1.0, LIMITS[end]))
            passing = courses.passing(LIMITS[end:], share, doubt=doubt)
            if passing:
                break
        limit = passing[-1] if passing else NEVER
        ended = courses.at(limit)
        if not passing:
            spent, mean = int(ended.calls.max()), 1 - float(ended.misses.mean())
            reasons = (
                f"{n:,} anchor queries cannot promise {100 * recall:.6g}% within {spent:,} calls, which find "
                f"{mean:.1%} of their items. Raise the budget, add anchor queries, or give audit=… (--audit).",
            )
    promised = strongest(ended.misses, doubt=doubt) if reasons else recall
    most = np.maximum(replays.totals, in_all((1 - ended.misses) * replays.totals, ended.expected)).max()
    calls, is_far = float(ended.calls.mean()), _distance_test(index, plan)
    return Promise(limit, promised, n if promised else 0, reasons, calls, float(most), is_far)


def find_costs(
    index: AnchorIndex,
    *,
    above: float,
    recalls: Sequence[float] = (0.8, 0.9, 0.95),
    budget: int | None = None,
    confidence: float = 0.9,
) -> dict[float, Promise]:
    """What each recall of all items above a line costs here, by replayed anchor queries; no scorer is called.

    `calls` of a promise are the mean of searches that promise the recall; `reasons` say why one cannot be promised.
    """
    costs: dict[float, Promise] = {}
    for recall in recalls:
        plan = plan_find(index, above=above, recall=recall, budget=budget, confidence=confidence, scorer=NO_SCORER)
        if plan.model is None:
            raise InputError("This index has neither anchor queries nor dense vectors, so no search predicts anything.")
        costs[recall] = calibrated(index, plan, above=above, recall=recall, confidence=confidence)
    return costs


def is_below(misses: FloatArray, share: float, *, doubt: float) -> bool:
    """Whether the mean of what these are drawn from lies below a share, with at most this doubt.

    A fortune grows by a factor of 1 + bet · (share − miss) with each miss. Were the mean at least `share`, it would not
    grow on average, and end at 1 / doubt or more with a chance of at most `doubt` (Markov; Waudby-Smith and Ramdas,
    2024). The bet depends on no miss: so their order does not matter, and fewer of them never fail the test.

    A mean passes only if it lies about √(2 ln(1/doubt)) standard errors below the share, 2.1 for a doubt of .1. So the
    mean over about as many new queries, which has an error of its own, lies below it too. A fortune that has to reach
    1 / doubt only once on its way allows 1.3: after up to 15 % of random calibrations that mean was above the share.
    """
    if not 0 < share < 1:
        return share >= 1
    wanted = math.log(1 / doubt)
    bet = min(math.sqrt(2 * wanted / (len(misses) * _USUAL_VARIANCE * share)), 0.99 / (1 - share))
    return float(np.log1p(bet * (share - misses)).sum()) >= wanted


def strongest(misses: FloatArray, *, doubt: float) -> float:
    """The largest recall, in whole percent, that these misses can promise; tested from the weakest on."""
    recalls = (percent / 100 for percent in range(1, 100))
    return max(takewhile(lambda recall: is_below(misses, 1 - recall, doubt=doubt), recalls), default=0.0)


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


class _Replays:
    """The anchor queries that have items above a line, `totals` of them, and what searches for these find."""

    def __init__(self, index: AnchorIndex, plan: Plan, above: float, filter_: Any) -> None:
        self._index, self._plan, self._above = index, plan, above
        # A function says nothing of what it lets through.
        self._is_kept = filter_ is None or isinstance(filter_, Mapping)
        settings = {name: value for name, value in plan.settings().items() if name not in ("recall", "confidence")}
        self._key = f"{above!r} {plan.purse.audit} {filter_!r} {settings!r}"
        anchors, place = index.anchors, plan.candidates
        assert isinstance(place, InMemory)
        allowed = slice(None) if place.filter is None else allowed_by(place.filter, anchors.items)
        columns = np.flatnonzero(exact_anchors(index))
        ids = (index.anchor_queries[at].id for at in columns.tolist())
        draws = uniform(stream_key(plan.seed, "certificate"), item_keys(ids))
        columns = columns[np.argsort(draws, kind="stable")[:_MOST_QUERIES]]
        totals = np.array([np.count_nonzero(anchors.matrix[:, at][allowed] >= above) for at in columns.tolist()])
        self.columns, self.totals = columns[totals > 0], totals[totals > 0]

    def courses(self, rule: LineStop) -> Courses:
        """The courses of searches that end by this rule, replayed once for each version of an index.

        They are kept in memory alone: what a folder says of itself may come from a stranger, and edits change it.
        """
        known: dict[str, Courses] = self._index.snapshot.kept("courses", dict) if self._is_kept else {}
        key = f"{rule} {self._key}"
        with _replaying:
            if key not in known:
                known[key] = self._replayed(rule)
                # Clients of a server may ask for any line.
                for oldest in list(known)[:-_MOST_KEPT]:
                    del known[oldest]
            return known[key]

    def _replayed(self, rule: LineStop) -> Courses:
        known, purse = KnownScores.of(self._index.anchors), Limits(self._plan.purse.calls - self._plan.purse.audit)
        plan = leaving_out(self._plan, known)
        plan = replace(plan, scorer=known, purse=purse, stop=_Noting(rule), finish=())
        queries = [self._index.anchor_queries[at] for at in self.columns.tolist()]
        hits: list[Hits] = []
        # Seen only in a terminal, and where it takes longer than a second.
        with tqdm(total=len(queries), desc="replaying anchor queries", delay=1, leave=False, disable=None) as bar:
            for start in range(0, len(queries), _AT_ONCE):
                hits += search(plan, queries[start : start + _AT_ONCE], 1)
                bar.update(len(hits) - bar.n)
        return Courses.of(hits, self.totals, above=self._above)


@dataclass(frozen=True, slots=True)
class _Noting:
    """Ends a search as another rule does, and notes both its expectations in the place of one."""

    rule: LineStop

    def after(self, now: Standing) -> tuple[Any, bool]:
        return expected_above(now, self.rule.above), self.rule.after(now)[1]

    def settings(self) -> Mapping[str, Any]:
        return {}


def _anchor_vectors(index: AnchorIndex, plan: Plan) -> FloatArray | None:
    model: Any = plan.model.approximator if plan.model else None
    if getattr(model, "embed_queries", None) is None:
        return None
    vectors: FloatArray | None = model.features_of(index.anchors).anchor_vectors
    return vectors


def _distance_test(index: AnchorIndex, plan: Plan) -> Any:
    """Whether a query is farther from all anchor queries than nearly all of these are from the others."""
    vectors = _anchor_vectors(index, plan)
    if vectors is None or len(vectors) < 2:
        return None
    model: Any = plan.model.approximator if plan.model else None

    def quantile() -> float:
        likeness = vectors @ vectors.T
        np.fill_diagonal(likeness, -np.inf)
        return float(np.quantile(likeness.max(axis=1), _FARTHEST, method="lower"))

    nearest = index.snapshot.kept("nearest anchor queries", quantile)

    def is_far(query: Query) -> bool:
        own = unit_vectors(model.embed_queries, [query])
        return bool(own is not None and float((own @ vectors.T).max()) < nearest - 1e-6)

    return is_far
