"""What every host's retriever promises: what the index finds, as the host shows it."""

from __future__ import annotations

import asyncio
import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import adacur
from adacur import Item
from adacur.errors import AdacurError, BudgetError, EmptyInput, InputError
from adacur.scorers import FunctionScorer, Metered
from adacur.search import search_options
from tests.host_world import ITEMS, QUERY, make_index, shared_words


@dataclass(frozen=True)
class Found:
    """What a host shows of one hit."""

    id: str
    text: str
    score: float
    metadata: dict[str, Any]


class Host:
    """A retriever of a host, asked in the host's own way."""

    retriever: Any

    @abstractmethod
    def open(self, path: Path, *, k: int, **options: Any) -> None: ...

    @abstractmethod
    def retrieve(self, query: str) -> list[Found]: ...

    @abstractmethod
    async def aretrieve(self, query: str) -> list[Found]: ...

    @abstractmethod
    def only(self, kind: str) -> dict[str, Any]:
        """Options that let items of this kind pass."""

    @abstractmethod
    def documents(self, texts: Sequence[str]) -> list[Any]: ...

    @abstractmethod
    def items_of(self, documents: list[Any]) -> list[Item]: ...


class LangChain(Host):
    def __init__(self) -> None:
        from adacur.extras import langchain

        self.module = langchain

    def open(self, path: Path, *, k: int, **options: Any) -> None:
        self.retriever = self.module.AdacurRetriever.from_path(path, k=k, **options)

    def retrieve(self, query: str) -> list[Found]:
        return [self.found(document) for document in self.retriever.invoke(query)]

    async def aretrieve(self, query: str) -> list[Found]:
        return [self.found(document) for document in await self.retriever.ainvoke(query)]

    def only(self, kind: str) -> dict[str, Any]:
        return {"filter": {"kind": kind}}

    def documents(self, texts: Sequence[str]) -> list[Any]:
        from langchain_core.documents import Document

        return [Document(id=f"d{n}", page_content=text, metadata={"n": n}) for n, text in enumerate(texts)]

    def items_of(self, documents: list[Any]) -> list[Item]:
        return self.module.items_of(documents)

    @staticmethod
    def found(document: Any) -> Found:
        metadata = dict(document.metadata)
        assert metadata.pop("id", document.id) == document.id
        return Found(document.id, document.page_content, metadata.pop("relevance_score"), metadata)


class LlamaIndex(Host):
    def __init__(self) -> None:
        from adacur.extras import llama_index

        self.module = llama_index

    def open(self, path: Path, *, k: int, **options: Any) -> None:
        self.retriever = self.module.AdacurRetriever.from_path(path, similarity_top_k=k, **options)

    def retrieve(self, query: str) -> list[Found]:
        return [self.found(node) for node in self.retriever.retrieve(query)]

    async def aretrieve(self, query: str) -> list[Found]:
        return [self.found(node) for node in await self.retriever.aretrieve(query)]

    def only(self, kind: str) -> dict[str, Any]:
        from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters

        return {"filters": MetadataFilters(filters=[MetadataFilter(key="kind", value=kind)])}

    def documents(self, texts: Sequence[str]) -> list[Any]:
        from llama_index.core.schema import NodeWithScore, TextNode

        return [
            NodeWithScore(node=TextNode(id_=f"d{n}", text=text, metadata={"n": n}), score=-1.0)
            for n, text in enumerate(texts)
        ]

    def items_of(self, documents: list[Any]) -> list[Item]:
        return self.module.items_of([document.node for document in documents])

    @staticmethod
    def found(node: Any) -> Found:
        return Found(node.node.node_id, node.node.text, node.score, node.node.metadata)


class Haystack(Host):
    def __init__(self) -> None:
        from adacur.extras import haystack

        self.module = haystack

    def open(self, path: Path, *, k: int, **options: Any) -> None:
        self.retriever = self.module.AdacurRetriever(path, k, **options)
        self.retriever.warm_up()

    def retrieve(self, query: str) -> list[Found]:
        return [self.found(document) for document in self.retriever.run(query)["documents"]]

    async def aretrieve(self, query: str) -> list[Found]:
        return [self.found(document) for document in (await self.retriever.run_async(query))["documents"]]

    def only(self, kind: str) -> dict[str, Any]:
        return {"filters": {"field": "meta.kind", "operator": "==", "value": kind}}

    def documents(self, texts: Sequence[str]) -> list[Any]:
        from haystack import Document

        return [Document(id=f"d{n}", content=text, meta={"n": n}, score=-1.0) for n, text in enumerate(texts)]

    def items_of(self, documents: list[Any]) -> list[Item]:
        return self.module.items_of(documents)

    @staticmethod
    def found(document: Any) -> Found:
        return Found(document.id, document.content, document.score, document.meta)


