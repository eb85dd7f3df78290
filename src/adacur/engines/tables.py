"""What stores share that keep items in the rows of a table: its layout, filters, and what is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.as_json import as_json
from adacur.core.errors import EngineUnavailable, InputError, UnknownName
from adacur.core.records import Item
from adacur.core.spelling import did_you_mean
from adacur.engines.vector_store import (
    HALF_OR_NUL,
    Found,
    Key,
    Nearest,
    Where,
    check_kept,
    check_name,
    has_characters,
    shown,
)

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
        """The type of a column of a user's own table that a filter may name: what answers do not show is no business
        of those who ask, and neither are the names of such columns.
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

    def weights(self, vector: str, question: Nearest) -> FloatArray:
        """The weights of a question as float32, of the size of the vector."""
        weights = np.asarray(question.weights, dtype=np.float32)
        if weights.shape != (size := self.dimension(vector),):
            raise InputError(f"Vector {vector!r} of {self.store} has {size} numbers; got weights of {weights.shape}.")
        if not np.isfinite(weights).all():
            raise InputError(f"Weights must be finite; those for vector {vector!r} of {self.store} are not.")
        return weights

    def item(self, row: Mapping[str, Any]) -> tuple[Key, Item]:
        """The key and the item in a row."""
        if self.made:
            held = row["metadata"]
            return row["key"], Item(row["id"], row["text"], json.loads(held) if isinstance(held, str) else held)
        key = row[self.key]
        text = " ".join(str(row[name]) for name in self.text if row[name] is not None)
        about = {name: as_json(row[name]) for name in self.metadata if row[name] is not None}
        return key, Item(str(key), text, about)

    def batch(
        self, keys: Sequence[int], items: Sequence[Item], vectors: Mapping[str, FloatArray]
    ) -> tuple[list[int], list[Item], dict[str, FloatArray]]:
        """What `put` writes, checked; of a key that occurs twice, what comes last."""
        if not self.made:
            raise InputError(f"{self.store} was not made by adacur, which only writes to tables that it made itself.")
        if set(vectors) != set(self.vectors):
            raise InputError(f"Every item of {self.store} has the vectors {list(self.vectors)}; got {list(vectors)}.")
        last = {_whole(key): at for at, key in enumerate(keys)}
        if len(items) != len(keys):
            raise InputError(f"There must be one item for each key; got {len(keys)} keys and {len(items)} items.")
        for item in items:
            check_kept(item)
        rows = {name: np.asarray(array, dtype=np.float32) for name, array in vectors.items()}
        for name, array in rows.items():
            if array.shape != (shape := (len(keys), self.vectors[name])):
                raise InputError(f"Vectors {name!r} of {self.store} must be {shape}; got {array.shape}.")
            if not np.isfinite(array).all():
                raise InputError(f"Vectors {name!r} must be finite; got a NaN or an infinity.")
        places = list(last.values())
        return list(last), [items[at] for at in places], {name: array[places] for name, array in rows.items()}


def repeated(store: str, key: Key) -> InputError:
    """What is said of a table in which two rows have the same id."""
    return InputError(
        f"The id {key!r} occurs more than once in {store}. Each item must have an id of its own: keep one row of each, "
        "or name a column of distinct ids with id_field= or ?id=."
    )


def checked_dimensions(dimensions: Mapping[str, int], *, longest: int = 1000) -> dict[str, int]:
    """Vectors to create: each becomes a column, whose name must be free."""
    for name, size in dimensions.items():
        check_name("vector", name)
        if not name or len(name.encode()) > longest or name in (*OWN_COLUMNS, "words", "facts"):
            raise InputError(f"A vector becomes a column of a table, which cannot be called {shown(name)} here.")
        if size < 1:
            raise InputError(f"Vector {name!r} must have at least one number; got {size}.")
    return dict(dimensions)


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
            raise InputError(f"A filter is Unicode text; that on {shown(name)} has half of a character.")
        yield name, list(values) if isinstance(values, list | tuple | set | frozenset) else [values]


def condition(text: str) -> str:
    """An SQL condition in the user's words, in parentheses that it cannot close itself."""
    # What escapes with a backslash or quotes with $ ends elsewhere than it seems to.
    depth, bare = 0, _QUOTED.sub(lambda match: "$" if match[1] else " ", text)
    for sign in bare:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            break
    unfit = has_characters(text, HALF_OR_NUL) or any(sign in bare for sign in ("'", '"', "`", "$", ";", "--", "/*"))
    if depth or not text.strip() or unfit:
        raise InputError(
            "A filter as text must be one whole SQL condition, without comments, semicolons, escapes (E'…') and dollar "
            f"quotes; got {shown(text)}."
        )
    return f"({text})"


def found(store: str, pairs: Iterable[tuple[Key, float]], n: int) -> Found:
    """The best n of these keys and values, best first; of a key that occurs twice, the better."""
    distinct: dict[Key, float] = {}
    for key, value in sorted(pairs, key=lambda pair: -pair[1]):
        distinct.setdefault(key, value)
    best = list(distinct.items())[: max(0, n)]
    values = np.array([value for _, value in best], dtype=np.float32)
    if not np.isfinite(values).all():
        raise EngineUnavailable(f"{store} answered with a value that is not finite.")
    return Found(tuple(key for key, _ in best), values)


def _whole(key: object) -> int:
    if isinstance(key, bool) or not isinstance(key, int | np.integer) or not -(2**63) <= key < 2**63:
        raise InputError(f"Keys to write under are whole numbers of 64 bits; got {key!r}.")
    return int(key)
