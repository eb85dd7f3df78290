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
from adacur.search.tuned import default_budget
from adacur.spelling import did_you_mean

_OPTIONS = ("budget", "method", *(one.name for one in OPTIONS if one.in_requests), *METHOD_OPTIONS)
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


class SearchRequest:
    """The searches of one request, checked against the limits; `plan` makes, once, what each of them does."""

    def __init__(
        self, served: Served, given: Mapping[str, Any], *, k: int, method: str, plan: Callable[[], Plan]
    ) -> None:
        self.served, self.k, self.method = served, k, method
        self.queries = tuple(as_query(text) for text in given.get("queries") or [given["query"]])
        self.trace: bool = given.get("trace", False)
        self.explain: bool = given.get("explain", False)
        self.is_filtered = bool(given.get("filter"))
        if not served.index.snapshot.in_memory and (given.get("filter") or {}).get("ids") is not None:
            raise Refusal(422, "invalid_request", "The items of this index can be filtered by metadata, not by ids.")
        if not served.index.snapshot.in_memory and self.explain:
            raise Refusal(422, "invalid_request", "Hits of items that live in a vector engine cannot be explained.")
        self._plan, self._lock = cache(plan), threading.Lock()

    def plan(self) -> Plan:
        """The plan; the searches of a request ask for it at the same time."""
        with self._lock:
            return self._plan()


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
    snapshot = one.index.snapshot
    given: dict[str, Any] = {**settings.defaults(), **body}
    method = given.get("method") or snapshot.default_method
    if "budget" not in body:
        given["budget"] = min(default_budget(snapshot.tunings, given["k"], method=method), settings.max_budget)
    if "k" not in body:
        # The default k must not be refused for a small budget.
        given["k"] = min(given["k"], given["budget"])
    if method == "exact":
        # It spends a call on every item.
        ids = (given.get("filter") or {}).get("ids")
        n_calls = len(one.index) if ids is None else len(set(ids))
        if n_calls > (most := settings.max_budget):
            rule = f"Exact search scores all {n_calls} items; a search may cost at most {most} calls here."
            raise Refusal(422, "budget_over_limit", f"{rule} Filter by ids, or use another method.")
        given["budget"] = body.get("budget")
    options = search_options(one.index, **_limits(given), **{name: given.get(name) for name in _OPTIONS})
    return SearchRequest(
        one, given, k=given["k"], method=method, plan=partial(plan_search, one.index, given["k"], **options)
    )


def find_of(served: Mapping[str, Served], body: Mapping[str, Any], *, settings: ServerSettings) -> SearchRequest:
    """As `plan_of`, for all items above a line."""
    one = named_index(served, body.get("index"))
    given = {**body, "budget": body.get("budget") or min(FIND_CALLS, settings.max_budget)}
    options = find_options(**{option.name: given.get(option.name) for option in FIND_OPTIONS} | _limits(given))
    return SearchRequest(one, given, k=ABOUT, method="find", plan=partial(plan_find, one.index, **options))


def _limits(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that have a form of their own in requests."""
    milliseconds, filter_ = given.get("deadline_ms"), given.get("filter") or {}
    return {
        "deadline": milliseconds / 1000 if milliseconds else None,
        "filter": _filter(filter_.get("ids"), filter_.get("metadata")),
    }


def _filter(ids: Sequence[str] | None, metadata: Mapping[str, Any] | None) -> Filter | None:
    if ids is None or metadata is None:
        return metadata if ids is None else frozenset(ids)
    allows, named = by_metadata(metadata), frozenset(ids)
    return lambda item: item.id in named and allows(item)


def example_questions(index: AnchorIndex) -> list[str]:
    """A few questions to begin with: short anchor queries, or what items without any would be asked for."""
    asked: Sequence[Query] = index.anchor_queries
    if not asked and index.snapshot.in_memory:
        some = np.linspace(0, len(index) - 1, min(_ITEMS_FOR_EXAMPLES, len(index))).astype(int)
        with suppress(AdacurError):
            asked = pseudo_queries(index.items.at(some.tolist()), _EXAMPLES)
    short = [query.text for query in asked if len(query.text) <= _LONGEST_EXAMPLE]
    return short[:: -(-len(short) // _EXAMPLES) or 1]
