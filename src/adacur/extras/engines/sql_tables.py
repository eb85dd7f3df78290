"""What stores share that keep items in the rows of a table: its layout, and filters as conditions in SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adacur.as_json import as_json
from adacur.errors import InputError, UnknownName
from adacur.extras.engines.checked_store import shown
from adacur.extras.engines.vector_store import Where
from adacur.records import Item, field_of
from adacur.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Place:
    """Where the value of a name lies: a column and its type, and, of one such as "metadata.lang", the way inside."""

    column: str
    inside: tuple[str, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a table hold what: the key is the id, and metadata are columns."""

    store: str
    key: str
    text: tuple[str, ...]
    metadata: tuple[str, ...]
    vectors: Mapping[str, int]
    types: Mapping[str, str]
    # Of the fields in columns of dictionaries, where the table knows them: "metadata.lang" and its type.
    nested: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        store: str,
        types: Mapping[str, str],
        vectors: Mapping[str, int],
        *,
        text: Sequence[str],
        id_field: str,
        metadata: Sequence[str] | None,
        nested: Mapping[str, str] | None = None,
    ) -> Layout:
        """The layout of a table with columns of these types; the columns named must be there."""
        others = tuple(name for name in types if name not in (id_field, *text, *vectors))
        about = others if metadata is None else tuple(metadata)
        layout = cls(store, id_field, tuple(text), about, vectors, types, nested or {})
        for name in layout.item_columns:
            if name not in types:
                known = ", ".join(map(repr, types))
                raise UnknownName(
                    f"{store} has no column {name!r}. It has: {known}.{did_you_mean(name, types)} Name the columns of "
                    "texts, ids and metadata with text=, id_field= and metadata= (in a URL ?text= and ?id=)."
                )
        return layout

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The columns of which an item is made."""
        return tuple(dict.fromkeys((self.key, *(self.place(name).column for name in self.text), *self.metadata)))

    def place(self, name: str) -> Place:
        """Where the value of a name lies; only columns of dictionaries have an inside."""
        column, *inside = name.split(".")
        if inside and name not in self.types and self.types.get(column, "").startswith(("json", "struct<")):
            return Place(column, tuple(inside), self.nested.get(name, self.types[column]))
        return Place(name, (), self.types.get(name, ""))

    def item(self, row: Mapping[str, Any]) -> Item:
        """The item in a row."""
        text = " ".join(str(one) for name in self.text if (one := field_of(row, name)) is not None)
        about = {name: as_json(row[name]) for name in self.metadata if row[name] is not None}
        return Item(str(row[self.key]), text, about)

    def condition(
        self, where: Where, *, any_of: Callable[[Place, list[Any]], str], path: Callable[[Place], str]
    ) -> str:
        """A filter as one SQL condition.

        A dictionary may name the columns that answers show, and no others; a text is a condition of its author's.
        `any_of` writes that a place holds one of some values, or a list with one of them; `path` writes a place.
        """
        if where is None:
            return "TRUE"
        if isinstance(where, str):
            return f"({where})"
        if not isinstance(where, Mapping):
            raise InputError(
                f"A filter must be a dictionary of metadata or an SQL condition as text; got {type(where).__name__}."
            )
        conditions = ["TRUE"]
        for name, allowed in where.items():
            place = self._filterable(name)
            condition = any_of(place, allowed)
            conditions.append(f"({condition} OR {path(place)} IS NULL)" if None in allowed else f"({condition})")
        return " AND ".join(conditions)

    def _filterable(self, name: str) -> Place:
        """The place that a filter may name; this error names no column that answers do not show."""
        place = self.place(name)
        if place.column not in self.item_columns or (place.inside and self.nested and name not in self.nested):
            within = [one for one in self.nested if self.place(one).column in self.item_columns]
            known = [*self.item_columns, *within]
            there, near = ", ".join(map(repr, known)), did_you_mean(name, known)
            raise UnknownName(f"A filter for {self.store} cannot name {shown(name)}. It may name: {there}.{near}")
        return place
