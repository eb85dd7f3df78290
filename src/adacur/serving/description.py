"""The OpenAPI document: what routes and bodies alone cannot say."""

from __future__ import annotations

from typing import Any

from adacur.serving import shapes

__all__ = ["DESCRIPTION", "EVENT", "errors", "with_keys"]

DESCRIPTION = (
    "Searches an index of items for those that its scorer, a cross-encoder for example, ranks highest, within a budget "
    "of calls to the scorer. `POST /v1/search` is the main route; the rerank routes score documents that the client "
    'sends. Every answer that is not a success is `{"error": {"code", "message"}}`, also at unknown addresses (404) '
    "and for other HTTP methods than those below (405, with `Allow`)."
)
EVENT = {
    "type": "object",
    "description": "One server-sent event; `data` is JSON: see `docs/serve.md` for the fields of each.",
    "properties": {"event": {"enum": ["start", "round", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
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
    503: "The server is being stopped.",
    504: "Nothing was scored within the time that a request may take.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What these statuses mean, for a route's `responses`."""
    wait = {"headers": {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}}
    return {
        status: {"model": shapes.ErrorAnswer, "description": _ERRORS[status]} | (wait if status in (429, 503) else {})
        for status in statuses
    }


def with_keys(document: dict[str, Any]) -> dict[str, Any]:
    """The document of a server that asks for keys."""
    document["components"]["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    }
    for path, routes in document["paths"].items():
        for route in routes.values():
            if path not in ("/healthz", "/readyz"):
                route["security"] = [{"bearer": []}, {"key": []}]
    return document
