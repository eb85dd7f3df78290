"""From an index and the options of a search to a plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from adacur.budget import USUAL_CALLS, Budget, check_k
from adacur.errors import BudgetError, InputError, UnknownOption
from adacur.first_stages import AnyStage
from adacur.options import OF_BUDGET, SEARCH_OPTIONS
from adacur.protocols import Scorer
from adacur.records import Query
from adacur.search.filters import Filter
from adacur.search.finish import Floors, Fuse, Top, check_fuse
from adacur.search.methods import NO_SCORER, Exact, FirstOnly, Method, method_named, with_effort
from adacur.search.plan import Plan
from adacur.search.snapshot import Snapshot
from adacur.search.spending import Limits
from adacur.search.stopping import Effort
from adacur.search.tuned import default_budget

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

# As long as a question usually is.
_USUAL_QUERY = "what is the usual length of a question?"


class SearchOptions(TypedDict, total=False):
    """The options of every search of an index; `AnchorIndex.search` explains each."""

    budget: int | str | Budget | None
    method: str | Method | None
    first: str | AnyStage | None
    fuse: float | None
    filter: Filter | None
    min_relevance: float | None
    min_score: float | None
    effort: Effort | None


def plan_search(
    index: AnchorIndex,
    k: int = 10,
    *,
    budget: int | str | Budget | None = None,
    method: str | Method | None = None,
    first: str | AnyStage | None = None,
    fuse: float | None = None,
    filter: Filter | None = None,  # noqa: A002
    min_relevance: float | None = None,
    min_score: float | None = None,
    effort: Effort | None = None,
    scorer: Scorer | None = None,
    **unknown: Any,
) -> Plan:
    """What a search with these options does; `plan.settings()` names it as traces do. Calls no scorer.

    Refuses whatever the search would refuse before its first call, except for its query and filter. `scorer` replaces
    that of the index.
    """
    if unknown:
        raise UnknownOption(
            f"A search does not take {', '.join(unknown)}. Options of a method belong to it, as in "
            "method=Gaussian(rounds=3), and limits to Budget(100, …)."
        )
    # One version throughout: an edit may move the index on to another at any time.
    snapshot = index.snapshot
    chosen = method_named(method) if isinstance(method, str) else method or method_named(snapshot.default_method)
    is_exact, calls_none = isinstance(chosen, Exact), isinstance(chosen, FirstOnly)
    check_fuse(fuse)
    check_k(k)
    tuned: tuple[str, ...] = ()
    if calls_none:
        if budget not in (None, 0):
            Budget.of(budget)
        # No budget is too small for it, and no scorer is opened.
        budget, scorer, fuse = max(k, USUAL_CALLS), NO_SCORER, fuse or 0.0
    if budget is None:
        budget = len(index) if is_exact else default_budget(snapshot.tunings, k, method=chosen.name)
        tuned = ("budget",) if budget != USUAL_CALLS and not is_exact else ()
    spend = Budget.of(budget)
    asked = {"first": first, "tokens": spend.tokens, "cost": spend.cost, "fuse": fuse or None}
    asked |= {"min_score": min_score, "min_relevance": min_relevance}
    # A first stage to fuse is never refused.
    if refused := [name for name in chosen.refuses if asked[name] is not None and not (name == "first" and fuse)]:
        names = ", ".join(refused)
        raise BudgetError(f"Method {chosen.name!r} {chosen.because}: it does not take {names}. Leave that out.")
    # Otherwise the scorer is opened last: it takes the longest.
    limits = Limits.of(spend, (index.scorer if scorer is None else scorer) if spend.is_counted else None)
    calls, most = _calls(limits, snapshot, k) if spend.calls is None else (spend.calls, spend.calls)
    if not is_exact:
        first, fuse, also_tuned = snapshot.tuned_start(first, fuse, k=k, budget=calls, method=chosen.name)
        tuned = (*tuned, *also_tuned)
    place = snapshot.place(chosen, filter)
    floors = Floors(snapshot.relevance(), min_relevance, min_score)
    # An exact search needs a first stage only to fuse its scores in.
    stage = snapshot.stage(first) if fuse or not is_exact else None
    scoring = index.scorer if scorer is None else scorer
    if fuse is None:
        fuse = 0.0 if stage is None or is_exact else snapshot.usual_fuse(scoring.card, first=stage.name)
    if stage is None and fuse:
        raise InputError("fuse blends the first stage's scores into the final order; give first=….")
    check_k(k, None if is_exact else calls)
    base = Plan(
        method=chosen.name,
        items=snapshot.anchors.items,
        scorer=scoring,
        purse=replace(limits, calls=calls),
        candidates=place,
        first=stage,
        finish=(*snapshot.documents(), *((Fuse(fuse),) if fuse else ()), Top(), floors),
        notes={"tuned": tuned, "tuned_for": None},
    )
    plan = chosen.plan(base, snapshot, k=k)
    if effort is not None:
        plan = with_effort(plan, effort, snapshot, k=k)
    return plan if most == calls else replace(plan, purse=replace(plan.purse, calls=most))


def _calls(limits: Limits, snapshot: Snapshot, k: int) -> tuple[int, int]:
    """The calls that a budget of tokens or money alone is expected to pay for, and the most that it could."""
    if not snapshot.in_memory:
        raise BudgetError("In a vector engine a budget must limit calls as well as tokens or cost. Give calls=.")
    items = snapshot.anchors.items
    expected, cheapest = limits.default_budget(Query("expected", _USUAL_QUERY), items, len(items))
    # Where the price is by the request, one unit may pay for a hundred items.
    walls = [one.most for one in limits.counted if one.most is not None and not one.by_call]
    if (most := min(walls, default=k)) < k:
        raise BudgetError(
            f"Only scored items are returned, and k={k} of them take at least {k} tokens and calls; the budget pays "
            f"for {most}. Raise it, or lower k."
        )
    return min(len(items), max(k, expected)), min(len(items), max(k, 2 * cheapest))


def search_options(index: AnchorIndex, **values: Any) -> SearchOptions:
    """The options of a search from single values, as command lines and requests give them; None means not given.

    Their names are those of `adacur.options.OPTIONS`; others are the method's.
    """
    given = {name: value for name, value in values.items() if value is not None}
    of_method = {name: given.pop(name) for name in [*given] if name not in SEARCH_OPTIONS}
    if of_method or isinstance(given.get("method"), str):
        given["method"] = method_named(str(given.get("method", index.snapshot.default_method)), **of_method)
    if limits := {name: given.pop(name) for name in OF_BUDGET if name in given}:
        calls = len(index) if isinstance(given.get("method"), Exact) else USUAL_CALLS
        given["budget"] = replace(Budget.of(given.get("budget", calls)), **limits)
    return cast("SearchOptions", dict.fromkeys(SearchOptions.__annotations__) | given)
