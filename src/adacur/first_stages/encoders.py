"""Encoders: texts to vectors whose dot product says how near a query and an item are.

`encoder` is the door: from an object, a path or a name to an encoder; the twin of `adacur.scorers.by_name.scorer`.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from adacur.arrays import FloatArray
from adacur.data import fetch, names
from adacur.data.stored import read_record
from adacur.errors import InputError, MissingExtra, UnknownName
from adacur.first_stages.saved import index_of
from adacur.records import Item, Query, as_queries
from adacur.remembered import Remembered
from adacur.requirements import require
from adacur.scorers.by_name import imported, is_function_name
from adacur.scorers.consent import check_consent
from adacur.scorers.cross_encoders.checkpoints import (
    checkpoint_folder,
    folder_limit,
    quiet,
    settings_hash,
    tensors_digest,
)
from adacur.scorers.cross_encoders.onnx import PRECISE
from adacur.spelling import did_you_mean

_FIRST_BLOCK, _LARGEST_BLOCK = 16, 128
# Of the last queries' vectors: some 8,000 of 384 numbers.
_BYTES_REMEMBERED = 16 << 20


@dataclass(frozen=True, slots=True)
class EncoderCard:
    """Who an encoder is, as a saved first stage remembers it.

    `source` is what opens it again (a folder or a name), `weights` a hash of its weights and `settings` one of its
    tokenizer and configuration; None where there is none. `kind` "onnx" and "sentence-transformers" can be opened
    again, any other must be passed.
    """

    kind: str
    dimension: int
    source: str | None = None
    weights: str | None = None
    pooling: str | None = None
    normalise: bool | None = None
    query_prefix: str = ""
    item_prefix: str = ""
    max_tokens: int | None = None
    settings: str | None = None


def read_card(data: Any) -> EncoderCard:
    """The card in the settings of a saved first stage; ValueError where they hold something else."""
    card = read_record(EncoderCard, data)
    if card.dimension < 1 or (card.max_tokens is not None and card.max_tokens < 1):
        raise ValueError(f"the encoder is {data!r}")
    return card


@runtime_checkable
class Encoder(Protocol):
    """Queries and items to float32 vectors of one dimension."""

    @property
    def dimension(self) -> int: ...

    @property
    def card(self) -> EncoderCard: ...

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension)."""
        ...

    def encode_items(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension)."""
        ...


class OnnxEncoder:
    """A transformer in ONNX with its `tokenizer.json`, on the CPU.

    A vector never depends on the texts encoded with it: int8 models quantise activations per tensor, so
    that a batch would change its members. Each text is one inference on one core; `threads` of them run
    side by side (all cores by default).
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        pooling: Literal["cls", "mean"] = "cls",
        normalise: bool = True,
        query_prefix: str = "",
        item_prefix: str = "",
        max_tokens: int | None = None,
        threads: int | None = None,
    ) -> None:
        if pooling not in ("cls", "mean"):
            raise InputError(f"pooling is 'cls' or 'mean'; got {pooling!r}.")
        onnxruntime = require("onnxruntime", extra="onnx")
        tokenizers = require("tokenizers", extra="onnx")
        folder = Path(folder).resolve()
        model = next((path for path in (folder / "model.onnx", folder / "onnx" / "model.onnx") if path.is_file()), None)
        if model is None or not (folder / "tokenizer.json").is_file():
            raise InputError(f"An ONNX encoder is a folder with model.onnx and tokenizer.json; {folder} is not.")
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        limit = folder_limit(max_tokens, folder)
        self._tokenizer.enable_truncation(limit.tokens)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.add_session_config_entry(PRECISE, "1")
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs = {tensor.name for tensor in self._session.get_inputs()}
        self._threads = threads or os.cpu_count() or 1
        self._pooling = pooling
        self._normalise = normalise
        self.dimension = len(self._vector("dimension"))
        self.card = EncoderCard(
            kind="onnx",
            dimension=self.dimension,
            source=str(folder),
            weights=_hash_of_file(model),
            pooling=pooling,
            normalise=normalise,
            query_prefix=query_prefix,
            item_prefix=item_prefix,
            max_tokens=limit.tokens,
            settings=settings_hash(folder, files=["tokenizer.json"]),
        )

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension), float32."""
        return self._encode(self.card.query_prefix, texts)

    def encode_items(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension), float32."""
        return self._encode(self.card.item_prefix, texts)

    def _encode(self, prefix: str, texts: Sequence[str]) -> FloatArray:
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        with ThreadPoolExecutor(self._threads) as pool:
            for row, vector in enumerate(pool.map(self._vector, [prefix + text for text in texts])):
                vectors[row] = vector
        return vectors

    def _vector(self, text: str) -> FloatArray:
        states = self._states(text)
        vector: FloatArray = states[0] if self._pooling == "cls" else states.mean(axis=0)
        return vector / max(float(np.linalg.norm(vector)), 1e-12) if self._normalise else vector

    def _states(self, text: str) -> FloatArray:
        encoding = self._tokenizer.encode(text)
        columns = {
            "input_ids": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
        }
        feed = {name: np.array([column], dtype=np.int64) for name, column in columns.items() if name in self._inputs}
        states: FloatArray = self._session.run(None, feed)[0][0]
        return states


