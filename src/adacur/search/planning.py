"""From an index and the options of a search to a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from adacur.core.budget import Budget, check_k
from adacur.core.errors import InputError
from adacur.core.protocols import Scorer
from adacur.first_stages import AnyStage
from adacur.search.methods import Exact, Method, method_named
from adacur.search.plan import Filter, First, Plan

if TYPE_CHECKING:
    from adacur.search.anchor_index import AnchorIndex

__all__ = ["SearchOptions", "plan_search", "search_options"]

_USUAL_CALLS = 100


class SearchOptions(TypedDict, total=False):
    """The options of every search of an index; `AnchorIndex.search` explains each."""

    budget: int | Budget | None
    method: str | Method | None
    first: str | AnyStage | First | None
    filter: Filter | None


def search_options(
    index: AnchorIndex,
    *,
    budget: int | Budget | None = None,
    deadline: float | None = None,
    method: str | Method | None = None,
    first: str | AnyStage | First | None = None,
    pool: int | None = None,
    fuse: float | None = None,
    filter: Filter | None = None,  # noqa: A002
    **method_options: Any,
) -> SearchOptions:
    """The options of a search from single values, as command lines and requests give them.

    None stands for what was not given. `method_options` belong to the method, by name.
    """
    given = {name: value for name, value in method_options.items() if value is not None}
    if given or isinstance(method, str):
        method = method_named(index.default_method if method is None else str(method), **given)
    if pool is not None or fuse is not None:
        if isinstance(first, First):
            raise InputError("Give pool and fuse inside First(…), or beside the name of a first stage; not both.")
        first = First(first, pool, fuse)
    if deadline is not None:
        calls = budget.calls if isinstance(budget, Budget) else budget
        if calls is None:
            calls = len(index) if isinstance(method, Exact) else _USUAL_CALLS
        budget = Budget(calls, deadline)
    return {"budget": budget, "method": method, "first": first, "filter": filter}


def plan_search(
    index: AnchorIndex,
    k: int = 10,
    *,
    budget: int | Budget | None = None,
    method: str | Method | None = None,
    first: str | AnyStage | First | None = None,
    filter: Filter | None = None,  # noqa: A002
    scorer: Scorer | None = None,
) -> Plan:
    """What a search with these options does; `plan.settings()` names it as traces do. Calls no scorer.

    Refuses what the search would refuse before its first call, its query and filter aside. `scorer` takes the place
    of the index's.
    """
    # One version throughout: an edit may move the index on to another at any time.
    snapshot = index.snapshot
    chosen = method_named(method) if isinstance(method, str) else method or method_named(snapshot.default_method)
    start = first if isinstance(first, First) else First(first)
    # Exact search needs no first stage but to fuse its scores in.
    needs_first = not isinstance(chosen, Exact) or bool(start.fuse) or start.stage is not None
    if budget is None:
        budget = len(index) if isinstance(chosen, Exact) else _USUAL_CALLS
    spend = budget if isinstance(budget, Budget) else Budget(budget)
    base = Plan(
        method=chosen.name,
        items=snapshot.anchors.items,
        scorer=index.scorer if scorer is None else scorer,
        calls=spend.calls,
        deadline=spend.deadline,
        first=snapshot.stage(start.stage) if needs_first else None,
        pool=start.pool,
        fuse=snapshot.fusion(start.fuse) if start.fuse else None,
        filter=filter,
    )
    check_k(k) if isinstance(chosen, Exact) else spend.check_k(k)
    return chosen.plan(base, snapshot, k=k)
