"""Haystack: a component that retrieves from an index, in pipelines that can be written as YAML."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from adacur.budget import check_k
from adacur.errors import InputError
from adacur.extras import host_bridge as bridge
from adacur.records import Item
from adacur.requirements import require
from adacur.results import Hit
from adacur.search import AnchorIndex

require("haystack", extra="haystack")

from haystack import Document, component, default_to_dict  # noqa: E402
from haystack.document_stores.types import FilterPolicy, apply_filter_policy  # noqa: E402
from haystack.utils.filters import document_matches_filter  # noqa: E402

_PLAIN = (str, int, float, bool, list, dict)


@component
class AdacurRetriever:
    """The best items of an index for a query, within a budget of scorer calls, as documents with their scores.

    The index folder is opened by `warm_up`, or at the first run. The score is the scorer's; with a fused first stage
    it is what documents are ordered by, and exact the scorer's. Documents carry the item's metadata, and rank, round
    and exact.

    - `filters`: Haystack's, where "meta.lang" is an item's metadata `lang`; where no item passes, there are no
      documents;
    - `options`: those of `adacur.load` (scorer, encoder, device …), and of `AnchorIndex.search` or, with `above`, of
      `AnchorIndex.find`. A pipeline can be written as YAML where they are plain values: a scorer by its name, folder,
      URL or "module:function".
    """

    def __init__(
        self,
        path: str | Path,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = "replace",
        **options: Any,
    ) -> None:
        check_k(top_k)
        self.path = str(path)
        self.top_k = top_k
        self.filters = filters
        self.filter_policy = FilterPolicy.from_str(str(filter_policy))
        self._given = {name: value for name, value in options.items() if value is not None}
        # Those for searches, known once the index is open.
        self._options: dict[str, Any] = {}
        self._index: AnchorIndex | None = None
        self._lock = threading.Lock()

    def to_dict(self) -> dict[str, Any]:
        """This component as a pipeline file holds it."""
        if not_plain := [name for name, value in self._given.items() if not isinstance(value, _PLAIN)]:
            raise InputError(
                f"A pipeline file holds plain values, and {', '.join(not_plain)} is an object. Give its name or folder "
                "or 'module:name' of an object that can be imported."
            )
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

    def warm_up(self) -> None:
        """Open the index, if it is not open."""
        self._opened()

    async def warm_up_async(self) -> None:
        """Like `warm_up`, without blocking the event loop."""
        await asyncio.to_thread(self._opened)

    def close(self) -> None:
        """Close the index; the next run opens it again."""
        with self._lock:
            index, self._index = self._index, None
        if index is not None:
            index.close()

    def _opened(self) -> AnchorIndex:
        with self._lock:
            if self._index is None:
                index, self._options = bridge.load_with(self.path, self._given)
                # Otherwise a scorer that the manifest names would be opened, and perhaps refused, in the first search.
                _ = index.scorer
                self._index = index
            return self._index

    def _search_options(self, index: AnchorIndex, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        options = self._options | {"k": self.top_k if top_k is None else top_k}
        if merged := apply_filter_policy(self.filter_policy, self.filters, filters):
            if options.get("filter") is not None:
                raise InputError("Give filters (Haystack's) or filter (as searches take it); not both.")
            matches = partial(document_matches_filter, merged)
            options["filter"] = bridge.filter_for(index, lambda item: matches(_plain(item)))
        return options


def items_of(documents: Iterable[Document]) -> list[Item]:
    """Haystack documents as items for `adacur.build`: their ids, texts and metadata."""
    return [bridge.as_item(one.id, _text(one), one.meta) for one in documents]


def _document(hit: Hit) -> Document:
    return Document(id=hit.id, content=bridge.text_of(hit), meta=bridge.metadata_of(hit), score=bridge.score_of(hit))


def _plain(item: Item) -> Document:
    return Document(id=item.id, content=item.text, meta=dict(item.metadata))


def _text(document: Document) -> str:
    if document.content is None:
        raise InputError(f"Documents must have a text to become items; {document.id!r} has no content.")
    return str(document.content)
