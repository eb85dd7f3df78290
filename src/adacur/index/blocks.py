"""Scores at rest: one Zarr chunk per block of items."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import socket
import uuid
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.errors import DamagedIndex, IndexFolderError, IndexLocked, StorageUnavailable
from adacur.index.manifest import DTYPES, Manifest, sync_path, write_atomically
from adacur.index.object_store import ObjectPlace, elsewhere

if TYPE_CHECKING:
    import zarr

__all__ = ["RECORDS", "SCORES", "BlockRecord", "BlockRecords", "Place", "ScoreBlocks", "digest_scores", "place_of"]

SCORES = "scores.zarr"
RECORDS = "finished"
_RUN = "run"
# At most 32 MB each.
_READ_AHEAD = 4
# What zarr and its codecs raise on bytes that are not a chunk, or on metadata that is not an array's.
_UNREADABLE = (ValueError, TypeError, LookupError, OSError, RuntimeError, ArithmeticError, AttributeError, MemoryError)


Place = Path | ObjectPlace
"""A folder, or a place in an object store."""


def place_of(folder: Place) -> Place:
    """Where the scores and records of an index lie: in its folder, or in the store that the folder stands for."""
    return elsewhere(folder) or folder if isinstance(folder, Path) else folder


class ScoreBlocks:
    """The scores of a folder, block by block, shape (items of the block, anchor queries), as stored."""

    def __init__(self, place: Place, manifest: Manifest, array: zarr.Array[Any]) -> None:
        self._place = place
        self._manifest = manifest
        self._array = array

    @classmethod
    def create(cls, folder: Place, manifest: Manifest) -> ScoreBlocks:
        """An array in which nothing is scored yet."""
        import zarr
        from zarr.codecs import Crc32cCodec

        place = place_of(folder)
        with _telling(place, SCORES):
            array = zarr.create_array(
                store=_zarr_store(place),
                shape=(manifest.n_items, manifest.n_anchors),
                # A chunk is at least one wide, also of an index without anchor queries, which has no chunk.
                chunks=(manifest.block_items, max(1, manifest.n_anchors)),
                dtype=manifest.dtype,
                compressors=[Crc32cCodec()],
                fill_value=float("nan"),
            )
        if isinstance(place, Path):
            sync_path(place / SCORES / "zarr.json")
            sync_path(place / SCORES)
        return cls(place, manifest, array)

    @classmethod
    def open(cls, folder: Place, manifest: Manifest, *, writable: bool = False) -> ScoreBlocks:
        """The array of a folder; refused where it is not the one that the manifest speaks of."""
        import zarr

        place = place_of(folder)
        try:
            with _telling(place, SCORES):
                _check_codecs(place)
                array = zarr.open_array(store=_zarr_store(place), mode="r+" if writable else "r", zarr_format=3)
            found = (array.shape, array.chunks, str(array.dtype))
        except StorageUnavailable:
            raise
        except _UNREADABLE as error:
            raise DamagedIndex(f"{place / SCORES} cannot be opened as an array: {error}. {_REMEDY}") from error
        width = manifest.n_anchors
        expected = ((manifest.n_items, width), (manifest.block_items, max(1, width)), manifest.dtype)
        if found != expected:
            raise DamagedIndex(
                f"{place / SCORES} has shape, chunks and dtype {found}; its manifest says {expected}. {_REMEDY}"
            )
        return cls(place, manifest, array)

    def chunk(self, block: int) -> str:
        """The file or object that holds a block, by its name within the index."""
        return f"{SCORES}/c/{block}/0"

    def write(self, block: int, values: FloatArray) -> None:
        """Store a block; on return it is on the disk, or in the store."""
        rows = self._manifest.block(block)
        if isinstance(self._place, ObjectPlace):
            if len(rows) < self._manifest.block_items:
                self._place.remove([self.chunk(block)])
            with _telling(self._place, self.chunk(block)):
                self._array[rows.start : rows.stop] = values
            return
        chunk = self._place / self.chunk(block)
        # The last chunk is not full, so zarr would read what an interrupted run left there, and might choke on it.
        chunk.unlink(missing_ok=True)
        self._array[rows.start : rows.stop] = values
        for path in (chunk, chunk.parent, chunk.parent.parent):
            sync_path(path)

    def read(self, block: int) -> FloatArray:
        """A block, or an error that names it: missing, unreadable, or with a score that is not a number."""
        rows = self._manifest.block(block)
        self._check_size(block)
        try:
            with _telling(self._place, self.chunk(block)):
                values: FloatArray = np.asarray(self._array[rows.start : rows.stop])
        except StorageUnavailable:
            raise
        except _UNREADABLE as error:
            raise self._damaged(block, f"its chunk cannot be read ({error})") from error
        if np.isfinite(values).all():
            return values
        is_there = isinstance(self._place, Path) or self._place.read(self.chunk(block)) is not None
        raise self._damaged(block, "it holds scores that are not numbers" if is_there else "its chunk is missing")

    def check_sizes(self) -> None:
        """Refuse a chunk that is missing or cut short, without reading any; in a store they are not looked at."""
        for block in range(self._manifest.n_blocks):
            self._check_size(block)

    def _check_size(self, block: int) -> None:
        # Zarr takes memory for a whole chunk, as large as the metadata say, before it looks for the file.
        manifest = self._manifest
        if isinstance(self._place, ObjectPlace) or not manifest.n_anchors:
            return
        expected = manifest.block_items * manifest.n_anchors * np.dtype(manifest.dtype).itemsize
        try:
            size = (self._place / self.chunk(block)).stat().st_size
        except OSError:
            raise self._damaged(block, "its chunk is missing") from None
        if size < expected:
            raise self._damaged(block, f"its chunk cannot be read (it has {size} bytes, fewer than {expected})")

    def _damaged(self, block: int, what: str) -> DamagedIndex:
        rows = self._manifest.block(block)
        return DamagedIndex(
            f"Block {block} (items {rows.start} to {rows.stop - 1}) of {self._place} is damaged: {what}, "
            f"file {self.chunk(block)}. {_REMEDY}"
        )

    def tidy(self) -> None:
        """Remove half-written files beside the chunks; only when nobody writes, since they may be somebody's."""
        if isinstance(self._place, Path):
            for left_over in (self._place / SCORES / "c").glob("*/*.partial"):
                left_over.unlink(missing_ok=True)

    @staticmethod
    def discard(folder: Path) -> None:
        """Remove all scores of a folder, if there are any."""
        _files_in(place_of(folder), SCORES).clear()

    def __iter__(self) -> Iterator[tuple[int, FloatArray]]:
        """Every block with the position of its first item."""
        numbers = range(self._manifest.n_blocks)
        if isinstance(self._place, Path):
            return ((self._manifest.block(block).start, self.read(block)) for block in numbers)
        return self._read_ahead(numbers)

    def _read_ahead(self, numbers: Iterable[int]) -> Iterator[tuple[int, FloatArray]]:
        """A store takes its time to answer, and answers several at once."""
        with ThreadPoolExecutor(_READ_AHEAD, thread_name_prefix="adacur-read") as readers:
            asked: deque[tuple[int, Future[FloatArray]]] = deque()
            for block in numbers:
                asked.append((self._manifest.block(block).start, readers.submit(self.read, block)))
                if len(asked) > _READ_AHEAD:
                    start, values = asked.popleft()
                    yield start, values.result()
            for start, values in asked:
                yield start, values.result()