HOSTS: dict[str, Callable[[], Host]] = {"langchain": LangChain, "llama-index": LlamaIndex, "haystack": Haystack}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("hosts") / "small.adacur")


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Host:
    return HOSTS[request.param]()


@pytest.fixture
def scorer() -> Metered:
    return Metered(FunctionScorer(shared_words))


def expected(path: Path, **options: Any) -> list[Found]:
    """What the index itself finds."""
    with adacur.load(path, scorer=shared_words, check=False) as index:
        return [
            Found(hit.id, hit.item.text, hit.score, dict(hit.item.metadata) | {"rank": hit.rank, "round": hit.round})
            for hit in index.search(QUERY, options.pop("k"), **search_options(index, **options))
        ]


@pytest.mark.parametrize(
    "options",
    [
        {"k": 5, "budget": 20},
        {"k": 3, "budget": 30, "rounds": 3, "method": "adacur", "seed": 7},
        {"k": 4, "budget": 12, "method": "rerank", "first": "random", "seed": 1},
        {"k": 60, "method": "exact"},
        {"k": 2, "budget": 20, "first": "bm25"},
    ],
    ids=str,
)
def test_a_host_finds_what_the_index_finds(host: Host, path: Path, scorer: Metered, options: dict[str, Any]) -> None:
    host.open(path, scorer=scorer, check=False, **options)

    assert host.retrieve(QUERY) == expected(path, **options)


@pytest.mark.parametrize("budget", [1, 25, 100])
def test_no_host_spends_more_than_the_budget(host: Host, path: Path, scorer: Metered, budget: int) -> None:
    host.open(path, k=1, budget=budget, scorer=scorer, check=False)

    for search in range(1, 4):
        host.retrieve(f"{QUERY} {search}")
        assert scorer.calls == search * min(budget, len(ITEMS))


def test_an_awaited_search_finds_the_same_for_the_same_calls(host: Host, path: Path, scorer: Metered) -> None:
    host.open(path, k=5, budget=20, scorer=scorer, check=False)
    plain, calls = host.retrieve(QUERY), scorer.calls

    async def several() -> list[list[Found]]:
        return await asyncio.gather(*(host.aretrieve(QUERY) for _ in range(3)))

    assert asyncio.run(several()) == [plain] * 3
    assert scorer.calls == 4 * calls


def test_an_awaited_search_does_not_hold_up_the_event_loop(host: Host, path: Path) -> None:
    freed = threading.Event()

    def patient(pairs: Sequence[tuple[str, str]]) -> list[float]:
        assert freed.wait(30), "the event loop stood still while the scorer worked"
        return shared_words(pairs)

    host.open(path, k=3, budget=10, scorer=patient, check=False)

    async def search() -> list[Found]:
        under_way = asyncio.create_task(host.aretrieve(QUERY))
        await asyncio.sleep(0.05)
        freed.set()
        return await under_way

    assert asyncio.run(search()) == expected(path, k=3, budget=10)


