"""Tables from anywhere: rows of files, frames and lists, each with an id and the text that a scorer reads."""

from __future__ import annotations

import math
import string
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narwhals.stable.v2 as nw

from adacur.data import DataWarning
from adacur.data.files import joined, read_rows
from adacur.errors import DuplicateId, EmptyInput, InputError
from adacur.records import Item, Query, check_texts
from adacur.search import AnchorIndex, load
from adacur.spelling import did_you_mean

# Columns that hold a row's id where nobody names one, the first that is there.
_IDS = ("id", "_id")
_NAMED = 5
_MANIFEST = "manifest.json"


@dataclass(eq=False)
class Table:
    """Rows as `Item(id, text)`, read anew each time, so that they need not fit in memory.

    - `source`: a path that `adacur.data` reads, a pandas, Polars or Arrow frame, or a list of dictionaries, items or
      texts; what can be read only once is held in memory;
    - `text`: a template over columns, such as "{title} {brand}"; by default all columns but the id, as sentences;
    - `id_`: the column of the id; by default "id" or "_id", else rows are numbered from 0;
    - `side`: "left" or "right", for messages.

    Once `count` was called, `empty` has the ids of the rows without a word, which are left out, and `numbered` the
    columns of a table whose rows are numbered although it has some.
    """

    source: Any
    text: str | None = None
    id_: str | None = None
    side: str = "left"
    empty: list[str] = field(default_factory=list)
    numbered: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fields = _fields_of(self.text, self.side)
        if isinstance(self.source, str | Path):
            return
        frame: Any = nw.from_native(self.source, pass_through=True)
        if isinstance(frame, nw.LazyFrame):
            frame = frame.collect()
        if isinstance(frame, nw.DataFrame):
            self.source = frame
        elif isinstance(frame, Iterable) and not isinstance(frame, Mapping):
            self.source = frame if isinstance(frame, Sequence) else list(frame)
        else:
            raise InputError(
                f"The {self.side} table must be a file, a pandas, Polars or Arrow table, or a list of records; got "
                f"{type(frame).__name__}."
            )

    def __iter__(self) -> Iterator[Item]:
        return (item for _, item in self._items() if item.text)

    def count(self) -> int:
        """How many rows have a text. Refuses ids that are not unique, and missing columns, before anything is paid."""
        seen: set[str] = set()
        again: list[str] = []
        self.empty.clear()
        for where, item in self._items():
            if item.id in seen:
                again.append(f"{item.id!r} ({where})")
            seen.add(item.id)
            if not item.text:
                self.empty.append(item.id)
        if again:
            more = f" and {len(again) - _NAMED:,} more" if len(again) > _NAMED else ""
            raise DuplicateId(
                f"Ids of the {self.side} table must be unique; again: {', '.join(again[:_NAMED])}{more}. Name another "
                f"column: {self.side}_id=…, or leave the id out to number the rows."
            )
        n_rows = len(seen) - len(self.empty)
        if not n_rows:
            raise EmptyInput(f"The {self.side} table has no row with a text, of {len(seen):,}.")
        if self.empty:
            some = ", ".join(map(repr, self.empty[:_NAMED]))
            self._warn(f"{len(self.empty):,} rows of the {self.side} table have no text and are left out: {some}.")
        if self.numbered:
            self._warn(
                f"The {self.side} table has no column 'id', so its rows are numbered from 0. If one of "
                f"{', '.join(map(repr, self.numbered))} holds ids, name it: {self.side}_id=… (--{self.side}-id)."
            )
        return n_rows

    def _warn(self, message: str) -> None:
        warnings.warn(message, DataWarning, stacklevel=4)

    def is_file(self, path: Any) -> bool:
        """Whether it is read from this file."""
        paths = (self.source, path)
        return all(isinstance(one, str | Path) for one in paths) and len({Path(one).resolve() for one in paths}) == 1

    def _items(self) -> Iterator[tuple[str, Item]]:
        for number, (where, row) in enumerate(self._rows()):
            if isinstance(row, Item | Query):
                id_, text = row.id, row.text
            elif isinstance(row, str):
                id_, text = str(number), row
            elif isinstance(row, Mapping):
                id_, text = self._of_columns(number, where, row)
            else:
                raise InputError(f"The {self.side} table, {where}: expected a record; got {type(row).__name__}.")
            check_texts(f"{self.side.capitalize()} row", id_, text)
            yield where, Item(id_, " ".join(text.split()))

    def _rows(self) -> Iterator[tuple[str, Any]]:
        if isinstance(self.source, str | Path):
            return read_rows(self.source, fields=[*(self._fields or ()), *filter(None, [self.id_])])
        rows = self.source.iter_rows(named=True) if isinstance(self.source, nw.DataFrame) else self.source
        return ((f"row {number}", row) for number, row in enumerate(rows))

    def _of_columns(self, number: int, where: str, row: Mapping[str, Any]) -> tuple[str, str]:
        name = self.id_ or next((one for one in _IDS if one in row), None)
        for needed in (*(self._fields or ()), *filter(None, [self.id_])):
            if needed not in row:
                raise InputError(
                    f"The {self.side} table, {where}: no column {needed!r}.{did_you_mean(needed, list(row))} It has "
                    f"{', '.join(map(repr, row))}."
                )
        if name is None and not number and len(row) > 1:
            self.numbered = [*map(str, row)]
        id_ = str(number) if name is None else _plain(row[name])
        if not id_:
            raise InputError(f"The {self.side} table, {where}: column {name!r}, the id, is empty.")
        if self.text is None:
            return id_, joined(_plain(value) for column, value in row.items() if column != name)
        parts = string.Formatter().parse(self.text)
        return id_, "".join(before + (_plain(row[column]) if column else "") for before, column, _, _ in parts)


def open_right(
    right: Any, *, text: str | None, id_: str | None, first: Any, encoder: Any, scorer: Any, progress: bool
) -> AnchorIndex:
    """The rows to match with: an index as it is, an index folder opened, or a table read into memory."""
    if isinstance(right, str | Path) and (Path(right) / _MANIFEST).is_file():
        right = load(right, scorer=scorer, encoder=encoder)
    if isinstance(right, AnchorIndex):
        if text is not None or id_ is not None:
            raise InputError("An index has its texts and ids already: leave right_text and right_id out.")
        return right
    table = Table(right, text, id_, "right")
    table.count()
    # Words are looked up in the table anyway; without an encoder there is nothing else to begin with.
    stages = first or ("bm25" if encoder is None else ("bm25", "dense"))
    return AnchorIndex.from_items(list(table), first=stages, encoder=encoder, progress=progress)


def _fields_of(template: str | None, side: str) -> tuple[str, ...] | None:
    """The columns that a template names; attributes and formats are refused, since columns are plain values."""
    if template is None:
        return None
    try:
        parts = [part for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:
        parts = []
    names = tuple(str(name) for _, name, _, _ in parts)
    if not names or not all(names) or any(form or sign for _, _, form, sign in parts):
        raise InputError(f"{side}_text must be a template of columns, such as '{{title}} {{brand}}'; got {template!r}.")
    return names


def _plain(value: Any) -> str:
    """A cell as text: nothing of a missing value or of what is nested."""
    if value is None or isinstance(value, Mapping | list) or (isinstance(value, float) and math.isnan(value)):
        return ""
    # Missing values of pandas are not equal to themselves.
    return "" if value != value else str(value)
