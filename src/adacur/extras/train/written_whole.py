"""A model's folder appears whole or not at all."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adacur.errors import InputError, StorageFull
from adacur.store.writing import is_in_use, made_whole


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """An empty folder that becomes `folder`, which is new or empty, when the block ends without an error."""
    if is_in_use(folder):
        raise InputError(f"A model is written to a new or an empty folder; {folder} holds something. Name another.")
    try:
        with made_whole(folder) as unfinished:
            unfinished.mkdir(parents=True)
            yield unfinished
    except Exception as error:
        # Safetensors tells a full disk in words alone.
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise StorageFull(f"The disk that holds {folder} is full; nothing was written. Free some space.") from error
        raise
