"""An index from a folder to an object store, or back."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from adacur.core.errors import IncompleteIndex, IndexMismatch, InputError, NotAnIndex
from adacur.index.blocks import SCORES
from adacur.index.database import DATABASE
from adacur.index.files import LOCK, is_in_use, made_whole
from adacur.index.folder import IndexFolder
from adacur.index.manifest import FIRST_MANIFEST, MANIFEST, VERSIONS, checked_manifest
from adacur.index.object_store import ObjectStore, copies, index_url
from adacur.index.versions import AT_HOME, EXACT, PARTS, READERS, places_of

_AT_ONCE = 8
_PYTERRIER = "pt_meta.json"
# All that may lie at the top of an index.
TOP = {MANIFEST, FIRST_MANIFEST, _PYTERRIER, DATABASE, SCORES, EXACT, VERSIONS, PARTS, *AT_HOME}


def version_files(index: IndexFolder) -> list[str]:
    """The files that the opened version is made of, relative to the index, sorted.

    A folder with these files and nothing else is the same index: there is no lock among them, nothing of other
    versions, and nothing that is not part of an index.
    """
    root = index.path
    places = [root / name for name in (MANIFEST, _PYTERRIER, *places_of(root, index.home))]
    files = [file for place in places for file in (place.rglob("*") if place.is_dir() else (place,)) if file.is_file()]
    return sorted(filter(_is_copied, (file.relative_to(root).as_posix() for file in files)))


def copy_index(source: str | Path, target: str | Path) -> None:
    """Copy a finished index from a folder to a URL, or from a URL to a folder that is not there yet.

    Half a copy is never taken for an index: its manifest is uploaded last, or its folder named last. An interrupted
    copy to a URL is completed by the same call.
    """
    url, target_url = index_url(source), index_url(target)
    if (url is None) == (target_url is None):
        raise InputError(
            f"One of the two must be a URL such as s3://bucket/my.adacur, the other a folder; got {str(source)!r} and "
            f"{str(target)!r}. Copy from folder to folder with cp -r."
        )
    if target_url is not None:
        _upload(Path(source), ObjectStore(target_url))
    else:
        _download(ObjectStore(str(url)), Path(target))


def local_copy(url: str) -> Path:
    """The folder in the cache with a copy of the index at a URL, made when its current version is first opened."""
    from filelock import FileLock

    store = ObjectStore(url)
    manifest = _manifest(store)
    if "status" not in manifest:
        # A pointer; the version it names may be another index's.
        manifest["of"] = (store.read(f"{VERSIONS}/{manifest.get('version')}/{MANIFEST}") or b"").decode()
    # The same URL at another endpoint is another place.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    identity = json.dumps([endpoint, url, manifest], sort_keys=True)
    folder = copies() / hashlib.sha256(identity.encode()).hexdigest()[:16]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            _download(store, folder)
    return folder


def _upload(folder: Path, store: ObjectStore) -> None:
    index = IndexFolder.open(folder)
    try:
        names = version_files(index)
        there = set(store.names())
        # What an interrupted copy left is uploaded again.
        if MANIFEST in there or not there <= set(names):
            raise IndexMismatch(f"{store.url} is in use already. Choose a new place, or remove what is there.")
        _each(lambda name: store.upload(folder / name, name), (name for name in names if name != MANIFEST))
        try:
            store.upload(folder / MANIFEST, MANIFEST, new=True)
        except FileExistsError:
            raise IndexMismatch(f"Another process has just copied an index to {store.url}.") from None
    finally:
        index.release()


def _download(store: ObjectStore, folder: Path) -> None:
    if is_in_use(folder):
        raise IndexMismatch(f"{folder} is in use already. Choose a new folder.")
    _manifest(store)
    with made_whole(folder) as unfinished:
        _each(lambda name: store.download(name, unfinished / name), filter(_is_copied, store.names()))
        index = IndexFolder.open(unfinished)
        # A chunk that is missing in the store would go unnoticed until it is read.
        index.check_chunks()
        index.release()


def _manifest(store: ObjectStore) -> dict[str, Any]:
    content = store.read(MANIFEST)
    if content is None:
        raise NotAnIndex(f"{store.url} is not an index: it has no {MANIFEST}. Check the URL.")
    manifest = checked_manifest(content, store.url)
    if manifest.get("status") == "building":
        raise IncompleteIndex(f"{store.url} is a build that has not finished. Build it in a folder, and copy that.")
    return manifest


def _is_copied(name: str) -> bool:
    """Whether a file is part of an index: neither hidden, half written, a lock, nor what SQLite writes beside a
    database; and with a name that does not lead out of the folder, here or on another system.
    """
    parts = name.split("/")
    leads_out = any(part.startswith(".") or part == "" for part in parts) or bool(set(name) & set("\\:\0"))
    beside = name.endswith((".partial", LOCK, READERS, "-wal", "-shm", "-journal"))
    return not leads_out and not beside and parts[0] in TOP


def _each(do: Callable[[str], object], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="adacur-copy") as workers:
        for _ in workers.map(do, names):
            pass
