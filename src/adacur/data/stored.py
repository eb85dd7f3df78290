"""JSON and arrays from a folder that may be damaged: what was written, or a ValueError that says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_array", "read_json"]


def read_json(file: Path) -> Any:
    """The content of a JSON file; OSError where it cannot be opened."""
    try:
        return json.loads(file.read_bytes())
    except RecursionError as error:
        raise ValueError(f"{file.name} is nested too deeply") from error


def read_array(file: Path, *, kind: str, ndim: int | None = 1, mapped: bool = False) -> Any:
    """The array of an .npy file; OSError where it cannot be opened.

    `kind` has the letters of numpy's dtype kinds that will do, such as "iu", and `ndim` counts the axes, any number
    where it is None. With `mapped` the values stay on the disk.
    """
    try:
        # Mapped in any case: a header that claims more than the file holds is then refused before memory is taken.
        array = np.load(file, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, OverflowError, MemoryError, EOFError, SyntaxError) as error:
        raise ValueError(f"{file.name} is not an array that can be read: {error}") from error
    if not isinstance(array, np.ndarray) or ndim not in (None, array.ndim) or array.dtype.kind not in kind:
        found = f"{array.ndim} axes of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
        raise ValueError(f"{file.name} must have {ndim or 'some'} axes of kind {kind!r}; it has {found}")
    return array if mapped else np.array(array)
