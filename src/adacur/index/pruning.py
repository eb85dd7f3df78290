"""Deleting the versions of an index that are no longer current or open, and the parts that only they used."""

from __future__ import annotations

import contextlib
import shutil
import uuid
from pathlib import Path

from adacur.core.errors import NotAnIndex
from adacur.index.blocks import SCORES
from adacur.index.database import DATABASE_FILES
from adacur.index.files import check_inside, locked
from adacur.index.folder import AT_HOME
from adacur.index.manifest import FIRST_MANIFEST, VERSIONS, home_of, read_manifest
from adacur.index.versions import EXACT, PARTS, ROWS, without_readers

__all__ = ["prune", "prune_locked"]


def prune(path: str | Path) -> None:
    """Delete the versions that are neither current nor open anywhere, and the parts that only they used."""
    with locked(Path(path)):
        prune_locked(Path(path))


def prune_locked(index: Path, *, unused_parts: bool = False) -> None:
    """The same, by a process that holds the lock of the index.

    `unused_parts` deletes the parts that no version ever used as well: scores that an interrupted addition paid for.
    """
    home = home_of(index)
    homes = [folder for folder in (index / VERSIONS).glob("*") if folder.is_dir()]
    current = int(home.name) if home != index else 1
    used = _parts_of(home)
    with contextlib.ExitStack() as held:
        leaving = []
        for old in [*homes, *([index] if home != index and (index / FIRST_MANIFEST).exists() else [])]:
            if old == home:
                continue
            if old != index and (not old.name.isdecimal() or int(old.name) > current):
                # A version that was never switched to: its parts are scores that were paid for.
                _delete(index, old)
            elif held.enter_context(without_readers(old)):
                leaving.append(old)
            else:
                used |= _parts_of(old)
        unused = {part for old in leaving for part in _parts_of(old)} - used
        if unused_parts:
            unused |= {f"{PARTS}/{part.name}" for part in (index / PARTS).glob("*")} - used
        # Left behind by what was interrupted while it was written whole, or while it was deleted.
        for left_over in (*(index / PARTS).glob(".*"), *index.glob(".*.gone")):
            _delete(index, left_over)
        # Parts first: what is left of a version says which they were, should this be interrupted.
        for part in unused - {"."}:
            _delete(index, index / part)
        if "." in unused:
            for name in (SCORES, EXACT, *DATABASE_FILES):
                _delete(index, index / name)
        for old in leaving:
            for name in (*AT_HOME, ROWS) if old == index else ():
                _delete(index, index / name)
            if old != index:
                _delete(index, old)
        if "." in unused:
            _delete(index, index / FIRST_MANIFEST)


def _parts_of(home: Path) -> set[str]:
    """The parts that a version is made of; none where it was never written to the end."""
    if home.parent.name != VERSIONS:
        return {"."}
    try:
        return {part.path for part in read_manifest(home).parts}
    except NotAnIndex:
        return set()


def _delete(index: Path, path: Path) -> None:
    """Delete a file or folder of an index, out of sight at once, and of a link only the link.

    One that another process holds open, on a system where that matters, stays.
    """
    if not path.exists() and not path.is_symlink():
        return
    check_inside(index, path)
    with contextlib.suppress(OSError):
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        if not path.name.startswith("."):
            gone = path.with_name(f".{path.name}.{uuid.uuid4().hex}.gone")
            path.rename(gone)
            path = gone
        shutil.rmtree(path)
