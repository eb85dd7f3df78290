"""Haystack: components that retrieve from an index and rank with a scorer, in pipelines that can be written as YAML."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from adacur.core.budget import check_k
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import Scorer
from adacur.core.records import Item
from adacur.core.results import Hit
from adacur.integrations.documents import (
    arerank,
    as_item,
    asearch,
    checked_filter,
    item_of,
    metadata_of,
    rerank,
    score_of,
    search,
)
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex, load

require("haystack", extra="haystack")

from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402
from haystack.document_stores.types import FilterPolicy, apply_filter_policy  # noqa: E402
from haystack.utils.filters import document_matches_filter  # noqa: E402

__all__ = ["AdacurRanker", "AdacurRetriever", "items_of"]


@component
class AdacurRetriever:
    """The best items of an index for a query, within a budget of scorer calls, as documents with their scores.

    The index folder is opened by `warm_up`, or when first asked. `scorer`, `encoder`, `cache`, `device`, `check` and
    `trust` are those of `adacur.load`; the rest are options of `AnchorIndex.search`, chosen by the index where left
    out. A pipeline can be written as YAML where they are texts and numbers: a scorer by its name, folder, URL or
    "module:function".

    `filters` are Haystack's; where no item passes, no document is found. The score is the scorer's own; with `fuse` it
    is what documents are ordered by, and exact the scorer's. Documents carry the item's metadata, and rank, round and
    exact.
    """

    def __init__(
        self,
        path: str | Path,
        top_k: int = 10,
        filters: dict[str, Any] | None = None,
        filter_policy: str | FilterPolicy = "replace",
        *,
        scorer: Any = None,
        encoder: Any = None,
        cache: str | Path | None = None,
        device: str | None = None,
        check: bool = True,
        trust: bool = False,
        budget: int | None = None,
        rounds: int | None = None,
        deadline: float | None = None,
        method: str | None = None,
        first: str | None = None,
        pool: int | None = None,
        fuse: float | None = None,
        stop_when: float | None = None,
        seed: int | None = None,
    ) -> None:
        check_k(top_k)
        self.path = str(path)
        self.top_k = top_k
        self.filters = filters
        self.filter_policy = FilterPolicy.from_str(str(filter_policy))
        self._loading = {
            "scorer": scorer,
            "encoder": encoder,
            "cache": None if cache is None else str(cache),
            "device": device,
            "check": check,
            "trust": trust or None,
        }
        self._options = {
            "budget": budget,
            "rounds": rounds,
            "deadline": deadline,
            "method": method,
            "first": first,
            "pool": pool,
            "fuse": fuse,
            "stop_when": stop_when,
            "seed": seed,
        }
        self._index: AnchorIndex | None = None
        self._opening = threading.Lock()

    def warm_up(self) -> None:
        """Open the index and its scorer, if they are not open."""
        self._opened()

    async def warm_up_async(self) -> None:
        """Like `warm_up`, without holding up the event loop."""
        await asyncio.to_thread(self._opened)

    def close(self) -> None:
        """Close the index and its scorer; the next run opens them again."""
        with self._opening:
            index, self._index = self._index, None
        if index is not None:
            index.close()

    def to_dict(self) -> dict[str, Any]:
        """This component as a pipeline file holds it."""
        for name in ("scorer", "encoder"):
            _check_named(name, self._loading[name])
        return default_to_dict(  # type: ignore[no-any-return]
            self,
            path=self.path,
            top_k=self.top_k,
            filters=self.filters,
            filter_policy=self.filter_policy.value,
            **_given(self._loading),
            **_given(self._options),
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AdacurRetriever:
        """The component that `to_dict` told of."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The best documents, best first."""
        index = self._opened()
        hits = search(index, query, **self._asked(filters, top_k))
        return {"documents": [_document(hit) for hit in hits]}

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Like `run`, without holding up the event loop."""
        index = await asyncio.to_thread(self._opened)
        hits = await asearch(index, query, **self._asked(filters, top_k))
        return {"documents": [_document(hit) for hit in hits]}

    def _opened(self) -> AnchorIndex:
        with self._opening:
            if self._index is None:
                index = load(self.path, **_given(self._loading))
                # Named in the manifest, it would be opened, and may be refused, only in the first search.
                _ = index.scorer
                self._index = index
            return self._index

    def _asked(self, filters: dict[str, Any] | None, top_k: int | None) -> dict[str, Any]:
        wanted = apply_filter_policy(self.filter_policy, self.filters, filters)
        allowed = None
        if wanted:
            allowed = checked_filter(lambda item: document_matches_filter(wanted, _plain_document(item)))
        return self._options | {"k": self.top_k if top_k is None else top_k, "filter": allowed}


@component
class AdacurRanker:
    """Scores the given documents exactly and keeps the best `top_k`.

    `scorer` is whatever `adacur.scorer` opens, in `warm_up` or when first asked; a pipeline can be written as YAML
    where it is a text: a name, a folder, a URL, or "module:function".
    """

    def __init__(self, scorer: Any, top_k: int = 10) -> None:
        check_k(top_k)
        self._source = str(scorer) if isinstance(scorer, Path) else scorer
        self.top_k = top_k
        self._scorer: Scorer | None = None
        self._opening = threading.Lock()

    def warm_up(self) -> None:
        """Open the scorer, if it is not open."""
        self._opened()

    async def warm_up_async(self) -> None:
        """Like `warm_up`, without holding up the event loop."""
        await asyncio.to_thread(self._opened)

    def close(self) -> None:
        """Close a scorer that was opened here; the next run opens it again."""
        with self._opening:
            scorer, self._scorer = self._scorer, None
        if scorer is not self._source and callable(close := getattr(scorer, "close", None)):
            close()

    def to_dict(self) -> dict[str, Any]:
        """This component as a pipeline file holds it."""
        _check_named("scorer", self._source)
        return default_to_dict(self, scorer=self._source, top_k=self.top_k)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> AdacurRanker:
        """The component that `to_dict` told of."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """The best documents, best first."""
        best = rerank(self._opened(), query, _texts(documents), k=self._checked(top_k))
        return {"documents": _scored(documents, best)}

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Like `run`, without holding up the event loop."""
        scorer = await asyncio.to_thread(self._opened)
        best = await arerank(scorer, query, _texts(documents), k=self._checked(top_k))
        return {"documents": _scored(documents, best)}

    def _opened(self) -> Scorer:
        with self._opening:
            if self._scorer is None:
                self._scorer = open_scorer(self._source)
            return self._scorer

    def _checked(self, top_k: int | None) -> int:
        if top_k is not None:
            check_k(top_k)
        return self.top_k if top_k is None else top_k


def items_of(documents: Iterable[Document]) -> list[Item]:
    """Haystack documents as items for `adacur.build`: their ids, texts and metadata."""
    given = list(documents)
    return [as_item(document.id, text, document.meta) for document, text in zip(given, _texts(given), strict=True)]


def _document(hit: Hit) -> Document:
    return Document(id=hit.id, content=item_of(hit).text, meta=metadata_of(hit), score=score_of(hit))


def _plain_document(item: Item) -> Document:
    return Document(id=item.id, content=item.text, meta=dict(item.metadata))


def _scored(documents: Sequence[Document], best: Iterable[tuple[int, float]]) -> list[Document]:
    return [replace(documents[at], score=score) for at, score in best]


def _texts(documents: Iterable[Document]) -> list[str]:
    texts = []
    for document in documents:
        if document.content is None:
            raise InputError(f"Only documents with a text can be scored; {document.id!r} has no content.")
        texts.append(document.content)
    return texts


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _check_named(name: str, value: Any) -> None:
    if value is not None and not isinstance(value, str):
        raise InputError(
            f"A pipeline file holds texts and numbers, and {name} is an object of {type(value).__name__}. Give its "
            "name or folder, or 'module:name' of an object that can be imported."
        )
