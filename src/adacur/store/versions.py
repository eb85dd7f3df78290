"""Versions of an index: who reads them, and the deletion of those that are neither current nor open."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

from adacur.errors import NotAnIndex
from adacur.store.manifest import MANIFEST, PARTS, VERSIONS, Manifest, home_of, manifest_in, read_manifest
from adacur.store.parts import PLACES
from adacur.store.writing import LOCK, check_inside, check_no_links, locked

MODEL = "model"
# What a version keeps beside its manifest: made of its scores and items.
AT_HOME = ("first", MODEL, "tuned.json", "relevance.json")


class Reading:
    """Keeps the version that it was opened on from being deleted, until released or forgotten."""

    def __init__(self, home: Path) -> None:
        # Where the lock cannot be had, the version is read without it.
        with contextlib.ExitStack() as holding:
            with contextlib.suppress(OSError):
                holding.callback(os.close, _locked_file(home, exclusive=False))
            self.release = weakref.finalize(self, holding.pop_all().close)


def hold_version(index: Path) -> tuple[Path, Manifest, Reading]:
    """The home of the current version, its manifest, and a hold on it."""
    if not os.path.lexists(index / MANIFEST):
        # Any folder may hold links: that this is no index is said first.
        read_manifest(index)
    check_no_links(index)
    while True:
        home = home_of(index)
        held = Reading(home)
        manifest = read_manifest(index)
        # While a lock is waited for, the version may have been left and pruned; one that is current is safe.
        if home_of(index) == home:
            return home, manifest, held
        held.release()


@contextlib.contextmanager
def _without_readers(home: Path) -> Iterator[bool]:
    """Whether no reader has this version open; while the block runs, none can open it."""
    with contextlib.ExitStack() as holding:
        try:
            holding.callback(os.close, _locked_file(home, exclusive=True))
        except OSError as error:
            # Without this file there is no reader; where it cannot be opened or locked, there may be one.
            yield isinstance(error, FileNotFoundError)
            return
        yield True


def _locked_file(home: Path, *, exclusive: bool) -> int:
    """The descriptor of a version's lock, held until it is closed; OSError where it is not to be had."""
    # A file that is written once and never replaced: a lock on the manifest would be lost with the old one.
    descriptor = os.open(home / PLACES, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusive else fcntl.LOCK_SH)
    except ImportError:
        pass  # Windows deletes no file that is open.
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def places_of(index: Path, home: Path) -> set[str]:
    """The folders that a version is made of, by their names within the index; some may not be there."""
    try:
        parts = manifest_in(home).parts
    except NotAnIndex:
        parts = ()  # It was never written to the end.
    return {home.relative_to(index).as_posix(), *(f"{PARTS}/{name}" for name in parts)}


def version_files(index: Path, home: Path) -> list[str]:
    """The files that a version is made of, relative to the index, sorted.

    A folder with these files and nothing else is the same index: there is no lock among them, nothing of other
    versions, and nothing that is not part of an index.
    """
    places = [index / name for name in (MANIFEST, "pt_meta.json", *places_of(index, home))]
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else (place,)) if file.is_file()]
    names = [file.relative_to(index).as_posix() for file in files]
    # Neither hidden, half written nor a lock.
    return sorted(name for name in names if not name.endswith((".partial", LOCK)) and "/." not in f"/{name}")


def prune(index: Path) -> None:
    """Delete the versions that are neither current nor open anywhere, and the parts that only they used."""
    with locked(index):
        prune_locked(index)


def prune_locked(index: Path, *, unused_parts: bool = False) -> None:
    """The same, by a process that holds the lock of the index.

    `unused_parts` deletes the parts that no version ever used as well: scores that an interrupted addition paid for.
    """
    home = home_of(index)
    used, unused = places_of(index, home), set()
    with contextlib.ExitStack() as held:
        for old in (folder for folder in (index / VERSIONS).glob("*") if folder.is_dir() and folder != home):
            if not old.name.isdecimal() or int(old.name) > int(home.name):
                # A version that was never switched to: its parts are scores that were paid for.
                unused.add(f"{VERSIONS}/{old.name}")
            elif held.enter_context(_without_readers(old)):
                unused |= places_of(index, old)
            else:
                used |= places_of(index, old)
        if unused_parts:
            unused |= {f"{PARTS}/{part.name}" for part in (index / PARTS).glob("*")}
        # Left behind by what was interrupted while it was written whole, or while it was deleted.
        for left_over in (*(index / PARTS).glob(".*"), *(index / VERSIONS).glob(".*")):
            _delete(index, left_over)
        # Versions after their parts: what is left of one says which they were, should this be interrupted.
        for name in sorted(unused - used, key=lambda name: name.startswith(VERSIONS)):
            _delete(index, index / name)


def _delete(index: Path, path: Path) -> None:
    """Delete a folder of an index, out of sight at once, and of a link only the link.

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


def link_files(old: Path, new: Path, names: Iterable[str]) -> None:
    """Bring files and folders to a new home; they are never written to again, so they need no second copy."""

    def link(source: str, target: str) -> str:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)
        return target

    for name in names:
        if (old / name).is_dir():
            shutil.copytree(old / name, new / name, copy_function=link, ignore=shutil.ignore_patterns(".*"))
        elif (old / name).exists():
            link(str(old / name), str(new / name))
