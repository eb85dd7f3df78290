"""Errors as clients see them: a status, a code for programs and a message for people; never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from adacur.errors import (
    AdacurError,
    BudgetError,
    DeviceFailed,
    EmptyInput,
    EngineRefused,
    EngineUnavailable,
    InputError,
    NonFiniteScore,
    ScorerError,
    TextTooLong,
    UnknownName,
)

_SEE_LOG = "The server's log says why, under this request's id."
# Status, code and message of each kind of error; without a message, the error's own is safe to show. The first class
# that an error is an instance of counts, so narrower classes stand before wider ones.
_LIBRARY_ERRORS: tuple[tuple[type[AdacurError], int, str, str | None], ...] = (
    (EngineRefused, 422, "engine_refused", f"The vector engine refused this search: check its filter. {_SEE_LOG}"),
    (BudgetError, 422, "budget", None),
    (EmptyInput, 422, "empty_input", None),
    (TextTooLong, 422, "text_too_long", None),
    (InputError, 422, "bad_input", None),
    (UnknownName, 422, "unknown_name", None),
    (NonFiniteScore, 502, "scorer_failed", None),
    (ScorerError, 502, "scorer_failed", f"The scorer failed. {_SEE_LOG}"),
    (EngineUnavailable, 503, "engine_unavailable", f"The vector engine did not answer. {_SEE_LOG}"),
    (DeviceFailed, 503, "device_failed", f"The device that predictions are made on failed. {_SEE_LOG}"),
)
_ROUTER_ERRORS = {
    400: ("malformed_json", "The body cannot be read as JSON."),
    404: ("not_found", "There is nothing at this address. /openapi.json lists the addresses."),
    405: ("method_not_allowed", "This address does not take this HTTP method. /openapi.json lists what it takes."),
}
_MOST_FAULTS = 3


class ErrorDetail(BaseModel):
    """What went wrong."""

    code: str = Field(description="For programs.")
    message: str = Field(description="For people: the rule, the values seen and what to try.")


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail
    detail: str = Field(description="The message once more, where clients of rerank services look for it.")


# For OpenAPI.
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
        502: "The scorer failed; the hits of a search so far stand next to `error`.",
        503: "The server is being stopped: come back after `Retry-After` seconds.",
        504: "Nothing was scored within the time that a request may take.",
    }.items()
}


class ClientGone(Exception):
    """The client hung up before its answer was complete."""


class Refusal(Exception):
    """A request that is answered with an error; `more` holds further fields of the answer."""

    def __init__(self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers
        self.more: dict[str, Any] = {}

    def body(self) -> dict[str, Any]:
        """What the client reads; clients of rerank services show `detail`."""
        return {"error": {"code": self.code, "message": self.message}, "detail": self.message, **self.more}

    def response(self) -> Response:
        """The whole answer."""
        return json_answer(self.body(), status=self.status, headers=self.headers)


def as_refusal(error: Exception) -> Refusal:
    """The answer to a request that ended with this error.

    Messages of third-party code may name files, hosts or keys: they go to the log only.
    """
    if isinstance(error, Refusal):
        return error
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, HTTPException):
        code, message = _ROUTER_ERRORS.get(error.status_code, ("refused", str(error.detail)))
        return Refusal(error.status_code, code, message, headers=error.headers)
    for kind, status, code, shown in _LIBRARY_ERRORS:
        if isinstance(error, kind):
            return Refusal(status, code, shown or str(error))
    return Refusal(500, "internal", "Something unexpected happened. The server's log has it, under this request's id.")


def _invalid(error: RequestValidationError) -> Refusal:
    """A body or parameter that failed validation; a fault's `loc` begins with the part of the request."""
    if isinstance(error.body, bytes):
        # This also keeps foreign web pages from posting here: browsers ask before they send JSON to another origin.
        return Refusal(415, "not_json", "The body must be JSON, with the header Content-Type: application/json.")
    faults: Sequence[Mapping[str, Any]] = error.errors()
    if faults[0]["type"] == "json_invalid":
        return Refusal(400, *_ROUTER_ERRORS[400])
    code = next((code for fault in faults if (code := _limit_code(fault)) is not None), "invalid_request")
    shown = [f"{_place(fault['loc'][1:])}: {fault['msg']}" for fault in faults[:_MOST_FAULTS]]
    more = f" ({len(faults) - len(shown)} more)" if len(faults) > len(shown) else ""
    message = f"{'; '.join(shown)}{more}"
    return Refusal(422, code, message if message.endswith((".", "?")) else f"{message}.")


def _limit_code(fault: Mapping[str, Any]) -> str | None:
    if fault["type"] == "string_too_long":
        return "text_too_long"
    if fault["type"] not in ("less_than_equal", "too_long"):
        return None
    return f"{next(part for part in reversed(fault['loc']) if isinstance(part, str))}_over_limit"


def _place(where: tuple[int | str, ...]) -> str:
    # Names may come from the client: characters that cannot be written are not repeated.
    return ".".join(str(part).encode(errors="replace").decode()[:60] for part in where) or "body"


def json_answer(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer in JSON."""
    return Response(json_text(content), status_code=status, headers=headers, media_type="application/json")


def json_text(content: Any) -> bytes:
    """JSON that every reader accepts: no NaN, and no lone surrogates, which an item's text may hold."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")
