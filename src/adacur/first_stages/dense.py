"""Exact search with a dual encoder."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import check_k
from adacur.core.errors import DamagedIndex, EmptyInput, InputError
from adacur.core.records import Item, Query, as_queries
from adacur.core.results import Hits
from adacur.data.stored import read_array
from adacur.first_stages.encoders import Encoder, EncoderCard, check_same_encoder, read_card, reopen_encoder
from adacur.first_stages.encoding import blocks_to_encode
from adacur.first_stages.ranking import best_first, check_ids
from adacur.first_stages.saved import read_ids, read_settings, unreadable_is_damage, write_ids, write_settings

__all__ = ["QUERIES_AT_ONCE", "Dense"]

Storage = Literal["float16", "float32", "int8"]
_ROWS_AT_ONCE = 8192
QUERIES_AT_ONCE = 256


class Dense:
    """Item embeddings at rest and the encoder that made them; nearness is the dot product.

    Every item is compared, in blocks, so memory stays bounded. Scores are the float64 dot product of the
    stored vectors, rounded once: they depend neither on the batch nor on the order of the items.
    """

    name = "dense"

    def __init__(
        self,
        ids: Sequence[str],
        stored: Any,
        *,
        scales: FloatArray | None,
        encoder: Encoder | None,
        card: EncoderCard | None,
        folder: Path | None = None,
        trust: bool = False,
    ) -> None:
        self._ids = ids
        self._stored = stored
        self._scales = scales
        self._encoder = encoder
        self._card = card
        self._folder = folder
        self._trust = trust
        self._opening = threading.Lock()
        self._embedded_last: tuple[tuple[str, ...], FloatArray] = ((), np.empty((0, 0), dtype=np.float32))

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        *,
        encoder: Encoder,
        storage: Storage = "float16",
        progress: bool = False,
        path: str | Path | None = None,
    ) -> Dense:
        """Encode the items, read once. With `path` (a .npy file) the embeddings go there, block by block."""
        ids: list[str] = []

        def blocks() -> Iterator[FloatArray]:
            for batch in blocks_to_encode(items, progress="encode items" if progress else None):
                ids.extend(item.id for item in batch)
                yield _check_vectors(encoder.encode_items([item.text for item in batch]), n=len(batch), encoder=encoder)

        stored, scales = _store(blocks(), storage=storage, path=None if path is None else Path(path))
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
        vectors = _check_vectors(embeddings, n=len(ids), encoder=encoder)
        rows = (vectors[start : start + _ROWS_AT_ONCE] for start in range(0, len(vectors), _ROWS_AT_ONCE))
        stored, scales = _store(rows, storage=storage, path=None)
        return cls(ids, stored, scales=scales, encoder=encoder, card=encoder.card if encoder else None)

    def updated(
        self, *, keep: Sequence[str], new: Iterable[Item], progress: bool = False, path: str | Path | None = None
    ) -> Dense:
        """The same retriever for other items: some that it has, and new ones, which alone are encoded; as in `build`.

        What is kept stays as it is stored, to the bit. Without new items no encoder is needed.
        """
        row_of = {id_: row for row, id_ in enumerate(self._ids)}
        rows = np.array([row_of[id_] for id_ in keep], dtype=np.intp)
        ids: list[str] = list(keep)
        scales = [] if self._scales is None else [self._scales[rows]]

        def blocks() -> Iterator[Any]:
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                yield np.asarray(self._stored[rows[start : start + _ROWS_AT_ONCE]])
            for batch in blocks_to_encode(new, progress="encode items" if progress else None):
                encoder = self.open_encoder()
                ids.extend(item.id for item in batch)
                vectors = encoder.encode_items([item.text for item in batch])
                packed, scale = _packed(_check_vectors(vectors, n=len(batch), encoder=encoder), str(self._stored.dtype))
                scales.extend([] if scale is None else [scale])
                yield packed

        stored = _stacked(blocks(), path=None if path is None else Path(path))
        if stored is None:
            raise EmptyInput("There are no items. Give at least one.")
        return Dense(
            check_ids(ids),
            stored,
            scales=np.concatenate(scales) if scales else None,
            encoder=self._encoder,
            card=self._card,
        )

    @property
    def ids(self) -> Sequence[str]:
        """Item ids, in the order of the rows of `embeddings`."""
        return self._ids

    @property
    def embeddings(self) -> FloatArray:
        """All item vectors as they are searched, shape (items, dimension), float32."""
        return self._rows(np.arange(len(self._ids)))

    @property
    def shape(self) -> tuple[int, int]:
        """Items and dimensions."""
        return self._stored.shape[0], self._stored.shape[1]

    def rows(self, positions: IntArray) -> FloatArray:
        """The vectors at these positions as they are searched, float32."""
        return self._rows(positions)

    def embeddings_of(self, ids: Sequence[str]) -> FloatArray:
        """The vectors of these items, in that order, shape (ids, dimension), float32."""
        position = {id_: row for row, id_ in enumerate(self._ids)}
        vectors = np.empty((len(ids), self._stored.shape[1]), dtype=np.float32)
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            block = ids[start : start + _ROWS_AT_ONCE]
            vectors[start : start + len(block)] = self._rows(np.array([position[id_] for id_ in block], dtype=np.intp))
        return vectors

    @property
    def has_encoder(self) -> bool:
        """Whether an encoder is at hand, or named where it can be opened."""
        return self._encoder is not None or self._card is not None

    def embed_queries(self, queries: Sequence[Query | str]) -> FloatArray:
        """Query vectors, shape (queries, dimension), float32."""
        texts = tuple(query.text for query in as_queries(queries))
        # A search asks twice for the same vectors: to start from, and to predict by.
        known, vectors = self._embedded_last
        if known != texts:
            encoder = self.open_encoder()
            vectors = _check_vectors(encoder.encode_queries(texts), n=len(texts), encoder=encoder)
            self._embedded_last = texts, vectors
        return vectors.copy()

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The k items with the highest dot product."""
        check_k(k)
        queries = as_queries(queries)
        found: list[Hits] = []
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            block = queries[start : start + QUERIES_AT_ONCE]
            nearest = self.nearest(self.embed_queries(block), k)
            found += [
                Hits(query=query, ids=ids, scores=scores) for query, (ids, scores) in zip(block, nearest, strict=True)
            ]
        return found

    def nearest(self, vectors: FloatArray, k: int) -> list[tuple[tuple[str, ...], FloatArray]]:
        """Ids and dot products of the k items nearest to each query vector."""
        found = []
        for vector, shortlist in zip(vectors, self._shortlists(vectors, k), strict=True):
            scores = self._exact(vector, shortlist)
            best = best_first(scores, [self._ids[position] for position in shortlist.tolist()], k)
            found.append((tuple(self._ids[position] for position in shortlist[best]), scores[best]))
        return found

    def among(self, rows: IntArray) -> Dense:
        """The items at these rows alone, by vectors and without an encoder."""
        scales = None if self._scales is None else self._scales[rows]
        return Dense(_Picked(self._ids, rows), self._stored[rows], scales=scales, encoder=None, card=None)

    def save(self, folder: str | Path) -> None:
        """Write the embeddings, the ids and the encoder's card; the encoder's weights stay where they are."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / "embeddings.npy"
        written = Path(str(self._stored.filename)) if isinstance(self._stored, np.memmap) else None
        # Writing a memory-mapped file over itself would empty it.
        if written is None or not target.exists() or not written.samefile(target):
            np.save(target, self._stored)
        if self._scales is not None:
            np.save(folder / "scales.npy", self._scales)
        write_ids(folder, self._ids)
        write_settings(folder, kind=self.name, settings={"encoder": asdict(self._card) if self._card else None})

    @classmethod
    def load(cls, folder: str | Path, *, encoder: Encoder | None = None, trust: bool = False) -> Dense:
        """Open a saved retriever; embeddings and ids stay on disk, memory-mapped.

        Without `encoder`, the one the card names is opened at the first search; `trust` as in `adacur.load`.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        with unreadable_is_damage(folder, "dense"):
            ids = read_ids(folder)
            stored = read_array(folder / "embeddings.npy", kind="fi", ndim=2, mapped=True)
            scales = read_array(folder / "scales.npy", kind="f") if stored.dtype == np.int8 else None
            card = read_card(settings["encoder"]) if settings["encoder"] is not None else None
        if len(ids) != len(stored) or (scales is not None and len(scales) != len(ids)):
            raise DamagedIndex(
                f"The dense files in {folder} disagree: {len(ids)} ids, {len(stored)} embeddings. Build it again."
            )
        if encoder is not None:
            _check_encoder(encoder, card, dimension=stored.shape[1])
        return cls(ids, stored, scales=scales, encoder=encoder, card=card, folder=folder, trust=trust)

    def open_encoder(self) -> Encoder:
        """The encoder, opened if need be; where there is none, the error says how to give one."""
        with self._opening:
            if self._encoder is None:
                self._encoder = self._opened_encoder()
            return self._encoder

    def _opened_encoder(self) -> Encoder:
        how = (
            "adacur.load(path, encoder=...) or Dense.load(folder, encoder=...)"
            if self._folder
            else "from_embeddings(..., encoder=...)"
        )
        if self._card is None:
            raise InputError(f"These embeddings came without an encoder, so text cannot be searched. Use {how}.")
        encoder = reopen_encoder(self._card, instead=how, folder=self._folder, trust=self._trust)
        _check_encoder(encoder, self._card, dimension=self._stored.shape[1])
        return encoder

    def _rows(self, positions: IntArray) -> FloatArray:
        rows = np.asarray(self._stored[positions], dtype=np.float32)
        return rows if self._scales is None else rows * self._scales[positions, None]

    def _shortlists(self, vectors: FloatArray, k: int) -> list[IntArray]:
        """Per query, positions among which the best k are sure to be."""
        n_queries, dimension = vectors.shape
        positions = [np.zeros(0, dtype=np.intp)] * n_queries
        products = [np.zeros(0, dtype=np.float32)] * n_queries
        lengths = np.linalg.norm(vectors, axis=1)
        # A float32 matrix product rounds differently for each shape of the batch; the margin is twice the
        # most by which a product of this dimension can be off.
        rounding = 2 * (dimension + 2) * np.finfo(np.float32).eps
        longest = 0.0
        for start in range(0, len(self._ids), _ROWS_AT_ONCE):
            block = np.arange(start, min(start + _ROWS_AT_ONCE, len(self._ids)))
            rows = self._rows(block)
            longest = max(longest, float(np.linalg.norm(rows, axis=1).max()))
            for query, row in enumerate(vectors @ rows.T):
                positions[query] = np.concatenate((positions[query], block))
                products[query] = np.concatenate((products[query], row))
                if k < len(products[query]):
                    cut = len(products[query]) - k
                    least = np.partition(products[query], cut)[cut] - rounding * longest * lengths[query]
                    keep = products[query] >= least
                    positions[query], products[query] = positions[query][keep], products[query][keep]
        return positions

    def _exact(self, vector: FloatArray, positions: IntArray) -> FloatArray:
        scores = np.empty(len(positions), dtype=np.float32)
        for start in range(0, len(positions), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            scores[block] = (self._rows(positions[block]).astype(np.float64) * vector).sum(axis=1)
        return scores


class _Picked(Sequence[str]):
    """Some of the ids, read where they are."""

    def __init__(self, ids: Sequence[str], rows: IntArray) -> None:
        self._ids = ids
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        picked = self._rows[index]
        return self._ids[int(picked)] if np.ndim(picked) == 0 else [self._ids[int(row)] for row in picked]


def _store(blocks: Iterable[FloatArray], *, storage: Storage, path: Path | None) -> tuple[Any, FloatArray | None]:
    """The blocks below one another, in memory or in a .npy file; int8 with one scale per row."""
    if storage not in ("float16", "float32", "int8"):
        raise InputError(f"storage is 'float16', 'float32' or 'int8'; got {storage!r}.")
    scales: list[FloatArray] = []

    def packed() -> Iterator[Any]:
        for block in blocks:
            rows, scale = _packed(block, storage)
            scales.extend([] if scale is None else [scale])
            yield rows

    stored = _stacked(packed(), path=path)
    if stored is None:
        raise EmptyInput("There are no items. Give at least one.")
    return stored, np.concatenate(scales) if scales else None


def _packed(block: FloatArray, storage: str) -> tuple[Any, FloatArray | None]:
    """Vectors as they are stored, and for int8 a scale per row."""
    if storage != "int8":
        return block.astype(storage), None
    scale = np.maximum(np.abs(block).max(axis=1), np.finfo(np.float32).tiny) / np.float32(127)
    return np.rint(block / scale[:, None]).astype(np.int8), scale


def _stacked(blocks: Iterable[Any], *, path: Path | None) -> Any:
    """The blocks below one another, in memory or in a .npy file; None where there are none."""
    if path is None:
        parts = list(blocks)
        return np.concatenate(parts) if parts else None
    with path.open("wb") as file:
        n_rows = _write_npy(blocks, file)
    return np.load(path, mmap_mode="r") if n_rows else None


def _write_npy(blocks: Iterable[Any], file: IO[bytes]) -> int:
    """Append blocks to a .npy file whose length is not known beforehand."""
    n, width, dtype = 0, 0, np.dtype(np.float32)
    for block in blocks:
        width, dtype = block.shape[1], block.dtype
        if not n:
            _write_header(file, (0, width), dtype)
        file.write(np.ascontiguousarray(block).data)
        n += len(block)
    # numpy pads the header so that the first axis can grow in place.
    file.seek(0)
    if n:
        _write_header(file, (n, width), dtype)
    return n


def _write_header(file: IO[bytes], shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    np.lib.format.write_array_header_1_0(
        file, {"shape": shape, "fortran_order": False, "descr": np.lib.format.dtype_to_descr(dtype)}
    )


def _check_vectors(given: Any, *, n: int, encoder: Encoder | None) -> FloatArray:
    vectors: FloatArray = np.asarray(given, dtype=np.float32)
    wanted = (n, encoder.dimension if encoder else vectors.shape[-1])
    if vectors.shape != wanted:
        raise InputError(f"Embeddings are one row per text, shape {wanted}; got shape {vectors.shape}.")
    if not np.isfinite(vectors).all():
        worst = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise InputError(f"Embeddings must be finite; row {worst} of {n} is not.")
    return vectors


def _check_encoder(encoder: Encoder, card: EncoderCard | None, *, dimension: int) -> None:
    """Refuse an encoder whose query vectors would not fit the stored item vectors."""
    if encoder.dimension != dimension:
        raise InputError(
            f"The items were encoded with {dimension} dimensions; this encoder has {encoder.dimension}. "
            "Pass the encoder the retriever was built with."
        )
    check_same_encoder(encoder.card, card)
