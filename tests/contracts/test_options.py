"""Every option of a search, through every door of the library, against `index.search` with objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import adacur
from adacur import Budget, Query
from adacur.errors import AdacurError
from adacur.options import OPTIONS, SEARCH_OPTIONS
from adacur.search import plan_search, search_options
from tests.extras.hosts.test_integrations import HOSTS
from tests.functional.commands import here
from tests.host_world import QUERY, make_index, shared_words

# By option: single values as a door takes them, and what `index.search` takes for the same.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budget": ({"budget": 7}, {"budget": 7}),
    "deadline": ({"budget": 10, "deadline": 60.0}, {"budget": Budget(10, deadline=60.0)}),
    "tokens": ({"budget": 100, "tokens": 150}, {"budget": Budget(100, tokens=150)}),
    "cost": (
        {"budget": 100, "cost": "0.05 USD", "price": "0.01 USD / call"},
        {"budget": Budget(100, cost="0.05 USD", price="0.01 USD / call")},
    ),
    "price": ({"budget": 9, "price": "0.01 USD / call"}, {"budget": Budget(9, price="0.01 USD / call")}),
    "method": ({"budget": 8, "method": "rerank"}, {"budget": 8, "method": adacur.Rerank()}),
    "first": ({"budget": 8, "first": "random"}, {"budget": 8, "first": "random"}),
    "fuse": ({"budget": 12, "fuse": 0.5}, {"budget": 12, "fuse": 0.5}),
    "effort": ({"budget": 12, "effort": "auto"}, {"budget": 12, "effort": "auto"}),
    "min_relevance": ({"budget": 40, "min_relevance": 0.5}, {"budget": 40, "min_relevance": 0.5}),
    "min_score": ({"budget": 40, "min_score": 5.0}, {"budget": 40, "min_score": 5.0}),
    "filter": (
        {"budget": 12, "filter": {"kind": ["ship", "city"]}},
        {"budget": 12, "filter": {"kind": ["ship", "city"]}},
    ),
}
K = 4
Rows = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("options") / "index")


def rows(ids: Any, scores: Any) -> Rows:
    return [(id_, pytest.approx(float(score), abs=1e-6)) for id_, score in zip(ids, scores, strict=True)]


def expected(path: Path, name: str, *, query: str | Query = QUERY, fused: bool = False) -> Rows | str:
    """What `index.search` finds, or the error it raises; `fused` where a door shows what hits are ordered by."""
    with adacur.load(path, scorer=shared_words, check=False) as index:
        try:
            hits = index.search(query, K, **EXAMPLES[name][1])
        except AdacurError as error:
            return str(error)
        return rows(hits.ids, hits.fused if fused and hits.fused is not None else hits.scores)


def test_the_table_has_an_example_of_each_option() -> None:
    assert set(SEARCH_OPTIONS) == set(EXAMPLES)


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_each_example_changes_what_a_search_does(path: Path, name: str) -> None:
    """Else a door that ignores the option would pass."""

    def settings(**values: Any) -> Any:
        try:
            return plan_search(index, K, **search_options(index, **values)).settings()
        except AdacurError as error:
            return str(error)

    given = EXAMPLES[name][0]
    with adacur.load(path, scorer=shared_words, check=False) as index:
        assert settings(**given) != settings(**{one: value for one, value in given.items() if one != name})


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_the_command_line_gives_the_same_answer(path: Path, name: str) -> None:
    arguments = []
    for option, value in EXAMPLES[name][0].items():
        texts = [f"kind={one}" for one in value["kind"]] if option == "filter" else [str(value)]
        arguments += [part for text in texts for part in (f"--{option.replace('_', '-')}", text)]
    scorer = "tests.host_world:shared_words"
    ran = here("search", str(path), QUERY, "-k", str(K), "--scorer", scorer, "--json", *arguments)
    wanted = expected(path, name)
    if isinstance(wanted, str):
        assert wanted in ran.err
    else:
        assert [(row["id"], row["score"]) for row in ran.json()[0]["hits"]] == wanted != []


@pytest.mark.parametrize("name", [one.name for one in OPTIONS])
def test_a_request_gives_the_same_answer(path: Path, name: str) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    from adacur.extras.server import ServerSettings, create_app

    body = dict(EXAMPLES[name][0])
    # The operator knows the price; filters and deadlines have forms of their own.
    settings = ServerSettings(price=body.pop("price", None))
    if "filter" in body:
        body["filter"] = {"metadata": body["filter"]}
    if "deadline" in body:
        body["deadline_ms"] = int(1000 * body.pop("deadline"))
    index = adacur.load(path, scorer=shared_words, check=False)
    with index, client_of(create_app({"w": index}, settings=settings)) as client:
        answer = client.post("/v1/search", json={"query": QUERY, "k": K, **body})
    wanted = expected(path, name)
    if isinstance(wanted, str):
        assert answer.status_code == 422
    else:
        assert [(row["id"], row["score"]) for row in answer.json()["results"][0]["hits"]] == wanted != []


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_a_host_gives_the_same_answer(path: Path, name: str, host: str) -> None:
    opened = HOSTS[host]()
    opened.open(path, k=K, scorer=shared_words, check=False, **EXAMPLES[name][0])

    def found() -> Rows:
        return [(one.id, one.score) for one in opened.retrieve(QUERY)]

    assert told(found) == expected(path, name, fused=True) != []


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_pyterrier_gives_the_same_answer(path: Path, name: str) -> None:
    pandas, module = pytest.importorskip("pandas"), pytest.importorskip("adacur.extras.pyterrier")

    def found() -> Rows:
        with adacur.load(path, scorer=shared_words, check=False) as index:
            frame = module.Adacur(index, k=K, **EXAMPLES[name][0])(pandas.DataFrame({"qid": ["q"], "query": [QUERY]}))
        return list(zip(frame["docno"], frame["score"], strict=True))

    assert told(found) == expected(path, name, query=Query("q", QUERY), fused=True) != []


@pytest.mark.parametrize("name", SEARCH_OPTIONS)
def test_the_tool_of_a_language_model_gives_the_same_answer(path: Path, name: str) -> None:
    client_of = pytest.importorskip("mcp").Client
    from adacur.extras.server.mcp import create_server

    async def called(index: adacur.AnchorIndex) -> Any:
        async with client_of(create_server(index, k=K, **EXAMPLES[name][0])) as client:
            return await client.call_tool("search", {"query": QUERY})

    with adacur.load(path, scorer=shared_words, check=False) as index:
        answer = asyncio.run(asyncio.wait_for(called(index), 60))
    wanted = expected(path, name)
    if isinstance(wanted, str):
        assert answer.is_error
        assert answer.content[0].text == wanted
    else:
        assert [(row["id"], row["score"]) for row in answer.structured_content["hits"]] == wanted != []


def told(find: Callable[[], Rows]) -> Rows | str:
    """What a door finds, or the message of its error."""
    try:
        return find()
    except AdacurError as error:
        return str(error)
