"""What stores share that keep items in the rows of a table: its layout, and filters as conditions in SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adacur.as_json import as_json
from adacur.errors import InputError, UnknownName
from adacur.extras.engines.checked_store import has_unfit_characters, shown
from adacur.extras.engines.vector_store import Key, Where
from adacur.records import Item, field_of
from adacur.spelling import did_you_mean

_QUOTED = re.compile(r"""(\b[eE]|[uU]&)?('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)""")
_NO_SQL = ("'", '"', "`", "$", ";", "--", "/*")


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
        text: str | Sequence[str],
        id_field: str,
        metadata: Sequence[str] | None,
        nested: Mapping[str, str] | None = None,
    ) -> Layout:
        """The layout of a table with columns of these types; the columns named must be there."""
        texts = (text,) if isinstance(text, str) else tuple(text)
        others = tuple(name for name in types if name not in (id_field, *texts, *vectors))
        layout = cls(
            store, id_field, texts, others if metadata is None else tuple(metadata), vectors, types, nested or {}
        )
        for name in layout.item_columns:
            if name not in types:
                known = ", ".join(map(repr, types))
                raise UnknownName(
                    f"{store} has no column {name!r}. It has: {known}.{did_you_mean(name, types)} Name the columns of "
                    "texts, ids and metadata with text=, id_field= and metadata= (in a URL ?text=, ?id=, ?metadata=)."
                )
        return layout

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The columns of which an item is made."""
        return tuple(dict.fromkeys((self.key, *(self.place(name).column for name in self.text), *self.metadata)))

    @property
    def key_type(self) -> str:
        return self.types[self.key]

    def place(self, name: str) -> Place:
        """Where the value of a name lies; only columns of dictionaries have an inside."""
        column, *inside = name.split(".")
        if inside and name not in self.types and self.types.get(column, "").startswith(("json", "struct<")):
            return Place(column, tuple(inside), self.nested.get(name, self.types[column]))
        return Place(name, (), self.types.get(name, ""))

    def filterable(self, name: str) -> Place:
        """The place that a filter may name.

        Filters, and this error, reveal neither the values nor the names of columns that answers do not show.
        """
        place = self.place(name)
        if place.column not in self.item_columns or (place.inside and self.nested and name not in self.nested):
            within = [one for one in self.nested if self.place(one).column in self.item_columns]
            known = [*self.item_columns, *within]
            there, near = ", ".join(map(repr, known)), did_you_mean(name, known)
            raise UnknownName(f"A filter for {self.store} cannot name {shown(name)}. It may name: {there}.{near}")
        return place

    def item(self, row: Mapping[str, Any]) -> Item:
        """The item in a row."""
        text = " ".join(str(one) for name in self.text if (one := field_of(row, name)) is not None)
        about = {name: as_json(row[name]) for name in self.metadata if row[name] is not None}
        return Item(str(row[self.key]), text, about)


def where_sql(
    layout: Layout,
    where: Where,
    *,
    any_of: Callable[[Place, list[Any]], tuple[str, list[Any]]],
    is_null: Callable[[Place], str],
) -> tuple[str, list[Any]]:
    """A filter as one SQL condition with the values of its placeholders, if the dialect has any.

    `any_of` writes that a place holds one of some values, or a list with one of them; `is_null` that it is empty.
    """
    if where is None:
        return "TRUE", []
    if isinstance(where, str):
        return _whole_condition(where), []
    if not isinstance(where, Mapping):
        raise InputError(
            f"A filter must be a dictionary of metadata or an SQL condition as text; got {type(where).__name__}."
        )
    conditions, values = ["TRUE"], []
    for name, allowed in where.items():
        place = layout.filterable(name)
        condition, given = any_of(place, allowed)
        values += given
        conditions.append(f"({condition} OR {is_null(place)})" if None in allowed else f"({condition})")
    return " AND ".join(conditions), values


def _whole_condition(text: str) -> str:
    """An SQL condition in the user's words, in parentheses that it cannot close itself."""
    # What escapes with a backslash or quotes with $ ends elsewhere than it seems to.
    depth, bare = 0, _QUOTED.sub(lambda match: "$" if match[1] else " ", text)
    for sign in bare:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
    if depth or not text.strip() or has_unfit_characters(text) or any(sign in bare for sign in _NO_SQL):
        raise InputError(
            "A filter as text must be one whole SQL condition, without comments, semicolons, escapes (E'…') and dollar "
            f"quotes; got {shown(text)}."
        )
    return f"({text})"


def check_whole_numbers(layout: Layout, keys: Collection[Key]) -> None:
    """Refuse texts as keys of a table whose ids are whole numbers."""
    if "int" in layout.key_type and (text := next((key for key in keys if isinstance(key, str)), None)) is not None:
        raise InputError(f"The ids of {layout.store} are whole numbers; got {shown(text)}.")
