"""What the OpenAPI document says besides the bodies of requests; docs/serve.md shows the answers."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

DESCRIPTION = (
    "Searches an index of items for those that its scorer, a cross-encoder for example, ranks highest, within a budget "
    "of calls to the scorer. `POST /v1/search` is the main route; the rerank routes score documents that the client "
    'sends. Every answer that is not a success is `{"error": {"code", "message"}, "detail"}`, also at unknown '
    "addresses (404) and for other HTTP methods than those below (405, with `Allow`)."
)
EVENT = {
    "type": "object",
    "description": "One server-sent event; `data` is JSON: see `docs/serve.md` for the fields of each.",
    "properties": {"event": {"enum": ["start", "round", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}


def streamed(answer: str) -> dict[int | str, dict[str, Any]]:
    """What a route answers that may stream."""
    described = f"{answer}; or, with `stream`, an event per round."
    return {200: {"description": described, "content": {"text/event-stream": {"schema": EVENT}}}}


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people: the rule, the values seen and what to try.")


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail
    detail: str = Field(description="The message once more, where clients of rerank services look for it.")


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": meaning}
    for status, meaning in {
        400: "The body is not JSON.",
        401: "A key is needed, or the one given is not known.",
        404: "There is no index, model or curve of this name.",
        408: "The body took too long to arrive.",
        413: "The body is larger than the server takes.",
        415: "The body is not declared as JSON.",
        422: "A value that cannot be used, or that is over a limit.",
        429: "Too many requests at once: come back after `Retry-After` seconds.",
        500: "Something unexpected; the server's log has it, under `X-Request-Id`.",
        502: "The scorer failed; the hits of a search so far stand beside `error`.",
        503: "The server is being stopped: come back after `Retry-After` seconds.",
        504: "Nothing was scored within the time that a request may take.",
    }.items()
}
