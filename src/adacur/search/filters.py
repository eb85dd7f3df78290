"""Which items may be scored: by a function, by ids, or by metadata."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np

from adacur.core.arrays import BoolArray
from adacur.core.errors import EmptyInput, InputError, UnknownName
from adacur.core.protocols import Items
from adacur.core.records import Item
from adacur.core.spelling import did_you_mean

# A function of an item, the ids of items, or metadata: {"lang": "en", "year": [2023, 2024]}, where a list means any of
# these. "document" also finds items that are documents by themselves. A vector engine takes metadata, or a filter of
# its own.
Filter = Callable[[Item], bool] | Collection[str] | Mapping[str, Any]
_ITEMS_PER_BLOCK = 4096
_NAMES_SHOWN = 20


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
        raise EmptyInput(f"The filter leaves no item to search. {_hint(filter_, items)}")
    return allowed


def _hint(filter_: Any, items: Items) -> str:
    """What to do; a name of metadata that no item has is likely a slip."""
    if isinstance(filter_, Mapping):
        some = items.at(range(min(len(items), _ITEMS_PER_BLOCK)))
        known = sorted({"document", *(str(name) for item in some for name in item.metadata)})
        if unknown := [str(name) for name in filter_ if str(name) not in known]:
            near, shown = did_you_mean(unknown[0], known), known[:_NAMES_SHOWN]
            more = ", …" if len(known) > len(shown) else ""
            return f"No metadata are called {unknown[0]!r}.{near} There are: {', '.join(shown)}{more}."
    return "Widen it."


def by_metadata(where: Mapping[str, Any]) -> Callable[[Item], bool]:
    """A function: whether an item has this metadata; a list stands for any of its values."""
    # Sets, because there may be thousands of values to compare each item with.
    try:
        wanted = {
            name: frozenset(map(_as_in_json, values if isinstance(values, list) else [values]))
            for name, values in where.items()
        }
    except TypeError as error:
        raise InputError(f"A filter compares metadata with texts and numbers, or a list of them: {error}.") from None

    def allows(item: Item) -> bool:
        about = {"document": item.document, **item.metadata}
        return all(name in about and _has_one(about[name], values) for name, values in wanted.items())

    return allows


def _as_in_json(value: Any) -> tuple[bool, Any]:
    """In JSON true is not 1."""
    return isinstance(value, bool), value


def _has_one(value: Any, wanted: frozenset[tuple[bool, Any]]) -> bool:
    """Whether a field has one of these values; a list has each of its values."""
    if isinstance(value, list | tuple):
        return any(_has_one(one, wanted) for one in value)
    return isinstance(value, Hashable) and _as_in_json(value) in wanted
