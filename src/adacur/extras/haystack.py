"""Haystack: components that retrieve from an index and rank with a scorer, in pipelines that can be written as YAML."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from adacur.budget import check_k
from adacur.errors import InputError
from adacur.extras import host_bridge as bridge
from adacur.records import Item
from adacur.requirements import require
from adacur.results import Hit
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex

require("haystack", extra="haystack")

from haystack import Document, component, default_to_dict  # noqa: E402
from haystack.document_stores.types import FilterPolicy, apply_filter_policy  # noqa: E402
from haystack.utils.filters import document_matches_filter  # noqa: E402


class _Opened:
    """A component that opens its index or scorer in `warm_up`, or when it first runs; closes all but `given`."""

    def __init__(self, opening: Callable[[], Any], *, given: Any = None) -> None:
        self._held: Any = None
        self._open = opening
        self._not_mine = given
        self._lock = threading.Lock()

    def warm_up(self) -> None:
        """Open the index or the scorer, if it is not open."""
        self._opened()

    async def warm_up_async(self) -> None:
        """Like `warm_up`, without blocking the event loop."""
        await asyncio.to_thread(self._opened)

    def close(self) -> None:
        """Close what was opened here; the next run opens it again."""
        with self._lock:
            held, self._held = self._held, None
        if callable(close := getattr(held, "close", None)) and held is not self._not_mine:
            close()

    def _opened(self) -> Any:
        with self._lock:
            if self._held is None:
                self._held = self._open()
            return self._held


@component
class AdacurRetriever(_Opened):
    """The best items of an index for a query, within a budget of scorer calls, as documents with their scores.

    The index folder is opened by `warm_up`, or at the first run. The score is the scorer's; with a fused first stage
    it is what documents are ordered by, and exact the scorer's. Documents carry the item's metadata, and rank, round
    and exact.

    - `filters`: Haystack's, where "meta.lang" is an item's metadata `lang`; where no item passes, there are no
      documents;
    - `options`: those of `adacur.load` (scorer, encoder, device …) and of searches (budget, deadline, method and its
      options, first, pool, fuse, filter). A pipeline can be written as YAML where they are plain values: a scorer by
      its name, folder, URL or "module:function".
    """

    def __init__(
        self,
        path: str | Path,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = "replace",
        **options: Any,
    ) -> None:
        # Haystack recreates the class: super() would look for the one written here.
        _Opened.__init__(self, self._open_index)
        check_k(top_k)
        self.path = str(path)
        self.top_k = top_k
        self.filters = filters
        self.filter_policy = FilterPolicy.from_str(str(filter_policy))
        self._given = {name: value for name, value in options.items() if value is not None}
        # Those for searches, known once the index is open.
        self._options: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """This component as a pipeline file holds it."""
        for name, value in self._given.items():
            _check_plain(name, value)
        plain = {"path": self.path, "top_k": self.top_k, "filters": self.filters} | self._given
        return default_to_dict(self, **plain, filter_policy=self.filter_policy.value)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents, best first."""
        index = self._opened()
        hits = bridge.search(index, query, **self._search_options(index, filters, top_k))
        return {"documents": [_document(hit) for hit in hits]}

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Like `run`, without blocking the event loop."""
        index = await asyncio.to_thread(self._opened)
        hits = await bridge.asearch(index, query, **self._search_options(index, filters, top_k))
        return {"documents": [_document(hit) for hit in hits]}

    def _open_index(self) -> AnchorIndex:
        index, self._options = bridge.load_with(self.path, self._given)
        # Otherwise a scorer that the manifest names would be opened, and perhaps refused, in the first search.
        _ = index.scorer
        return index

    def _search_options(self, index: AnchorIndex, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        options = self._options | {"k": self.top_k if top_k is None else top_k}
        if merged := apply_filter_policy(self.filter_policy, self.filters, filters):
            if options.get("filter") is not None:
                raise InputError("Give filters (Haystack's) or filter (as searches take it); not both.")
            matches = partial(document_matches_filter, merged)
            options["filter"] = bridge.filter_for(index, lambda item: matches(_plain(item)), _where(merged))
        return options


@component
class AdacurRanker(_Opened):
    """Scores the given documents exactly and keeps the best `top_k`.

    `scorer` is whatever `adacur.scorer` opens, in `warm_up` or at the first run; a pipeline can be written as YAML
    where it is a text: a name, a folder, a URL, or "module:function".
    """

    def __init__(self, scorer: Any, top_k: int = 10) -> None:
        _Opened.__init__(self, lambda: open_scorer(self._source), given=scorer)
        check_k(top_k)
        self._source = str(scorer) if isinstance(scorer, Path) else scorer
        self.top_k = top_k

    def to_dict(self) -> dict[str, Any]:
        """This component as a pipeline file holds it."""
        _check_plain("scorer", self._source)
        return default_to_dict(self, scorer=self._source, top_k=self.top_k)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents, best first."""
        best = bridge.rerank(self._opened(), query, _texts(documents), k=self._checked(top_k))
        return {"documents": _scored(documents, best)}

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Like `run`, without blocking the event loop."""
        scorer = await asyncio.to_thread(self._opened)
        best = await bridge.arerank(scorer, query, _texts(documents), k=self._checked(top_k))
        return {"documents": _scored(documents, best)}

    def _checked(self, top_k: int | None) -> int:
        if top_k is not None:
            check_k(top_k)
        return self.top_k if top_k is None else top_k


def items_of(documents: Iterable[Document]) -> list[Item]:
    """Haystack documents as items for `adacur.build`: their ids, texts and metadata."""
    given = list(documents)
    return [
        bridge.as_item(document.id, text, document.meta) for document, text in zip(given, _texts(given), strict=True)
    ]


def _where(filters: Mapping[str, Any]) -> dict[str, Any] | None:
    """Filters by equal values as metadata; None for others."""
    operator = filters.get("operator")
    if "field" in filters:
        field, value = str(filters["field"]), filters["value"]
        is_equal = operator == ("in" if isinstance(value, list) else "==") and field not in Document.__annotations__
        return {field.removeprefix("meta."): value} if is_equal else None
    where: dict[str, Any] = {}
    for one in filters.get("conditions", ()):
        inner = _where(one)
        if operator != "AND" or inner is None or where.keys() & inner.keys():
            return None
        where |= inner
    return where


def _document(hit: Hit) -> Document:
    return Document(id=hit.id, content=bridge.text_of(hit), meta=bridge.metadata_of(hit), score=bridge.score_of(hit))


def _plain(item: Item) -> Document:
    return Document(id=item.id, content=item.text, meta=dict(item.metadata))


def _scored(documents: Sequence[Document], best: Iterable[tuple[int, float]]) -> list[Document]:
    return [replace(documents[at], score=score) for at, score in best]


def _texts(documents: Iterable[Document]) -> list[str]:
    texts = []
    for document in documents:
        if document.content is None:
            raise InputError(f"Documents must have a text to be scored; {document.id!r} has no content.")
        texts.append(document.content)
    return texts


def _check_plain(name: str, value: Any) -> None:
    try:
        json.dumps(value)
    except TypeError:
        raise InputError(
            f"A pipeline file holds plain values, and {name} is an object of {type(value).__name__}. Give its name or "
            "folder, or 'module:name' of an object that can be imported."
        ) from None
