"""A model's folder appears whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from adacur.errors import InputError, StorageFull

# What a folder may hold, and what it must, for a new model to take its place.
_MODEL_SUFFIXES = {".json", ".safetensors", ".bin", ".onnx", ".data", ".txt", ".model", ".md", ".jinja"}
_MODEL_FILES = ("config.json", "modules.json", "model.onnx")


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """An empty folder that becomes `folder` when the block ends without an error, in place of an older model."""
    if folder.exists() and not _is_empty_or_a_model(folder):
        raise InputError(
            f"A model is written to a new folder, or in place of an older model; {folder} holds something else. "
            "Name another folder."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished, replaced = (folder.with_name(f".{folder.name}.{os.getpid()}.{why}") for why in ("unfinished", "old"))
    for left_over in folder.parent.glob(f".{folder.name}.*.unfinished"):
        shutil.rmtree(left_over)
    unfinished.mkdir()
    try:
        yield unfinished
    except BaseException as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        # Safetensors tells a full disk in words alone.
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise StorageFull(f"The disk that holds {folder} is full; nothing was written. Free some space.") from error
        raise
    if folder.exists():
        folder.rename(replaced)
    unfinished.rename(folder)
    for left_over in folder.parent.glob(f".{folder.name}.*.old"):
        shutil.rmtree(left_over, ignore_errors=True)


def _is_empty_or_a_model(folder: Path) -> bool:
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    return folder.is_dir() and (
        not files
        or (
            any((folder / name).is_file() for name in _MODEL_FILES)
            and all(path.suffix in _MODEL_SUFFIXES for path in files)
        )
    )
