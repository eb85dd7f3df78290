"""The manifests of an index folder: of its current version, and of the parts that hold items and scores."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from msgspec import Meta

from adacur.data.stored import read_json, read_record, sealed_json
from adacur.errors import NotAnIndex, OtherFormat
from adacur.protocols import ScorerCard
from adacur.store.writing import write_atomically

FORMAT = 9
MANIFEST = "manifest.json"
VERSIONS = "versions"
PARTS = "parts"
CONTINUE = "Run the same build again to continue where it stopped."
_TYPE = "adacur_index"
_Record = TypeVar("_Record")

DType = Literal["float32", "float16", "float64"]
DTYPES: tuple[str, ...] = get_args(DType)
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Size = Annotated[int, Meta(ge=1, lt=2**48)]
# A manifest cannot name anything outside its index.
PartName = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}\Z")]


StageName = Annotated[str, Meta(pattern=r"\A[^./\\:\x00][^/\\:\x00]*\Z")]
Seed = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class Probe:
    """A remembered score, by which a scorer is recognised."""

    item: Count
    anchor: Count
    score: float


@dataclass(frozen=True, slots=True)
class Origin:
    """The fields of the file that an index was built from: which was the id, and which the text.

    `passages` are the most words of a passage, where texts were split.
    """

    id_field: str | None = None
    text_fields: tuple[str, ...] | None = None
    passages: int | None = None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _packages() -> dict[str, str]:
    return {name: version(name) for name in ("adacur", "numpy")} | {"python": platform.python_version()}


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of an index, or a part: the shape of its scores, who gave them, and digests of its texts.

    A part has no `parts` of its own; its digests are of the items and anchor queries that it `brings`, texts and all.
    Of a version, `places` is the digest of the file that says where rows and columns of its parts lie. `documents`
    counts those that the items belong to, where any item names one; `cut` counts the items that are longer than the
    scorer takes, at most that many after a removal, and is None where it could not be counted. `fuse` is the first
    stage's weight in the order of hits, None where the scorer decides. `scores_digest` is of all scores that count,
    None in a build. `exact` is the digest of the file that says which scores of a part the scorer gave, None where it
    gave them all.
    """

    status: Literal["building", "complete"]
    n_items: Size
    n_anchors: Count
    dtype: DType
    block_items: Size
    items_digest: str
    anchors_digest: str
    scorer: ScorerCard | None
    seed: Seed = 0
    first: tuple[StageName, ...] = ()
    probes: tuple[Probe, ...] = ()
    created: str = field(default_factory=_now)
    packages: Mapping[str, str] = field(default_factory=_packages)
    version: Size = 1
    parts: tuple[PartName, ...] = ()
    places: str | None = None
    brings_items: bool = True
    brings_anchors: bool = True
    origin: Origin | None = None
    documents: int | None = None
    cut: int | None = None
    fuse: Annotated[float, Meta(ge=0)] | None = None
    metadata_digest: str | None = None
    scores_digest: str | None = None
    exact: str | None = None

    def __post_init__(self) -> None:
        for probe in self.probes:
            if not (probe.item < self.n_items and probe.anchor < self.n_anchors):
                raise ValueError(f"a remembered score is that of item {probe.item} and anchor query {probe.anchor}")

    @property
    def n_blocks(self) -> int:
        """Units of work: a block of items against every anchor query; none where there is no anchor query."""
        return -(-self.n_items // self.block_items) if self.n_anchors else 0

    def block(self, number: int) -> range:
        """The positions of a block's items."""
        return range(number * self.block_items, min((number + 1) * self.block_items, self.n_items))

    def pairs(self, blocks: Iterable[int]) -> int:
        """How many scores there are in some blocks."""
        return sum(len(self.block(number)) for number in blocks) * self.n_anchors


@dataclass(frozen=True, slots=True)
class _Pointer:
    """What the manifest of the index says: which version is the current one."""

    version: Size


def home_of(index: Path) -> Path:
    """The folder of an index's current version; NotAnIndex or OtherFormat where this adacur cannot read it."""
    return index / VERSIONS / str(_read(_Pointer, index).version)


def read_manifest(index: Path) -> Manifest:
    """The manifest of an index's current version, or the reason why it is not an index this adacur can read."""
    while True:
        home = home_of(index)
        try:
            return manifest_in(home)
        except NotAnIndex:
            # A version that has just been left may be pruned between the two reads.
            if home_of(index) == home:
                raise


def manifest_in(folder: Path) -> Manifest:
    """The manifest of a version or a part, from its folder."""
    return _read(Manifest, folder)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a version or a part in one step."""
    _write(folder, asdict(manifest))


def point_to(index: Path, version: int) -> None:
    """Make a version the current one, in one step."""
    _write(index, {"version": version})


def _write(folder: Path, content: Mapping[str, Any]) -> None:
    write_atomically(folder / MANIFEST, sealed_json({"type": _TYPE, "format": FORMAT} | dict(content)))


def _read(kind: type[_Record], folder: Path) -> _Record:
    file = folder / MANIFEST
    try:
        if file.exists() and not file.is_file():
            # Opening a pipe would wait for its other end.
            raise ValueError("it is not a file")
        data = read_json(file)
        if not isinstance(data, dict) or data.get("type") != _TYPE or type(data.get("format")) is not int:
            raise ValueError(f"its type is not {_TYPE!r}")
        if data["format"] == FORMAT:
            return read_record(kind, data)
    except FileNotFoundError:
        what = f"it has no {MANIFEST}" if folder.exists() else "it does not exist"
        remedy = "Check the path, or build an index at another one."
    except NotADirectoryError:
        what, remedy = "it is a file" if folder.is_file() else "it would lie in a file", "Check the path."
    except (OSError, ValueError, RecursionError) as error:
        what, remedy = f"its {MANIFEST} is not one of adacur's ({error})", "Check the path."
    else:
        raise OtherFormat(
            f"{folder} is written in format {data['format']}, and this adacur reads format {FORMAT} alone: build it "
            "again, or use the adacur that wrote it."
        )
    raise NotAnIndex(f"{folder} is not an index folder: {what}. {remedy}")
