"""The folder that stands for an index in an object store: all its files but the scores, kept in step with the store."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from adacur.core.errors import DamagedIndex, IncompleteIndex, IndexLocked, InputError, NotAnIndex, StorageUnavailable
from adacur.index.blocks import RECORDS, SCORES
from adacur.index.checksums import CHECKSUMS, check_files
from adacur.index.items import DATABASE
from adacur.index.manifest import MANIFEST, write_atomically
from adacur.index.object_store import (
    LOCK,
    MARKER,
    ChangedMeanwhile,
    ObjectPlace,
    WriterLock,
    elsewhere,
    index_url,
    mirror_above,
    mirrors,
)

__all__ = [
    "Mirror",
    "is_kept",
    "located",
    "place_named",
    "refuse_url",
    "status_in_store",
    "stored_size",
    "to_build",
    "writing_alone",
]

_BUILDING = "building"
_TIMES = 5
_PATIENCE = 600.0
# Files that belong together, whole only with their checksums.
_GROUP = re.compile(r"((?:.+?/)??(?:first/[^/]+|gaussian|rows|exact))/")
# What may differ between two states of one and the same index.
_PASSING = ("status", "origin", "probes", "first")


def located(path: str | Path) -> Path:
    """The folder of an index; of one in a store the folder that stands for it here, brought up to date."""
    url = index_url(path)
    return Path(path) if url is None else _fetched(ObjectPlace(url))


def place_named(folder: Path) -> str:
    """What an index is called in messages: its folder, or the URL that the folder stands for."""
    return str(elsewhere(folder) or folder)


def refuse_url(path: str | Path, what: str) -> None:
    """Refuse to do in a store what takes a folder; `what` begins the sentence."""
    url = index_url(path) or (elsewhere(Path(path)) and place_named(Path(path)))
    if url:
        raise InputError(
            f"{what} takes a folder, and {url} is in an object store. Work in a folder, and copy from and to the store "
            "with `adacur copy`."
        )


def status_in_store(url: str) -> str | None:
    """ "building" or "complete"; None where no index lies at a URL."""
    manifest = _stored_manifest(ObjectPlace(url))
    # The manifest of an index that was changed since names a version, and has no status.
    return None if manifest is None else str(manifest.get("status", "complete"))


def stored_size(folder: Path) -> int | None:
    """Bytes of an index in its store; None for one that is in its folder."""
    place = elsewhere(folder)
    return None if place is None else place.size()


def to_build(url: str) -> Path:
    """The folder to build in what is to lie at a URL; that of the finished index where there is one."""
    if status_in_store(url) == "complete":
        return located(url)
    place = ObjectPlace(url)
    folder = _root(place) / _BUILDING
    folder.mkdir(parents=True, exist_ok=True)
    if elsewhere(folder) is None:
        write_atomically(folder / MARKER, json.dumps({"url": url, "objects": {}}))
    return folder


def _fetched(place: ObjectPlace) -> Path:
    manifest = _stored_manifest(place)
    if manifest is None:
        raise NotAnIndex(f"{place} is not an index: it has no {MANIFEST}. Build one there, or check the URL.")
    if manifest.get("status") == "building":
        done = sum(name.endswith(".json") for name in (place / RECORDS).names())
        raise IncompleteIndex(
            f"The build of {place} has not finished: {done} blocks are done. Run the same build again to continue "
            "where it stopped."
        )
    folder = _root(place) / _identity(manifest)
    folder.mkdir(parents=True, exist_ok=True)
    if elsewhere(folder) is None:
        write_atomically(folder / MARKER, json.dumps({"url": str(place), "objects": {}}))
    Mirror(folder, place).follow()
    return folder


def _stored_manifest(place: ObjectPlace) -> dict[str, Any] | None:
    content = place.read(MANIFEST)
    if content is None:
        return None
    try:
        manifest = dict(json.loads(content))
        if manifest["type"] != "adacur_index":
            raise ValueError(f"its type is {manifest['type']!r}")
    except (ValueError, TypeError, KeyError) as error:
        raise NotAnIndex(f"{place} is not an index: {MANIFEST} is not one of adacur's ({error}).") from error
    return manifest


def _identity(manifest: Mapping[str, Any]) -> str:
    lasting = {key: value for key, value in manifest.items() if key not in _PASSING}
    return hashlib.sha256(json.dumps(lasting, sort_keys=True).encode()).hexdigest()[:16]


def _root(place: ObjectPlace) -> Path:
    # The same URL at another endpoint is another place.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    digest = hashlib.sha256(f"{endpoint}\n{place}".encode()).hexdigest()[:16]
    return mirrors() / digest


@contextlib.contextmanager
def writing_alone(place: ObjectPlace, *, wait: float = 0.0) -> Iterator[WriterLock]:
    """Hold a place against other writers, of this machine and of any."""
    from filelock import FileLock, Timeout

    root = _root(place)
    root.mkdir(parents=True, exist_ok=True)
    own = FileLock(root / "build.lock")
    try:
        own.acquire(timeout=wait)
    except Timeout:
        raise IndexLocked(
            f"Another process of this machine is writing to {place}. Wait until it has finished, or choose another "
            "place."
        ) from None
    try:
        with WriterLock(place, cache=str(root.resolve())).held(wait=wait) as lock:
            yield lock
    finally:
        own.release()


class Mirror:
    """A folder in the cache with the files of an index in a store. One per state of the collection: what a reader has
    open is never replaced by another's items.

    Files that belong together are a unit: exchanged at once, here by renaming a folder, in the store by its checksums,
    which are removed first and put last.
    """

    def __init__(self, folder: Path, place: ObjectPlace) -> None:
        self.folder = folder
        self.place = place

    @classmethod
    def of(cls, folder: Path) -> Mirror | None:
        """The mirror that a folder is, or lies in."""
        above = mirror_above(folder)
        place = None if above is None else elsewhere(above)
        return None if above is None or place is None else cls(above, place)

    @property
    def is_building(self) -> bool:
        """Whether its index is yet to be finished."""
        return self.folder.name == _BUILDING

    @contextlib.contextmanager
    def writing(self, *, wait: float = 0.0) -> Iterator[None]:
        """Hold the index against other writers, here and anywhere; what changed in the folder is then in the store."""
        with writing_alone(self.place, wait=wait) as lock:
            if self.is_building:
                yield
                lock.check()
                return
            self.follow()
            before = set(_units(self._files()))
            yield
            lock.check()
            self._publish(removed=before - set(_units(self._files())))

    # Building

    def resume(self) -> None:
        """While writing: make the folder what the store says of the build, nothing where none was begun."""
        stored = _stored_manifest(self.place)
        if stored is None:
            self._check_free()
        elif stored.get("status") != "building":
            raise IndexLocked(f"Another process has just finished {self.place}. Run the same build again to open it.")
        here: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            here = json.loads((self.folder / MANIFEST).read_bytes())
        if stored is None or not here or _identity(here) != _identity(stored):
            for file in self._files(whole=True):
                (self.folder / file).unlink()
        if stored is not None:
            write_atomically(self.folder / MANIFEST, json.dumps(stored, indent=1))

    def begin(self) -> None:
        """Say in the store what has been begun."""
        self.place.write(MANIFEST, (self.folder / MANIFEST).read_bytes())

    def finish(self) -> None:
        """Put everything that the finished build wrote into the store."""
        log = self.folder / f"{DATABASE}-wal"
        if log.exists() and log.stat().st_size:
            raise IndexLocked(
                f"Another process reads {self.folder / DATABASE}. Run the same build again once it has ended."
            )
        self._publish(removed=())

    def settle(self) -> Path:
        """Give the folder of a finished build the name that readers look for."""
        manifest = json.loads((self.folder / MANIFEST).read_bytes())
        settled = self.folder.parent / _identity(manifest)
        if settled.exists():
            shutil.rmtree(self.folder)
        else:
            self.folder.rename(settled)
        return settled

    def _check_free(self) -> None:
        if foreign := [name for name in self.place.top() if name[0] != "." and name not in (SCORES, RECORDS, LOCK)]:
            raise NotAnIndex(
                f"{self.place} holds other objects, such as {foreign[0]}, and is not an index. Choose a new place."
            )

    # Following the store, and being followed by it

    def follow(self) -> None:
        """Take over what is new in the store; what is new here, and still to be put there, stays."""
        from filelock import FileLock

        # Two processes that fetch the same file would get in each other's way; nobody holds this for long.
        with FileLock(self.folder.parent / "fetch.lock", timeout=_PATIENCE):
            for _ in range(_TIMES):
                with contextlib.suppress(ChangedMeanwhile):
                    stored = self._stored()
                    # Had a writer been at work meanwhile, the units might be of two states.
                    if not self._take(stored) or self._stored() == stored:
                        return
        raise StorageUnavailable(f"{self.place} is being changed all the time; try again in a while.")

    def _stored(self) -> dict[str, dict[str, str]]:
        """The units in the store: the tags of their objects, by name."""
        found = self.place.walk(enter=lambda folder: folder.split("/")[-1] not in (SCORES, RECORDS))
        units = _units(name for name in found if is_kept(name))
        # Without its checksums a group is being written, or removed.
        return {
            unit: {name: found[name] for name in names}
            for unit, names in units.items()
            if unit in names or f"{unit}/{CHECKSUMS}" in names
        }

    def _take(self, stored: Mapping[str, Mapping[str, str]]) -> bool:
        """Exchange the units that are others in the store; whether there was one."""
        if DATABASE not in stored:
            raise DamagedIndex(f"{self.place}/{DATABASE} is missing. Restore it from a copy.")
        known = self._known()
        here = _units(self._files())
        taken = False
        for unit in sorted({*stored, *known, *here}, key=_manifest_last):
            tags = {name: str(record[0]) for name, record in known.get(unit, {}).items()}
            as_known = {name: self._signature(name) for name in here.get(unit, ())} == {
                name: record[1:] for name, record in known.get(unit, {}).items()
            }
            if unit not in stored:
                if unit in known:
                    self._remove(unit)
                    self._remember(known, unit, None)
                    taken = True
            elif dict(stored[unit]) != tags or not (as_known or self._is_newer(unit)):
                self._exchange(unit, stored[unit])
                self._remember(known, unit, stored[unit])
                taken = True
        return taken

    def _is_newer(self, unit: str) -> bool:
        """Whether a unit that is not as it was fetched was changed on purpose, by somebody who could not put it."""
        if unit.split("/")[-1] == DATABASE:
            return False
        path = self.folder / unit
        return path.is_file() or (path.is_dir() and not list(check_files(path)))

    def _exchange(self, unit: str, tags: Mapping[str, str]) -> None:
        target = self.folder / unit
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_name(f".{target.name}.{uuid.uuid4().hex}.unfinished")
        try:
            for name, etag in tags.items():
                file = fresh if name == unit else fresh / name[len(unit) + 1 :]
                file.parent.mkdir(parents=True, exist_ok=True)
                self.place.fetch(name, file, etag=etag)
            if fresh.is_dir():
                for file_name, what in check_files(fresh):
                    if self._stored().get(unit) != dict(tags):
                        raise ChangedMeanwhile(unit)
                    raise DamagedIndex(f"{self.place}/{unit}/{file_name}: {what}. Restore it from a copy.")
                self._remove(unit)
            os.replace(fresh, target)
        finally:
            if fresh.is_dir():
                shutil.rmtree(fresh, ignore_errors=True)
            else:
                fresh.unlink(missing_ok=True)

    def _publish(self, *, removed: Iterable[str]) -> None:
        """Put what changed here into the store, the manifest last."""
        known = self._known()
        units = _units(self._files())
        for unit in sorted({*units, *removed}, key=_manifest_last):
            before = known.get(unit, {})
            signatures = {name: self._signature(name) for name in units.get(unit, ())}
            if signatures == {name: record[1:] for name, record in before.items()}:
                continue
            checksums = f"{unit}/{CHECKSUMS}"
            if checksums in before:
                self.place.remove([checksums])
            self.place.remove(sorted(before.keys() - signatures.keys() - {checksums}))
            tags = {
                name: self.place.write(name, self.folder / name).get("e_tag", "")
                for name in sorted(signatures, key=lambda name: (name == checksums, name))
            }
            self._remember(known, unit, tags or None)

    def _remove(self, unit: str) -> None:
        path = self.folder / unit
        if path.is_dir():
            # Renamed first: nobody sees half of it.
            going = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
            path.rename(going)
            shutil.rmtree(going)
        else:
            path.unlink(missing_ok=True)

    def _known(self) -> dict[str, dict[str, list[Any]]]:
        """The units as they were when they were last the same here and there: per file its tag, size and time."""
        records = json.loads((self.folder / MARKER).read_bytes())["objects"]
        return {unit: {name: records[name] for name in names} for unit, names in _units(records).items()}

    def _remember(self, known: dict[str, dict[str, list[Any]]], unit: str, tags: Mapping[str, str] | None) -> None:
        known.pop(unit, None)
        if tags is not None:
            known[unit] = {name: [tag, *self._signature(name)] for name, tag in tags.items()}
        objects = {name: record for names in known.values() for name, record in names.items()}
        write_atomically(self.folder / MARKER, json.dumps({"url": str(self.place), "objects": objects}))

    def _signature(self, name: str) -> list[int]:
        found = (self.folder / name).stat()
        return [found.st_size, found.st_mtime_ns]

    def _files(self, *, whole: bool = False) -> list[str]:
        files = (file for file in self.folder.rglob("*") if file.is_file() and file.name != MARKER)
        names = (file.relative_to(self.folder).as_posix() for file in files)
        return [name for name in names if whole or is_kept(name)]


def is_kept(name: str) -> bool:
    """Whether a file is part of an index: not hidden, half written, a lock, or what SQLite keeps beside a database.

    Nor is one whose name would lead out of the folder, here or on another system.
    """
    parts = name.split("/")
    leads_out = any(part.startswith(".") or part == "" for part in parts) or bool(set(name) & set("\\:\0"))
    return not leads_out and not name.endswith((".partial", LOCK, "-wal", "-shm", "-journal"))


def _units(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by the unit they belong to: a group, or the name itself."""
    units: dict[str, list[str]] = {}
    for name in names:
        group = _GROUP.match(name)
        units.setdefault(group[1] if group else name, []).append(name)
    return units


def _manifest_last(unit: str) -> tuple[bool, bool, str]:
    return unit == MANIFEST, unit.split("/")[-1] == MANIFEST, unit
