"""Every option of `find`, through every door of the library, against `index.find` with objects."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import adacur
from adacur import Budget, Query
from adacur.errors import AdacurError, UnknownOption
from adacur.options import FIND_OPTIONS
from adacur.replay import find_costs
from adacur.results import Hits
from adacur.search.finding import find_options, plan_find
from tests.extras.hosts.test_integrations import HOSTS
from tests.functional.commands import here
from tests.host_world import QUERY, make_index, shared_words

# By option: single values as a door takes them, and what `index.find` takes for the same.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "above": ({"above": 3.2}, {"above": 3.2}),
    "recall": ({"above": 3.2, "recall": 0.6}, {"above": 3.2, "recall": 0.6}),
    "budget": ({"above": 3.2, "budget": 30}, {"above": 3.2, "budget": 30}),
    "audit": ({"above": 3.2, "audit": 20, "budget": 50}, {"above": 3.2, "audit": 20, "budget": 50}),
    "confidence": ({"above": 3.2, "confidence": 0.6}, {"above": 3.2, "confidence": 0.6}),
    "deadline": ({"above": 3.2, "deadline": 60.0}, {"above": 3.2, "budget": Budget(1000, deadline=60.0)}),
    "tokens": (
        {"above": 3.2, "budget": 60, "tokens": 150},
        {"above": 3.2, "budget": Budget(60, tokens=150)},
    ),
    "cost": (
        {"above": 3.2, "budget": 60, "cost": "0.05 USD", "price": "0.01 USD / call"},
        {"above": 3.2, "budget": Budget(60, cost="0.05 USD", price="0.01 USD / call")},
    ),
    "price": (
        {"above": 3.2, "budget": 30, "price": "0.01 USD / call"},
        {"above": 3.2, "budget": Budget(30, price="0.01 USD / call")},
    ),
    "first": ({"above": 3.2, "first": "random"}, {"above": 3.2, "first": "random"}),
    "filter": (
        {"above": 3.2, "filter": {"kind": ["ship", "city"]}},
        {"above": 3.2, "filter": {"kind": ["ship", "city"]}},
    ),
}
NAMES = [one.name for one in FIND_OPTIONS]
WRONG: list[dict[str, Any]] = [
    {"above": 3.2, "recall": 1.0, "budget": 30},
    {"above": 3.2, "audit": 60},
    {"above": 3.2, "audit": 30, "budget": 30},
    {"above": 3.2, "audit": 10, "tokens": 1000},
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_index(tmp_path_factory.mktemp("options") / "index")


def expected(path: Path, options: dict[str, Any], *, query: str | Query = QUERY) -> Hits | str:
    with adacur.load(path, scorer=shared_words) as index:
        try:
            return index.find(query, **options)
        except AdacurError as error:
            return str(error)


def check(answer: dict[str, Any], wanted: Hits | str) -> None:
    assert isinstance(wanted, Hits)
    assert [row["id"] for row in answer["hits"]] == list(wanted.ids) != []
    assert answer["certificate"]["text"] == str(wanted.certificate)
    assert answer["certificate"]["basis"] == wanted.certificate.basis
    assert answer["calls"] == wanted.trace.calls


def typed(given: dict[str, Any]) -> list[str]:
    arguments = []
    for option, value in given.items():
        texts = [f"kind={one}" for one in value["kind"]] if option == "filter" else [str(value)]
        arguments += [part for text in texts for part in (f"--{option}", text)]
    return arguments


def body_of(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """A request, and the settings of the server: the operator knows the price."""
    body = dict(given)
    settings = {"price": body.pop("price", None)}
    if "filter" in body:
        body["filter"] = {"metadata": body["filter"]}
    if "deadline" in body:
        body["deadline_ms"] = int(1000 * body.pop("deadline"))
    return body, settings


def test_the_table_has_an_example_of_each_option() -> None:
    assert set(NAMES) == set(EXAMPLES)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "above"])
def test_each_example_changes_what_a_find_does(path: Path, name: str) -> None:
    """Else a door that ignores the option would pass."""
    given = EXAMPLES[name][0]
    with adacur.load(path, scorer=shared_words) as index:
        with_it, without = (
            plan_find(index, **find_options(**values)).settings()
            for values in (given, {one: value for one, value in given.items() if one != name})
        )
        assert with_it != without


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_gives_the_same_answer(path: Path, name: str) -> None:
    given, options = EXAMPLES[name]
    ran = here("find", str(path), QUERY, "--scorer", "tests.host_world:shared_words", "--json", *typed(given))
    (answer,) = ran.json()
    check(answer, expected(path, options))


@pytest.mark.parametrize("name", NAMES)
def test_a_request_gives_the_same_answer(path: Path, name: str) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    from adacur.extras.server import ServerSettings, create_app

    given, options = EXAMPLES[name]
    body, settings = body_of(given)
    index = adacur.load(path, scorer=shared_words)
    with index, client_of(create_app({"w": index}, settings=ServerSettings(**settings))) as client:
        answer = client.post("/v1/find", json={"query": QUERY, **body}).json()["results"][0]
    check(answer, expected(path, options))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("name", NAMES)
def test_a_host_gives_the_same_answer(path: Path, name: str, host: str) -> None:
    given, options = EXAMPLES[name]
    opened = HOSTS[host]()
    opened.open(path, k=1, scorer=shared_words, **given)
    wanted = expected(path, options)
    assert isinstance(wanted, Hits)
    assert [(one.id, one.score) for one in opened.retrieve(QUERY)] == list(zip(wanted.ids, wanted.scores, strict=True))
    assert [one.id for one in asyncio.run(opened.aretrieve(QUERY))] == list(wanted.ids)


@pytest.mark.parametrize("host", HOSTS)
def test_a_host_refuses_an_option_that_a_find_does_not_take(path: Path, host: str) -> None:
    opened = HOSTS[host]()
    opened.open(path, k=1, scorer=shared_words, above=3.2, effort=0.9)
    with pytest.raises(UnknownOption, match="effort"):
        opened.retrieve(QUERY)


@pytest.mark.parametrize("name", NAMES)
def test_pyterrier_gives_the_same_answer(path: Path, name: str) -> None:
    pandas, module = pytest.importorskip("pandas"), pytest.importorskip("adacur.extras.pyterrier")
    given, options = EXAMPLES[name]
    with adacur.load(path, scorer=shared_words) as index:
        frame = module.Adacur(index, k=1, **given)(pandas.DataFrame({"qid": ["q"], "query": [QUERY]}))
    wanted = expected(path, options, query=Query("q", QUERY))
    assert isinstance(wanted, Hits)
    assert list(frame["docno"]) == list(wanted.ids) != []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("above", "budget")])
def test_the_tool_of_a_language_model_takes_its_options_from_who_serves_it(path: Path, name: str) -> None:
    client_of = pytest.importorskip("mcp").Client
    from adacur.extras.server.mcp import create_server

    given, options = EXAMPLES[name]
    arguments = {one: given[one] for one in ("above", "budget") if one in given}
    served = {one: value for one, value in given.items() if one not in arguments}

    async def called(index: adacur.AnchorIndex) -> Any:
        async with client_of(create_server(index, **served)) as client:
            return await client.call_tool("find", {"query": QUERY, **arguments})

    with adacur.load(path, scorer=shared_words) as index:
        answer = asyncio.run(asyncio.wait_for(called(index), 60))
    check(answer.structured_content, expected(path, options))


@pytest.mark.parametrize("given", WRONG)
def test_what_the_library_refuses_every_door_refuses_with_the_same_reason(path: Path, given: dict[str, Any]) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    from adacur.extras.server import create_app

    options = dict(given)
    if "tokens" in options:
        options["budget"] = Budget(60, tokens=options.pop("tokens"))
    wanted = expected(path, options)
    assert isinstance(wanted, str)
    ran = here("find", str(path), QUERY, "--scorer", "tests.host_world:shared_words", "--json", *typed(given))
    ran.refused()
    assert wanted in ran.err
    index = adacur.load(path, scorer=shared_words)
    with index, client_of(create_app({"w": index})) as client:
        answer = client.post("/v1/find", json={"query": QUERY, **given})
    assert answer.status_code == 422
    # An operator may lower the budget that a request has by default, and with it what the message names.
    assert answer.json()["error"]["message"].split(";")[0] == wanted.split(";")[0]


@pytest.mark.parametrize(
    "body", [{}, {"above": None}, {"above": "much"}, {"above": 1.0, "recall": 2}, {"above": 1, "k": 3}]
)
def test_a_body_that_is_no_find_is_refused(path: Path, body: dict[str, Any]) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    from adacur.extras.server import create_app

    index = adacur.load(path, scorer=shared_words)
    with index, client_of(create_app({"w": index})) as client:
        assert client.post("/v1/find", json={"query": QUERY, **body}).status_code == 422


def test_a_streamed_find_ends_with_the_certificate(path: Path) -> None:
    client_of = pytest.importorskip("fastapi.testclient").TestClient
    from adacur.extras.server import create_app

    index = adacur.load(path, scorer=shared_words)
    with index, client_of(create_app({"w": index})) as client:
        text = client.post("/v1/find", json={"query": QUERY, "above": 3.2, "stream": True}).text
    events = [part.split("\n")[:2] for part in text.strip().split("\n\n")]
    names = [event.removeprefix("event: ") for event, _ in events]
    assert names[0] == "start"
    assert "round" in names
    assert names[-1] == "done"
    check(json.loads(events[-1][1].removeprefix("data: ")), expected(path, {"above": 3.2}))


def test_the_tool_of_a_language_model_gives_the_same_answer(path: Path) -> None:
    client_of = pytest.importorskip("mcp").Client
    from adacur.extras.server.mcp import create_server

    async def called(index: adacur.AnchorIndex, arguments: dict[str, Any]) -> Any:
        async with client_of(create_server(index)) as client:
            return await client.call_tool("find", {"query": QUERY, **arguments})

    with adacur.load(path, scorer=shared_words) as index:
        answer = asyncio.run(asyncio.wait_for(called(index, {"above": 3.2, "recall": 0.6}), 60))
        wrong = asyncio.run(asyncio.wait_for(called(index, {"above": 3.2, "recall": 1.5}), 60))
        lineless = asyncio.run(asyncio.wait_for(called(index, {}), 60))
    wanted = expected(path, {"above": 3.2, "recall": 0.6})
    check(answer.structured_content, wanted)
    assert str(wanted.certificate) in answer.content[0].text
    assert wrong.is_error
    assert lineless.is_error


def test_people_read_the_certificate_below_the_table(path: Path) -> None:
    ran = here("find", str(path), QUERY, "--scorer", "tests.host_world:shared_words", "--above", "3.2")
    wanted = expected(path, {"above": 3.2})
    assert str(wanted.certificate) in ran.err
    assert wanted.ids[0] in ran.out


def test_a_find_without_a_line_is_refused(path: Path) -> None:
    here("find", str(path), QUERY, "--scorer", "tests.host_world:shared_words").refused("--above")


def test_tune_tells_what_recalls_cost(path: Path) -> None:
    with adacur.load(path, scorer=shared_words) as index:
        costs = find_costs(index, above=3.2)
    ran = here("tune", str(path), "--above", "3.2", "--json")
    (told,) = ran.json()
    assert [(row["recall"], row["calls"], row["n"]) for row in told["costs"]] == [
        (recall, one.calls, one.n) for recall, one in costs.items()
    ]
    assert "0.95" in here("tune", str(path), "--above", "3.2").out
