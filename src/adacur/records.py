"""What is searched and what is asked: items and queries."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from adacur.arrays import IntArray, KeyArray
from adacur.errors import DuplicateId, EmptyInput, InputError, UnknownName
from adacur.seeds import item_keys

_REPEATS_NAMED = 5


@dataclass(frozen=True, slots=True)
class Query:
    """A question, known by its id."""

    id: str
    text: str


@dataclass(frozen=True, slots=True)
class Item:
    """A thing that can be found, known by its id.

    An item whose metadata hold a text `document` is a passage of the document of that name.
    """

    id: str
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def document(self) -> str:
        """The document that it belongs to: its own id where it names none."""
        named = self.metadata.get("document")
        return named if isinstance(named, str) and named else self.id


Pair = tuple[Query, Item]


def as_query(query: Query | str) -> Query:
    """A query from plain text; its id follows from the text, so that equal texts share their randomness."""
    if isinstance(query, str):
        if not query.strip():
            raise EmptyInput("The question has no text. Give it at least one word.")
        digest = hashlib.blake2b(query.encode(errors="replace"), digest_size=8).hexdigest()
        query = Query(id=f"q-{digest}", text=query)
    if not isinstance(query, Query):
        raise InputError(f"A query must be a text or a Query(id, text); got {type(query).__name__}.")
    check_texts("Query", query.id, query.text)
    if not query.text.strip():
        raise EmptyInput(f"Query {query.id!r} has no text. Give it at least one word.")
    return query


def as_queries(queries: Iterable[Query | str]) -> list[Query]:
    """Queries from texts or records; a lone text is refused, since it would be read letter by letter."""
    if isinstance(queries, str | Query):
        raise InputError("Expected a list of queries and got one. Wrap it in a list: [query].")
    if not hasattr(queries, "__iter__"):
        raise InputError(f"A query must be a text or a Query(id, text); got {type(queries).__name__}.")
    return [as_query(query) for query in queries]


class ItemList:
    """Items held in memory, in order: position i is row i of every score matrix."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._items = list(items)
        for item in self._items:
            check_texts("Item", item.id, item.text)
        if not self._items:
            raise EmptyInput("There are no items. Give at least one.")
        self.ids: Sequence[str] = tuple(item.id for item in self._items)
        self._positions = {id_: position for position, id_ in enumerate(self.ids)}
        if len(self._positions) < len(self.ids):
            raise DuplicateId(f"Item ids must be unique; {repeats(self.ids)} more than once.")

    @cached_property
    def keys(self) -> KeyArray:
        """A random key per item, computed once."""
        return item_keys(self.ids)

    @cached_property
    def documents(self) -> IntArray | None:
        """The number of each item's document; None where every item is one of its own."""
        return document_numbers(self)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, position: int) -> Item:
        return self._items[position]

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def at(self, positions: Iterable[int]) -> list[Item]:
        """The items at these positions, in that order."""
        return [self._items[position] for position in positions]

    def positions(self, ids: Iterable[str]) -> IntArray:
        """The positions of these ids, in that order."""
        try:
            return np.fromiter((self._positions[id_] for id_ in ids), dtype=np.intp)
        except KeyError as error:
            raise UnknownName(f"No item has the id {error.args[0]!r}.") from None


def field_of(metadata: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value under a name; where there is none of this name, "a.b" is the b in the dictionary a."""
    if name in metadata:
        return metadata[name]
    inside: Any = metadata
    for part in str(name).split("."):
        if not isinstance(inside, Mapping) or part not in inside:
            return default
        inside = inside[part]
    return inside


def field_names(metadata: Mapping[str, Any]) -> Iterator[str]:
    """The names by which `field_of` finds plain values."""
    for name, value in metadata.items():
        if isinstance(value, Mapping) and value:
            yield from (f"{name}.{inner}" for inner in field_names(value))
        else:
            yield str(name)


def document_numbers(items: Iterable[Item]) -> IntArray | None:
    """A number for the document of each item, in order; None where every item is one of its own."""
    numbers: dict[str, int] = {}
    of = np.array([numbers.setdefault(item.document, len(numbers)) for item in items], np.intp)
    return of if len(numbers) < len(of) else None


def check_texts(kind: str, id_: object, text: object) -> None:
    """Refuse an id or a text that is no string, or that no file could hold."""
    if not isinstance(id_, str) or not isinstance(text, str):
        raise InputError(f"{kind} ids and texts are strings; got id {id_!r} and a {type(text).__name__}.")
    try:
        id_.encode(), text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{kind} {id_!r} holds a character that is not Unicode text: {error}.") from None


def check_item(item: object) -> Item:
    """The item; refuses what is not one, or has no text to score."""
    if not isinstance(item, Item):
        raise InputError(
            "Items are Item(id, text) records, or a list of plain texts, or the path of a file; got "
            f"{type(item).__name__}: {str(item)[:60]!r}."
        )
    check_texts("Item", item.id, item.text)
    if not item.text.strip():
        raise EmptyInput(f"Item {item.id!r} has no text. Give it at least one word, or leave it out.")
    return item


def repeats(ids: Iterable[str]) -> str:
    """The ids that occur more than once, the first few of them named, with their verb."""
    several = [id_ for id_, n in Counter(ids).items() if n > 1]
    named = ", ".join(map(repr, several[:_REPEATS_NAMED]))
    more = f" and {len(several) - _REPEATS_NAMED:,} more" if len(several) > _REPEATS_NAMED else ""
    return f"{named}{more} {'occurs' if len(several) == 1 else 'occur'}"
