"""Items that stay in their file, and items made of plain texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from adacur.core.errors import InputError
from adacur.core.records import Item
from adacur.data.files import read_items

__all__ = ["ItemFile", "as_items"]


@dataclass(frozen=True, slots=True)
class ItemFile:
    """The items of a file, read anew by `read_items` each time, so that they need not fit in memory."""

    path: str | Path
    id_field: str | None = None
    text_fields: tuple[str, ...] | None = None
    limit: int | None = None

    def __iter__(self) -> Iterator[Item]:
        return read_items(self.path, id_field=self.id_field, text_fields=self.text_fields, limit=self.limit)


def as_items(
    items: Iterable[Item | str] | str | Path,
    *,
    id_field: str | None = None,
    text_fields: tuple[str, ...] | None = None,
) -> Iterable[Item]:
    """Items from a path (read with these fields), from a list of texts (their ids are 0, 1, 2 …), or as they are."""
    if isinstance(items, str | Path):
        return ItemFile(items, id_field=id_field, text_fields=text_fields)
    if not isinstance(items, Sequence) or not any(isinstance(item, str) for item in items):
        # Whoever stores them checks each.
        return cast(Iterable[Item], items)
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise InputError("Items must be all texts or all Item(id, text) records; got both in one list.")
    return [Item(id=str(number), text=text) for number, text in enumerate(texts)]
