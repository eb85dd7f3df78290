"""JSON, records and arrays from a folder that may be damaged: what was written, or a ValueError that says why not."""

from __future__ import annotations

import hashlib
import json
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import msgspec
import numpy as np

from adacur.errors import OtherFormat

Record = TypeVar("Record")
# What numpy raises on the bytes of something else; Python's tokenizer reads the header.
NOT_AN_ARRAY = (
    *(ValueError, TypeError, OverflowError, MemoryError, EOFError, SyntaxError),
    *(tokenize.TokenError, BadZipFile, RecursionError),
)


def read_json(file: Path) -> Any:
    """The content of a JSON file, which has neither NaN nor infinity; OSError where it cannot be opened."""
    try:
        return msgspec.json.decode(file.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{file.name} is nested too deeply") from error
    except IsADirectoryError as error:
        raise ValueError(f"{file.name} is a folder") from error


def sealed_json(data: Mapping[str, Any]) -> str:
    """The text of a JSON file with a digest of its content, which `check_seal` compares."""
    return json.dumps({**data, "digest": _digest_of(json.loads(json.dumps(data)))}, indent=1)


def check_seal(file: Path) -> None:
    """A ValueError where a JSON file was cut short or changed since."""
    data = read_json(file)
    if not isinstance(data, dict) or data.pop("digest", None) != _digest_of(data):
        raise ValueError("its content is not what was written")


def _digest_of(data: Any) -> str:
    return hashlib.blake2b(json.dumps(data, sort_keys=True).encode(), digest_size=16).hexdigest()


def read_versioned(file: Path, *, type_: str, format_: int, without: str) -> Any:
    """The content of a JSON file of this type and format; the error of another one says what happens `without` it."""
    data = read_json(file)
    if data["type"] != type_:
        raise ValueError(f"its type is {data['type']!r}, not {type_!r}")
    if int(data["format"]) != format_:
        raise OtherFormat(
            f"{file} is written in format {data['format']}, and this adacur reads format {format_} alone. Remove the "
            f"file: {without}."
        )
    return data


def read_array(file: Path, *, kind: str, ndim: int | None = 1, mapped: bool = False) -> Any:
    """The array of an .npy file; OSError where it cannot be opened.

    `kind` has the letters of the allowed dtype kinds of numpy, such as "iu"; `ndim` is the number of axes, or None for
    any. With `mapped` the values stay on the disk.
    """
    try:
        # Mapped in any case: a header that claims more than the file holds is then refused before memory is taken.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except NOT_AN_ARRAY as error:
        raise ValueError(f"{file.name} is not an array that can be read: {error}") from error
    if not isinstance(array, np.ndarray) or ndim not in (None, array.ndim) or array.dtype.kind not in kind:
        found = f"{array.ndim} axes of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{file.name} must have {ndim or 'some'} axes of kind {kind!r}; it has {found}")
    return array if mapped else np.array(array)


def read_record(kind: type[Record], data: Any) -> Record:
    """A dataclass from JSON, checked against its types and constraints; fields that it lacks are passed over."""
    return msgspec.convert(data, kind)
