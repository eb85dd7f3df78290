"""An index for language models: the tool over a real client, in memory and over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from mcp import Client, StdioServerParameters

import adacur
from adacur import AnchorIndex
from adacur.errors import InputError
from adacur.extras.server.mcp import create_server
from tests.functional.commands import here
from tests.living_world import Counted, build, item, query, score

ITEMS = [item(number) for number in range(80)]
ANCHORS = [query(number) for number in range(12)]
ROOT = Path(__file__).parents[3]
Answer = TypeVar("Answer")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mcp") / "things.adacur"
    build(path, ITEMS, ANCHORS)
    return path


@pytest.fixture
def index(folder: Path) -> AnchorIndex:
    return adacur.load(folder, scorer=score)


def ask(server: Any, do: Callable[[Client], Awaitable[Answer]], *, mode: str = "auto") -> Answer:
    """What a client gets that connects to a server."""

    async def connected() -> Answer:
        async with Client(server, mode=mode) as client:
            return await do(client)

    return asyncio.run(asyncio.wait_for(connected(), 60))


def call(server: Any, arguments: dict[str, Any], *, tool: str = "search", mode: str = "auto") -> Any:
    return ask(server, lambda client: client.call_tool(tool, arguments), mode=mode)


# With the handshake that most programs still use, and without.
@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_the_tool_answers_what_a_search_finds(index: AnchorIndex, mode: str) -> None:
    answer = call(create_server(index), {"query": "a heavy ship", "k": 3, "budget": 30}, mode=mode)

    hits = index.search("a heavy ship", k=3, budget=30)
    assert not answer.is_error
    assert answer.structured_content == {
        "hits": [
            {
                "id": hit.id,
                "text": hit.item.text,
                "score": hit.score,
                "rank": hit.rank,
                "round": hit.round,
                "metadata": dict(hit.item.metadata),
            }
            for hit in hits
        ],
        "calls": 30,
        "stopped": "budget",
    }
    (content,) = answer.content
    assert content.text.startswith("3 items, 30 scorer calls.\n\n1. [")
    assert all(hit.item.text in content.text for hit in hits)


def test_there_are_two_tools_and_they_say_what_they_search(index: AnchorIndex) -> None:
    server = create_server(index, k=4, budget=20, max_budget=50, description="Things of all colours.")

    tool, find = ask(server, lambda client: client.list_tools()).tools

    assert tool.name == "search"
    assert tool.description.startswith("Search 80 items. Things of all colours. ")
    assert tool.input_schema["required"] == ["query"]
    assert tool.input_schema["properties"]["budget"]["maximum"] == 50
    assert find.name == "find"
    assert find.input_schema["required"] == ["query", "above"]
    assert find.input_schema["properties"]["budget"]["default"] == 50
    assert tool.annotations.read_only_hint
    assert find.annotations.read_only_hint
    answer = call(server, {"query": "a heavy ship"}).structured_content
    assert (len(answer["hits"]), answer["calls"]) == (4, 20)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "'query' is a required property"),
        ({"query": ""}, "query: "),
        ({"query": "  "}, "has no text"),
        ({"query": 7}, "query: 7 is not of type 'string'"),
        ({"query": "a", "k": 0}, "k: 0 is less than the minimum of 1"),
        ({"query": "a", "k": 9, "budget": 8}, "k=9"),
        ({"query": "a", "budget": 10**9}, "budget: 1000000000 is greater than the maximum of 1000"),
        ({"query": "a", "path": "/etc/passwd"}, "'path' was unexpected"),
    ],
)
def test_what_cannot_be_searched_is_an_error_that_the_model_can_read(
    folder: Path, arguments: dict[str, Any], told: str
) -> None:
    scorer = Counted()
    index = adacur.load(folder, scorer=scorer, check=False)

    answer = call(create_server(index), arguments)

    assert answer.is_error
    assert told in answer.content[0].text
    assert scorer.calls == 0


def test_a_scorer_s_own_words_go_to_the_log_and_the_server_lives_on(folder: Path, caplog) -> None:
    scorer = Counted(fail_at=10)
    server = create_server(adacur.load(folder, scorer=scorer, check=False))

    async def twice(client: Client) -> tuple[Any, Any]:
        failed = await client.call_tool("search", {"query": "a heavy ship"})
        scorer.fail_at = None
        return failed, await client.call_tool("search", {"query": "a heavy ship"})

    failed, answered = ask(server, twice)

    assert failed.is_error
    assert "The scorer failed (ScorerFailed)" in failed.content[0].text
    assert "asleep" not in failed.content[0].text
    assert "asleep" in caplog.text
    assert len(answered.structured_content["hits"]) == 10


@pytest.mark.parametrize(("max_budget", "hits", "calls"), [(40, 10, 40), (4, 4, 4)])
def test_what_nobody_asked_for_keeps_to_the_largest_budget(
    index: AnchorIndex, max_budget: int, hits: int, calls: int
) -> None:
    server = create_server(index, max_budget=max_budget)

    tool, _ = ask(server, lambda client: client.list_tools()).tools
    answer = call(server, {"query": "a heavy ship"}).structured_content

    assert (len(answer["hits"]), answer["calls"]) == (hits, calls)
    shown = tool.input_schema["properties"]
    assert (shown["k"]["default"], shown["budget"]["default"]) == (hits, calls)


@pytest.mark.parametrize("max_budget", ["many", 0, 1.5])
def test_a_largest_budget_that_counts_nothing_is_refused(index: AnchorIndex, max_budget: Any) -> None:
    with pytest.raises(InputError, match="max_budget"):
        create_server(index, max_budget=max_budget)


def test_options_that_do_not_go_together_are_refused_before_anything_is_served(folder: Path) -> None:
    for options, named in (([folder, "--set", "max_k=3"], "max_k"), ([folder, folder], "2"), ([], "0")):
        here("serve", *options, "--mcp").refused(named)


SPEAKING = """
import os
from tests.living_world import score as quiet
print("a line from the import")
def score(pairs):
    print("a line from a call")
    os.system("echo a line from a child")
    return quiet(pairs)
"""


def test_the_command_serves_over_stdin_and_stdout_and_nothing_else_speaks_there(
    folder: Path, index: AnchorIndex, tmp_path: Path
) -> None:
    (tmp_path / "speaking.py").write_text(SPEAKING)
    options = ["--scorer", "speaking:score", "--mcp", "--set", "max_budget=20", "--about", "Things."]
    served = shlex.join([sys.executable, "-m", "adacur", "serve", str(folder), *options])
    command = StdioServerParameters(
        command="sh",
        args=["-c", f"{served} | tee {shlex.quote(str(tmp_path / 'stdout'))}"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((os.environ.get("PYTHONPATH", ""), str(ROOT), str(tmp_path)))},
    )

    async def both(client: Client) -> tuple[Any, Any, Any]:
        tools = await client.list_tools()
        found = await client.call_tool("search", {"query": "a heavy ship"})
        return tools, found, await client.call_tool("search", {"query": "a", "k": 50})

    tools, found, refused = ask(command, both)

    assert [tool.name for tool in tools.tools] == ["search", "find"]
    assert "Things." in tools.tools[0].description
    expected = index.search("a heavy ship", k=10, budget=20)
    assert tuple(hit["id"] for hit in found.structured_content["hits"]) == expected.ids
    assert refused.is_error
    assert all(json.loads(line)["jsonrpc"] == "2.0" for line in (tmp_path / "stdout").read_text().splitlines())
