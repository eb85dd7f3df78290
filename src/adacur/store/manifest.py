"""The manifest of an index folder: what was built, from what, and which version is current."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from adacur.data.stored import read_record, sealed_json
from adacur.errors import DamagedIndex, NotAnIndex, OtherFormat
from adacur.protocols import ScorerCard
from adacur.store.writing import write_atomically

FORMAT = 4
MANIFEST = "manifest.json"
VERSIONS = "versions"
# What the manifest of the first build becomes when that of the index names a version.
FIRST_MANIFEST = "part.json"
CONTINUE = "Run the same build again to continue where it stopped."
DTYPES = ("float32", "float16", "float64")
_MOST = 2**48
# A part is the first build, or a folder of this name: a manifest cannot name anything outside its index.
_PART = re.compile(r"\.|parts/[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
_TYPE = "adacur_index"
_STATUSES = ("building", "complete")
# What JSON of another shape, or nested too deeply, makes the reading of it raise.
_FOREIGN = (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Probe:
    """A remembered score, by which a scorer is recognised."""

    item: int
    anchor: int
    score: float


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of the file that an index was built from: which was the id, and which the text.

    `passages` are the most words of a passage, where texts were split.
    """

    id_field: str | None = None
    text_fields: tuple[str, ...] | None = None
    passages: int | None = None


