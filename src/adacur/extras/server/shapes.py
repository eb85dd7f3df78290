"""Answers of searches and errors, for the OpenAPI document. docs/serve.md shows those of the other routes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

DESCRIPTION = (
    "Searches an index of items for those that its scorer, a cross-encoder for example, ranks highest, within a budget "
    "of calls to the scorer. `POST /v1/search` is the main route; the rerank routes score documents that the client "
    'sends. Every answer that is not a success is `{"error": {"code", "message"}, "detail"}`, also at unknown '
    "addresses (404) "
    "and for other HTTP methods than those below (405, with `Allow`)."
)
EVENT = {
    "type": "object",
    "description": "One server-sent event; `data` is JSON: see `docs/serve.md` for the fields of each.",
    "properties": {"event": {"enum": ["start", "round", "done", "error"]}, "data": {"type": "string"}},
    "required": ["event", "data"],
}


class Hit(BaseModel):
    """One result; `score` is the scorer's."""

    id: str
    score: float
    rank: int
    round: int = Field(description="The round that scored it; 0 where there are no rounds.")
    text: str | None
    metadata: dict[str, Any]
    document: str | None = Field(None, description="The document whose best passage this is, if it is one.")
    fused: float | None = Field(None, description="What it was ranked by, with `fuse`.")
    relevance: float | None = Field(None, description="From 0 to 1; `relevance_by` says what it is, if known.")
    explanation: dict[str, Any] | None = Field(None, description="Why it is a hit, with `explain`.")


class QueryAnswer(BaseModel):
    """One query's answer."""

    query: str
    verdict: str | None = Field(description="answered, doubtful or nothing found; null if nothing tells.")
    relevance_by: str | None = Field(description="judgements: the chance to be relevant; anchors: a share of them.")
    hits: list[Hit]
    calls: int = Field(description="Scorer calls spent.")
    tokens: int | None = Field(None, description="Tokens spent, where `tokens` or `cost` is limited.")
    cost: str | None = Field(None, description="Money spent, such as 0.0123 USD, where the scorer has a price.")
    stopped: str = Field(
        description="budget, exhausted (no item left), deadline, settled (enough), tokens or cost (spent)."
    )
    certificate: dict[str, Any] | None = Field(None, description="What `/v1/find` promises, and on what grounds.")
    seconds: dict[str, float] = Field(description="Seconds per step; those of the scorer include waiting for it.")
    expected_recall: float | None = Field(description="Expected share of what was sought, with `effort` or in `find`.")
    trace: list[dict[str, Any]] | None = Field(None, description="A record per round, with `trace`.")


class SearchAnswer(BaseModel):
    """The answers, in the order of the queries."""

    index: str
    results: list[QueryAnswer]


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
