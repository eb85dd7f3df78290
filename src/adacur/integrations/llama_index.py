"""LlamaIndex: an index as a retriever, and a scorer as a node postprocessor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.records import Item
from adacur.core.results import Hit
from adacur.integrations.documents import (
    arerank,
    as_item,
    asearch,
    check_index,
    checked_filter,
    item_of,
    known_of,
    load_with,
    metadata_of,
    rerank,
    score_of,
    search,
)
from adacur.scorers import scorer as open_scorer
from adacur.search import AnchorIndex, SearchOptions

require("llama_index", extra="llama-index")

from llama_index.core.base.base_retriever import BaseRetriever  # noqa: E402
from llama_index.core.bridge.pydantic import ConfigDict, Field  # noqa: E402
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload  # noqa: E402
from llama_index.core.postprocessor.types import BaseNodePostprocessor  # noqa: E402
from llama_index.core.schema import BaseNode, IndexNode, MetadataMode, NodeWithScore, QueryBundle, TextNode  # noqa: E402
from llama_index.core.vector_stores.types import FilterCondition, MetadataFilters  # noqa: E402
from llama_index.core.vector_stores.utils import build_metadata_filter_fn  # noqa: E402

__all__ = ["AdacurReranker", "AdacurRetriever", "items_of"]


class AdacurRetriever(BaseRetriever):  # type: ignore[misc]
    """The best items of an index for a query, within a budget of scorer calls, as nodes with their scores.

    `options` are those of `AnchorIndex.search`: budget, rounds, method, first … `filters` are LlamaIndex's, on
    metadata; where no item passes, no node is found. The score is the scorer's own; with `fuse` it is what nodes are
    ordered by, and exact the scorer's. Nodes carry the item's metadata, and rank, round and exact, which neither a
    language model nor an embedding gets to see.
    """

    def __init__(
        self,
        index: AnchorIndex,
        *,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        callback_manager: CallbackManager | None = None,
        object_map: dict[str, Any] | None = None,
        objects: list[IndexNode] | None = None,
        verbose: bool = False,
        **options: Unpack[SearchOptions],
    ) -> None:
        super().__init__(callback_manager=callback_manager, object_map=object_map, objects=objects, verbose=verbose)
        check_index(index)
        if filters is not None and options.get("filter") is not None:
            raise InputError("Give filters (LlamaIndex's) or filter (a function of an item, or ids); not both.")
        self.index = index
        self.similarity_top_k = similarity_top_k
        self._options = options
        if filters is not None:
            self._options["filter"] = checked_filter(_matcher(filters))

    @classmethod
    def from_path(cls, path: str | Path, **options: Any) -> AdacurRetriever:
        """Open an index folder; `options` are those of `adacur.load` (scorer, encoder, cache …) and of this class."""
        index, own = load_with(path, options)
        return cls(index, **own)

    def close(self) -> None:
        """Close the index, given or opened here."""
        self.index.close()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = search(self.index, query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = await asearch(self.index, query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]


class AdacurReranker(BaseNodePostprocessor):  # type: ignore[misc]
    """Scores the given nodes exactly and keeps the best `top_n`.

    `scorer` is an index's (`index.scorer`), or whatever `adacur.scorer` opens: a name, a folder, a URL, an object.
    `metadata_mode` says what of a node's metadata is scored with its text; nothing, unless told.
    """

    # A misspelt option must not be ignored.
    model_config = ConfigDict(extra="forbid")

    scorer: Any = Field(exclude=True)
    top_n: int = Field(default=3, ge=1)
    metadata_mode: MetadataMode = MetadataMode.NONE

    def model_post_init(self, context: Any, /) -> None:
        """Open the scorer."""
        super().model_post_init(context)
        self.scorer = open_scorer(self.scorer)

    @classmethod
    def class_name(cls) -> str:
        """The name it is known by in callbacks."""
        return "AdacurReranker"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _text_of(query_bundle)
        with self._told(query, nodes) as event:
            best = _scored(nodes, rerank(self.scorer, query, self._texts(nodes), k=self.top_n))
            event.on_end(payload={EventPayload.NODES: best})
        return best

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = _text_of(query_bundle)
        with self._told(query, nodes) as event:
            best = _scored(nodes, await arerank(self.scorer, query, self._texts(nodes), k=self.top_n))
            event.on_end(payload={EventPayload.NODES: best})
        return best

    def _texts(self, nodes: Iterable[NodeWithScore]) -> list[str]:
        return [node.node.get_content(metadata_mode=self.metadata_mode) for node in nodes]

    def _told(self, query: str, nodes: list[NodeWithScore]) -> Any:
        return self.callback_manager.event(
            CBEventType.RERANKING,
            payload={
                EventPayload.NODES: nodes,
                EventPayload.MODEL_NAME: self.scorer.card.name,
                EventPayload.QUERY_STR: query,
                EventPayload.TOP_K: self.top_n,
            },
        )


def items_of(nodes: Iterable[BaseNode]) -> list[Item]:
    """LlamaIndex nodes or documents as items for `adacur.build`: their ids, bare texts and metadata."""
    return [as_item(node.node_id, node.get_content(metadata_mode=MetadataMode.NONE), node.metadata) for node in nodes]


def _node(hit: Hit) -> NodeWithScore:
    node = TextNode(
        id_=hit.id,
        text=item_of(hit).text,
        metadata=metadata_of(hit),
        excluded_llm_metadata_keys=list(known_of(hit)),
        excluded_embed_metadata_keys=list(known_of(hit)),
    )
    return NodeWithScore(node=node, score=score_of(hit))


def _scored(nodes: Sequence[NodeWithScore], best: Iterable[tuple[int, float]]) -> list[NodeWithScore]:
    return [NodeWithScore(node=nodes[at].node, score=score) for at, score in best]


def _text_of(query: QueryBundle | None) -> str:
    if query is None:
        raise InputError("Nodes are scored against a query; give query_bundle or query_str.")
    return str(query.query_str)


def _matcher(filters: MetadataFilters) -> Callable[[Item], bool]:
    """LlamaIndex's own matching; what it refuses, filters inside filters, is put together here."""
    parts = [_matcher(part) if isinstance(part, MetadataFilters) else _matcher_of_one(part) for part in filters.filters]
    if not parts:
        return lambda item: True
    if filters.condition == FilterCondition.OR:
        return lambda item: any(part(item) for part in parts)
    if filters.condition == FilterCondition.NOT:
        return lambda item: not any(part(item) for part in parts)
    return lambda item: all(part(item) for part in parts)


def _matcher_of_one(part: Any) -> Callable[[Item], bool]:
    # The host looks the metadata up by a node's id; they are at hand, and are their own id.
    matches = build_metadata_filter_fn(lambda metadata: metadata, MetadataFilters(filters=[part]))
    return lambda item: bool(matches(item.metadata))
