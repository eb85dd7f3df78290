"""Exact search with one vector per token: MaxSim, as ColBERT has it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.arrays import FloatArray, IntArray
from adacur.budget import check_k
from adacur.data.stored import read_array
from adacur.errors import DamagedIndex, EmptyInput, InputError
from adacur.first_stages.encoders import EncoderCard, blocks_to_encode, check_same_encoder, read_card, reopen_encoder
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.saved import check_ids, read_ids, read_settings, unreadable_is_damage, write_settings
from adacur.protocols import FirstStage, Ranking
from adacur.records import Item, Query, as_queries
from adacur_lab.first_stages.token_encoders import TokenEncoder, token_encoder

__all__ = ["MultiVector"]

HalfArray = npt.NDArray[np.float16]
# Multiples of 1/2048 multiply to multiples of 2⁻²², and all partial sums of two vectors of length 1 stay below 4:
# float32 holds them without rounding, in whatever order a matrix product adds them up.
_STEPS = np.float32(2048)
_QUERIES_AT_ONCE = 64
_TOKENS = "tokens.f16"
_ITEM_TOKENS_AT_ONCE = 8192
_PRODUCTS_AT_ONCE = 1 << 24
_SCORES_AT_ONCE = 1 << 24


class MultiVector(FirstStage):
    """The vectors of all tokens of all items, and the encoder that made them.

    Nearness is MaxSim: for each token of the query the highest cosine among the item's tokens, summed. Every item is
    compared, in blocks, so memory stays bounded. Vectors are kept in float16, at 2 bytes × dimension per token. Their
    products are exact, so that scores depend neither on the batch nor on the order of the items.
    """

    name = "multi-vector"
    needs_encoder = True

    def __init__(
        self,
        ids: Sequence[str],
        tokens: HalfArray,
        *,
        offsets: IntArray,
        encoder: TokenEncoder | None,
        card: EncoderCard,
        folder: Path | None = None,
        allow_code: bool = False,
    ) -> None:
        self._ids = ids
        # Item i has the rows tokens[offsets[i] : offsets[i + 1]].
        self._tokens = tokens
        self._offsets = offsets
        self._encoder = encoder
        self._card = card
        self._folder = folder
        self._allow_code = allow_code
        self._opening = threading.Lock()

    @classmethod
    def build(
        cls,
        items: Iterable[Item],
        *,
        encoder: Any = None,
        folder: Path | None = None,
        progress: bool = False,
    ) -> MultiVector:
        """Encode the items, read once; with `folder` the vectors go there, block by block."""
        given = _with_tokens(encoder)
        ids: list[str] = []
        counts: list[int] = []
        tokens = _kept(_encoded(items, lambda: given, ids, counts, width=0, progress=progress), folder)
        return cls(check_ids(ids), tokens, offsets=_offsets(counts), encoder=given, card=given.card)

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

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
    ) -> MultiVector:
        """Copies the vectors of `unchanged` items and encodes `new` ones; without any, no encoder."""
        ids = [self._ids[row] for row in unchanged.tolist()]
        counts: list[int] = np.diff(self._offsets)[unchanged].tolist()

        def blocks() -> Iterator[HalfArray]:
            for row in unchanged.tolist():
                yield self._tokens[self._offsets[row] : self._offsets[row + 1]]
            width = self._tokens.shape[1]
            yield from _encoded(new, self.open_encoder, ids, counts, width=width, progress=progress)

        tokens = _kept(blocks(), folder)
        return MultiVector(check_ids(ids), tokens, offsets=_offsets(counts), encoder=self._encoder, card=self._card)

    def settings(self) -> dict[str, Any]:
        """The encoder's card, and the dimension of its token vectors."""
        return {"dimension": self._tokens.shape[1], "encoder": asdict(self._card)}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """The k items with the highest MaxSim."""
        check_k(k)
        queries = as_queries(queries)
        together = max(1, min(_QUERIES_AT_ONCE, _SCORES_AT_ONCE // len(self._ids)))
        rankings: list[Ranking] = []
        for start in range(0, len(queries), together):
            for scores in self._scores(queries[start : start + together]):
                best = best_by_id(scores, self._ids, k)
                rankings.append(Ranking(best, scores[best]))
        return rankings

    def save(self, folder: str | Path) -> None:
        """Write the token vectors, the ids and the encoder's card; the encoder's weights stay where they are."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / _TOKENS
        written = Path(str(self._tokens.filename)) if isinstance(self._tokens, np.memmap) else None
        # Writing a memory-mapped file over itself would empty it.
        if written is None or not target.exists() or not written.samefile(target):
            self._tokens.astype("<f2", copy=False).tofile(target)
        np.save(folder / "offsets.npy", self._offsets)
        write_settings(folder, kind=self.name, ids=self._ids, settings=self.settings())

    @classmethod
    def load(cls, folder: str | Path, *, encoder: Any = None, allow_code: bool = False) -> MultiVector:
        """Open a saved retriever; token vectors stay on disk, memory-mapped.

        Without `encoder`, the one the card names is opened at the first search; `allow_code` as in `adacur.load`.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        with unreadable_is_damage(folder, "multi-vector"):
            ids = read_ids(folder)
            offsets = read_array(folder / "offsets.npy", kind="i")
            if offsets[0] != 0 or (np.diff(offsets) < 1).any():
                raise ValueError("offsets.npy does not ascend from 0")
            tokens = _mapped(folder / _TOKENS, width=settings["dimension"])
            card = read_card(settings["encoder"])
        if len(offsets) != len(ids) + 1 or offsets[-1] != len(tokens):
            raise DamagedIndex(
                f"The multi-vector files in {folder} disagree: {len(ids)} ids, {len(offsets) - 1} items, "
                f"{offsets[-1]} tokens, {len(tokens)} vectors. Build it again."
            )
        given = None if encoder is None else _checked(encoder, card)
        return cls(ids, tokens, offsets=offsets, encoder=given, card=card, folder=folder, allow_code=allow_code)

    def open_encoder(self) -> TokenEncoder:
        """The encoder, opened if need be; where there is none, the error says how to give one."""
        with self._opening:
            if self._encoder is None:
                instead = "adacur.load(path, encoder=...) or MultiVector.load(folder, encoder=...)"
                self._encoder = _checked(
                    reopen_encoder(self._card, instead=instead, folder=self._folder, allow_code=self._allow_code),
                    self._card,
                )
            return self._encoder

    def _scores(self, queries: Sequence[Query]) -> FloatArray:
        """MaxSim of every query with every item, shape (queries, items), float32."""
        given = self.open_encoder().encode_query_tokens([query.text for query in queries])
        vectors, counts = _in_steps(given, n=len(queries), width=self._tokens.shape[1])
        first_tokens = np.cumsum([0, *counts[:-1]])
        scores = np.empty((len(queries), len(self._ids)), dtype=np.float32)
        for start, stop in self._blocks(min(_ITEM_TOKENS_AT_ONCE, _PRODUCTS_AT_ONCE // len(vectors))):
            rows = np.asarray(self._tokens[self._offsets[start] : self._offsets[stop]], dtype=np.float32)
            best = np.maximum.reduceat(vectors @ rows.T, self._offsets[start:stop] - self._offsets[start], axis=1)
            # Sums of so few steps are exact in float64 too; the only rounding is the one to float32.
            scores[:, start:stop] = np.add.reduceat(best.astype(np.float64), first_tokens, axis=0)
        return scores

    def _blocks(self, most_tokens: int) -> Iterator[tuple[int, int]]:
        """Runs of items with at most so many tokens together, or one item."""
        start = 0
        while start < len(self._ids):
            fits = int(np.searchsorted(self._offsets, self._offsets[start] + most_tokens, side="right")) - 1
            stop = max(start + 1, fits)
            yield start, stop
            start = stop


def _encoded(
    items: Iterable[Item],
    encoder: Callable[[], TokenEncoder],
    ids: list[str],
    counts: list[int],
    *,
    width: int,
    progress: bool,
) -> Iterator[HalfArray]:
    """Token vectors of the items, block by block; adds to `ids` and `counts` as they are read."""
    for batch in blocks_to_encode(items, progress="encode tokens" if progress else None):
        ids.extend(item.id for item in batch)
        given = encoder().encode_item_tokens([item.text for item in batch])
        vectors, of_each = _in_steps(given, n=len(batch), width=width)
        width = vectors.shape[1]
        counts.extend(of_each)
        yield vectors.astype(np.float16)


def _kept(blocks: Iterable[HalfArray], folder: Path | None) -> HalfArray:
    """The blocks below one another, in memory or in a file of the folder."""
    if folder is None:
        parts = list(blocks)
        if not parts:
            raise EmptyInput("There are no items. Give at least one.")
        return np.concatenate(parts)
    width = 0
    with (folder / _TOKENS).open("wb") as file:
        for block in blocks:
            width = block.shape[1]
            file.write(np.ascontiguousarray(block, dtype="<f2").data)
    if not width:
        raise EmptyInput("There are no items. Give at least one.")
    return _mapped(folder / _TOKENS, width=width)


def _offsets(counts: Sequence[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _with_tokens(encoder: Any) -> TokenEncoder:
    tokens = token_encoder(encoder)
    if tokens is None:
        raise InputError(
            f"A multi-vector first stage needs encode_query_tokens and encode_item_tokens; {type(encoder).__name__} "
            "has not. Pass an OnnxEncoder or a SentenceTransformerEncoder."
        )
    return tokens


def _in_steps(given: Sequence[Any], *, n: int, width: int) -> tuple[FloatArray, list[int]]:
    """Token vectors of all texts below one another, of length 1 and rounded to steps, and how many each text has."""
    arrays = [np.asarray(vectors, dtype=np.float32) for vectors in given]
    width = width or (arrays[0].shape[-1] if arrays and arrays[0].ndim else 0)
    if len(arrays) != n or any(array.ndim != 2 or not len(array) or array.shape[1] != width for array in arrays):
        raise InputError(
            f"Token vectors are one matrix per text, at least one row each, {width} columns; got shapes "
            f"{[array.shape for array in arrays][:3]} … for {n} texts. Pass the encoder the retriever was built with."
        )
    vectors = np.concatenate(arrays)
    if not np.isfinite(vectors).all():
        raise InputError("Token vectors must be finite; one is not.")
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return np.rint(vectors / lengths * _STEPS) / _STEPS, [len(array) for array in arrays]


def _mapped(path: Path, *, width: int) -> HalfArray:
    flat = np.memmap(path, dtype="<f2", mode="r")
    return flat.reshape(-1, width)


def _checked(encoder: Any, card: EncoderCard) -> TokenEncoder:
    """Refuse an encoder whose query vectors would not fit the stored item vectors."""
    tokens = _with_tokens(encoder)
    # Vectors of tokens are neither pooled nor made of one length.
    check_same_encoder(replace(tokens.card, pooling=None, normalise=None), card)
    return tokens
