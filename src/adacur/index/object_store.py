"""Objects of an index in a store such as S3: read, written, listed; and the lock that keeps a second writer out."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from adacur.core.errors import DamagedIndex, IndexLocked, InputError, StorageUnavailable
from adacur.core.extras import require
from adacur.data import cache_folder
from adacur.data.stored import read_json

__all__ = [
    "LOCK",
    "MARKER",
    "SCHEMES",
    "ChangedMeanwhile",
    "ObjectPlace",
    "WriterLock",
    "elsewhere",
    "index_url",
    "mirror_above",
    "mirrors",
]

SCHEMES = ("s3", "gs", "az")
# In the folder that stands for an index in a store: its URL, and which objects the files are.
MARKER = ".object-store.json"
LOCK = "build.lock"
_CLOCK = ".clock"
_RETRIES: dict[str, Any] = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
# A block is at most 32 MB, and uplinks are slow.
_REQUEST = timedelta(minutes=2)
# Seconds between two signs of life of a writer, and after how many without one it is taken for dead.
_RENEWED, _LAPSES = 15.0, 120.0
_LOOKS_AGAIN = 0.5


def index_url(path: str | Path) -> str | None:
    """The URL of an index in an object store; None for the path of a folder.

    Also of what pathlib makes of a URL, with one slash behind the scheme.
    """
    text = str(path)
    # A scheme has two letters or more; one letter is a drive.
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", text)
    if found is None:
        return None
    scheme, rest = found[1].lower(), text[found.end() :].strip("/")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise InputError(f"An index lies in a folder, or at a URL that begins with {known}; got {text!r}.")
    if "/" not in rest:
        raise InputError(
            f"Name a place within the bucket, such as {scheme}://{rest or 'bucket'}/my.adacur; got {text!r}."
        )
    return f"{scheme}://{rest}"


def mirrors() -> Path:
    """Where this machine keeps folders that stand for indexes in stores."""
    return cache_folder() / "object-stores"


def mirror_above(folder: Path) -> Path | None:
    """The mirror of an index that a folder is, or lies in; None outside the cache, where a marker is not believed.

    It would have an index that was downloaded, or any below it, read from a place that a stranger names.
    """
    root, resolved = mirrors().resolve(), folder.resolve()
    if root not in resolved.parents:
        return None
    within = resolved.relative_to(root).parts
    above = root.joinpath(*within[:2])
    return above if len(within) >= 2 and (above / MARKER).is_file() else None


def elsewhere(folder: Path) -> ObjectPlace | None:
    """Where the scores of a folder lie, if that is a store; None where they lie in the folder."""
    if (mirror := mirror_above(folder)) is None:
        return None
    try:
        url = index_url(read_json(mirror / MARKER)["url"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedIndex(
            f"{mirror / MARKER} cannot be read ({error}). Remove {mirror}: it is fetched anew."
        ) from error
    if url is None:
        raise DamagedIndex(f"{mirror / MARKER} names no object store. Remove {mirror}: it is fetched anew.")
    within = folder.resolve().relative_to(mirror).as_posix()
    return ObjectPlace(url if within == "." else f"{url}/{within}")


class ChangedMeanwhile(Exception):
    """An object is no longer the one that was listed."""


class ObjectPlace:
    """The objects whose names begin with a URL. It pickles, and finds credentials where it is unpickled.

    Requests are tried again while the store does not answer or answers 5xx, at growing intervals.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> ObjectPlace:
        return ObjectPlace(f"{self.url}/{name}")

    def __reduce__(self) -> tuple[type[ObjectPlace], tuple[str]]:
        return ObjectPlace, (self.url,)

    @property
    def _api(self) -> Any:
        require("obstore", extra="object-store")
        import obstore.store

        return obstore

    @functools.cached_property
    def store(self) -> Any:
        """As obstore has it; its settings are taken from the environment."""
        plain = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://")
        options: dict[str, Any] = {"timeout": _REQUEST} | ({"allow_http": True} if plain else {})
        with self.telling(""):
            return self._api.store.from_url(self.url, client_options=options, retry_config=_RETRIES)

    @contextlib.contextmanager
    def telling(self, name: str) -> Iterator[None]:
        """Tell what a store has against a request as one clear error; an object that is not there passes through."""
        told = self._api.exceptions
        try:
            yield
        except (told.AlreadyExistsError, told.PreconditionError) as error:
            raise ChangedMeanwhile(name) from error
        except told.BaseError as error:
            raise self._explained(name, error) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._explained(name, error) from error
            raise

    def read(self, name: str) -> bytes | None:
        """The content of an object; None where there is none."""
        found = self.look(name)
        return None if found is None else found[0]

    def look(self, name: str) -> tuple[bytes, Mapping[str, Any]] | None:
        """The content of an object, and what the store tells of it."""
        with contextlib.suppress(FileNotFoundError), self.telling(name):
            found = self._api.get(self.store, name)
            return bytes(found.bytes()), dict(found.meta)
        return None

    def write(self, name: str, content: bytes | Path, *, mode: Any = "overwrite") -> dict[str, str]:
        """Store an object, whole or not at all; on return it is there to stay. Its new tag."""
        try:
            with self.telling(name):
                done = self._api.put(self.store, name, content, mode=mode)
        except FileNotFoundError as error:
            # S3's answer to an update of what has been removed.
            raise ChangedMeanwhile(name) from error
        return _tag(done)

    def fetch(self, name: str, file: Path, *, etag: str | None = None) -> None:
        """Write an object into a file, provided it still has this tag."""
        options = {} if etag is None else {"if_match": etag}
        try:
            with self.telling(name), file.open("wb") as stream:
                for part in self._api.get(self.store, name, options=options).stream():
                    stream.write(part)
        except FileNotFoundError as error:
            raise ChangedMeanwhile(name) from error

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects, those that are there."""
        for name in names:
            with contextlib.suppress(FileNotFoundError), self.telling(name):
                self._api.delete(self.store, name)

    def clear(self) -> None:
        """Delete every object here."""
        with self.telling(""):
            batches = [[found["path"] for found in batch] for batch in self._api.list(self.store)]
        for batch in batches:
            with contextlib.suppress(FileNotFoundError), self.telling(""):
                self._api.delete(self.store, batch)

    def names(self) -> list[str]:
        """The names of all objects here."""
        with self.telling(""):
            return [found["path"] for batch in self._api.list(self.store) for found in batch]

    def size(self) -> int:
        """Bytes of all objects here."""
        with self.telling(""):
            return sum(found["size"] for batch in self._api.list(self.store) for found in batch)

    def walk(self, *, enter: Callable[[str], bool]) -> dict[str, str]:
        """The tags of the objects here, by name; a folder that is not entered costs nothing, whatever it holds."""
        tags: dict[str, str] = {}
        folders: list[str | None] = [None]
        while folders:
            own, within = self._listed(folders.pop())
            tags |= own
            folders += [folder for folder in within if enter(folder)]
        return tags

    def top(self) -> list[str]:
        """The names of objects and folders here, but not of what is in the folders."""
        tags, folders = self._listed(None)
        return sorted([*tags, *folders])

    def _listed(self, folder: str | None) -> tuple[dict[str, str], list[str]]:
        with self.telling(folder or ""):
            found = self._api.list_with_delimiter(self.store, folder)
        return (
            {one["path"]: str(one["e_tag"]) for one in found["objects"]},
            [name.rstrip("/") for name in found["common_prefixes"]],
        )

    def _explained(self, name: str, error: Exception) -> StorageUnavailable:
        told = self._api.exceptions
        where = f"{self.url}/{name}".rstrip("/")
        # obstore adds the same again as a listing of its inner state.
        said = " ".join(str(error).split("Debug source")[0].split())[:500]
        if "NoSuchBucket" in said:
            bucket = self.url.split("/")[2]
            return StorageUnavailable(f"{where}: there is no bucket {bucket!r}. Create it, or check the URL. ({said})")
        # Without keys in the environment it asks the cloud's own machines, at this address.
        if "169.254.169.254" in said or "latest/api/token" in said:
            return StorageUnavailable(
                f"{where}: no credentials were found. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public "
                f"bucket AWS_SKIP_SIGNATURE=true. ({said})"
            )
        if (
            isinstance(error, told.PermissionDeniedError | told.UnauthenticatedError)
            or " 403 " in said
            or " 401 " in said
        ):
            refused = StorageUnavailable(
                f"{where}: the store refuses. Check the credentials in the environment (AWS_ACCESS_KEY_ID and "
                f"AWS_SECRET_ACCESS_KEY for s3://) and what they may do. ({said})"
            )
            # As of a folder that may be read only: a tuning, say, is then kept in memory.
            refused.errno = errno.EACCES
            return refused
        return StorageUnavailable(f"{where}: the store does not do what was asked, tried again and again. ({said})")


class WriterLock:
    """An object that says who writes to a place, renewed while they live; whoever finds it stale takes it over.

    `cache` names a folder whose lock of the operating system the owner holds meanwhile: where that has been got, an
    owner with the same is dead.
    """

    def __init__(self, place: ObjectPlace, *, cache: str) -> None:
        self._place = place
        self._owner = {"writer": uuid.uuid4().hex, "host": socket.gethostname(), "cache": cache, "process": os.getpid()}
        self._tag: dict[str, str] = {}
        self._lost = False
        self._ended = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="adacur-lock", daemon=True)
        self._renewals = 0

    @contextlib.contextmanager
    def held(self, *, wait: float = 0.0) -> Iterator[WriterLock]:
        """Hold it; another writer is waited for at most `wait` seconds."""
        self._acquire(time.monotonic() + wait)
        self._renewing.start()
        try:
            yield self
        finally:
            self._ended.set()
            self._renewing.join()
            # Whatever ended the work is what there is to tell; a lock that stays lapses by itself.
            with contextlib.suppress(StorageUnavailable):
                if not self._lost and self._is_ours(self._place.look(LOCK)):
                    self._place.remove([LOCK])

    def check(self) -> None:
        """Stop a writer that was taken for dead."""
        if self._lost:
            raise IndexLocked(f"Another process has taken over {self._place}, since this one gave no sign of life.")

    def _acquire(self, deadline: float) -> None:
        while True:
            try:
                self._tag = self._place.write(LOCK, self._content(), mode="create")
                return
            except ChangedMeanwhile:
                found = self._place.look(LOCK)
            if found is None:
                continue
            # An answer that got lost on its way makes one's own lock look like another's.
            if self._is_ours(found):
                self._tag = _tag(found[1])
                return
            owner, silent = _owner(found[0]), self._silent(found[1])
            is_dead = (owner.get("host"), owner.get("cache")) == (self._owner["host"], self._owner["cache"])
            if is_dead or silent > _LAPSES:
                with contextlib.suppress(ChangedMeanwhile):
                    self._tag = self._place.write(LOCK, self._content(), mode=_tag(found[1]))
                    return
                continue
            if time.monotonic() >= deadline:
                raise IndexLocked(
                    f"Another process is writing to {self._place}: {owner.get('process')} on {owner.get('host')}, last "
                    f"heard of {silent:.0f} s ago. Wait until it has finished, or choose another place; should it be "
                    f"dead, its lock lapses after {_LAPSES:.0f} s."
                )
            time.sleep(_LOOKS_AGAIN)

    def _renew(self) -> None:
        heard = time.monotonic()
        while not self._ended.wait(_RENEWED):
            self._renewals += 1
            try:
                self._tag = self._place.write(LOCK, self._content(), mode=self._tag)
                heard = time.monotonic()
            except ChangedMeanwhile:
                with contextlib.suppress(StorageUnavailable):
                    found = self._place.look(LOCK)
                    self._lost = not self._is_ours(found)
                    if found is not None:
                        self._tag = _tag(found[1])
                if self._lost:
                    return
            except StorageUnavailable:
                # Others may write by now.
                if time.monotonic() - heard > _LAPSES:
                    self._lost = True
                    return

    def _content(self) -> bytes:
        # Never twice the same: tags are digests of contents.
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return json.dumps(self._owner | {"renewed": self._renewals, "time": now}).encode()

    def _is_ours(self, found: tuple[bytes, Mapping[str, Any]] | None) -> bool:
        return found is not None and _owner(found[0]).get("writer") == self._owner["writer"]

    def _silent(self, lock: Mapping[str, Any]) -> float:
        """Seconds since the owner's last sign of life, by the store's own clock."""
        self._place.write(_CLOCK, b"")
        now = self._place.look(_CLOCK)
        return 0.0 if now is None else float((now[1]["last_modified"] - lock["last_modified"]).total_seconds())


def _tag(found: Mapping[str, Any]) -> dict[str, str]:
    return {key: found[key] for key in ("e_tag", "version") if found.get(key) is not None}


def _owner(content: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(content))
    except (ValueError, TypeError):
        return {}
