"""`find`: every item that scores above a line, within a budget, and what is promised of the recall.

The loop is that of `search`: predictions choose small rounds, and `LineStop` ends them. `Certify` says what the end
promises.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Required, TypedDict, cast

import numpy as np

from adacur.arrays import BoolArray
from adacur.budget import Budget, is_whole
from adacur.errors import BudgetError, InputError, UnknownOption
from adacur.first_stages import AnyStage
from adacur.names import CALIBRATED, named
from adacur.options import FIND_OPTIONS, OF_BUDGET
from adacur.protocols import Scorer
from adacur.records import Query
from adacur.results import Certificate
from adacur.search.filters import Filter
from adacur.search.finish import Answer, Documents, Finish
from adacur.search.methods import Exact
from adacur.search.plan import Plan
from adacur.search.planning import plan_search
from adacur.search.stopping import Standing, StopRule

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

# The most calls of a query where nobody says how many: a stop usually ends it long before.
FIND_CALLS = 1000
# Tunings and models are asked for about this many items; of what is found, none is left out.
ABOUT = 10
# The first round, and how later ones grow: by a tenth of the calls so far, so that a search that should end at n calls
# ends before 1.1 n, whatever the budget.
_FIRST, _LEAST, _GROWTH = 24, 8, 10
# A worth that no call falls to.
NEVER = -1.0
# A promise holds for what ends like the searches that it was calibrated on; `_CUT_SHORT` words the other ends.
_PROMISED_ENDS = ("settled", "budget", "exhausted")
# Scores are grades where there are so many of each on average; a person's yes or no is the extreme.
_OF_A_GRADE = 4
# Each doubling of calls is expected to find this share of what the one before found. Chosen on anchor queries of three
# collections, answered by yes or no (lab/benchmarks/results/finding_reviews.txt).
_DECLINE = 0.8
# That the last calls found nothing does not say that nothing is left: they count as if they had found one more.
_UNSEEN = 1
_CUT_SHORT = {
    "tokens": "its token budget",
    "engine": "the vector engine, which stopped answering,",
    "error": "an error",
}


class FindOptions(TypedDict, total=False):
    """The options of `AnchorIndex.find`, which explains each."""

    above: Required[float]
    recall: float
    budget: int | str | Budget | None
    audit: int
    confidence: float
    first: str | AnyStage | None
    filter: Filter | None


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """What replayed anchor queries promise of searches that end at a limit.

    - `limit`: the `worth` of a `LineStop`; at `NEVER`, the whole budget is spent; None ends by the expected recall;
    - `recall`: the mean recall that is promised, `n` the queries behind it; 0 of none;
    - `reasons`: why it is less than was asked for;
    - `calls`: the mean calls of the replayed searches;
    - `most`: the most items above the line that one of them seemed to have; `is_far`: whether a query is like none.
    """

    limit: float | None = None
    recall: float = 0.0
    n: int = 0
    reasons: tuple[str, ...] = ()
    calls: float = 0.0
    most: float = 0.0
    is_far: Callable[[Query], bool] | None = None

    def unlike(self, query: Query, found: int, expected: float) -> str | None:
        """Why a query is unlike the anchor queries, if it is: so many items were found, this share by expectation."""
        if (n := in_all(found, expected)) > self.most:
            return (
                f"This query is unlike the anchor queries: about {n:,.0f} items above the line are expected, and none "
                f"of them has more than {self.most:,.0f}."
            )
        if self.is_far is not None and self.is_far(query):
            return "This query is unlike the anchor queries: no other is as far from all of them."
        return None


def in_all(found: Any, expected: Any) -> Any:
    """How many items there are above a line, where this share of them is expected to be found."""
    return found / np.where(expected > 0, expected, 1.0)


@dataclass(frozen=True, slots=True)
class LineStop(StopRule):
    """Ends a search once little is expected to be missing above a line.

    By the expected `recall`, or, where it was calibrated, once the next call is `worth` no more than this: the share of
    all items above the line that it is expected to find. Calls go where they find most, whatever a query has; so for
    the same mean recall this takes the fewest.
    """

    above: float
    recall: float
    worth: float | None = None

    def after(self, now: Standing) -> tuple[float, bool]:
        """As for any rule: the expected recall, and whether to end here."""
        expected, worth = expected_above(now, self.above)
        return expected, expected >= self.recall if self.worth is None else worth <= self.worth

    def settings(self) -> Mapping[str, Any]:
        return {"stop_worth": self.worth}


def expected_above(now: Standing, above: float) -> tuple[float, float]:
    """Of all items above a line, the share that is expected to be found, and what each of the next few calls adds.

    Shares are of one item at least, so that searches end where there is nothing to find. Of grades, the chances of
    single items are too sure: they were fitted to scores that tell how near the line an item lies, and an item far from
    all that was found has none. There the search's own finds must bear the expectation out.
    """
    found = int(np.count_nonzero(now.best >= above))
    chances = now.chance_above(np.array([above]), np.array([found + 1]))[:, 0]
    # Predictions beyond the range of floats say nothing.
    chances = np.sort(np.where(np.isfinite(chances), chances, 1.0))
    missing = float(chances.sum())
    in_all = max(1.0, found + missing)
    worth = float(chances[-_LEAST:].sum()) / _LEAST / in_all
    if _OF_A_GRADE * len(np.unique(now.best)) <= len(now.best):
        missing = max(missing, missing_by_finds(np.concatenate(now.exact) >= above, now.n_left))
    return 1 - missing / max(1.0, found + missing), worth


def missing_by_finds(is_above: BoolArray, n_left: int) -> float:
    """How many of the `n_left` items are expected to lie above a line, by which calls, in order, found one.

    Calls go where they find most, so each doubling of them finds fewer than the one before.
    """
    n = len(is_above)
    doublings = math.log2((n + n_left) / n)
    last = int(np.count_nonzero(is_above[n // 2 :])) + _UNSEEN
    return min(float(n_left), last * _DECLINE * (1 - math.pow(_DECLINE, doublings)) / (1 - _DECLINE))


@dataclass(frozen=True, slots=True)
class Above(Finish):
    """Only the hits that score `above` or higher."""

    above: float

    def __call__(self, answer: Answer) -> Answer:
        return answer.at(answer.scores >= self.above)

    def settings(self) -> Mapping[str, Any]:
        return {"above": self.above}


@dataclass(frozen=True, slots=True, eq=False)
class Certify(Finish):
    """Says what is promised, by the way in which a search ended; `doubt` is why anchor queries promise nothing."""

    above: float
    recall: float
    confidence: float
    promise: Promise | None = None
    doubt: str | None = None

    def __call__(self, answer: Answer) -> Answer:
        return replace(answer, certificate=self._certificate(answer))

    def settings(self) -> Mapping[str, Any]:
        return {"recall": self.recall, "confidence": self.confidence}

    def _certificate(self, answer: Answer) -> Certificate:
        rounds, calls = answer.trace.rounds, answer.trace.calls
        if not answer.n_left:
            return Certificate(self.above, "every item", 1.0, calls)
        audits = [round_.exact for round_ in rounds if round_.is_audit]
        audited = np.concatenate(audits) if audits else np.empty(0)
        in_audit = int(np.count_nonzero(audited >= self.above))
        found = sum(int(np.count_nonzero(round_.exact >= self.above)) for round_ in rounds) - in_audit
        reasons: tuple[str, ...] = ()
        if len(audited):
            unseen = answer.n_left + len(audited)
            most = most_above(unseen, drawn=len(audited), above=in_audit, doubt=1 - self.confidence)
            certified = (found + in_audit) / (found + most) if found + most else 1.0
            by_audit = Certificate(self.above, "audit", certified, calls, self.confidence, len(audited))
            if certified >= self.recall:
                return by_audit
            reasons += (_short_of(self.recall, found, unseen, self.confidence),)
            if not certified:
                audited = np.empty(0)
        expected = next((one.expected_recall for one in reversed(rounds) if one.expected_recall is not None), 0.0)
        promise, why_not = self.promise, self._why_not(answer, found + in_audit, expected)
        if promise is not None and promise.n and why_not is None:
            reasons += promise.reasons
            return Certificate(self.above, "anchors", promise.recall, calls, self.confidence, promise.n, reasons)
        if why_not is not None:
            reasons += (why_not,)
        elif promise is not None:
            reasons += promise.reasons
        if len(audited):
            return replace(by_audit, reasons=reasons)
        return Certificate(self.above, "none", expected, calls, reasons=reasons)

    def _why_not(self, answer: Answer, found: int, expected: float) -> str | None:
        """Why the promise does not hold for this search."""
        stopped = answer.trace.stopped
        if answer.goes_on:
            return "The search goes on."
        if stopped not in _PROMISED_ENDS:
            cut_by = _CUT_SHORT.get(stopped, f"its {stopped}")
            return f"The search was ended by {cut_by} before it was done; what it found stays."
        if self.doubt is not None or self.promise is None or not self.promise.n:
            return self.doubt
        return self.promise.unlike(answer.query, found, expected)


def _short_of(recall: float, found: int, unseen: int, confidence: float) -> str:
    """What an audit would have to be for this recall."""
    # A little more, since 18 × .1 / .9 is below 2 in floats.
    may_miss, share = math.floor(found * (1 - recall) / recall + 1e-9), f"{100 * recall:.6g}%"
    calls = bisect.bisect_left(
        range(unseen), True, key=lambda n: most_above(unseen, drawn=n, above=0, doubt=1 - confidence) <= may_miss
    )
    if calls >= unseen:
        return f"No audit can certify {share} of {found:,} found among {unseen:,} unscored items."
    return f"To certify {share} for this query takes an audit of about {calls:,} calls that finds nothing."


def most_above(unseen: int, *, drawn: int, above: int, doubt: float) -> int:
    """The most items above a line that there may have been among `unseen` ones, of which `drawn` at random held
    `above`: the largest number under which so few of them had more than this `doubt` (hypergeometric, exact).
    """
    low, high = above, unseen - drawn + above
    while low < high:
        middle = (low + high + 1) // 2
        if _chance_of_at_most(above, unseen, middle, drawn) > doubt:
            low = middle
        else:
            high = middle - 1
    return low


def _chance_of_at_most(most: int, unseen: int, above: int, drawn: int) -> float:
    """The chance that a random draw holds at most so many of the items above a line."""
    few = range(max(0, drawn - (unseen - above)), min(most, above, drawn) + 1)
    logs = [_log_choose(above, n) + _log_choose(unseen - above, drawn - n) for n in few]
    return math.fsum(math.exp(one - _log_choose(unseen, drawn)) for one in logs)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def finding_rounds(affordable: int) -> tuple[int, ...]:
    """The calls of each round: few at first, so that a search can end soon."""
    sizes, spent = [min(_FIRST, affordable)], min(_FIRST, affordable)
    while spent < affordable:
        sizes.append(min(max(_LEAST, spent // _GROWTH), affordable - spent))
        spent += sizes[-1]
    return tuple(sizes)


def plan_find(
    index: AnchorIndex,
    *,
    above: float,
    recall: float = 0.9,
    budget: int | str | Budget | None = None,
    audit: int = 0,
    confidence: float = 0.9,
    first: str | AnyStage | None = None,
    filter: Filter | None = None,  # noqa: A002
    scorer: Scorer | None = None,
) -> Plan:
    """What `AnchorIndex.find` does with these options; `plan_search` for the verb `find`. Calls no scorer."""
    _check_numbers(above=above, recall=recall, confidence=confidence, audit=audit)
    n_items = len(index)
    spend = Budget.of(min(FIND_CALLS, n_items) if budget is None else budget)
    if audit and (spend.tokens is not None or spend.cost is not None):
        raise InputError(
            "An audit is a random sample, and items that tokens or cost cannot pay for are left out of it. Limit calls "
            "alone, or leave audit out."
        )
    if audit and not index.snapshot.in_memory:
        raise InputError("An audit is a random sample, and vector engines cannot draw one. Leave audit out.")
    if audit and not audit < min(n_items, spend.calls or 0):
        raise InputError(
            f"An audit must leave calls for the search, and items that it does not draw; got audit={audit:,} of "
            f"{spend.calls:,} calls and {n_items:,} items. Raise the budget, or score everything: recall=1.0, "
            f"budget={n_items}."
        )
    if recall == 1:
        if spend.calls is None or spend.calls < n_items:
            raise InputError(
                f"recall=1.0 cannot be promised unless every item is scored: what is missing may be anywhere. Give "
                f"budget={n_items}, which scores all, or a recall below 1, such as 0.95."
            )
        plan = plan_search(index, 1, method=Exact(), budget=spend, fuse=0, filter=filter, scorer=scorer)
        return replace(plan, finish=(*_documents(plan), Above(above), Certify(above, recall, confidence)))
    k = min(ABOUT, spend.calls) if spend.calls else 1
    plan = plan_search(index, k, budget=spend, first=first, fuse=0, filter=filter, scorer=scorer)
    documents, purse = _documents(plan), replace(plan.purse, audit=audit)
    promise: Promise | None = None
    if plan.model is not None:
        plan = replace(plan, sizes=finding_rounds, purse=purse, finish=(Above(above),))
        promise = named(CALIBRATED)(index, plan, above=above, recall=recall, confidence=confidence, filter_=filter)
        plan = replace(plan, stop=LineStop(above, recall, promise.limit))
    certify = Certify(above, recall, confidence, promise, _doubt(index, plan))
    return replace(plan, purse=purse, finish=(*documents, Above(above), certify))


def _doubt(index: AnchorIndex, plan: Plan) -> str | None:
    """Why anchor queries promise nothing of what this scorer accepts."""
    if plan.model is None:
        return (
            "This index has neither anchor queries nor dense vectors, so nothing tells when to end, and the whole "
            "budget is spent. Add some, or give audit=… (--audit)."
        )
    if index.path is not None and index.snapshot.in_memory and not index.recognised:
        return "The scorer was not compared with the scores of this index (check=False), so they promise nothing."
    if index.drift is not None and not index.drift.same:
        return f"The scorer differs from the one that scored the anchor queries: {index.drift.summary()}."
    return None


def find_options(**values: Any) -> FindOptions:
    """The options of `find` from single values, as command lines and requests give them; None means not given.

    Their names are those of `adacur.options.FIND_OPTIONS`.
    """
    given = {name: value for name, value in values.items() if value is not None}
    known = [option.name for option in FIND_OPTIONS]
    if unknown := [name for name in given if name not in known]:
        raise UnknownOption(f"A find does not take {', '.join(unknown)}. It takes: {', '.join(known)}.")
    if limits := {name: given.pop(name) for name in OF_BUDGET if name in given}:
        given["budget"] = replace(Budget.of(given.get("budget", FIND_CALLS)), **limits)
    return cast("FindOptions", given)


def _documents(plan: Plan) -> tuple[Documents, ...]:
    return tuple(step for step in plan.finish if isinstance(step, Documents))


def _check_numbers(*, above: float, recall: float, confidence: float, audit: int) -> None:
    for name, value in (("above", above), ("recall", recall), ("confidence", confidence)):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not math.isfinite(value):
            raise InputError(f"{name} must be a number; got {value!r}.")
    if not 0 < recall <= 1:
        raise InputError(f"recall must be above 0 and at most 1, such as 0.9; got {recall}.")
    if not 0.5 <= confidence < 1:
        raise InputError(f"confidence must be at least 0.5 and below 1, such as 0.9; got {confidence}.")
    if isinstance(audit, bool) or not is_whole(audit) or audit < 0:
        raise BudgetError(f"audit must be a whole number of calls, from 0 up; got {audit!r}.")
