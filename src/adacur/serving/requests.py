"""From the bytes of a request to what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from adacur.core.spelling import did_you_mean
from adacur.serving.failures import Refusal
from adacur.serving.settings import ServerSettings

__all__ = ["ClientGone", "body_of", "in_words", "unless_gone"]

Body = TypeVar("Body", bound=BaseModel)
Answer = TypeVar("Answer")
_FAULTS_TOLD = 3
# By pydantic's names; {…} is filled from what it says of the rule.
_RULES = {
    "bool_type": "must be true or false",
    "dict_type": "must be an object",
    "float_type": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "missing": "is missing",
    "model_type": "must be an object",
    # The one pattern that there is.
    "string_pattern_mismatch": "must hold something besides spaces",
    "string_too_long": "may have at most {max_length} characters",
    "string_type": "must be a text",
    "too_short": "must not be empty",
}


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def body_of(request: Request, kind: type[Body], *, settings: ServerSettings) -> Body:
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
        # Not in a thread: no parser lets go of the interpreter meanwhile. What bounds its time is the size of a body.
        value = from_json(await request.body(), allow_inf_nan=False, cache_strings=False)
    except ValueError as error:
        raise Refusal(400, "malformed_json", f"The body is not JSON: {str(error)[:200]}.") from None
    try:
        return kind.model_validate(value, context=settings)
    except ValidationError as error:
        faults: list[Mapping[str, Any]] = [*error.errors(include_url=False, include_input=False)]
        either = getattr(kind, "either", ())
        if either and isinstance(value, dict) and not any(name in value for name in either):
            faults.append({"type": "missing", "loc": (" or ".join(either),), "msg": ""})
        raise Refusal(422, "invalid_request", in_words(faults, known=kind.model_fields)) from None


def in_words(faults: Sequence[Mapping[str, Any]], *, known: Iterable[str] = ()) -> str:
    """What pydantic found wrong; `known` are the fields that there are, for those that are nearly right."""
    # Those that are missing first: they explain the others.
    ordered = sorted(faults, key=lambda fault: fault["type"] != "missing")
    told = [_fault(fault, known) for fault in ordered[:_FAULTS_TOLD]]
    more = f" ({len(faults) - len(told)} more)" if len(faults) > len(told) else ""
    return f"{'; '.join(told)}{more}."


def _fault(fault: Mapping[str, Any], known: Iterable[str]) -> str:
    place = _place(fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{place} is unknown{_perhaps(place, list(known)) if len(fault['loc']) == 1 else ''}"
    rule = _RULES.get(fault["type"])
    if rule is None:
        return f"{place}: {fault['msg']}"
    return f"{place} {rule.format(**fault.get('ctx', {}))}"


def _perhaps(name: str, known: Sequence[str]) -> str:
    near = did_you_mean(name, known)
    # q is short for query, and no misspelling of it.
    longer = next((one for one in known if one.startswith(name)), None)
    return f" ({near.strip().lower()})" if near else f" (did you mean {longer!r}?)" if longer else ""


def _place(where: tuple[int | str, ...]) -> str:
    # A name may come from the client: what cannot be written is not repeated.
    return ".".join(str(part).encode(errors="replace").decode()[:60] for part in where) or "The body"


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