@pytest.mark.parametrize(
    "where",
    [
        {"year": [1503, 1507, 1511]},
        {"kind": "ship", "year": 1511},
        {"document": ["item-3", "item-9"]},
        {"rivals": "item-5"},
        ["item-3", "item-9"],
        lambda item: item.metadata["year"] > 1550,
    ],
    ids=["any of", "two names", "documents", "a list in metadata", "ids", "a function"],
)
def test_a_filter_means_what_it_means_in_a_search(host: Host, path: Path, scorer: Metered, where: Any) -> None:
    host.open(path, k=5, budget=20, scorer=scorer, check=False, filter=where)

    assert host.retrieve(QUERY) == expected(path, k=5, budget=20, filter=where) != []


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The items in a table of LanceDB, their metadata as other libraries write them."""
    lancedb, pa = pytest.importorskip("lancedb"), pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("lance")
    columns = {
        "id": [item.id for item in ITEMS],
        "text": [item.text for item in ITEMS],
        "year": [item.metadata["year"] for item in ITEMS],
        "metadata": [{"kind": item.metadata["kind"]} for item in ITEMS],
    }
    made = lancedb.connect(folder).create_table("docs", pa.table(columns))
    made.create_index("text", config=lancedb.index.FTS())
    return f"lancedb://{folder}/docs"


@pytest.mark.parametrize("where", [{"year": 1511}, {"year": [1503, 1511, 1512]}, {"metadata.kind": ["ship", "city"]}])
def test_a_filter_means_the_same_over_an_engine(host: Host, table: str, where: dict[str, Any]) -> None:
    host.open(table, k=5, budget=20, scorer=shared_words, filter=where)
    with adacur.load(table, scorer=shared_words) as index:
        ids = index.search(QUERY, 5, budget=20, filter=where).ids

    assert [one.id for one in host.retrieve(QUERY)] == list(ids) != []


@pytest.mark.parametrize("kind", ["llama-index", "haystack"])
def test_a_hosts_own_filter_is_refused_over_an_engine(kind: str, table: str) -> None:
    host = HOSTS[kind]()

    def ask() -> None:
        host.open(table, k=5, budget=20, scorer=shared_words, **host.only("ship"))
        host.retrieve(QUERY)

    with pytest.raises(InputError):
        ask()


@pytest.mark.parametrize("kind", ["llama-index", "langchain"])
def test_an_error_shows_no_url_that_was_given_for_an_index(kind: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        HOSTS[kind]().module.AdacurRetriever(index="postgres://me:secret@host/table")
    assert "index" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["llama-index", "haystack"])
def test_two_filters_at_once_are_refused(kind: str, path: Path, scorer: Metered) -> None:
    host = HOSTS[kind]()

    def ask() -> None:
        host.open(path, k=5, scorer=scorer, check=False, filter={"kind": "ship"}, **host.only("ship"))
        host.retrieve(QUERY)

    with pytest.raises(InputError):
        ask()
    assert scorer.calls == 0


def test_a_filter_that_nothing_passes_finds_nothing_and_costs_nothing(host: Host, path: Path, scorer: Metered) -> None:
    host.open(path, k=5, budget=20, scorer=scorer, check=False, **host.only("volcano"))

    assert host.retrieve(QUERY) == asyncio.run(host.aretrieve(QUERY)) == []
    assert scorer.calls == 0
    with pytest.raises(EmptyInput):
        host.retrieve(" ")


def test_with_fuse_the_score_is_what_orders_and_exact_is_the_scorers_own(
    host: Host, path: Path, scorer: Metered
) -> None:
    host.open(path, k=10, budget=40, fuse=3.0, scorer=scorer, check=False)
    found = host.retrieve(QUERY)
    own = shared_words([(QUERY, one.text) for one in found])

    assert [one.metadata["exact"] for one in found] == pytest.approx(own)
    assert own != sorted(own, reverse=True), "an order that fuse does not change shows nothing"
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)


def test_what_a_search_changes_in_a_document_does_not_change_the_index(host: Host, path: Path, scorer: Metered) -> None:
    host.open(path, k=5, budget=20, scorer=scorer, check=False)
    first = host.retrieve(QUERY)
    for one in first:
        one.metadata.clear()

    assert host.retrieve(QUERY) == expected(path, k=5, budget=20)


@pytest.mark.parametrize(
    ("query", "options", "error"),
    [
        ("", {"k": 5}, EmptyInput),
        (QUERY, {"k": 50, "budget": 20}, BudgetError),
        (QUERY, {"k": 5, "method": "magic"}, AdacurError),
        (QUERY, {"k": 5, "method": "exact", "budget": 20}, InputError),
        (QUERY, {"k": 5, "first": "dense"}, AdacurError),
    ],
    ids=["no query", "k over budget", "unknown method", "useless option", "no such first stage"],
)
def test_what_the_index_refuses_is_told_as_the_index_tells_it(
    host: Host, path: Path, scorer: Metered, query: str, options: dict[str, Any], error: type[AdacurError]
) -> None:
    options = dict(options)
    host.open(path, scorer=scorer, check=False, **options)
    with pytest.raises(error) as own:
        host.retrieve(query)
    with adacur.load(path, scorer=shared_words, check=False) as index, pytest.raises(error) as indexes:
        index.search(query, options.pop("k"), **search_options(index, **options))

    assert str(own.value) == str(indexes.value)
    assert scorer.calls == 0


def test_closing_closes_the_scorer(host: Host, path: Path) -> None:
    class Closing:
        def __init__(self) -> None:
            self.scorer = FunctionScorer(shared_words)
            self.card = self.scorer.card
            self.closed = False

        def score(self, pairs: Any) -> Any:
            return self.scorer.score(pairs)

        def close(self) -> None:
            self.closed = True

    scorer = Closing()
    host.open(path, k=3, scorer=scorer, check=False)
    host.retrieve(QUERY)
    assert not scorer.closed
    host.retriever.close()

    assert scorer.closed


def texts() -> list[str]:
    return [item.text for item in ITEMS[20:32]]


def test_documents_of_a_host_become_items_with_id_text_and_metadata(host: Host) -> None:
    items = host.items_of(host.documents(texts()))

    assert items == [Item(f"d{n}", text, {"n": n}) for n, text in enumerate(texts())]
