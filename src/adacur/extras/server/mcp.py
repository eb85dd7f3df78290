"""MCP: a server with two tools, by which a language model searches an index."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from adacur import __version__
from adacur.as_json import certified, hit_rows
from adacur.budget import at_least
from adacur.errors import EngineRefused, InputError, NonFiniteScore, ScorerError, UnknownName
from adacur.options import FIND_OPTIONS, SEARCH_OPTIONS
from adacur.requirements import require
from adacur.results import Hits
from adacur.search import AnchorIndex, search_options
from adacur.search.finding import FIND_CALLS, find_options

_log = logging.getLogger("adacur.mcp")

TOOL, FIND = "search", "find"


def serve_mcp(index: AnchorIndex, **settings: Any) -> None:
    """Serve an index over stdin and stdout until the client closes them; `settings` are those of `create_server`."""
    server = create_server(index, **settings)
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    asyncio.run(run())


def create_server(
    index: AnchorIndex,
    *,
    k: int = 10,
    budget: int = 100,
    max_budget: int = 1000,
    description: str | None = None,
    **options: Any,
) -> Any:
    """An `mcp.server.lowlevel.Server` for any transport of the SDK.

    Its tools are `search(query, k, budget)` and `find(query, above, recall, budget)`.

    - `k`, `budget`: what the tool uses where its caller gives none; at most the budget, and at most `max_budget`;
    - `max_budget`: the most scorer calls that its caller may ask for;
    - `description`: what the items are, for the model to know when to search them;
    - `options`: those of `AnchorIndex.search` and of `AnchorIndex.find`.

    A search that is refused is an error of the tool, which the model can read.
    """
    at_least(1, k=k, budget=budget, max_budget=max_budget)
    require("mcp", extra="mcp")
    server = require("mcp.server.lowlevel", extra="mcp")
    types, jsonschema = require("mcp_types", extra="mcp"), require("jsonschema", extra="mcp")

    defaults = {"k": min(k, budget, max_budget), "budget": min(budget, max_budget)}
    find_budget = min(FIND_CALLS, max_budget)
    about = _description(index, description)
    hints = types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
    tools = {
        TOOL: types.Tool(
            name=TOOL,
            title="Search",
            description=about,
            input_schema=_arguments(
                k=_calls("How many items to return, at most the budget.", defaults["k"], max_budget),
                budget=_calls(
                    "Scorer calls to spend: more find more of the best items, and take longer.",
                    defaults["budget"],
                    max_budget,
                ),
            ),
            annotations=hints,
        ),
        FIND: types.Tool(
            name=FIND,
            title="Find all",
            description=f"{about} Finds all items that score a number or higher, and says what share of them it "
            "promises to have found.",
            input_schema=_arguments(
                required=("above",),
                above={"type": "number", "description": "Find all items that score this or higher."},
                recall={
                    "type": "number",
                    "exclusiveMinimum": 0,
                    "maximum": 1,
                    "default": 0.9,
                    "description": "The share of them to find.",
                },
                budget=_calls("The most scorer calls to spend; most searches end before.", find_budget, max_budget),
            ),
            annotations=hints,
        ),
    }
    schemas = {name: jsonschema.Draft202012Validator(tool.input_schema) for name, tool in tools.items()}
    of_find = {one.name: options[one.name] for one in FIND_OPTIONS if one.name in options}
    of_search = {name: value for name, value in options.items() if name in SEARCH_OPTIONS or name not in of_find}

    def answer(text: str, **rest: Any) -> Any:
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **rest)

    async def list_tools(context: Any, params: Any) -> Any:
        return types.ListToolsResult(tools=[*tools.values()])

    async def found(tool: str, given: dict[str, Any]) -> Hits:
        query: str = given.pop("query")
        if tool == FIND:
            return await index.afind(query, **find_options(**{**of_find, "budget": find_budget, **given}))
        asked = defaults | given
        # A small budget is not a reason to refuse the default k.
        n_hits = given.get("k", min(asked["k"], asked["budget"]))
        return await index.asearch(query, n_hits, **search_options(index, **of_search | {"budget": asked["budget"]}))

    async def call_tool(context: Any, params: Any) -> Any:
        given = params.arguments or {}
        if params.name not in tools:
            return answer(f"There is no tool {params.name!r}; there are {TOOL!r} and {FIND!r}.", is_error=True)
        if (wrong := next(schemas[params.name].iter_errors(given), None)) is not None:
            return answer(f"{'.'.join(map(str, wrong.path)) or 'arguments'}: {wrong.message}", is_error=True)
        try:
            hits = await found(params.name, dict(given))
        except Exception as error:
            if isinstance(error, InputError | UnknownName | NonFiniteScore) and not isinstance(error, EngineRefused):
                return answer(str(error), is_error=True)
            # Its message may name files, hosts and keys: it goes to the log, and the client learns the kind of error.
            _log.exception("A search failed.")
            what = "The scorer" if isinstance(error, ScorerError) else "The search"
            return answer(f"{what} failed ({type(error).__name__}). The log of this server says why.", is_error=True)
        data = {"hits": hit_rows(hits), "calls": hits.trace.calls, "stopped": hits.trace.stopped, **certified(hits)}
        return answer(_text(hits), structured_content=data)

    return server.Server(
        "adacur",
        version=__version__,
        instructions=f"Call {TOOL!r} to find items by meaning. {about}",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _description(index: AnchorIndex, about: str | None) -> str:
    parts = (
        f"Search {len(index):,} items.",
        about,
        "Each is judged by a cross-encoder that reads query and item together; a search finds the items that it ranks "
        "highest with a limited number of calls to it. Ask in plain words: a question, or a description of the items.",
    )
    return " ".join(part for part in parts if part)


def _arguments(*, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    query = {"type": "string", "minLength": 1, "description": "What to find."}
    return {
        "type": "object",
        "properties": {"query": query, **properties},
        "required": ["query", *required],
        "additionalProperties": False,
    }


def _calls(meaning: str, default: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": most, "default": default, "description": meaning}


def _text(hits: Hits) -> str:
    """The answer for clients that read texts only."""
    lines = (f"{hit.rank}. [{hit.id}] score {hit.score:.2f}\n{hit.item.text if hit.item else ''}" for hit in hits)
    items = "1 item" if len(hits) == 1 else f"{len(hits)} items"
    promised = () if hits.certificate is None else (str(hits.certificate),)
    return "\n\n".join((f"{items}, {hits.trace.calls} scorer calls.", *promised, *lines))
