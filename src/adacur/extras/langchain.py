"""LangChain: an index as a retriever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adacur.extras import host_bridge as bridge
from adacur.options import FIND_OPTIONS, OPTIONS
from adacur.records import Item
from adacur.requirements import require
from adacur.results import Hit
from adacur.search import AnchorIndex

require("langchain_core", extra="langchain")

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun  # noqa: E402
from langchain_core.documents import Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402
from pydantic import ConfigDict, Field, create_model  # noqa: E402

_OPTIONS = tuple(dict.fromkeys(one.name for one in (*OPTIONS, *FIND_OPTIONS)))
_fields: dict[str, Any] = dict.fromkeys(_OPTIONS, (Any, None))
_SearchFields: Any = create_model("_SearchFields", __base__=BaseRetriever, **_fields)
_METHOD_FIELDS = ("rounds", "seed")


class AdacurRetriever(_SearchFields):  # type: ignore[misc]
    """The best k items of an index for a query, within a budget of scorer calls, as LangChain documents.

    Documents carry the item's metadata, and id, relevance_score, rank and round. The score is the scorer's; with
    fused first stages it is what they are ordered by, and exact the scorer's. A filter that no item passes gives no
    documents. All fields may be given to `invoke` too, for that call.

    - the options of `AnchorIndex.search`, as objects or in single values as a command line takes them (`deadline`,
      `tokens` …); with `above`, those of `AnchorIndex.find`: all items that score this or higher, whatever k is;
    - `rounds`, `seed`, and in `search_kwargs` other options of the method.
    """

    # A misspelt option must not be ignored, and a URL in the place of an index may carry a key.
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    index: AnchorIndex = Field(exclude=True)
    k: int = 10
    rounds: int | None = None
    seed: int | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_path(cls, path: str | Path, **options: Any) -> AdacurRetriever:
        """Open an index folder; `options` are those of `adacur.load` (scorer, encoder …) and fields."""
        index, fields = bridge.load_with(path, options)
        return cls(index=index, **fields)

    def close(self) -> None:
        """Close the index, given or opened here."""
        self.index.close()

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return [_document(hit) for hit in bridge.search(self.index, query, **self._options(kwargs))]

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        hits = await bridge.asearch(self.index, query, **self._options(kwargs))
        return [_document(hit) for hit in hits]

    def _options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("k", *_OPTIONS, *_METHOD_FIELDS)}
        # None in a call stands for what the field says.
        now = {name: value for name, value in given.items() if value is not None}
        return fields | self.search_kwargs | now


def items_of(documents: Iterable[Document]) -> list[Item]:
    """LangChain documents as items for `adacur.build`; one without an id gets one that follows from its content."""
    return [bridge.as_item(document.id, document.page_content, document.metadata) for document in documents]


def _document(hit: Hit) -> Document:
    metadata = bridge.metadata_of(hit) | {"id": hit.id, "relevance_score": bridge.score_of(hit)}
    return Document(id=hit.id, page_content=bridge.text_of(hit), metadata=metadata)
