"""From the bytes of a request to what it asks for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from adacur.serving.failures import Refusal

__all__ = ["ClientGone", "body_of", "unless_gone"]

Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")
_FAULTS_TOLD = 3


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def body_of(request: Request, kind: type[Body]) -> Body:
    """The body, checked field by field."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json" and not content_type.endswith("+json"):
        # Also what keeps foreign web pages from posting here: a browser asks before it sends JSON elsewhere.
        raise Refusal(
            415,
            "not_json",
            f"The body must be JSON, and say so; its Content-Type is {content_type[:100] or 'missing'!r}. "
            "Send the header Content-Type: application/json.",
        )
    try:
        value = json.loads(await request.body(), parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise Refusal(400, "malformed_json", f"The body is not UTF-8 text: {error.reason}.") from None
    except RecursionError:
        raise Refusal(400, "malformed_json", "The body is nested too deeply.") from None
    except ValueError as error:
        raise Refusal(400, "malformed_json", f"The body is not JSON: {str(error)[:200]}.") from None
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise Refusal(422, "invalid_request", _in_words(error)) from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _in_words(error: ValidationError) -> str:
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    told = [f"{_place(fault['loc'])}{fault['msg']}" for fault in faults[:_FAULTS_TOLD]]
    more = f" ({len(faults) - len(told)} more)" if len(faults) > len(told) else ""
    return f"{'; '.join(told)}{more}."


def _place(where: tuple[int | str, ...]) -> str:
    # A name may come from the client: what cannot be written is not repeated.
    shown = ".".join(str(part).encode(errors="replace").decode()[:60] for part in where)
    return f"{shown}: " if shown else ""


async def unless_gone(request: Request, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The work's answer; when the client hangs up first, the work is cancelled: nobody wants what it would cost."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
