"""The LangChain retriever in LangChain's hands: its conformance tests, chains, callbacks and options per call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, RunnablePassthrough
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
    with pytest.raises(ValueError, match="from_path"):
        AdacurRetriever(index=path)


@pytest.mark.parametrize(
    ("given", "passes"),
    [
        ({"kind": "ship"}, lambda item: item.metadata["kind"] == "ship"),
        ({"kind": "ship", "year": 1527}, lambda item: item.metadata["year"] == 1527),
        (lambda item: item.metadata["year"] < 1510, lambda item: item.metadata["year"] < 1510),
        (["item-3", "item-4"], ["item-3", "item-4"]),
    ],
    ids=["a value", "two values", "a function", "ids"],
)
def test_a_filter_is_metadata_a_function_or_ids(retriever: AdacurRetriever, given: Any, passes: Any) -> None:
    found = retriever.invoke(QUERY, filter=given)

    assert [document.id for document in found] == list(retriever.index.search(QUERY, 3, budget=20, filter=passes).ids)
    assert found


def test_a_filter_on_metadata_that_items_lack_passes_none_of_them(retriever: AdacurRetriever) -> None:
    assert retriever.invoke(QUERY, filter={"colour": None}) == []


def test_a_chain_puts_what_was_found_into_the_prompt(retriever: AdacurRetriever) -> None:
    prompt = ChatPromptTemplate.from_template("{context}\n\nQuestion: {question}")
    seen: list[str] = []

    def joined(documents: list[Document]) -> str:
        seen.append("\n".join(document.page_content for document in documents))
        return seen[-1]

    chain = (
        {"context": retriever | joined, "question": RunnablePassthrough()}
        | prompt
        | FakeListChatModel(responses=["In 1527."])
        | StrOutputParser()
    )

    assert chain.invoke(QUERY) == asyncio.run(chain.ainvoke(QUERY)) == "In 1527."
    assert seen == ["\n".join(hit.item.text for hit in retriever.index.search(QUERY, 3, budget=20))] * 2


def test_a_batch_answers_each_query(retriever: AdacurRetriever) -> None:
    queries = [QUERY, "a river of the north", "the number 7"]
    one_by_one = [retriever.invoke(query) for query in queries]

    assert retriever.batch(queries) == one_by_one
    assert asyncio.run(retriever.abatch(queries)) == one_by_one


def test_k_can_be_made_configurable(retriever: AdacurRetriever) -> None:
    configurable = retriever.configurable_fields(k=ConfigurableField(id="k"))

    assert len(configurable.invoke(QUERY)) == 3
    assert len(configurable.invoke(QUERY, {"configurable": {"k": 5}})) == 5


def test_callbacks_are_told_of_start_end_and_error(retriever: AdacurRetriever) -> None:
    class Told(BaseCallbackHandler):
        def __init__(self) -> None:
            self.of: list[Any] = []

        def on_retriever_start(self, serialized: Any, query: str, **about: Any) -> None:
            self.of.append(("start", query, about["name"], about["metadata"]["ls_retriever_name"]))

        def on_retriever_end(self, documents: Any, **about: Any) -> None:
            self.of.append(("end", len(documents)))

        def on_retriever_error(self, error: BaseException, **about: Any) -> None:
            self.of.append(("error", type(error).__name__))

    told = Told()
    retriever.invoke(QUERY, {"callbacks": [told]})
    with pytest.raises(InputError):
        retriever.invoke(" ", {"callbacks": [told]})

    assert told.of == [
        ("start", QUERY, "AdacurRetriever", "adacur"),
        ("end", 3),
        ("start", " ", "AdacurRetriever", "adacur"),
        ("error", "EmptyInput"),
    ]


def test_a_retriever_can_be_dumped_without_its_index(retriever: AdacurRetriever) -> None:
    dumped = json.loads(retriever.model_dump_json())

    assert "index" not in dumped
    assert (dumped["k"], dumped["budget"]) == (3, 20)


def test_what_is_closed_is_refused(path: Path) -> None:
    retriever = AdacurRetriever.from_path(path, scorer=shared_words)
    retriever.close()

    with pytest.raises(InputError):
        retriever.invoke(QUERY)


def test_a_document_without_an_id_gets_one_that_follows_from_its_content() -> None:
    documents = [Document(page_content="a", metadata={"n": 1}), Document(page_content="a", metadata={"n": 2})]
    ids = [item.id for item in items_of(documents)]

    assert len(set(ids)) == 2
    assert ids == [item.id for item in items_of(Document.model_validate(one.model_dump()) for one in documents)]
