"""The OpenAPI document: what the routes alone cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from adacur.serving import shapes
from adacur.serving.settings import ServerSettings

__all__ = ["DESCRIPTION", "EVENT", "TAGS", "described", "errors", "json_body"]

DESCRIPTION = (
    "Searches an index of items for those that its scorer, a cross-encoder say, likes best, within a budget of calls "
    "to the scorer. `POST /v1/search` is the one to know; the rerank routes score documents that you bring. Every "
    'answer that is no success is `{"error": {"code", "message"}}`, also at other addresses (404) and where an '
    "address is asked by another method than those below (405, with `Allow`)."
)
TAGS = [
    {"name": "search", "description": "Find items."},
    {"name": "rerank", "description": "Score documents that the client brings, for clients of rerank services."},
    {"name": "indexes", "description": "What is served, and the recall to expect of it."},
    {"name": "health", "description": "For those who run the server."},
]
EVENT = {
    "type": "object",
    "description": "One server-sent event; `data` is JSON: see `docs/serve.md` for the fields of each.",
    "properties": {"event": {"enum": ["start", "round", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}
_RECALL = "/v1/indexes/{name}/recall"
_BODIES: tuple[type[BaseModel], ...] = (shapes.SearchRequest, shapes.RerankRequest, shapes.CohereRerankRequest)
_DOCUMENTS = ["Penicillin was found by Alexander Fleming.", "A ship is a large vessel."]
_EXAMPLES: dict[str, dict[str, Any]] = {
    "SearchRequest": {
        "question": {"summary": "One question", "value": {"query": "who discovered penicillin?", "k": 3, "budget": 50}},
        "rounds": {
            "summary": "Round by round",
            "value": {"query": "who discovered penicillin?", "budget": 100, "stream": True},
        },
        "several": {"summary": "Several questions", "value": {"queries": ["first novel", "first film"], "k": 5}},
    },
    "RerankRequest": {
        "documents": {
            "summary": "Two documents",
            "value": {"query": "who discovered penicillin?", "documents": _DOCUMENTS, "top_n": 1},
        }
    },
    "CohereRerankRequest": {
        "documents": {"summary": "Two documents", "value": {"query": "penicillin", "documents": _DOCUMENTS}}
    },
}
_ERRORS = {
    400: "The body is not JSON.",
    401: "A key is needed, or the one given is not known.",
    404: "There is no index, model or curve of this name.",
    408: "The body took too long to arrive.",
    413: "The body is larger than the server takes.",
    415: "The body is not declared as JSON.",
    422: "A value that cannot be used, or that is over a limit.",
    429: "Too many requests at once: come back after `Retry-After` seconds.",
    500: "Something unexpected; the server's log has it, under `X-Request-Id`.",
    502: "The scorer failed.",
    503: "The server is being stopped, or a part of the index cannot be reached.",
    504: "Nothing was scored within the time that a request may take.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What these statuses mean, for a route's `responses`."""
    waits = {"headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}}
    return {
        status: {"model": shapes.ErrorAnswer, "description": _ERRORS[status]} | (waits if status in (429, 503) else {})
        for status in statuses
    }


def json_body(kind: type[BaseModel]) -> dict[str, Any]:
    """A route's body: it is read by hand, so that FastAPI does not know it."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    content = {"application/json": {"schema": schema, "examples": _EXAMPLES[kind.__name__]}}
    return {"requestBody": {"required": True, "content": content}}


def described(
    document: dict[str, Any], *, settings: ServerSettings, indexes: Sequence[str], first_stages: Sequence[str]
) -> dict[str, Any]:
    """The document with the bodies, with this server's limits and names, and with its keys where it has some."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    if "SearchRequest" in schemas:
        return document
    _, found = models_json_schema(
        [(kind, "validation") for kind in _BODIES], ref_template="#/components/schemas/{model}"
    )
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    schemas.update(found["$defs"])
    _put_limits(document, settings)
    if not settings.api_keys:
        # The document is open to all; where there are keys, names are told to those who have one.
        search = schemas["SearchRequest"]["properties"]
        _some(search["index"])["enum"] = list(indexes)
        recall = {one["name"]: one["schema"] for one in document["paths"][_RECALL]["get"]["parameters"]}
        for first in (search["first"], recall["first"]):
            _some(first)["enum"] = list(first_stages)
    else:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
        }
        for path, routes in document["paths"].items():
            for route in routes.values():
                if path not in ("/healthz", "/readyz"):
                    route["security"] = [{"bearer": []}, {"key": []}]
    return document


def _put_limits(document: dict[str, Any], settings: ServerSettings) -> None:
    schemas = document["components"]["schemas"]
    search = schemas["SearchRequest"]
    of = search["properties"]
    for name, default in settings.defaults().items():
        of[name]["default"] = default
    of["k"]["maximum"] = settings.max_k
    of["budget"]["maximum"] = settings.max_budget
    _some(of["rounds"])["maximum"] = settings.max_rounds
    _some(of["deadline_ms"])["maximum"] = int(settings.seconds * 1000)
    _some(of["query"])["maxLength"] = settings.max_query_chars
    several = _some(of["queries"])
    several["maxItems"] = settings.max_queries
    several["items"]["maxLength"] = settings.max_query_chars
    _some(schemas["SearchFilter"]["properties"]["ids"])["maxItems"] = settings.max_filter_values
    # One of the two, and not null: a stream, too, has one query.
    search["oneOf"] = [
        {"required": ["query"], "properties": {"query": {"type": "string"}, "queries": {"type": "null"}}},
        {
            "required": ["queries"],
            "properties": {"queries": {"type": "array"}, "query": {"type": "null"}, "stream": {"const": False}},
        },
    ]
    for name in ("RerankRequest", "CohereRerankRequest"):
        asked = schemas[name]["properties"]
        asked["query"]["maxLength"] = settings.max_query_chars
        asked["documents"]["maxItems"] = settings.max_documents
    for parameter in document["paths"][_RECALL]["get"]["parameters"]:
        if parameter["name"] == "k":
            parameter["schema"]["maximum"] = settings.max_k
    schemas["TextDocument"]["properties"]["text"]["maxLength"] = settings.max_document_chars


def _some(schema: dict[str, Any]) -> dict[str, Any]:
    """The part of an optional value that is not null."""
    found: dict[str, Any] = next(part for part in schema["anyOf"] if part.get("type") != "null")
    return found
