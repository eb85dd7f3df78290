"""An index from a folder to an object store, or back."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from adacur.core.errors import IndexMismatch, InputError
from adacur.index.blocks import SCORES
from adacur.index.folder import AT_HOME, IndexFolder
from adacur.index.items import DATABASE
from adacur.index.manifest import FIRST_MANIFEST, MANIFEST
from adacur.index.mirror import is_kept, located, writing_alone
from adacur.index.object_store import LOCK, ObjectPlace, index_url
from adacur.index.versions import EXACT, READERS

__all__ = ["copy_index", "version_files"]

_AT_ONCE = 8
_PYTERRIER = "pt_meta.json"


def version_files(index: IndexFolder) -> list[str]:
    """The files that the version opened is made of, relative to the index, sorted.

    No lock, nothing of other versions, nothing that somebody else put there.

    A folder with these files and nothing else is the same index.
    """
    root = index.path
    if index.parts:
        wanted = [root / MANIFEST, root / _PYTERRIER, index.home]
        for part in index.parts:
            # The first build shares its folder with everything else.
            first_build = [root / name for name in (FIRST_MANIFEST, DATABASE, SCORES, EXACT)]
            wanted += first_build if part.folder == root else [part.folder]
    else:
        wanted = [root / name for name in (MANIFEST, _PYTERRIER, DATABASE, SCORES, EXACT, *AT_HOME)]
    files = {
        file.relative_to(root).as_posix()
        for place in wanted
        for file in (place.rglob("*") if place.is_dir() else (place,))
        if file.is_file() and file.name != READERS
    }
    return sorted(name for name in files if is_kept(name))


def copy_index(source: str | Path, target: str | Path) -> None:
    """Copy a finished index from a folder to a URL, or from a URL to a folder that is not there yet.

    Nobody sees half of it: its manifest is put last, or its folder named last. An interrupted copy to a URL is made
    again by the same call.
    """
    url, other = index_url(source), index_url(target)
    if (url is None) == (other is None):
        raise InputError(
            f"One of the two is a URL such as s3://bucket/my.adacur, the other a folder; got {str(source)!r} and "
            f"{str(target)!r}. Others are copied by tools of their own, such as cp -r."
        )
    if other is not None:
        _upload(Path(source), ObjectPlace(other))
    else:
        _download(ObjectPlace(str(url)), Path(target))


def _upload(folder: Path, place: ObjectPlace) -> None:
    index = IndexFolder.open(folder)
    try:
        files = (file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        names = sorted(name for name in files if is_kept(name))
        with writing_alone(place) as lock:
            there = {name for name in place.names() if name[0] != "."} - {LOCK}
            # What an interrupted copy left is put again.
            if MANIFEST in there or not there <= set(names):
                raise IndexMismatch(f"{place} is in use already. Choose a new place, or remove what is there.")
            _each(lambda name: place.write(name, folder / name), (name for name in names if name != MANIFEST))
            lock.check()
            place.write(MANIFEST, folder / MANIFEST)
    finally:
        index.release()


def _download(place: ObjectPlace, folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise IndexMismatch(f"{folder} is in use already. Choose a new folder.")
    mirror = located(str(place))
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}.partial")

    def fetch(name: str) -> None:
        file = partial / name
        file.parent.mkdir(parents=True, exist_ok=True)
        place.fetch(name, file)

    try:
        for file in [file for file in mirror.rglob("*") if file.is_file()]:
            name = file.relative_to(mirror).as_posix()
            if is_kept(name):
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, partial / name)
        _each(fetch, (name for name in place.names() if SCORES in name.split("/") and is_kept(name)))
        # A chunk that was missing there would go unnoticed until somebody reads it.
        for _ in IndexFolder.open(partial).blocks():
            pass
        if folder.exists():
            folder.rmdir()
        os.replace(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _each(do: Callable[[str], object], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="adacur-copy") as workers:
        for _ in workers.map(do, names):
            pass
