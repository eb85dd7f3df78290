"""Exact search with a dual encoder."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import check_k
from adacur.data.stored import read_array
from adacur.errors import AdacurError, DamagedIndex, EmptyInput, InputError
from adacur.first_stages.device_vectors import DeviceVectors
from adacur.first_stages.encoders import (
    Encoder,
    EncoderCard,
    RememberedQueries,
    blocks_to_encode,
    check_same_encoder,
    check_vectors,
    read_card,
    reopen_encoder,
)
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.saved import check_ids, read_ids, read_settings, unreadable_is_damage, write_settings
from adacur.protocols import FirstStage, Ranking, Vectors
from adacur.records import Item, Query, as_queries
from adacur.requirements import require

_log = logging.getLogger(__name__)
Storage = Literal["float16", "float32", "int8"]
# Vectors as they are stored, and scales for int8.
_Block = tuple[Any, FloatArray | None]
_ROWS_AT_ONCE = 8192
_QUERIES_AT_ONCE = 256
_EMBEDDINGS = "embeddings.npy"


class Dense(FirstStage):
    """Item embeddings at rest and the encoder that made them; nearness is the dot product.

    Every item is compared, in blocks, so memory stays bounded. Scores are the float64 dot product of the
    stored vectors, rounded once: they depend neither on the batch nor on the order of the items.
    """

    name = "dense"
    needs_encoder = True

    def __init__(
        self,
        ids: Sequence[str],
        stored: Any,
        *,
        scales: FloatArray | None,
        encoder: Encoder | None,
        card: EncoderCard | None,
        folder: Path | None = None,
        allow_code: bool = False,
    ) -> None:
        self._ids = ids
        self._stored = stored
        self._scales = scales
        self._encoder = encoder
        self._card = card
        self._folder = folder
        self._allow_code = allow_code
        self._opening = threading.Lock()
        self.on_device: DeviceVectors | None = None
        self._queries = RememberedQueries(self.open_encoder)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        *,
        encoder: Encoder | None = None,
        storage: Storage = "float16",
        folder: Path | None = None,
        progress: bool = False,
    ) -> Dense:
        """Encode the items, read once.

        - `encoder`: what makes the vectors, of items now and of queries later;
        - `storage`: "float16", "float32", or "int8" with one scale per item;
        - `folder`: where the vectors go, block by block; without it they stay in memory.
        """
        if encoder is None:
            raise InputError("A dense first stage needs an encoder; give encoder=….")
        ids: list[str] = []

        def blocks() -> Iterator[_Block]:
            for batch in blocks_to_encode(items, progress="encode items" if progress else None):
                ids.extend(item.id for item in batch)
                yield _encoded(batch, encoder, storage)

        stored, scales = _stacked(blocks(), folder=folder)
        return cls(check_ids(ids), stored, scales=scales, encoder=encoder, card=encoder.card)

    @classmethod
    def from_embeddings(
        cls,
        ids: Iterable[str],
        embeddings: FloatArray,
        *,
        encoder: Encoder | None = None,
        storage: Storage = "float32",
    ) -> Dense:
        """Search embeddings that exist already; without an encoder texts cannot be searched."""
        ids = check_ids(ids)
        vectors = check_vectors(embeddings, n=len(ids), encoder=encoder)
        rows = (vectors[start : start + _ROWS_AT_ONCE] for start in range(0, len(vectors), _ROWS_AT_ONCE))
        stored, scales = _stacked((_packed(block, storage) for block in rows), folder=None)
        return cls(ids, stored, scales=scales, encoder=encoder, card=encoder.card if encoder else None)

    @property
    def answers_anything(self) -> bool:
        """Whether its encoder is at hand."""
        try:
            self.open_encoder()
        except AdacurError as error:
            _log.warning("Searches that start elsewhere do without the ranks of %r: %s", self.name, error)
            return False
        return True

    def check_can_grow(self) -> None:
        """Refuse where no encoder can be opened."""
        self.open_encoder()

    def updated(
        self,
        items: Iterable[Item],
        *,
        unchanged: IntArray,
        new: Iterable[Item],
        folder: Path | None = None,
        progress: bool = False,
    ) -> Dense:
        """Copies what is stored of `unchanged` items, to the bit, and encodes `new` ones; without any, no encoder."""
        ids = [self._ids[position] for position in unchanged.tolist()]

        def blocks() -> Iterator[_Block]:
            for start in range(0, len(unchanged), _ROWS_AT_ONCE):
                rows = unchanged[start : start + _ROWS_AT_ONCE]
                yield np.asarray(self._stored[rows]), None if self._scales is None else self._scales[rows]
            for batch in blocks_to_encode(new, progress="encode items" if progress else None):
                ids.extend(item.id for item in batch)
                yield _encoded(batch, self.open_encoder(), str(self._stored.dtype))

        stored, scales = _stacked(blocks(), folder=folder)
        return Dense(check_ids(ids), stored, scales=scales, encoder=self._encoder, card=self._card)

    def settings(self) -> dict[str, Any]:
        """The encoder's card."""
        return {"encoder": asdict(self._card) if self._card else None}

    def vectors(self) -> Vectors:
        """All item vectors as they are searched, read from where they are stored."""
        has_encoder = self._encoder is not None or self._card is not None
        return Vectors(self._stored.shape, self._rows, self.embed_queries if has_encoder else None)

    def embed_queries(self, queries: Sequence[Query | str]) -> FloatArray:
        """Query vectors, shape (queries, dimension), float32."""
        return self._queries.embed(queries)

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """The k items with the highest dot product."""
        check_k(k)
        queries = as_queries(queries)
        rankings: list[Ranking] = []
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            rankings += self.nearest(self.embed_queries(queries[start : start + _QUERIES_AT_ONCE]), k)
        return rankings

    def search_on(self, device: str) -> None:
        """Compare items on a torch device from now on, if their vectors fit into its memory."""
        if len(self._ids) and DeviceVectors.fit(self._stored.nbytes, device):
            self.on_device = DeviceVectors(self._stored, self._scales, device=device)

    def nearest(self, vectors: FloatArray, k: int) -> list[Ranking]:
        """The k items nearest to each query vector, by their dot products."""
        found = None
        if self.on_device is not None and len(vectors):
            margins = self._rounding * self._longest * np.linalg.norm(vectors, axis=1)
            # Where the device has no memory left, items are compared here.
            with suppress(require("torch", extra="torch").OutOfMemoryError):
                found = self.on_device.nearest(vectors, min(k, len(self._ids)), margins=margins)
        if found is None:
            return self._found_here(vectors, k)
        positions, scores, sure = found
        tied = (scores[:, 1:] == scores[:, :-1]).any(axis=1)
        rankings = [
            self._ranked(some, exact, k) if ties else Ranking(some[:k].astype(np.intp), exact[:k])
            for some, exact, ties in zip(positions, scores, tied.tolist(), strict=True)
        ]
        for at in np.flatnonzero(~sure).tolist():
            rankings[at : at + 1] = self._found_here(vectors[at : at + 1], k)
        return rankings

    def _ranked(self, positions: IntArray, scores: FloatArray, k: int) -> Ranking:
        best = best_by_id(scores, self._ids, k, at=positions)
        return Ranking(positions[best], scores[best])

    def _found_here(self, vectors: FloatArray, k: int) -> list[Ranking]:
        return [
            self._ranked(shortlist, self._exact(vector, shortlist), k)
            for vector, shortlist in zip(vectors, self._shortlists(vectors, k), strict=True)
        ]

    def save(self, folder: str | Path) -> None:
        """Write the embeddings, the ids and the encoder's card; the encoder's weights stay where they are."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / _EMBEDDINGS
        written = Path(str(self._stored.filename)) if isinstance(self._stored, np.memmap) else None
        # Writing a memory-mapped file over itself would empty it.
        if written is None or not target.exists() or not written.samefile(target):
            np.save(target, self._stored)
        if self._scales is not None:
            np.save(folder / "scales.npy", self._scales)
        write_settings(folder, kind=self.name, ids=self._ids, settings=self.settings())

    @classmethod
    def load(cls, folder: str | Path, *, encoder: Encoder | None = None, allow_code: bool = False) -> Dense:
        """Open what `save` wrote; embeddings and ids stay on disk, memory-mapped.

        Without `encoder`, the one that the card names is opened at the first search; `allow_code` as in `adacur.load`.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        with unreadable_is_damage(folder, "dense"):
            ids = read_ids(folder)
            stored = read_array(folder / _EMBEDDINGS, kind="fi", ndim=2, mapped=True)
            scales = read_array(folder / "scales.npy", kind="f") if stored.dtype == np.int8 else None
            card = read_card(settings["encoder"]) if settings["encoder"] is not None else None
        if len(ids) != len(stored) or (scales is not None and len(scales) != len(ids)):
            raise DamagedIndex(
                f"The dense files in {folder} disagree: {len(ids)} ids, {len(stored)} embeddings. Build it again."
            )
        if encoder is not None:
            _check_encoder(encoder, card, dimension=stored.shape[1])
        return cls(ids, stored, scales=scales, encoder=encoder, card=card, folder=folder, allow_code=allow_code)

    def open_encoder(self) -> Encoder:
        """The encoder, opened if need be; where there is none, the error says how to give one."""
        with self._opening:
            if self._encoder is None:
                self._encoder = self._opened_encoder()
            return self._encoder

    def _opened_encoder(self) -> Encoder:
        how = "adacur.load(path, encoder=...)" if self._folder else "from_embeddings(..., encoder=...)"
        if self._card is None:
            raise InputError(f"These embeddings came without an encoder, so text cannot be searched. Use {how}.")
        encoder = reopen_encoder(self._card, instead=how, folder=self._folder, allow_code=self._allow_code)
        _check_encoder(encoder, self._card, dimension=self._stored.shape[1])
        return encoder

    def _rows(self, positions: IntArray | slice) -> FloatArray:
        rows = np.asarray(self._stored[positions], dtype=np.float32)
        return rows if self._scales is None else rows * self._scales[positions, None]

    @property
    def _rounding(self) -> float:
        """Relative to both lengths, twice the most by which a float32 product of this dimension can be off."""
        return 2 * (int(self._stored.shape[1]) + 2) * float(np.finfo(np.float32).eps)

    @cached_property
    def _longest(self) -> float:
        """The length of the longest item vector."""
        starts = range(0, len(self._ids), _ROWS_AT_ONCE)
        return max(
            (float(np.linalg.norm(self._rows(slice(start, start + _ROWS_AT_ONCE)), axis=1).max()) for start in starts),
            default=0.0,
        )

    def _shortlists(self, vectors: FloatArray, k: int) -> list[IntArray]:
        """Per query, positions among which the best k are sure to be."""
        positions = [np.zeros(0, dtype=np.intp)] * len(vectors)
        products = [np.zeros(0, dtype=np.float32)] * len(vectors)
        # A float32 matrix product rounds differently for each shape of the batch.
        margins = self._rounding * self._longest * np.linalg.norm(vectors, axis=1)
        for start in range(0, len(self._ids), _ROWS_AT_ONCE):
            rows = self._rows(slice(start, start + _ROWS_AT_ONCE))
            block = np.arange(start, start + len(rows))
            for query, row in enumerate(vectors @ rows.T):
                positions[query] = np.concatenate((positions[query], block))
                products[query] = np.concatenate((products[query], row))
                if k < len(products[query]):
                    cut = len(products[query]) - k
                    keep = products[query] >= np.partition(products[query], cut)[cut] - margins[query]
                    positions[query], products[query] = positions[query][keep], products[query][keep]
        return positions

    def _exact(self, vector: FloatArray, positions: IntArray) -> FloatArray:
        scores = np.empty(len(positions), dtype=np.float32)
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            # Row by row in the same order, whatever the number of rows; a matrix product is not.
            scores[block] = np.einsum("ij,j->i", self._rows(positions[block]), vector, dtype=np.float64)
        return scores


