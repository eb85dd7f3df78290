"""First stages at rest: a folder with `retriever.json`, the ids and what the kind adds."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from adacur.arrays import KeyArray
from adacur.data.stored import NOT_AN_ARRAY, read_array, read_json
from adacur.errors import AdacurError, DamagedIndex, DuplicateId, EmptyInput, NotAnIndex, OtherFormat
from adacur.records import repeats
from adacur.seeds import item_keys

_FORMAT = 1
_TEXT, _ENDS, _KEYS = "ids.utf8", "ids_ends.npy", "ids_keys.npy"


def write_settings(folder: Path, *, kind: str, settings: dict[str, Any], ids: Iterable[str] | None = None) -> None:
    """Write settings, and ids where they are given; called last: without `retriever.json` a folder is unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    if ids is not None:
        write_ids(folder, ids)
    content = {"kind": kind, "format": _FORMAT} | settings
    (folder / "retriever.json").write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def read_settings(folder: str | Path) -> dict[str, Any]:
    """The content of `retriever.json`."""
    path = Path(folder) / "retriever.json"
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise NotAnIndex(f"{folder} holds no saved first stage: {path.name} cannot be read ({error}).") from error
    if (
        not isinstance(content, dict)
        or not isinstance(content.get("kind"), str)
        or not isinstance(content.get("format"), int)
    ):
        raise NotAnIndex(f"{path} does not describe a first stage: it needs 'kind' and 'format'.")
    if content["format"] != _FORMAT:
        raise OtherFormat(f"{folder} has format {content['format']}; this adacur reads {_FORMAT}. Build it again.")
    return content


@contextlib.contextmanager
def unreadable_is_damage(folder: str | Path, what: str) -> Iterator[None]:
    """Report whatever is raised by files of another shape as damage to the folder."""
    try:
        yield
    except AdacurError:
        raise
    except (OSError, LookupError, AttributeError, ArithmeticError, *NOT_AN_ARRAY) as error:
        said = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) and error.args else str(error)
        raise DamagedIndex(f"The {what} files in {folder} cannot be read ({said}). Build it again.") from error


def check_ids(ids: Iterable[str]) -> tuple[str, ...]:
    """At least one id, none of them twice."""
    ids = tuple(ids)
    if not ids:
        raise EmptyInput("There are no items. Give at least one.")
    if len(set(ids)) < len(ids):
        raise DuplicateId(f"Item ids must be unique; {repeats(ids)} more than once.")
    return ids


def read_ids(folder: str | Path) -> Sequence[str]:
    """The item ids, in the order of the rows; they stay on the disk."""
    return StoredIds(Path(folder))


def write_ids(folder: Path, ids: Iterable[str]) -> None:
    """Write ids so that each can be read by itself: millions of them in memory would take half a gigabyte.

    Beside them go their keys, by which an index sees at once whether its items are in the same order.
    """
    lengths: list[int] = []

    def written() -> Iterator[str]:
        # Aside first: the ids may be read from the very files that are written.
        with (folder / f".{_TEXT}").open("wb") as file:
            for id_ in ids:
                encoded = id_.encode()
                file.write(encoded)
                lengths.append(len(encoded))
                yield id_

    np.save(folder / f".{_KEYS}", item_keys(written()))
    np.save(folder / f".{_ENDS}", np.cumsum(lengths, dtype=np.int64))
    for name in (_TEXT, _KEYS, _ENDS):
        os.replace(folder / f".{name}", folder / name)


def index_of(folder: Path) -> Path:
    """The folder of the index that a saved first stage belongs to, in INDEX/first or a version's; else its own."""
    parts = folder.resolve().parts
    if len(parts) < 2 or parts[-2] != "first":
        return folder
    home = folder.resolve().parent.parent
    return home.parent.parent if home.parent.name == "versions" else home


class StoredIds(Sequence[str]):
    """Item ids in a folder, memory-mapped and read one at a time."""

    def __init__(self, folder: Path) -> None:
        self._ends = read_array(folder / _ENDS, kind="i", mapped=True)
        if len(self._ends) and (self._ends[0] < 0 or (np.diff(self._ends) < 0).any()):
            raise ValueError(f"{_ENDS} does not ascend")
        size = (folder / _TEXT).stat().st_size
        expected = int(self._ends[-1]) if len(self._ends) else 0
        if size != expected:
            raise ValueError(f"{_TEXT} has {size} bytes and not {expected}")
        self.keys: KeyArray = read_array(folder / _KEYS, kind="u", mapped=True)
        if self.keys.shape != self._ends.shape or self.keys.dtype != np.uint64:
            raise ValueError(f"{_KEYS} has {len(self.keys)} keys of {len(self._ends)} ids")
        self._text = np.memmap(folder / _TEXT, dtype=np.uint8, mode="r") if size else np.empty(0, dtype=np.uint8)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> Sequence[str]: ...

    def __getitem__(self, position: int | slice) -> str | Sequence[str]:
        if isinstance(position, slice):
            return [self[at] for at in range(*position.indices(len(self)))]
        at = range(len(self._ends))[position]
        return _decoded(self._text[int(self._ends[at - 1]) if at else 0 : int(self._ends[at])].tobytes())

    def __iter__(self) -> Iterator[str]:
        begin = 0
        for start in range(0, len(self), 65_536):
            ends = self._ends[start : start + 65_536].tolist()
            text, first = self._text[begin : ends[-1]].tobytes(), begin
            for end in ends:
                yield _decoded(text[begin - first : end - first])
                begin = end


def _decoded(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise DamagedIndex(f"{_TEXT} holds an id that is not UTF-8 ({error}). Build the first stage again.") from error