@dataclass(frozen=True, slots=True)
class BlockRecord:
    """That a block's chunk is on the disk, what it holds, and the seconds of work in it."""

    block: int
    digest: str
    pairs: int
    seconds: float


class BlockRecords:
    """The records of finished blocks, one small file each, until the build is finished.

    Whoever stores a block writes its record, so that nobody else has to live on for it to count.
    """

    def __init__(self, folder: Place, manifest: Manifest) -> None:
        self._place = place_of(folder)
        self._files = _files_in(self._place, RECORDS)
        self._manifest = manifest

    def begin(self) -> str:
        """Start a run of the build; its name tells its workers from those of runs that have ended."""
        run = uuid.uuid4().hex
        self._files.write(_RUN, run.encode())
        return run

    def join(self, run: str) -> None:
        """In a worker: refuse to work where this is not the folder of that run."""
        if (found := self._found_run()) != run:
            if isinstance(self._place, ObjectPlace):
                seen = "another build" if found else "no build"
                remedy = "Set the same endpoint and credentials in the environment of every node."
            else:
                seen = "something else there" if found or self._place.exists() else "no such folder"
                remedy = "Give a path that is the same place on every node, such as a shared file system."
            raise IndexFolderError(
                f"The worker on {socket.gethostname()} does not see the index folder {self._place}: it finds {seen}. "
                f"{remedy}"
            )

    def check_run(self, run: str) -> None:
        """Leave the folder to the run that has taken over, if one has."""
        if self._found_run() != run:
            raise IndexLocked(f"Another run of the build has taken over {self._place}; this one stops.")

    def _found_run(self) -> str | None:
        try:
            return (self._files.read(_RUN) or b"").decode() or None
        except ValueError:
            return None

    def add(self, record: BlockRecord) -> None:
        """Record a block whose chunk is on the disk; on return so is the record."""
        self._files.write(_record_name(record.block), json.dumps(asdict(record)).encode())

    def get(self, block: int) -> BlockRecord | None:
        """The record of a block; None where there is none, or one that cannot be true."""
        try:
            record = BlockRecord(**json.loads(self._files.read(_record_name(block)) or b""))
            pairs = len(self._manifest.block(block)) * self._manifest.n_anchors
            is_true = (record.block, record.pairs) == (block, pairs) and len(record.digest) == _DIGEST_DIGITS
            return record if is_true and record.seconds >= 0 else None
        except (ValueError, TypeError):
            return None

    def __iter__(self) -> Iterator[BlockRecord]:
        names = (name.removesuffix(".json") for name in self._files.names() if name.endswith(".json"))
        numbers = sorted(int(name) for name in names if name.isdecimal() and int(name) < self._manifest.n_blocks)
        return (record for number in numbers if (record := self.get(number)) is not None)

    def remove(self, block: int) -> None:
        """Forget a block; it will be scored again."""
        self._files.remove([_record_name(block)])

    def clear(self) -> None:
        """Forget all of them: they are kept elsewhere."""
        self._files.clear()

    @staticmethod
    def discard(folder: Path) -> None:
        """Remove all records of a folder, if there are any."""
        _files_in(place_of(folder), RECORDS).clear()


