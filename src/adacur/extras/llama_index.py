"""LlamaIndex: an index as a retriever."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from adacur.errors import InputError
from adacur.extras import host_bridge as bridge
from adacur.records import Item
from adacur.requirements import require
from adacur.results import Hit
from adacur.search import AnchorIndex

require("llama_index", extra="llama-index")

from llama_index.core.base.base_retriever import BaseRetriever  # noqa: E402
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore, QueryBundle, TextNode  # noqa: E402
from llama_index.core.vector_stores.types import MetadataFilters  # noqa: E402
from llama_index.core.vector_stores.utils import build_metadata_filter_fn  # noqa: E402

_HOST_OPTIONS = ("callback_manager", "object_map", "objects", "verbose")


class AdacurRetriever(BaseRetriever):  # type: ignore[misc]
    """The best items of an index for a query, within a budget of scorer calls, as nodes with their scores.

    The score is the scorer's; with a fused first stage it is what nodes are ordered by, and exact the scorer's. Nodes
    carry the item's metadata, and rank, round and exact, which are hidden from language models and embeddings.

    - `filters`: LlamaIndex's, on metadata; where no item passes, there are no nodes;
    - `options`: those of `AnchorIndex.search` or, with `above`, of `AnchorIndex.find`, and of LlamaIndex's retrievers.
    """

    def __init__(
        self, index: AnchorIndex, *, similarity_top_k: int = 10, filters: MetadataFilters | None = None, **options: Any
    ) -> None:
        super().__init__(**{name: options.pop(name) for name in _HOST_OPTIONS if name in options})
        if not isinstance(index, AnchorIndex):
            # Not its repr: a URL may carry a key.
            raise InputError(
                f"index must be an open index; got {type(index).__name__}. AdacurRetriever.from_path opens a folder."
            )
        if filters is not None and options.get("filter") is not None:
            raise InputError("Give filters (LlamaIndex's) or filter (as searches take it); not both.")
        self.index = index
        self.similarity_top_k = similarity_top_k
        self._options = options
        if filters is not None:
            # LlamaIndex looks metadata up by a node's id: here the metadata stand for the id.
            matches = build_metadata_filter_fn(lambda metadata: metadata, filters)

            def allows(item: Item) -> bool:
                return bool(matches(item.metadata))

            self._options["filter"] = bridge.filter_for(index, allows)

    @classmethod
    def from_path(cls, path: str | Path, **options: Any) -> AdacurRetriever:
        """Open an index folder; `options` are those of `adacur.load` (scorer, encoder …) and of this class."""
        index, others = bridge.load_with(path, options)
        return cls(index, **others)

    def close(self) -> None:
        """Close the index, given or opened here."""
        self.index.close()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = bridge.search(self.index, query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = await bridge.asearch(self.index, query_bundle.query_str, self.similarity_top_k, **self._options)
        return [_node(hit) for hit in hits]


def items_of(nodes: Iterable[BaseNode]) -> list[Item]:
    """LlamaIndex nodes or documents as items for `adacur.build`: their ids, bare texts and metadata."""
    return [
        bridge.as_item(node.node_id, node.get_content(metadata_mode=MetadataMode.NONE), node.metadata) for node in nodes
    ]


def _node(hit: Hit) -> NodeWithScore:
    hidden = list(bridge.ranking_of(hit))
    node = TextNode(
        id_=hit.id,
        text=bridge.text_of(hit),
        metadata=bridge.metadata_of(hit),
        excluded_llm_metadata_keys=hidden,
        excluded_embed_metadata_keys=hidden,
    )
    return NodeWithScore(node=node, score=bridge.score_of(hit))