@dataclass(frozen=True, slots=True)
class PartRecord:
    """A finished folder that a version is made of, and how many items and anchor queries came with it.

    `path` is relative to the index, "." for its first build, and None where nothing of the part counts any more.
    """

    path: str | None
    items: int
    anchors: int


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _packages() -> dict[str, str]:
    return {name: version(name) for name in ("adacur", "numpy", "zarr")} | {"python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was built, from what, by which scorer. `status` is "building" or "complete".

    An index that was changed since its build has `parts`, and each change a new `version`. `removed_anchors` are pairs
    of a place among the anchor queries of all parts, and how many parts there were when it was removed; those of items
    have a file. `documents` counts those
    that the items belong to, where any item names one; `cut` counts the items that are longer than the scorer takes, at
    most that many after a removal, and is None where it could not be counted. `fuse` is the first stage's weight in the
    order of hits, None where the scorer decides. `metadata_digest` is that of the items as they were stored, None of a
    version of several parts.
    """

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
    packages: Mapping[str, str] = field(default_factory=_packages)
    format: int = FORMAT
    version: int = 1
    parts: tuple[PartRecord, ...] = ()
    removed_anchors: tuple[tuple[int, ...], ...] = ()
    origin: Origin | None = None
    documents: int | None = None
    cut: int | None = None
    fuse: float | None = None
    metadata_digest: str | None = None

    @property
    def n_blocks(self) -> int:
        """Units of work: a block of items against every anchor query; none where there is no anchor query."""
        return -(-self.n_items // self.block_items) if self.n_anchors else 0

    def block(self, number: int) -> range:
        """The positions of a block's items."""
        return range(number * self.block_items, min((number + 1) * self.block_items, self.n_items))


def home_of(folder: Path) -> Path:
    """Where the current version of an index keeps its manifest, first stages and tunings: the index or a folder in it.

    NotAnIndex or OtherFormat where it is not an index this adacur can read.
    """
    data = _load(folder)
    return folder / VERSIONS / str(data["version"]) if _is_pointer(data) else folder


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index's current version, or the reason why it is not an index this adacur can read."""
    while True:
        home = home_of(folder)
        try:
            data = _load(home)
            if _is_pointer(data):
                raise NotAnIndex(f"{home} is not a version of an index: its {MANIFEST} points elsewhere.")
            return _parse(data)
        except NotAnIndex:
            # A version that has just been left may be pruned between the two reads.
            if home_of(folder) == home:
                raise
        except _FOREIGN as error:
            raise _foreign(home, error) from error


def point_to(folder: Path, version: int) -> None:
    """Make a version the current one, in one step."""
    pointer = {"type": _TYPE, "format": FORMAT, "version": version}
    write_atomically(folder / MANIFEST, sealed_json(pointer))


def read_part_manifest(index: Path, part: str) -> Manifest:
    """The manifest of a folder that versions are made of, as its build wrote it."""
    name = FIRST_MANIFEST if part == "." and (index / FIRST_MANIFEST).exists() else MANIFEST
    try:
        return _parse(_load(index / part, name))
    except _FOREIGN as error:
        raise _foreign(index / part, error, name) from error


def keep_first_manifest(index: Path, manifest: Manifest) -> None:
    """Keep the manifest of the first build beside the one of the index, which is about to name a version."""
    write_atomically(index / FIRST_MANIFEST, _as_json(manifest))


def _load(folder: Path, name: str = MANIFEST) -> dict[str, Any]:
    file = folder / name
    try:
        if file.exists() and not file.is_file():
            # Opening a pipe would wait for its other end.
            raise NotAnIndex(f"{folder} is not an index folder: {name} is not a file.")
        text = file.read_bytes().decode()
    except FileNotFoundError:
        if folder.exists():
            what, remedy = f"it has no {name}", "Check the path, or build an index at another one."
        else:
            what, remedy = "it does not exist", "Build one there, or check the path."
        raise NotAnIndex(f"{folder} is not an index folder: {what}. {remedy}") from None
    except NotADirectoryError:
        what = "is a file" if folder.is_file() else "would lie in a file"
        raise NotAnIndex(f"{folder} is not an index folder: it {what}. Check the path.") from None
    except (OSError, ValueError) as error:
        raise NotAnIndex(f"{folder} is not an index folder: {name} cannot be read ({error}).") from error
    return checked_manifest(text, folder, name)


def checked_manifest(text: str | bytes, folder: Path | str, name: str = MANIFEST) -> dict[str, Any]:
    """The JSON of a manifest, or of a pointer to one, if this adacur can read it; errors name `folder` and `name`."""
    try:
        data: dict[str, Any] = json.loads(text)
        if data["type"] != _TYPE:
            raise ValueError(f"its type is {data['type']!r}, not {_TYPE!r}")
        if not all(type(data.get(name, 1)) is int and data.get(name, 1) >= 1 for name in ("format", "version")):
            raise ValueError("format and version must be whole numbers from 1 on")
        if data["format"] != FORMAT:
            raise OtherFormat(
                f"{folder} is written in format {data['format']}, and this adacur reads format {FORMAT} alone: build "
                "it again, or use the adacur that wrote it."
            )
    except _FOREIGN as error:
        raise _foreign(folder, error, name) from error
    return data


def _is_pointer(data: Mapping[str, Any]) -> bool:
    return "version" in data and "parts" not in data


def _foreign(folder: Path | str, error: Exception, name: str = MANIFEST) -> NotAnIndex:
    reason = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
    return NotAnIndex(f"{folder} is not an index folder: {name} is not one of adacur's ({reason}).")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest in one step; `folder` is a build's, or that of a version."""
    write_atomically(folder / MANIFEST, _as_json(manifest))


def _as_json(manifest: Manifest) -> str:
    return sealed_json({"type": _TYPE} | asdict(manifest))


def _parse(data: Mapping[str, Any]) -> Manifest:
    manifest = read_record(Manifest, data)
    if manifest.status not in _STATUSES:
        raise ValueError(f"status is {manifest.status!r}, and must be one of {_STATUSES}")
    if manifest.dtype not in DTYPES:
        raise ValueError(f"dtype is {manifest.dtype!r}, and must be one of {DTYPES}")
    if not all(1 <= n < _MOST for n in (manifest.n_items, manifest.n_anchors + 1, manifest.block_items)):
        raise ValueError("n_items and block_items must be at least 1, n_anchors at least 0, and all below 2**48")
    if manifest.fuse is not None and not 0 <= manifest.fuse < float("inf"):
        raise ValueError(f"fuse is {manifest.fuse}, and must be a weight from 0 up")
    card = manifest.scorer
    if card is not None and any(limit is not None and limit < 1 for limit in (card.max_tokens, card.max_item_tokens)):
        raise ValueError("the scorer's max_tokens and max_item_tokens must be at least 1")
    for probe in manifest.probes:
        if not (0 <= probe.item < manifest.n_items and 0 <= probe.anchor < manifest.n_anchors):
            raise ValueError(f"a remembered score is that of item {probe.item} and anchor query {probe.anchor}")
    for part in manifest.parts:
        # An error of its own: an index that names places outside itself is one of adacur's, tampered with.
        if part.path is not None and not _PART.fullmatch(part.path):
            raise DamagedIndex(
                f"A version of this index is made of the folder {part.path!r}; a part is '.' or 'parts/NAME', within "
                "the index. Nothing was touched. Restore the folder from a copy."
            )
        if not (0 <= part.items < _MOST and 0 <= part.anchors < _MOST and part.items + part.anchors):
            raise ValueError(f"the part {part.path!r} has {part.items} items and {part.anchors} anchor queries")
    if any(len(pair) != 2 or not all(0 <= n < _MOST for n in pair) for pair in manifest.removed_anchors):
        raise ValueError("removed_anchors are pairs of whole numbers from 0 up")
    return manifest