class _Files:
    """Small files in a folder, as the objects of an `ObjectPlace`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except OSError:
            return None

    def write(self, name: str, content: bytes) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir(exist_ok=True)
            sync_path(self._folder.parent)
        # A worker that was given up for dead may be writing the same record.
        write_atomically(self._folder / name, content, contended=True)

    def names(self) -> list[str]:
        return [file.name for file in self._folder.glob("[!.]*")]

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _files_in(place: Place, name: str) -> _Files | ObjectPlace:
    return _Files(place / name) if isinstance(place, Path) else place / name


def _record_name(block: int) -> str:
    return f"{block}.json"


def _zarr_store(place: Place) -> Any:
    if isinstance(place, Path):
        return place / SCORES
    from zarr.storage import ObjectStore

    return ObjectStore((place / SCORES).store)


def _check_codecs(place: Place) -> None:
    """Refuse an array that is not coded as `create` has it: zarr would load whatever code its codecs name."""
    name = f"{SCORES}/zarr.json"
    content = (place / name).read_bytes() if isinstance(place, Path) else place.read(name)
    about = json.loads(content or b"null")
    codecs = [codec["name"] for codec in about["codecs"]]
    if codecs not in (["bytes"], ["bytes", "crc32c"]) or about.get("storage_transformers"):
        raise ValueError(f"its codecs are {codecs}, not 'bytes' and 'crc32c'")
    if about["data_type"] not in DTYPES:
        raise ValueError(f"its data type is {about['data_type']!r}, which is none of {DTYPES}")


def _telling(place: Place, name: str) -> contextlib.AbstractContextManager[None]:
    return place.telling(name) if isinstance(place, ObjectPlace) else contextlib.nullcontext()


_DIGEST_DIGITS = 32
_REMEDY = "Restore it from a copy, or build the index again elsewhere."


def digest_scores(values: FloatArray) -> str:
    """A digest of scores as they are stored."""
    little = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return hashlib.blake2b(little.data, digest_size=_DIGEST_DIGITS // 2).hexdigest()
