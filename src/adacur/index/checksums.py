"""Checksums of a folder's files, kept in the folder itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from adacur.data.stored import read_json

__all__ = ["CHECKSUMS", "check_files", "write_checksums"]

CHECKSUMS = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Remember what every file in the folder holds."""
    digests = {
        file.relative_to(folder).as_posix(): _digest(file) for file in sorted(folder.rglob("*")) if file.is_file()
    }
    (folder / CHECKSUMS).write_text(json.dumps(digests, indent=1), encoding="utf-8")


def check_files(folder: Path) -> Iterator[tuple[str, str]]:
    """(file, what is wrong) for each file that is not as it was remembered."""
    try:
        digests = dict(read_json(folder / CHECKSUMS))
        if outside := [name for name in digests if not _is_within(name)]:
            raise ValueError(f"it names {outside[0]!r}, which does not lie in the folder")
    except (OSError, ValueError, TypeError) as error:
        yield CHECKSUMS, f"it cannot be read: {error}"
        return
    for name, digest in digests.items():
        try:
            if _digest(folder / name) != digest:
                yield name, "its content is not what was written"
        except OSError as error:
            yield name, f"it cannot be read: {error}"


def _is_within(name: object) -> bool:
    return isinstance(name, str) and not (set(name) & set("\\:\0") or {"", ".", ".."} & set(name.split("/")))


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