class SentenceTransformerEncoder:
    """A sentence-transformers model, by name, path or as an object.

    Uses the model's own query and document prompts where it has them. Texts share padded batches, so a
    vector may differ in its last digits between batches.
    """

    def __init__(
        self,
        model: Any,
        *,
        normalise: bool = False,
        query_prefix: str = "",
        item_prefix: str = "",
        batch_size: int | None = None,
    ) -> None:
        source = folder = None
        if isinstance(model, str | Path):
            sentence_transformers = require("sentence_transformers", extra="sentence-transformers")
            folder = checkpoint_folder(model)
            source = str(folder.resolve()) if Path(model).is_dir() else str(model)
            try:
                with quiet(require("transformers", extra="sentence-transformers")):
                    model = sentence_transformers.SentenceTransformer(str(folder))
            except ValueError as error:
                # Such as code that the folder names.
                raise InputError(f"{folder} cannot be read as a SentenceTransformer: {error}") from error
        self._model = model
        # A tokenizer fails ('Already borrowed') where calls overlap and one changes its padding; the forwards that
        # follow would only compete for the same cores.
        self._lock = threading.Lock()
        # 32 texts leave a GPU idle; on the CPU more would only be padded more.
        self._batch_size = batch_size or (256 if getattr(model.device, "type", "cpu") == "cuda" else 32)
        self._encode_query: Callable[..., Any] = model.encode_query
        self._encode_document: Callable[..., Any] = model.encode_document
        self.dimension = len(self._encode_query("dimension", show_progress_bar=False))
        self.card = EncoderCard(
            kind="sentence-transformers",
            dimension=self.dimension,
            source=source,
            weights=f"sha256:{tensors_digest(model.state_dict())}",
            normalise=normalise,
            query_prefix=query_prefix,
            item_prefix=item_prefix,
            # Static vectors cut no text.
            max_tokens=None if model.max_seq_length == float("inf") else model.max_seq_length,
            settings=None if folder is None else settings_hash(folder),
        )

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension), float32."""
        return self._encode(self._encode_query, self.card.query_prefix, texts)

    def encode_items(self, texts: Sequence[str]) -> FloatArray:
        """Shape (texts, dimension), float32."""
        return self._encode(self._encode_document, self.card.item_prefix, texts)

    def _encode(self, encode: Callable[..., Any], prefix: str, texts: Sequence[str]) -> FloatArray:
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        with self._lock:
            vectors = encode(
                [prefix + text for text in texts],
                batch_size=self._batch_size,
                normalize_embeddings=self.card.normalise,
                convert_to_numpy=True,
                show_progress_bar=False,
            )
        return np.asarray(vectors, dtype=np.float32)


def bge_small(folder: str | Path, *, threads: int | None = None) -> OnnxEncoder:
    """bge-small-en-v1.5 in ONNX, used as its authors say."""
    return OnnxEncoder(
        folder,
        pooling="cls",
        normalise=True,
        query_prefix="Represent this sentence for searching relevant passages: ",
        threads=threads,
    )


def encoder(source: Any) -> Any:
    """Open a dual encoder.

    `source` is one of:

    - an object with `encode_queries` and `encode_items`, or None: returned as it is;
    - "module:name" of such an object;
    - a name of `adacur.data.names()`, such as "bge-small-en-v1.5", fetched if needed;
    - the folder or hub name "org/name" of a sentence-transformers model.
    """
    if not isinstance(source, str | Path):
        return source
    text = str(source)
    if text == "bge-small-en-v1.5":
        return bge_small(fetch(text))
    if text in names():
        return SentenceTransformerEncoder(fetch(text))
    if is_function_name(text):
        return imported(text, what="encoder")
    if not Path(source).exists() and "/" not in text:
        raise UnknownName(
            f"There is no encoder called {text!r}.{did_you_mean(text, names())} Give a name of `adacur.data.names()`, "
            "the folder or hub name 'org/name' of a sentence-transformers model, 'module:name', or an object."
        )
    return SentenceTransformerEncoder(source)


def blocks_to_encode(items: Iterable[Item], *, progress: str | None) -> Iterator[list[Item]]:
    """The items in blocks, small ones first; a bar of the name `progress` counts those that have been encoded.

    How items are cut into blocks depends on their number alone, so that the vectors do not depend on the machine.
    """
    from tqdm.auto import tqdm

    rest, size = iter(items), _FIRST_BLOCK
    total = len(items) if isinstance(items, Sized) else None
    with tqdm(total=total, desc=progress, unit="item", disable=progress is None) as bar:
        while block := list(itertools.islice(rest, size)):
            yield block
            # The caller comes back when the block is encoded.
            bar.update(len(block))
            size = min(2 * size, _LARGEST_BLOCK)


def check_same_encoder(given: EncoderCard, built: EncoderCard | None) -> None:
    """Refuse an encoder whose item vectors would not be the stored ones, as far as the cards tell."""
    for field in ("weights", "settings", "pooling", "normalise", "item_prefix", "max_tokens"):
        then, now = getattr(built, field, None), getattr(given, field, None)
        if then is not None and now is not None and then != now:
            raise InputError(
                f"The items were encoded with {field} {then!r}; this encoder has {now!r}. "
                "Pass the encoder that the first stage was built with, or build it again."
            )


def reopen_encoder(card: EncoderCard, *, instead: str, folder: Path | None, allow_code: bool) -> Encoder:
    """The encoder that a saved first stage remembers; `instead` says how to pass it by hand.

    What its `folder` names must be weights, or takes `allow_code`.
    """
    source = card.source
    if source is not None and source not in names() and folder is not None:
        check_consent(source, what="encoder", folder=index_of(folder), allow_code=allow_code)
    # A path of another machine is no help, but a name that everybody can fetch is.
    if source and not Path(source).exists() and (name := Path(source).name) in names():
        source = str(fetch(name))
    prefixes = {"query_prefix": card.query_prefix, "item_prefix": card.item_prefix}
    options: dict[str, Any] = {"normalise": bool(card.normalise), **prefixes}
    try:
        if source is not None and card.kind == "sentence-transformers":
            return SentenceTransformerEncoder(source, **options)
        if source is not None and card.kind == "onnx":
            pooling: Literal["cls", "mean"] = "mean" if card.pooling == "mean" else "cls"
            return OnnxEncoder(source, pooling=pooling, max_tokens=card.max_tokens, **options)
        raise ValueError("its card does not say how.")
    except Exception as error:  # Tokenizers and runtimes have errors of their own.
        if isinstance(error, MissingExtra):
            raise
        raise InputError(
            f"The encoder of this first stage ({card.kind}, {card.source!r}) cannot be opened: {error} "
            f"Pass it: {instead}."
        ) from error


def _hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


class RememberedQueries:
    """Vectors of the last queries, 16 MB with their texts, each made once; the encoder is opened when first needed."""

    def __init__(self, open_encoder: Callable[[], Encoder]) -> None:
        self._open_encoder = open_encoder
        self._known = Remembered(most_bytes=_BYTES_REMEMBERED)

    def embed(self, queries: Sequence[Query | str]) -> FloatArray:
        """Query vectors, shape (queries, dimension), float32."""
        texts = [query.text for query in as_queries(queries)]
        # A search asks twice for the same vectors: to start from, and to predict by. So does one that learns from the
        # anchor queries what the ranks are worth.
        known = self._known.find(texts)
        if new := list(dict.fromkeys(text for text in texts if text not in known)):
            encoder = self._open_encoder()
            vectors = check_vectors(encoder.encode_queries(new), n=len(new), encoder=encoder)
            fresh = dict(zip(new, vectors, strict=True))
            self._known.keep(fresh)
            known |= fresh
        if not texts:
            return np.empty((0, self._open_encoder().dimension), dtype=np.float32)
        return np.stack([known[text] for text in texts])


def check_vectors(given: Any, *, n: int, encoder: Encoder | None) -> FloatArray:
    """Vectors as an encoder or a user gives them: finite, one row for each of n texts, float32."""
    vectors: FloatArray = np.asarray(given, dtype=np.float32)
    wanted = (n, encoder.dimension if encoder else vectors.shape[-1])
    if vectors.shape != wanted:
        raise InputError(f"Embeddings are one row per text, shape {wanted}; got shape {vectors.shape}.")
    if not np.isfinite(vectors).all():
        worst = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise InputError(f"Embeddings must be finite; row {worst} of {n} is not.")
    return vectors
