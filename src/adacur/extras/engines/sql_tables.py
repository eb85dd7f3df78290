"""What stores share that keep items in the rows of a table: its layout, and filters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from adacur.as_json import as_json
from adacur.errors import InputError, UnknownName
from adacur.extras.engines.vector_store import SURROGATES_OR_NUL, Key, Where, has_characters, shown
from adacur.records import Item, field_of
from adacur.spelling import did_you_mean

_QUOTED = re.compile(r"""(\b[eE]|[uU]&)?('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)""")


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
        others = [name for name in types if name not in (id_field, *texts, *vectors)]
        shown = tuple(others if metadata is None else metadata)
        layout = cls(store, id_field, texts, shown, vectors, types, nested or {})
        columns = [layout.place(name)[0] for name in texts]
        for option, names in (("id_field", [id_field]), ("text", columns), ("metadata", layout.metadata)):
            for name in names:
                layout.column(name, f" Say which it is with {option}= (in a URL ?{option.removesuffix('_field')}=).")
        return layout

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The columns of which an item is made."""
        return tuple(dict.fromkeys((self.key, *(self.place(name)[0] for name in self.text), *self.metadata)))

    def place(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The column of a name and, of one such as "metadata.lang", the way inside its dictionaries."""
        column, *inside = name.split(".")
        of_dictionaries = self.types.get(column, "").startswith(("json", "struct<"))
        return (column, tuple(inside)) if inside and of_dictionaries and name not in self.types else (name, ())

    def column(self, name: str, advice: str = "") -> str:
        """The type of a column; UnknownName if there is none of this name."""
        if name not in self.types:
            known = ", ".join(map(repr, self.types))
            raise UnknownName(
                f"{self.store} has no column {name!r}. It has: {known}.{did_you_mean(name, self.types)}{advice}"
            )
        return self.types[name]

    def filterable(self, name: str) -> tuple[str, tuple[str, ...], str]:
        """The place that a filter may name in a user's own table, and the type of what is there, or of its column.

        Filters, and this error, reveal neither the values nor the names of columns that answers do not show.
        """
        column, inside = self.place(name)
        if column not in self.item_columns or (inside and self.nested and name not in self.nested):
            within = [one for one in self.nested if self.place(one)[0] in self.item_columns]
            known = [*self.item_columns, *within]
            there, near = ", ".join(map(repr, known)), did_you_mean(name, known)
            raise UnknownName(f"A filter for {self.store} cannot name {shown(name)}. It may name: {there}.{near}")
        return column, inside, self.nested.get(name, self.types[column])

    @property
    def dimensions(self) -> dict[str, int]:
        """Vectors whose size is known."""
        return {name: size for name, size in self.vectors.items() if size > 0}

    def dimension(self, vector: str) -> int:
        """The size of a vector; UnknownName if there is none of this name."""
        if vector not in self.vectors:
            known = ", ".join(map(repr, self.vectors)) or "none"
            raise UnknownName(f"{self.store} has no vector {shown(vector)}. It has: {known}.")
        if self.vectors[vector] < 1:
            raise InputError(f"Vector {vector!r} of {self.store} has no size yet: no item has one.")
        return self.vectors[vector]

    def item(self, row: Mapping[str, Any]) -> tuple[Key, Item]:
        """The key and the item in a row."""
        key = row[self.key]
        text = " ".join(str(one) for name in self.text if (one := field_of(row, name)) is not None)
        about = {name: as_json(row[name]) for name in self.metadata if row[name] is not None}
        return key, Item(str(key), text, about)


def repeated(store: str, key: Key) -> InputError:
    """What is said of a table in which two rows have the same id."""
    return InputError(
        f"The id {key!r} occurs more than once in {store}. Each item must have an id of its own: keep one row of each, "
        "or name a column of distinct ids with id_field= (?id= in a URL)."
    )


def wanted(where: Where) -> Iterator[tuple[str, list[Any]]]:
    """Each name in a filter with the values that it may have."""
    if not isinstance(where, Mapping):
        raise InputError(
            f"A filter must be a dictionary of metadata or an SQL condition as text; got {type(where).__name__}."
        )
    for name, values in where.items():
        if not isinstance(name, str):
            raise InputError(f"A filter must be by names of metadata; got {shown(name)}.")
        if has_characters(name) or has_characters(values):
            raise InputError(f"A filter must be Unicode text; that on {shown(name)} contains a lone surrogate.")
        yield name, list(values) if isinstance(values, list | tuple | set | frozenset) else [values]


def condition(text: str) -> str:
    """An SQL condition in the user's words, in parentheses that it cannot close itself."""
    # What escapes with a backslash or quotes with $ ends elsewhere than it seems to.
    depth, bare = 0, _QUOTED.sub(lambda match: "$" if match[1] else " ", text)
    for sign in bare:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
    unfit = has_characters(text, SURROGATES_OR_NUL) or any(
        sign in bare for sign in ("'", '"', "`", "$", ";", "--", "/*")
    )
    if depth or not text.strip() or unfit:
        raise InputError(
            "A filter as text must be one whole SQL condition, without comments, semicolons, escapes (E'…') and dollar "
            f"quotes; got {shown(text)}."
        )
    return f"({text})"
