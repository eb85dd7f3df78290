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
from adacur.spelling import did_you_mean

# Columns that hold a row's id where nobody names one, the first that is there.
_IDS = ("id", "_id")
_NAMED = 5


@dataclass(eq=False)
class Table:
    """Rows as `Item(id, text)`, read anew each time, so that they need not fit in memory.

    - `source`: a path that `adacur.data` reads, a pandas, Polars or Arrow frame, or a list of dictionaries, items or
      texts; what can be read only once is held in memory;
    - `text`: a template over columns, such as "{title} {brand}"; by default all columns but the id, as sentences;
    - `id_`: the column of the id; by default "id" or "_id", else rows are numbered from 0;
    - `side`: "left" or "right", for messages.

    Rows without a word are left out; `empty` has their ids once `count` was called.
    """

    source: Any
    text: str | None = None
    id_: str | None = None
    side: str = "left"
    empty: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._fields = _fields_of(self.text, self.side)
        if isinstance(self.source, str | Path):
            return
        if not isinstance(self.source, Sequence) and not nw.dependencies.is_into_dataframe(self.source):
            native = nw.from_native(self.source, pass_through=True)
            if isinstance(native, nw.LazyFrame):
                self.source = native.collect().to_native()
            elif isinstance(self.source, Iterable) and not isinstance(self.source, Mapping):
                self.source = list(self.source)
            else:
                raise InputError(
                    f"The {self.side} table must be a file, a pandas, Polars or Arrow table, or a list of records; got "
                    f"{type(self.source).__name__}."
                )

    def __iter__(self) -> Iterator[Item]:
        for number, (where, row) in enumerate(self._rows()):
            item = self._item(number, where, row)
            if item.text:
                yield item

    def count(self) -> int:
        """How many rows have a text. Refuses ids that are not unique, and missing columns, before anything is paid."""
        seen: set[str] = set()
        again: list[str] = []
        self.empty.clear()
        for number, (where, row) in enumerate(self._rows()):
            item = self._item(number, where, row)
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
            warnings.warn(
                f"{len(self.empty):,} rows of the {self.side} table have no text and are left out: {some}.",
                DataWarning,
                stacklevel=3,
            )
        return n_rows

    def is_file(self, path: str | Path) -> bool:
        """Whether it is read from this file."""
        return isinstance(self.source, str | Path) and Path(self.source).resolve() == Path(path).resolve()

    def _rows(self) -> Iterator[tuple[str, Any]]:
        if isinstance(self.source, str | Path):
            named = (*(self._fields or ()), *((self.id_,) if self.id_ else ()))
            yield from read_rows(self.source, fields=named)
        elif isinstance(self.source, Sequence):
            yield from ((f"row {number}", row) for number, row in enumerate(self.source))
        else:
            frame = nw.from_native(self.source, eager_only=True)
            yield from ((f"row {number}", row) for number, row in enumerate(frame.iter_rows(named=True)))

    def _item(self, number: int, where: str, row: Any) -> Item:
        if isinstance(row, Item | Query):
            id_, text = row.id, row.text
        elif isinstance(row, str):
            id_, text = str(number), row
        elif isinstance(row, Mapping):
            id_, text = self._of_columns(number, where, row)
        else:
            raise InputError(f"The {self.side} table, {where}: expected a record; got {type(row).__name__}.")
        check_texts(f"{self.side.capitalize()} row", id_, text)
        return Item(id_, " ".join(text.split()))

    def _of_columns(self, number: int, where: str, row: Mapping[str, Any]) -> tuple[str, str]:
        name = self.id_ or next((one for one in _IDS if one in row), None)
        needed = (*(self._fields or ()), *((self.id_,) if self.id_ else ()))
        if absent := [one for one in needed if one not in row]:
            raise InputError(
                f"The {self.side} table, {where}: no column {absent[0]!r}.{did_you_mean(absent[0], list(row))} It has "
                f"{', '.join(map(repr, row))}."
            )
        id_ = str(number) if name is None else _plain(row[name])
        if not id_:
            raise InputError(f"The {self.side} table, {where}: column {name!r}, the id, is empty.")
        if self.text is None:
            return id_, joined(_plain(value) for column, value in row.items() if column != name)
        parts = string.Formatter().parse(self.text)
        return id_, "".join(before + (_plain(row[column]) if column else "") for before, column, _, _ in parts)


def _fields_of(template: str | None, side: str) -> tuple[str, ...] | None:
    """The columns that a template names; attributes and formats are refused, since columns are plain values."""
    if template is None:
        return None
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"{side}_text must be a template such as '{{title}} {{brand}}'; got {template!r}.") from error
    names = tuple(name for _, name, _, _ in parts if name is not None)
    if not names or not all(names) or any(form or sign for _, name, form, sign in parts if name):
        raise InputError(f"{side}_text must name columns, such as '{{title}} {{brand}}'; got {template!r}.")
    return names


def _plain(value: Any) -> str:
    """A cell as text: nothing of a missing value or of what is nested."""
    if value is None or isinstance(value, Mapping | list) or (isinstance(value, float) and math.isnan(value)):
        return ""
    # Missing values of pandas are not equal to themselves.
    return "" if value != value else str(value)
