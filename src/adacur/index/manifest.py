"""What an index folder says of itself."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adacur.core.errors import NewerFormat, NotAnIndex
from adacur.core.protocols import ScorerCard

__all__ = [
    "DTYPES",
    "FORMAT",
    "MANIFEST",
    "Manifest",
    "Probe",
    "read_manifest",
    "sync_path",
    "write_atomically",
    "write_manifest",
]

FORMAT = 1
MANIFEST = "manifest.json"
DTYPES = ("float32", "float16", "float64")
_TYPE = "adacur_index"
_STATUSES = ("building", "complete")


@dataclass(frozen=True, slots=True)
class Probe:
    """A remembered score, by which a scorer is recognised."""

    item: int
    anchor: int
    score: float


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("adacur", "numpy", "zarr")} | {"python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built, from what, by whom. `status` is "building" or "complete"."""

    status: str
    n_items: int
    n_anchors: int
    dtype: str
    block_items: int
    items_digest: str
    anchors_digest: str
    scorer: ScorerCard | None
    seed: int = 0
    first: tuple[str, ...] = ()
    probes: tuple[Probe, ...] = ()
    created: str = field(default_factory=_now)
    versions: Mapping[str, str] = field(default_factory=_versions)
    format: int = FORMAT

    @property
    def n_blocks(self) -> int:
        """Units of work: a block of items against every anchor query."""
        return -(-self.n_items // self.block_items)

    def block(self, number: int) -> range:
        """The positions of a block's items."""
        return range(number * self.block_items, min((number + 1) * self.block_items, self.n_items))


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder, or the reason why it is not an index this version can read."""
    file = folder / MANIFEST
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        what = f"it has no {MANIFEST}" if folder.exists() else "it does not exist"
        raise NotAnIndex(f"{folder} is not an index folder: {what}. Build one there, or check the path.") from None
    except (OSError, ValueError) as error:
        raise NotAnIndex(f"{folder} is not an index folder: {MANIFEST} cannot be read ({error}).") from error
    try:
        data = json.loads(text)
        if data["type"] != _TYPE:
            raise ValueError(f"its type is {data['type']!r}, not {_TYPE!r}")
        if int(data["format"]) > FORMAT:
            raise NewerFormat(
                f"{folder} is written in format {data['format']}; this adacur reads formats up to {FORMAT}. "
                "Upgrade it: pip install -U adacur"
            )
        return _parse(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
        raise NotAnIndex(f"{folder} is not an index folder: {MANIFEST} is not one of adacur's ({reason}).") from error


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step."""
    write_atomically(folder / MANIFEST, json.dumps({"type": _TYPE} | asdict(manifest), indent=1))


def write_atomically(file: Path, text: str) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of it."""
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(partial, file)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
    sync_path(file.parent)


def sync_path(path: Path) -> None:
    """Make a file's content, or a folder's entries, survive a power cut."""
    if os.name == "nt" and path.is_dir():
        return  # Windows keeps folder entries itself and cannot open a folder.
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _parse(data: Mapping[str, Any]) -> Manifest:
    known = {name.name for name in fields(ScorerCard)}
    card = data["scorer"]
    manifest = Manifest(
        status=str(data["status"]),
        n_items=int(data["n_items"]),
        n_anchors=int(data["n_anchors"]),
        dtype=str(data["dtype"]),
        block_items=int(data["block_items"]),
        items_digest=str(data["items_digest"]),
        anchors_digest=str(data["anchors_digest"]),
        scorer=None if card is None else ScorerCard(**{name: card[name] for name in known & card.keys()}),
        seed=int(data["seed"]),
        first=tuple(map(str, data.get("first", ()))),
        probes=tuple(
            Probe(item=int(probe["item"]), anchor=int(probe["anchor"]), score=float(probe["score"]))
            for probe in data["probes"]
        ),
        created=str(data["created"]),
        versions=dict(data["versions"]),
        format=int(data["format"]),
    )
    if manifest.status not in _STATUSES:
        raise ValueError(f"status is {manifest.status!r}, which is none of {_STATUSES}")
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype is {manifest.dtype!r}, which is none of {DTYPES}")
    if min(manifest.n_items, manifest.n_anchors, manifest.block_items) < 1:
        raise ValueError("n_items, n_anchors and block_items must be at least 1")
    return manifest
