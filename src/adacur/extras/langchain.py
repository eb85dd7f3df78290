"""LangChain: an index as a retriever, and a scorer as a document compressor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adacur.extras import host_bridge as bridge
from adacur.options import SEARCH_OPTIONS
from adacur.records import Item
from adacur.requirements import require
from adacur.results import Hit
from adacur.scorers import scorer as open_scorer

require("langchain_core", extra="langchain")

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun  # noqa: E402
from langchain_core.documents import BaseDocumentCompressor, Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402
from pydantic import ConfigDict, Field, create_model  # noqa: E402

_fields: dict[str, Any] = dict.fromkeys(SEARCH_OPTIONS, (Any, None))
_SearchFields: Any = create_model("_SearchFields", __base__=BaseRetriever, **_fields)
_METHOD_FIELDS = ("rounds", "seed")


class AdacurRetriever(_SearchFields):  # type: ignore[misc]
    """The best k items of an index for a query, within a budget of scorer calls, as LangChain documents.

    Documents carry the item's metadata, and id, relevance_score, rank and round. The score is the scorer's; with
    fused first stages it is what they are ordered by, and exact the scorer's. A filter that no item passes gives no
    documents. All fields may be given to `invoke` too, for that call.

    - the options of `AnchorIndex.search` (`budget`, `method`, `first`, `filter`, `effort`, `min_relevance`,
      `min_score`), as objects or in single values (`deadline`, `tokens`, `cost`, `price`, `pool`, `fuse`);
    - `rounds`, `seed`, and in `search_kwargs` other options of the method.
    """

    # A misspelt option must not be ignored.
    model_config = ConfigDict(extra="forbid")

    index: Any = Field(exclude=True)
    k: int = 10
    rounds: int | None = None
    seed: int | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Refuse what is not an index."""
        super().model_post_init(context)
        bridge.check_index(self.index)

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
        fields = {name: getattr(self, name) for name in ("k", *SEARCH_OPTIONS, *_METHOD_FIELDS)}
        # None in a call stands for what the field says.
        now = {name: value for name, value in given.items() if value is not None}
        return fields | self.search_kwargs | now


class AdacurReranker(BaseDocumentCompressor):  # type: ignore[misc]
    """Scores the given documents exactly and keeps the best `top_n`, with their `relevance_score`.

    `scorer` is an index's (`index.scorer`), or whatever `adacur.scorer` opens: a name, a folder, a URL, an object.
    """

    model_config = ConfigDict(extra="forbid")

    scorer: Any = Field(exclude=True)
    top_n: int = Field(default=3, ge=1)

    def model_post_init(self, context: Any, /) -> None:
        """Open the scorer."""
        super().model_post_init(context)
        self.scorer = open_scorer(self.scorer)

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:
        """The best documents, best first."""
        texts = [document.page_content for document in documents]
        return _scored(documents, bridge.rerank(self.scorer, query, texts, k=self.top_n))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        """Like `compress_documents`, without blocking the event loop."""
        texts = [document.page_content for document in documents]
        return _scored(documents, await bridge.arerank(self.scorer, query, texts, k=self.top_n))


def items_of(documents: Iterable[Document]) -> list[Item]:
    """LangChain documents as items for `adacur.build`; one without an id gets one that follows from its content."""
    return [bridge.as_item(document.id, document.page_content, document.metadata) for document in documents]


def _document(hit: Hit) -> Document:
    metadata = bridge.metadata_of(hit) | {"id": hit.id, "relevance_score": bridge.score_of(hit)}
    return Document(id=hit.id, page_content=bridge.text_of(hit), metadata=metadata)


def _scored(documents: Sequence[Document], best: Iterable[tuple[int, float]]) -> list[Document]:
    return [
        documents[at].model_copy(update={"metadata": documents[at].metadata | {"relevance_score": score}})
        for at, score in best
    ]
