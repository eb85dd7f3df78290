"""What stores share that keep items in the rows of a table: its layout, and filters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adacur.core.as_json import as_json
from adacur.core.errors import InputError, UnknownName
from adacur.core.records import Item
from adacur.core.spelling import did_you_mean
from adacur.engines.vector_store import SURROGATES_OR_NUL, Key, Where, has_characters, shown

# The columns of a table that `create` makes, beside one per vector.
OWN_COLUMNS = ("key", "id", "text", "metadata")
_QUOTED = re.compile(r"""(\b[eE]|[uU]&)?('(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`)""")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns of a table hold what; `made` by `create`, or else a user's own table.

    In a user's own table the key is the id, and metadata are columns. Where `create` made the table, metadata are JSON
    in one column, so that no name can collide with that of a column.
    """

    store: str
    made: bool
    key: str
    text: tuple[str, ...]
    metadata: tuple[str, ...]
    vectors: Mapping[str, int]
    types: Mapping[str, str]

    @classmethod
    def of(
        cls,
        store: str,
        types: Mapping[str, str],
        vectors: Mapping[str, int],
        *,
        made: bool,
        text: str | Sequence[str],
        id_field: str,
        metadata: Sequence[str] | None,
    ) -> Layout:
        """The layout of a table with columns of these types; the columns named must be there."""
        if made:
            return cls(store, True, "key", ("text",), ("metadata",), vectors, types)
        texts = (text,) if isinstance(text, str) else tuple(text)
        others = [name for name in types if name not in (id_field, *texts, *vectors)]
        layout = cls(store, False, id_field, texts, tuple(others if metadata is None else metadata), vectors, types)
        for option, names in (("id_field", [id_field]), ("text", texts), ("metadata", layout.metadata)):
            for name in names:
                layout.column(name, f" Say with {option}= which it is.")
        return layout

    @property
    def item_columns(self) -> tuple[str, ...]:
        """The columns of which an item is made."""
        return OWN_COLUMNS if self.made else tuple(dict.fromkeys((self.key, *self.text, *self.metadata)))

    def column(self, name: str, advice: str = "") -> str:
        """The type of a column; UnknownName if there is none of this name."""
        if name not in self.types:
            known = ", ".join(map(repr, self.types))
            raise UnknownName(
                f"{self.store} has no column {name!r}. It has: {known}.{did_you_mean(name, self.types)}{advice}"
            )
        return self.types[name]

    def filterable(self, name: str) -> str:
        """The type of a column of a user's own table that a filter may name.

        Filters, and this error, reveal neither the values nor the names of columns that answers do not show.
        """
        if name not in self.item_columns:
            shown = ", ".join(map(repr, self.item_columns))
            near = did_you_mean(name, self.item_columns)
            raise UnknownName(f"A filter for {self.store} cannot name {name!r}. It may name: {shown}.{near}")
        return self.types[name]

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
        if self.made:
            held = row["metadata"]
            return row["key"], Item(row["id"], row["text"], json.loads(held) if isinstance(held, str) else held)
        key = row[self.key]
        text = " ".join(str(row[name]) for name in self.text if row[name] is not None)
        about = {name: as_json(row[name]) for name in self.metadata if row[name] is not None}
        return key, Item(str(key), text, about)


def repeated(store: str, key: Key) -> InputError:
    """What is said of a table in which two rows have the same id."""
    return InputError(
        f"The id {key!r} occurs more than once in {store}. Each item must have an id of its own: keep one row of each, "
        "or name a column of distinct ids with id_field= or ?id=."
    )


def check_columns(vectors: Iterable[str], *, longest: int = 1000) -> None:
    """Refuse vectors that cannot become columns: their names must be free."""
    for name in vectors:
        if not name or len(name.encode()) > longest or name in (*OWN_COLUMNS, "words", "facts"):
            raise InputError(f"A vector becomes a column of a table, which cannot be called {shown(name)} here.")


def metadata_json(item: Item) -> str:
    """An item's metadata as JSON text."""
    try:
        return json.dumps(dict(item.metadata), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"The metadata of item {item.id!r} must be values that JSON has: {error}.") from None


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
