"""Which items may be scored: by a function, by ids, or by metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from adacur.arrays import BoolArray
from adacur.errors import EmptyInput, InputError, UnknownName
from adacur.protocols import Items
from adacur.records import Item, field_names, field_of
from adacur.spelling import did_you_mean

# A function of an item, the ids of items, or metadata: {"lang": "en", "year": [2023, 2024]}, where a list means any of
# these and "metadata.lang" the lang in the dictionary metadata. "document" also finds items that are documents by
# themselves. A vector engine takes metadata, or a filter of its own.
Filter = Callable[[Item], bool] | Collection[str] | Mapping[str, Any]
_ITEMS_PER_BLOCK = 4096
_NAMES_SHOWN, _VALUES_SHOWN = 20, 3
_KINDS = {str: "texts", int: "whole numbers", float: "numbers", bool: "true or false"}
_MISSING = object()


def allowed_by(filter_: Any, items: Items) -> BoolArray:
    """Which items pass the filter."""
    if isinstance(filter_, str) or not (callable(filter_) or isinstance(filter_, Collection)):
        raise InputError(
            "A filter must be a function of an item, a collection of ids, or a dictionary of metadata; got "
            f"{type(filter_).__name__}."
        )
    allowed = np.zeros(len(items), dtype=np.bool_)
    allows = by_metadata(filter_) if isinstance(filter_, Mapping) else filter_
    if callable(allows):
        for start in range(0, len(items), _ITEMS_PER_BLOCK):
            block = items.at(range(start, min(start + _ITEMS_PER_BLOCK, len(items))))
            allowed[start : start + len(block)] = [bool(allows(item)) for item in block]
    else:
        try:
            allowed[items.positions(allows)] = True
        except UnknownName as error:
            raise UnknownName(f"{error} A filter that names documents is {{'document': ['a', 'b']}}.") from None
    if not allowed.any():
        raise nothing_passes(filter_, items.at(range(min(len(items), _ITEMS_PER_BLOCK))))
    return allowed


def nothing_passes(filter_: Any, some: Sequence[Item]) -> EmptyInput:
    """What is said of a filter that leaves no item: a name of metadata that none of these has is likely a slip."""
    return EmptyInput(f"The filter leaves no item to search. {_hint(filter_, some)}")


def _hint(filter_: Any, some: Sequence[Item]) -> str:
    if isinstance(filter_, Mapping):
        known = sorted({"document", *(name for item in some for name in field_names(item.metadata))})
        if unknown := [str(name) for name in filter_ if str(name) not in known]:
            near, shown = did_you_mean(unknown[0], known), known[:_NAMES_SHOWN]
            more = ", …" if len(known) > len(shown) else ""
            return f"No metadata are called {unknown[0]!r}.{near} There are: {', '.join(shown)}{more}."
        for name, wanted in filter_.items():
            allows = by_metadata({name: wanted})
            if not any(allows(item) for item in some):
                return f"None of {len(some):,} items looked at has {name}={wanted!r}; {_held(str(name), some)}."
    return "Widen it."


def _held(name: str, items: Sequence[Item]) -> str:
    """What a field holds: of which type, and some of the values."""
    fields = (field_of({"document": item.document, **item.metadata}, name, None) for item in items)
    values = [one for held in fields for one in (held if isinstance(held, list) else [held]) if one is not None]
    kinds = dict.fromkeys(_KINDS.get(type(value), "other values") for value in values)
    shown = ", ".join(list(dict.fromkeys(map(repr, values)))[:_VALUES_SHOWN])
    return f"{name!r} holds {' and '.join(kinds)}, such as {shown}" if values else f"{name!r} holds no value"


def by_metadata(where: Mapping[str, Any]) -> Callable[[Item], bool]:
    """A function: whether an item has this metadata; a list stands for any of its values."""
    # Sets, because there may be thousands of values to compare each item with.
    try:
        wanted = {
            name: frozenset(
                map(_as_in_json, values if isinstance(values, list | tuple | set | frozenset) else [values])
            )
            for name, values in where.items()
        }
    except TypeError as error:
        raise InputError(f"A filter compares metadata with texts and numbers, or a list of them: {error}.") from None

    def allows(item: Item) -> bool:
        about = {"document": item.document, **item.metadata}
        return all(_has_one(field_of(about, name, _MISSING), values) for name, values in wanted.items())

    return allows


def _as_in_json(value: Any) -> tuple[bool, Any]:
    """In JSON true is not 1."""
    return isinstance(value, bool), value


def _has_one(value: Any, wanted: frozenset[tuple[bool, Any]]) -> bool:
    """Whether a field has one of these values; a list has each of its values."""
    if isinstance(value, list | tuple):
        return any(_has_one(one, wanted) for one in value)
    return isinstance(value, Hashable) and _as_in_json(value) in wanted
