"""Objects in a store such as S3, by URL: listed, read and written whole, with one clear error where that fails."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from adacur.core.cache import cache_folder
from adacur.core.errors import InputError, StorageUnavailable
from adacur.core.extras import require
from adacur.core.spelling import did_you_mean
from adacur.engines.store_urls import STORE_SCHEMES, without_credentials

SCHEMES = ("s3", "gs", "az")
_RETRIES: dict[str, Any] = {"max_retries": 10, "retry_timeout": timedelta(minutes=3)}
# A block is at most 32 MB, and uplinks are slow.
_REQUEST = timedelta(minutes=2)


def index_url(path: str | Path) -> str | None:
    """The URL of an index in an object store, also where pathlib left one slash of it; None for a folder's path."""
    text = str(path)
    # A scheme has two letters or more; one letter is a drive.
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", text)
    if match is None:
        return None
    scheme, rest = match[1].lower(), text[match.end() :].strip("/")
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in (*SCHEMES, *STORE_SCHEMES))
        raise InputError(
            f"An index must lie in a folder, or at a URL that begins with {known}; got {without_credentials(text)!r}."
            f"{did_you_mean(scheme, (*SCHEMES, *STORE_SCHEMES))}"
        )
    if "/" not in rest:
        raise InputError(
            f"The URL must name a place within the bucket, such as {scheme}://{rest or 'bucket'}/my.adacur; got "
            f"{text!r}."
        )
    return f"{scheme}://{rest}"


def copies() -> Path:
    """Where this machine keeps copies of indexes that were opened by URL."""
    return cache_folder() / "object-stores"


def refuse_url(path: str | Path, what: str) -> None:
    """Refuse to write to a URL, or to the copy of what lies there; `what` begins the sentence."""
    if index_url(path) is not None or copies().resolve() in Path(path).resolve().parents:
        raise InputError(
            f"{what} needs a folder; {path} is an object store's, or a copy that was made to read it. Work in a "
            "folder, and copy from and to the store with `adacur index copy`."
        )


class ObjectStore:
    """The objects whose names begin with a URL; credentials and endpoint come from the environment.

    Requests are tried again while the store does not answer or answers 5xx, at growing intervals.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._api = require("obstore", extra="object-store")
        require("obstore.store", extra="object-store")

    @functools.cached_property
    def _store(self) -> Any:
        plain = os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", "")).startswith("http://")
        options: dict[str, Any] = {"timeout": _REQUEST} | ({"allow_http": True} if plain else {})
        return self._api.store.from_url(self.url, client_options=options, retry_config=_RETRIES)

    def names(self) -> list[str]:
        """The names of all objects."""
        with self._explained(""):
            return [entry["path"] for batch in self._api.list(self._store) for entry in batch]

    def read(self, name: str) -> bytes | None:
        """The content of an object; None where there is none."""
        try:
            with self._explained(name):
                return bytes(self._api.get(self._store, name).bytes())
        except FileNotFoundError:
            return None

    def download(self, name: str, file: Path) -> None:
        """Write an object into a file."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._explained(name), file.open("wb") as stream:
            for part in self._api.get(self._store, name).stream():
                stream.write(part)

    def upload(self, file: Path, name: str, *, new: bool = False) -> None:
        """Store a file as an object, whole or not at all; FileExistsError where it must be `new` and is not."""
        with self._explained(name):
            self._api.put(self._store, name, file, mode="create" if new else "overwrite")

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        errors = self._api.exceptions
        try:
            yield
        except errors.AlreadyExistsError as error:
            raise FileExistsError(f"{self.url}/{name}") from error
        except errors.BaseError as error:
            raise self._error(name, error) from error
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise self._error(name, error) from error
            raise

    def _error(self, name: str, error: Exception) -> StorageUnavailable:
        where = f"{self.url}/{name}".rstrip("/")
        # obstore adds the same again as a listing of its inner state.
        said = " ".join(str(error).split("Debug source")[0].split())[:500]
        denied = (self._api.exceptions.PermissionDeniedError, self._api.exceptions.UnauthenticatedError)
        # Without keys in the environment obstore looks for a service of the cloud's machines, at this address.
        no_keys = "169.254.169.254" in said or "latest/api/token" in said
        if "NoSuchBucket" in said:
            what = f"there is no bucket {self.url.split('/')[2]!r}. Create it, or check the URL."
        elif no_keys or isinstance(error, denied) or " 403 " in said or " 401 " in said:
            what = (
                f"{'there are no credentials' if no_keys else 'the store denies access'}. Check AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY (for s3://) and what they permit; a public bucket takes AWS_SKIP_SIGNATURE=true."
            )
        else:
            what = "the store does not answer, after several tries."
        return StorageUnavailable(f"{where}: {what} ({said})")
