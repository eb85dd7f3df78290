"""The options of a search as Python takes them, and how to make them from single values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, cast

from adacur.budget import Budget
from adacur.errors import InputError
from adacur.first_stages import AnyStage
from adacur.money import Price
from adacur.search.effort import Effort
from adacur.search.filters import Filter
from adacur.search.methods import Exact, First, Method, method_named

if TYPE_CHECKING:
    from adacur.search.index import AnchorIndex

USUAL_CALLS = 100


class SearchOptions(TypedDict, total=False):
    """The options of every search of an index; `AnchorIndex.search` explains each."""

    budget: int | str | Budget | None
    method: str | Method | None
    first: str | AnyStage | First | None
    fuse: float | None
    filter: Filter | None
    min_relevance: float | None
    min_score: float | None
    effort: Effort | None


def search_options(
    index: AnchorIndex,
    *,
    budget: int | str | Budget | None = None,
    deadline: float | None = None,
    tokens: int | None = None,
    cost: str | float | None = None,
    price: Price | str | None = None,
    method: str | Method | None = None,
    first: str | AnyStage | First | None = None,
    pool: int | None = None,
    fuse: float | None = None,
    filter: Filter | None = None,  # noqa: A002
    min_relevance: float | None = None,
    min_score: float | None = None,
    effort: Effort | None = None,
    **method_options: Any,
) -> SearchOptions:
    """The options of a search from single values, as command lines and requests give them.

    None means not given. `method_options` are those of the method, by name.
    """
    given = {name: value for name, value in method_options.items() if value is not None}
    if given or isinstance(method, str):
        method = method_named(index.snapshot.default_method if method is None else str(method), **given)
    if pool is not None:
        if isinstance(first, First):
            raise InputError("Give pool inside First(…), or beside the name of a first stage; not both.")
        first = First(first, pool)
    beside_calls: dict[str, Any] = {"deadline": deadline, "tokens": tokens, "cost": cost, "price": price}
    if limits := {name: value for name, value in beside_calls.items() if value is not None}:
        if budget is None:
            budget = len(index) if isinstance(method, Exact) else USUAL_CALLS
        budget = replace(Budget.of(budget), **limits)
    options = {"budget": budget, "method": method, "first": first, "fuse": fuse, "filter": filter}
    optional = {"min_relevance": min_relevance, "min_score": min_score, "effort": effort}
    return cast("SearchOptions", options | {name: value for name, value in optional.items() if value is not None})
