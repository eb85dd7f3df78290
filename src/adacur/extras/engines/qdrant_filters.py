"""Filters over payloads as Qdrant has them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from adacur.errors import InputError
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.vector_store import Key, Nearest, Where
from adacur.requirements import require


def compiled(where: Where, question: Nearest | None = None) -> Any:
    """A filter, and the keys that a question names, as one of Qdrant's; None where there is neither."""
    m = models()
    if where is None:
        must = []
    elif isinstance(where, Mapping):
        must = [_has(name, values) for name, values in where.items()]
    elif isinstance(where, m.Filter):
        must = [where]
    else:
        raise InputError(f"A filter must be a dictionary of metadata or a models.Filter; got {type(where).__name__}.")
    must_not = []
    if question is not None and question.within is not None:
        must.append(_has_id(question.within))
    if question is not None and question.without:
        must_not.append(_has_id(question.without))
    return m.Filter(must=must, must_not=must_not) if must or must_not else None


def models() -> Any:
    """The models of Qdrant's client."""
    return require("qdrant_client.models", extra="qdrant")


def _has_id(keys: Collection[Key]) -> Any:
    return models().HasIdCondition(has_id=list(keys))


def _has(name: str, values: list[Any]) -> Any:
    """That a field has one of these values, be its name written with dots or its place inside dictionaries."""
    m = models()
    here = _is_any(_quoted(name), values)
    parts = name.split(".")
    if len(parts) == 1 or not all(parts):
        return here
    lacks = m.FieldCondition(key=_quoted(name), is_empty=True)
    return m.Filter(should=[here, m.Filter(must=[lacks, _is_any(".".join(map(_quoted, parts)), values)])])


def _is_any(path: str, values: list[Any]) -> Any:
    m = models()
    if not values:
        return _has_id(())
    if len({type(value) for value in values}) == 1 and type(values[0]) in (str, int):
        return m.FieldCondition(key=path, match=m.MatchAny(any=values))
    return m.Filter(should=[_is(path, value) for value in values])


def _is(path: str, value: str | bool | int | float | None) -> Any:
    m = models()
    if value is None:
        return m.FieldCondition(key=path, is_null=True)
    if isinstance(value, float):
        # The engine's last digit may be another.
        near = m.Range(gte=math.nextafter(value, -math.inf), lte=math.nextafter(value, math.inf))
        return m.FieldCondition(key=path, range=near)
    return m.FieldCondition(key=path, match=m.MatchValue(value=value))


def _quoted(name: str) -> str:
    """A name as a path into a payload, where dots and brackets would lead inside."""
    if '"' in name:
        raise InputError(f"Qdrant cannot filter by a field called {shown(name)}.")
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
