"""The LangChain retriever in LangChain's hands: its conformance tests, chains, callbacks and options per call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_tests.integration_tests import RetrieversIntegrationTests

import adacur
from adacur import Gaussian
from adacur.errors import InputError
from adacur.extras.langchain import AdacurRetriever, items_of
from tests.host_world import QUERY, make_index, shared_words


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("langchain") / "small.adacur")


@pytest.fixture
def retriever(path: Path) -> Iterator[AdacurRetriever]:
    opened = AdacurRetriever.from_path(path, scorer=shared_words, k=3, budget=20)
    yield opened
    opened.close()


class TestConformance(RetrieversIntegrationTests):
    """The tests that LangChain has every retriever pass."""

    @pytest.fixture(autouse=True)
    def _index(self, path: Path) -> None:
        self.index = adacur.load(path, scorer=shared_words)

    @property
    def retriever_constructor(self) -> type[AdacurRetriever]:
        return AdacurRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        return {"index": self.index, "budget": 20}

    @property
    def retriever_query_example(self) -> str:
        return QUERY


def test_options_of_one_call_win_over_fields_and_fields_over_nothing(retriever: AdacurRetriever) -> None:
    def found(**options: Any) -> list[str]:
        return [document.id for document in retriever.invoke(QUERY, **options)]

    index = retriever.index
    assert found() == list(index.search(QUERY, 3, budget=20).ids)
    assert found(k=5, budget=30, method="rerank") == list(index.search(QUERY, 5, budget=30, method="rerank").ids)
    assert found(k=None) == found()
    assert [document.id for document in asyncio.run(retriever.ainvoke(QUERY, k=5))] == found(k=5)


def test_rarer_options_go_into_search_kwargs(retriever: AdacurRetriever) -> None:
    index = retriever.index
    rare = AdacurRetriever(index=index, k=3, budget=20, search_kwargs={"first_batch": 0.1, "rounds": 4})

    assert [document.metadata["round"] for document in rare.invoke(QUERY)] == list(
        index.search(QUERY, 3, budget=20, method=Gaussian(first_batch=0.1, rounds=4)).rounds
    )


def test_an_option_that_nobody_knows_is_refused(retriever: AdacurRetriever) -> None:
    with pytest.raises(InputError):
        retriever.invoke(QUERY, budgt=3)
    with pytest.raises(ValueError, match="budgt"):
        AdacurRetriever(index=retriever.index, budgt=3)


def test_a_path_is_no_index(path: Path) -> None:
    with pytest.raises(ValueError, match="AnchorIndex"):
        AdacurRetriever(index=path)


def test_a_retriever_can_be_dumped_without_its_index(retriever: AdacurRetriever) -> None:
    dumped = json.loads(retriever.model_dump_json())

    assert "index" not in dumped
    assert (dumped["k"], dumped["budget"]) == (3, 20)


def test_a_document_without_an_id_gets_one_that_follows_from_its_content() -> None:
    documents = [Document(page_content="a", metadata={"n": 1}), Document(page_content="a", metadata={"n": 2})]
    ids = [item.id for item in items_of(documents)]

    assert len(set(ids)) == 2
    assert ids == [item.id for item in items_of(Document.model_validate(one.model_dump()) for one in documents)]
