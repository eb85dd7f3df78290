"""Cross-encoders on the CPU, without torch."""

from __future__ import annotations

import functools
import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.arrays import FloatArray
from adacur.budget import at_least
from adacur.errors import InputError, ScorerFailed
from adacur.protocols import Reopening, ScorerCard
from adacur.records import Item, Pair, Query
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import folder_limit, has_chat_template, settings_hash, weights_hash
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenArray, TokenPairs
from adacur.scorers.wrapping import Closing, closed

_INT8_OPERATORS = (
    b"DynamicQuantize",
    b"MatMulInteger",
    b"ConvInteger",
    b"QLinearMatMul",
    b"QGemm",
    b"QAttention",
    b"DequantizeLinear",
)
# Without instructions for it (VNNI), x86 processors add two products of eight bits in sixteen, and saturate. With this
# entry onnxruntime multiplies such weights as unsigned ones there, which is exact; elsewhere it changes nothing.
PRECISE = "session.x64quantprecision"

# One MatMulInteger of 8 inputs, unsigned, by weights of 127 in 8 rows and 16 columns.
_PRODUCT = (
    b'\x08\x07\x12\x00:\xd6\x01\n\x18\n\x01a\n\x01w\x12\x01y"\rMatMulInteger\x12\x01g*\x8c\x01\x08\x08\x08\x10\x10\x03B'
    b"\x01wJ\x80\x01" + bytes([127]) * 128 + b"Z\x13\n\x01a\x12\x0e\n\x0c\x08\x02\x12\x08\n\x02\x08\x01\n\x02\x08\x08b"
    b"\x13\n\x01y\x12\x0e\n\x0c\x08\x06\x12\x08\n\x02\x08\x01\n\x02\x08\x10B\x04\n\x00\x10\r"
)
_EXACT = 8 * 255 * 127
_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class OnnxCrossEncoder(Closing):
    """A cross-encoder in an ONNX file with a tokenizer.json beside it, [EMB] ones included; raw float32 logits.

    Each pair is one inference on one thread, and `threads` of them run side by side (all cores by default). A score
    therefore never depends on the pairs beside it: models with dynamic int8 quantisation scale their activations by
    the largest value of the whole run.
    """

    can_batch_callers = True

    def __init__(
        self,
        model: str | Path,
        *,
        max_tokens: int | None = None,
        max_item_tokens: int | None = None,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        require("onnxruntime", extra="onnx")
        tokenizers = require("tokenizers", extra="onnx")
        at_least(1, threads=threads)
        self._file = _model_file(Path(model))
        folder = self._folder = _folder_with_tokenizer(self._file)
        self._threads = threads or _cores()
        self._threads_were_given = threads is not None
        self._name = name or folder.resolve().name
        if has_chat_template(folder):
            raise InputError(
                f"The tokenizer in {folder} writes pairs into a chat template, which an ONNX graph does not know; "
                "scored as a plain pair, every score would be wrong. Give the checkpoint that it was made from, which "
                "sentence-transformers can run."
            )
        self._limit = folder_limit(max_tokens, folder)
        try:
            tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            self._is_int8 = _mentions(self._file, _INT8_OPERATORS)
            self._session: Any = onnx_session(self._file)
        except Exception as error:
            raise InputError(f"{self._file} and its tokenizer cannot be read as an ONNX model: {error}") from error
        self._tokens = PairTokenizer(tokenizer, max_tokens=self._limit.tokens, max_item_tokens=max_item_tokens)
        # Counted without scoring: tokens per pair, and which items are cut with this query.
        self.tokens_of, self.cut = self._tokens.lengths, self._tokens.cut
        self._inputs: dict[str, npt.DTypeLike] = {
            expected.name: np.int32 if "int32" in expected.type else np.int64 for expected in self._session.get_inputs()
        }
        outputs = {output.name: output.type for output in self._session.get_outputs()}
        self._output = "logits" if "logits" in outputs else next(iter(outputs))
        self._is_float16 = "float16" in outputs[self._output]
        self._check_model()

    @cached_property
    def card(self) -> ScorerCard:
        return ScorerCard(
            name=self._name,
            backend="onnx",
            weights=weights_hash(_files_with_weights(self._file)),
            dtype="int8" if self._is_int8 else "float16" if self._is_float16 else "float32",
            max_tokens=self._limit.tokens,
            limited_by=self._limit.origin,
            max_item_tokens=self._tokens.max_item_tokens,
            source=str(self._file.resolve()),
            settings=settings_hash(self._folder, files=["tokenizer.json"]),
            arithmetic=int8_products() if self._is_int8 else None,
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return self._scores(self._tokens.pairs(pairs))

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        return self._scores(self._tokens.texts(queries, items).grid()).reshape(len(queries), len(items))

    def reopening(self) -> Reopening:
        """How to open this scorer in another process: on the threads that were given, else on one."""
        threads = self._threads if self._threads_were_given else 1
        limits = {"max_tokens": self._tokens.max_tokens, "max_item_tokens": self._tokens.max_item_tokens}
        opener = partial(OnnxCrossEncoder, self._file.resolve(), **limits, threads=threads, name=self._name)
        return Reopening(opener, cpus=threads, share=threads / self._threads)

    def close(self) -> None:
        """Free the model; later calls fail, and so do calls under way in other threads."""
        self._session = None

    def _scores(self, pairs: TokenPairs) -> FloatArray:
        if self._session is None:
            raise closed(self._name)
        scores = np.empty(len(pairs), np.float32)
        # Longest first: a long pair at the end would leave the other threads without work.
        order = np.argsort(-pairs.lengths, kind="stable").tolist()
        # Threads of this call alone: a forked child would inherit a pool without its threads, and wait for ever.
        pool = ThreadPoolExecutor(self._threads, "adacur-onnx")
        try:
            for position, logits in zip(order, pool.map(partial(self._logits, pairs), order), strict=True):
                scores[position] = logits.item()
        finally:
            # After an error, and after Ctrl-C, which only this thread hears, the others stop at their next pair.
            pool.shutdown(cancel_futures=True)
        return scores

    def _logits(self, pairs: TokenPairs, position: int) -> FloatArray:
        # Held here, so that close() in another thread frees the model only after this run.
        session = self._session
        if session is None:
            raise closed(self._name)
        inputs: dict[str, TokenArray] = pairs.inputs(position)
        fed = {name: inputs[name].astype(dtype, copy=False) for name, dtype in self._inputs.items()}
        try:
            logits: FloatArray = session.run([self._output], fed)[0]
        except Exception as error:
            raise ScorerFailed(f"The ONNX model {self._name!r} failed: {error}") from error
        return logits

    def _check_model(self) -> None:
        unknown = sorted(self._inputs.keys() - _KNOWN_INPUTS)
        if unknown:
            raise InputError(f"{self._file} asks for {unknown}; a cross-encoder is fed only {sorted(_KNOWN_INPUTS)}.")
        logits = self._logits(self._tokens.pairs([(Query("probe", "a"), Item("probe", "b"))]), 0)
        if logits.shape != (1, 1):
            raise InputError(
                f"A cross-encoder gives one logit per pair; {self._file} answers one pair with an array of shape "
                f"{logits.shape}. Classifiers with several labels and dual encoders cannot be used as scorers."
            )


def _model_file(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted(path.glob("*.onnx"))
    if path / "model.onnx" in files:
        return path / "model.onnx"
    if len(files) != 1:
        holds = f"it holds {[file.name for file in files]}; name one of them" if files else "it holds none"
        raise InputError(f"Expected an .onnx file or a folder with one; got {str(path)!r}: {holds}.")
    return files[0]


def _folder_with_tokenizer(file: Path) -> Path:
    # Hub repositories often keep the graph in a folder "onnx" below the tokenizer.
    for folder in (file.parent, file.parent.parent):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise InputError(f"An ONNX cross-encoder needs a tokenizer.json beside it; there is none in {file.parent}.")


def _files_with_weights(file: Path) -> set[Path]:
    """The graph, and the files beside it that large models keep their weights in, whatever these are called."""
    files = {*file.parent.glob(f"{file.name}*")}
    # The key under which a graph names such a file.
    if _mentions(file, [b"location"]):
        files |= {path for path in file.parent.iterdir() if path.is_file() and _mentions(file, [path.name.encode()])}
    return files


def _mentions(file: Path, words: Sequence[bytes]) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(word) >= 0 for word in words)


def onnx_session(file: Path) -> Any:
    """A graph on one thread of the CPU."""
    onnxruntime = require("onnxruntime", extra="onnx")
    options = onnxruntime.SessionOptions()
    # Runs side by side use the cores better than threads inside a run, and no sum is split by the core count.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(PRECISE, "1")
    # The fused kernel is not vectorised: without it int8 models are a fifth faster.
    fusions = ["SkipLayerNormFusion"]
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(str(file), options, providers=providers, disabled_optimizers=fusions)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def int8_products() -> str:
    """Either "exact products", "exact products, widened" where that takes `PRECISE`, or "saturating products".

    It is measured, once per process and in milliseconds: onnxruntime does not say which instructions it chose.
    """
    if _is_exact(precise=False):
        return "exact products"
    return "exact products, widened" if _is_exact(precise=True) else "saturating products"


def _is_exact(*, precise: bool) -> bool:
    onnxruntime = require("onnxruntime", extra="onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(PRECISE, "1" if precise else "0")
    session: Any = onnxruntime.InferenceSession(_PRODUCT, options, providers=["CPUExecutionProvider"])
    return bool((session.run(None, {"a": np.full((1, 8), 255, np.uint8)})[0] == _EXACT).all())
