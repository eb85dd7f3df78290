"""Errors as clients see them: a status, a code for programs and a message for people, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from adacur.core.errors import (
    AdacurError,
    BudgetError,
    EmptyInput,
    InputError,
    NonFiniteScore,
    ScorerError,
    TextTooLong,
    UnknownName,
)

__all__ = ["Refusal", "as_refusal", "json_answer", "stopping"]

# The most telling class first: an error is told by the first that it is.
_TOLD: tuple[tuple[type[AdacurError], int, str], ...] = (
    (BudgetError, 422, "budget"),
    (EmptyInput, 422, "empty_input"),
    (TextTooLong, 422, "text_too_long"),
    (InputError, 422, "bad_input"),
    (UnknownName, 422, "unknown_name"),
    (NonFiniteScore, 502, "scorer_failed"),
)


class Refusal(Exception):
    """A request that is answered with an error; `more` stands beside it in the answer."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.headers = dict(headers or {})
        self.more = dict(more or {})

    def body(self) -> dict[str, Any]:
        """What the client reads."""
        return {"error": {"code": self.code, "message": self.message}, **self.more}

    def response(self) -> Response:
        """The whole answer."""
        return json_answer(self.body(), status=self.status, headers=self.headers)


def stopping() -> Refusal:
    """What everybody is told who comes, or still waits, when a server ends."""
    return Refusal(503, "stopping", "This server is being stopped. Try another one.", headers={"Retry-After": "5"})


def as_refusal(error: Exception) -> Refusal:
    """What to tell a client of an error.

    What other people's code says may name files, hosts or keys: it goes to the log, and the client learns where.
    """
    if isinstance(error, Refusal):
        return error
    for kind, status, code in _TOLD:
        if isinstance(error, kind):
            return Refusal(status, code, str(error))
    if isinstance(error, ScorerError):
        return Refusal(502, "scorer_failed", "The scorer failed. The server's log says why, under this request's id.")
    return Refusal(500, "internal", "Something unexpected happened. The server's log has it, under this request's id.")


def json_answer(content: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """JSON that every reader takes: no NaN."""
    body = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")
    return Response(body, status_code=status, headers=dict(headers or {}), media_type="application/json")
