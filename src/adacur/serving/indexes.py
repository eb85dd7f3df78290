"""The indexes of a server, and the searches that a request asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from adacur.core.errors import InputError
from adacur.core.records import Query, as_query
from adacur.core.spelling import did_you_mean
from adacur.search import METHODS, AnchorIndex, Filter, SearchOptions, search_options
from adacur.search.engine_index import METHODS_IN_ENGINES
from adacur.search.filters import by_metadata
from adacur.serving.bodies import METHOD_OPTIONS
from adacur.serving.failures import Refusal
from adacur.serving.settings import ServerSettings

_OPTIONS = ("budget", "tokens", "cost", "method", "first", "pool", "fuse", "effort", "min_relevance", "min_score")
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
        if (engine := self.index.snapshot.engine) is not None:
            return METHODS_IN_ENGINES if engine.outline is not None else ("rerank",)
        there = {"anchors": bool(self.index.anchor_queries), "vectors": "dense" in self.index.first_stages}
        return tuple(
            name for name, method in METHODS.items() if not method.needs or any(there[one] for one in method.needs)
        )


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The searches of one request, checked against the limits; `deadline` is in seconds from its arrival."""

    served: Served
    queries: tuple[Query, ...]
    k: int
    method: str
    options: SearchOptions
    trace: bool
    explain: bool = False
    deadline: float | None = None


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


def plan_of(served: Mapping[str, Served], body: Mapping[str, Any], *, settings: ServerSettings) -> SearchPlan:
    """The searches that a body asks for, which holds only the fields that the client gave."""
    one = named_index(served, body.get("index"))
    given: dict[str, Any] = {**settings.defaults(), **body}
    method = given.get("method") or one.index.snapshot.default_method
    if "budget" not in body:
        given["budget"] = min(one.index.snapshot.usual_calls(given["k"], method=method), settings.max_budget)
    if "k" not in body:
        # The default k must not be refused for a small budget.
        given["k"] = min(given["k"], given["budget"])
    filter_ = given.get("filter") or {}
    if method == "exact":
        _check_exact(one, filter_, settings)
        given["budget"] = body.get("budget")
    if filter_.get("ids") is not None and one.index.snapshot.engine is not None:
        raise Refusal(422, "invalid_request", "The items of this index can be filtered by metadata, not by ids.")
    if given.get("explain") and one.index.snapshot.engine is not None:
        raise Refusal(422, "invalid_request", "Hits of items that live in a vector engine cannot be explained.")
    options = search_options(
        one.index, filter=_filter(filter_), **{name: given.get(name) for name in (*_OPTIONS, *METHOD_OPTIONS)}
    )
    return SearchPlan(
        served=one,
        queries=tuple(as_query(text) for text in given.get("queries") or [given["query"]]),
        k=given["k"],
        method=method,
        options=options,
        trace=given.get("trace", False),
        explain=given.get("explain", False),
        deadline=given["deadline_ms"] / 1000 if given.get("deadline_ms") else None,
    )


def _check_exact(served: Served, filter_: Mapping[str, Any], settings: ServerSettings) -> None:
    """Refuse an exact search, which spends a call on every item, beyond the limit of the budget."""
    ids = filter_.get("ids")
    n_calls = len(served.index) if ids is None else len(set(ids))
    if n_calls > (most := settings.max_budget):
        rule = f"Exact search scores all {n_calls} items; a search may cost at most {most} calls here."
        raise Refusal(422, "budget_over_limit", f"{rule} Filter by ids, or use another method.")


def _filter(given: Mapping[str, Any]) -> Filter | None:
    ids, metadata = given.get("ids"), given.get("metadata")
    if ids is None or metadata is None:
        return metadata if ids is None else frozenset(ids)
    allows, named = by_metadata(metadata), frozenset(ids)
    return lambda item: item.id in named and allows(item)