def _encoded(batch: Sequence[Item], encoder: Encoder, storage: str) -> _Block:
    vectors = encoder.encode_items([item.text for item in batch])
    return _packed(check_vectors(vectors, n=len(batch), encoder=encoder), storage)


def _packed(vectors: FloatArray, storage: str) -> _Block:
    """Vectors as they are stored, and for int8 a scale per row."""
    if storage not in ("float16", "float32", "int8"):
        raise InputError(f"storage must be 'float16', 'float32' or 'int8'; got {storage!r}.")
    if storage != "int8":
        return vectors.astype(storage), None
    scale = np.maximum(np.abs(vectors).max(axis=1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(vectors / scale[:, None]).astype(np.int8), scale


def _stacked(blocks: Iterable[_Block], *, folder: Path | None) -> tuple[Any, FloatArray | None]:
    """The blocks below one another, in memory or in a file of the folder, and all scales."""
    scales: list[FloatArray] = []

    def rows() -> Iterator[Any]:
        for block, scale in blocks:
            scales.extend([] if scale is None else [scale])
            yield block

    if folder is None:
        parts = list(rows())
        stored = np.concatenate(parts) if parts else None
    else:
        folder.mkdir(parents=True, exist_ok=True)
        stored = _written(rows(), folder / _EMBEDDINGS)
    if stored is None:
        raise EmptyInput("There are no items. Give at least one.")
    return stored, np.concatenate(scales) if scales else None


def _written(blocks: Iterable[Any], path: Path) -> Any:
    """The blocks in a .npy file whose length is not known beforehand, memory-mapped; None where there are none."""

    def write_header(n: int, block: Any) -> None:
        descr = np.lib.format.dtype_to_descr(block.dtype)
        about = {"shape": (n, block.shape[1]), "fortran_order": False, "descr": descr}
        np.lib.format.write_array_header_1_0(file, about)

    n, block = 0, None
    with path.open("wb") as file:
        for block in blocks:
            if not n:
                write_header(0, block)
            file.write(np.ascontiguousarray(block).data)
            n += len(block)
        if block is None:
            return None
        # numpy pads the header so that the first axis can grow in place.
        file.seek(0)
        write_header(n, block)
    return np.load(path, mmap_mode="r")


def _check_encoder(encoder: Encoder, card: EncoderCard | None, *, dimension: int) -> None:
    """Refuse an encoder whose query vectors would not fit the stored item vectors."""
    if encoder.dimension != dimension:
        raise InputError(
            f"The items were encoded with {dimension} dimensions; this encoder has {encoder.dimension}. "
            "Pass the encoder the first stage was built with."
        )
    check_same_encoder(encoder.card, card)
