"""The LlamaIndex retriever in LlamaIndex's hands: query engines, callbacks and metadata filters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.vector_stores.types import FilterOperator, MetadataFilter, MetadataFilters

import adacur
from adacur import AnchorIndex
from adacur.errors import InputError
from adacur.extras.llama_index import AdacurRetriever
from tests.host_world import QUERY, make_index, shared_words


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnchorIndex]:
    path: Path = make_index(tmp_path_factory.mktemp("llama") / "small.adacur")
    with adacur.load(path, scorer=shared_words) as opened:
        yield opened


def test_a_query_engine_answers_from_what_was_found(index: AnchorIndex) -> None:
    retriever = AdacurRetriever(index, similarity_top_k=3, budget=20)
    engine = RetrieverQueryEngine.from_args(retriever, llm=MockLLM())
    hits = index.search(QUERY, 3, budget=20)

    for response in (engine.query(QUERY), asyncio.run(engine.aquery(QUERY))):
        assert [node.node_id for node in response.source_nodes] == list(hits.ids)
        # The mock answers with its prompt.
        assert all(hit.item.text in str(response) for hit in hits)
        assert "kind: ship" in str(response), "a language model reads the item's own metadata"
        assert "round:" not in str(response), "what the search knows is not for a language model"


def one(key: str, value: Any, operator: FilterOperator = FilterOperator.EQ) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=operator)


@pytest.mark.parametrize(
    ("filters", "passes"),
    [
        ([one("year", 1510, FilterOperator.LT)], lambda item: item["year"] < 1510),
        ([one("kind", ["ship", "city"], FilterOperator.IN)], lambda item: item["kind"] in ("ship", "city")),
        ([one("kind", "MOUNT", FilterOperator.TEXT_MATCH_INSENSITIVE)], lambda item: item["kind"] == "mountain"),
        (
            [one("kind", "ship"), one("year", 1520, FilterOperator.GTE)],
            lambda item: item["kind"] == "ship" and item["year"] >= 1520,
        ),
        ([], lambda item: True),
    ],
    ids=["less", "in", "text", "and", "none"],
)
def test_filters_mean_what_llama_index_says(
    index: AnchorIndex, filters: list[Any], passes: Callable[[Any], bool]
) -> None:
    retriever = AdacurRetriever(index, similarity_top_k=60, method="exact", filters=MetadataFilters(filters=filters))
    allowed = index.search(QUERY, 60, method="exact", filter=lambda item: passes(item.metadata))

    assert [node.node_id for node in retriever.retrieve(QUERY)] == list(allowed.ids)


def test_a_filter_that_cannot_be_applied_names_the_item(index: AnchorIndex) -> None:
    filters = MetadataFilters(filters=[one("kind", 3, FilterOperator.GT)])
    retriever = AdacurRetriever(index, filters=filters)

    with pytest.raises(InputError):
        retriever.retrieve(QUERY)


def test_two_ways_to_filter_at_once_are_refused(index: AnchorIndex) -> None:
    with pytest.raises(InputError):
        AdacurRetriever(index, filters=MetadataFilters(filters=[]), filter=["item-1"])


def test_what_nobody_can_use_is_refused(index: AnchorIndex) -> None:
    with pytest.raises(InputError):
        AdacurRetriever("small.adacur")
    with pytest.raises(InputError):
        AdacurRetriever(index, budgt=3).retrieve(QUERY)
