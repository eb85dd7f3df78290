"""The indexes that a server has, and what a request may ask of them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, get_args

from adacur.core.errors import InputError
from adacur.core.records import Item, Query, as_query
from adacur.core.results import Hits
from adacur.core.spelling import did_you_mean
from adacur.search import AnchorIndex
from adacur.search.plan import Filter
from adacur.serving.failures import Refusal
from adacur.serving.scoring import ServedScorer
from adacur.serving.settings import ServerSettings
from adacur.serving.shapes import Method, SearchFilter, SearchRequest

__all__ = ["METHODS", "Asked", "Served", "asked_of", "check_name", "chosen"]

METHODS: tuple[str, ...] = get_args(Method)
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Served:
    """An index under the name that clients know it by."""

    name: str
    index: AnchorIndex

    @property
    def scorer(self) -> ServedScorer:
        """The scorer, opened when first used."""
        scorer = self.index.scorer
        assert isinstance(scorer, ServedScorer)
        return scorer

    @property
    def scorer_name(self) -> str:
        """What the scorer is called."""
        card = self.index.card
        return self.scorer.card.name if card is None else card.name

    @property
    def methods(self) -> tuple[str, ...]:
        """What its searches can be done by."""
        return tuple(
            name
            for name in METHODS
            if (name != "gaussian" or self.index.default_method == "gaussian")
            and (name not in ("adacur", "anncur") or self.index.anchor_queries)
            and (name != "axn" or "dense" in self.index.first_stages)
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """A search that has been checked against the limits."""

    served: Served
    queries: tuple[Query, ...]
    k: int
    options: Mapping[str, Any]
    trace: bool
    deadline: float | None = None

    async def rounds(self, query: Query, *, spent: float) -> AsyncGenerator[Hits, None]:
        """The hits after each round; `spent` are the seconds that the request has waited."""
        given = dict(self.options)
        if self.deadline is not None:
            # Even late, a search scores something: an answer that is a little late beats none.
            given["deadline"] = max(0.001, self.deadline - spent)
        async with aclosing(self.served.index.asearch_iter(query, self.k, **given)) as rounds:
            async for hits in rounds:
                yield hits


def check_name(name: str) -> None:
    """Refuse a name that would not stand in a URL as it is."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"An index is served under a name of letters, digits, '.', '_' and '-', up to 100 of them; got {name!r}. "
            "Give it one: NAME=PATH."
        )


def chosen(served: Mapping[str, Served], name: str | None) -> Served:
    """The index of this name; the first where none is named."""
    if name is None:
        return next(iter(served.values()))
    if name not in served:
        raise Refusal(
            404,
            "unknown_index",
            f"No index is served under this name.{did_you_mean(name, served)} There is: {', '.join(served)}.",
        )
    return served[name]


def asked_of(served: Mapping[str, Served], asked: SearchRequest, *, settings: ServerSettings) -> Asked:
    """A search within the limits, or a refusal that names the limit."""
    index = chosen(served, asked.index)
    texts = _texts(asked, settings)
    for name in ("k", "budget", "rounds"):
        value, most = getattr(asked, name), getattr(settings, f"max_{name}")
        if name in asked.model_fields_set and value is not None and value > most:
            raise Refusal(422, f"{name}_over_limit", f"{name} may be at most {most} here; got {value}.")
    given = settings.defaults() | asked.model_dump(include={"k", "budget"}, exclude_unset=True)
    if "k" not in asked.model_fields_set:
        # A small budget is no reason to refuse a k that nobody asked for.
        given["k"] = min(given["k"], given["budget"])
    if asked.deadline_ms is not None and asked.deadline_ms > settings.seconds * 1000:
        most = int(settings.seconds * 1000)
        raise Refusal(422, "deadline_over_limit", f"deadline_ms may be at most {most} here; got {asked.deadline_ms}.")
    allowed = _filter(asked.filter)
    options: dict[str, Any] = {"method": asked.method or index.index.default_method}
    options |= {
        name: getattr(asked, name)
        for name in ("rounds", "first", "pool", "stop_when", "fuse", "seed")
        if getattr(asked, name) is not None
    }
    if allowed is not None:
        options["filter"] = allowed
    if asked.method == "exact":
        _check_exact(index, asked, settings)
    if asked.method != "exact" or "budget" in asked.model_fields_set:
        options["budget"] = given["budget"]
    return Asked(
        served=index,
        queries=tuple(as_query(text) for text in texts),
        k=given["k"],
        options=options,
        trace=asked.trace,
        deadline=None if asked.deadline_ms is None else asked.deadline_ms / 1000,
    )


def _texts(asked: SearchRequest, settings: ServerSettings) -> list[str]:
    if (asked.query is None) == (asked.queries is None):
        rule = "query or queries is missing" if asked.query is None else "query and queries do not go together"
        raise Refusal(422, "invalid_request", f"{rule}: give query, one text, or queries, a list of texts.")
    texts = [asked.query] if asked.query is not None else list(asked.queries or ())
    longest = max(len(text) for text in texts)
    if longest > settings.max_query_chars:
        raise Refusal(
            422,
            "query_too_long",
            f"A query may have at most {settings.max_query_chars} characters here; one has {longest}.",
        )
    return texts


def _check_exact(served: Served, asked: SearchRequest, settings: ServerSettings) -> None:
    """Exact search spends a call on every item: the limit of the budget is its limit too."""
    ids = asked.filter.ids if asked.filter else None
    n_calls = len(served.index) if ids is None else len(set(ids))
    if n_calls > settings.max_budget:
        raise Refusal(
            422,
            "budget_over_limit",
            f"Exact search scores every item, {n_calls} of them, and a search may cost at most {settings.max_budget} "
            "calls here. Filter by ids, or use another method.",
        )


def _filter(asked: SearchFilter | None) -> Filter | None:
    if asked is None or (asked.ids is None and asked.metadata is None):
        return None
    if asked.metadata is None:
        return frozenset(asked.ids or ())
    ids = None if asked.ids is None else frozenset(asked.ids)
    # Sets: a client may send thousands of values, and each item is asked about all of them.
    wanted = {
        field: frozenset(map(_as_json_is, values if isinstance(values, list) else [values]))
        for field, values in asked.metadata.items()
    }

    def allows(item: Item) -> bool:
        if ids is not None and item.id not in ids:
            return False
        return all(
            field in item.metadata and _has_one(item.metadata[field], values) for field, values in wanted.items()
        )

    return allows


def _as_json_is(value: Any) -> tuple[bool, Any]:
    """In JSON true is not 1."""
    return isinstance(value, bool), value


def _has_one(held: Any, wanted: frozenset[tuple[bool, Any]]) -> bool:
    """Whether a field has one of these values; one that holds a list has each of its values."""
    if isinstance(held, list | tuple):
        return any(_has_one(one, wanted) for one in held)
    return isinstance(held, Hashable) and _as_json_is(held) in wanted
