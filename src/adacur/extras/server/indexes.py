"""The indexes of a server, and the searches that a request asks for."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np

from adacur.data import pseudo_queries
from adacur.errors import AdacurError, InputError
from adacur.extras.server.bodies import METHOD_OPTIONS
from adacur.extras.server.failures import Refusal
from adacur.extras.server.server_settings import ServerSettings
from adacur.options import FIND_OPTIONS, OPTIONS
from adacur.records import Query, as_query
from adacur.search import AnchorIndex, Filter, plan_search, search_options
from adacur.search.filters import by_metadata
from adacur.search.finding import ABOUT, FIND_CALLS, find_options, plan_find
from adacur.search.plan import Plan
from adacur.spelling import did_you_mean

_OPTIONS = ("budget", "method", *(one.name for one in OPTIONS if one.in_requests))
_EXAMPLES, _LONGEST_EXAMPLE, _ITEMS_FOR_EXAMPLES = 4, 80, 200
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Served:
    """An index under the name that clients know it by."""

    name: str
    index: AnchorIndex

    @property
    def scorer_name(self) -> str:
        """The name of the scorer, which is opened only where the index does not say."""
        return (self.index.card or self.index.scorer.card).name

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that this index can be searched by."""
        return self.index.snapshot.methods


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The searches of one request, checked against the limits; `plan` makes what each of them does."""

    served: Served
    queries: tuple[Query, ...]
    k: int
    method: str
    plan: Callable[[], Plan]
    trace: bool = False
    explain: bool = False
    is_filtered: bool = False


def _made_once(make: Callable[[], Plan]) -> Callable[[], Plan]:
    """Makes a plan at its first call; the searches of a request ask for it at the same time."""
    cached, lock = cache(make), threading.Lock()

    def made() -> Plan:
        with lock:
            return cached()

    return made


def check_name(name: str) -> None:
    """Refuse a name that would need escaping in a URL."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"The name of a served index must be at most 100 letters, digits, '.', '_' and '-'; got {name!r}. Choose "
            "another: NAME=PATH."
        )


def named_index(served: Mapping[str, Served], name: str | None) -> Served:
    """The index of this name; the first if none is named."""
    if name is None:
        return next(iter(served.values()))
    if name not in served:
        near = did_you_mean(name, served)
        raise Refusal(404, "unknown_index", f"There is no index of this name.{near} Served: {', '.join(served)}.")
    return served[name]


def plan_of(served: Mapping[str, Served], body: Mapping[str, Any], *, settings: ServerSettings) -> SearchRequest:
    """The searches that a body asks for, which holds only the fields that the client gave."""
    one = named_index(served, body.get("index"))
    given: dict[str, Any] = {**settings.defaults(), **body}
    method = given.get("method") or one.index.snapshot.default_method
    if "budget" not in body:
        given["budget"] = min(one.index.snapshot.default_budget(given["k"], method=method), settings.max_budget)
    if "k" not in body:
        # The default k must not be refused for a small budget.
        given["k"] = min(given["k"], given["budget"])
    filter_ = given.get("filter") or {}
    if method == "exact":
        _check_exact(one, filter_, settings)
        given["budget"] = body.get("budget")
    if filter_.get("ids") is not None and not one.index.snapshot.in_memory:
        raise Refusal(422, "invalid_request", "The items of this index can be filtered by metadata, not by ids.")
    if given.get("explain") and not one.index.snapshot.in_memory:
        raise Refusal(422, "invalid_request", "Hits of items that live in a vector engine cannot be explained.")
    options = search_options(
        one.index,
        deadline=_deadline(given),
        filter=_filter(filter_),
        **{name: given.get(name) for name in (*_OPTIONS, *METHOD_OPTIONS)},
    )
    plan = partial(plan_search, one.index, given["k"], **options)
    return SearchRequest(one, k=given["k"], method=method, plan=_made_once(plan), **_asked(given))


def find_of(served: Mapping[str, Served], body: Mapping[str, Any], *, settings: ServerSettings) -> SearchRequest:
    """As `plan_of`, for all items above a line."""
    one = named_index(served, body.get("index"))
    given = {**({"budget": settings.max_budget} if settings.max_budget < FIND_CALLS else {}), **body}
    options = find_options(
        **{one.name: given.get(one.name) for one in FIND_OPTIONS}
        | {"deadline": _deadline(given), "filter": _filter(given.get("filter") or {})},
    )
    plan = partial(plan_find, one.index, **options)
    return SearchRequest(one, k=ABOUT, method="find", plan=_made_once(plan), **_asked(given))


def _asked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request that every kind of search has."""
    return {
        "queries": tuple(as_query(text) for text in given.get("queries") or [given["query"]]),
        "trace": given.get("trace", False),
        "explain": given.get("explain", False),
        "is_filtered": bool(given.get("filter")),
    }


def _deadline(given: Mapping[str, Any]) -> float | None:
    """Seconds from the arrival of a request."""
    return given["deadline_ms"] / 1000 if given.get("deadline_ms") else None


def _check_exact(served: Served, filter_: Mapping[str, Any], settings: ServerSettings) -> None:
    """Refuse an exact search, which spends a call on every item, beyond the limit of the budget."""
    ids = filter_.get("ids")
    n_calls = len(served.index) if ids is None else len(set(ids))
    if n_calls > (most := settings.max_budget):
        rule = f"Exact search scores all {n_calls} items; a search may cost at most {most} calls here."
        raise Refusal(422, "budget_over_limit", f"{rule} Filter by ids, or use another method.")


def example_questions(index: AnchorIndex) -> list[str]:
    """A few questions to begin with: short anchor queries, or what items without any would be asked for."""
    asked: Sequence[Query] = index.anchor_queries
    if not asked and index.snapshot.in_memory:
        some = np.linspace(0, len(index) - 1, min(_ITEMS_FOR_EXAMPLES, len(index))).astype(int)
        with suppress(AdacurError):
            asked = pseudo_queries(index.items.at(some.tolist()), _EXAMPLES)
    short = [query.text for query in asked if len(query.text) <= _LONGEST_EXAMPLE]
    return short[:: -(-len(short) // _EXAMPLES) or 1]


def _filter(given: Mapping[str, Any]) -> Filter | None:
    ids, metadata = given.get("ids"), given.get("metadata")
    if ids is None or metadata is None:
        return metadata if ids is None else frozenset(ids)
    allows, named = by_metadata(metadata), frozenset(ids)
    return lambda item: item.id in named and allows(item)
