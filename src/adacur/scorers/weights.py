"""Which weights a model has, and what its folder says about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adacur.core.errors import FileFormatError

__all__ = ["json_in", "weights_hash"]


def weights_hash(files: Iterable[Path], *, settings: Mapping[str, Any] | None = None) -> str:
    """The first 32 hex digits of a SHA-256 over the files' content, in order of their names.

    `settings` are what besides weights decides the scores, such as a head without any.
    """
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    if settings:
        digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def json_in(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder; empty where there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}
