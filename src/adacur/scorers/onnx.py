"""Cross-encoders on the CPU, without torch."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import FloatArray
from adacur.core.errors import InputError, ScorerFailed
from adacur.core.extras import require
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_grid, check_scores
from adacur.scorers.pair_tokens import PairTokenizer, TokenArray, TokenPairs, chosen_max_tokens, length_batches
from adacur.scorers.weights import json_in, weights_hash

__all__ = ["OnnxCrossEncoder"]

_BATCH_TOKENS = 4096
_DYNAMIC_OPERATORS = (b"DynamicQuantize", b"MatMulInteger", b"ConvInteger")
_INT8_OPERATORS = (*_DYNAMIC_OPERATORS, b"QLinearMatMul", b"QGemm", b"QAttention", b"DequantizeLinear")
_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


class OnnxCrossEncoder:
    """A cross-encoder in an ONNX file with a tokenizer.json beside it; raw float32 logits.

    Models with dynamic int8 quantisation scale their activations by the largest in the whole batch, so there a
    score would depend on the pairs beside it: these run one pair at a time on `threads` threads, and every
    score is the same to the last bit however the pairs are batched.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        max_tokens: int | None = None,
        max_item_tokens: int | None = None,
        threads: int | None = None,
        name: str | None = None,
    ) -> None:
        onnxruntime = require("onnxruntime", extra="onnx")
        tokenizers = require("tokenizers", extra="onnx")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, or None for all cores; got {threads}.")
        self._file = _model_file(Path(model))
        folder = _folder_with_tokenizer(self._file)
        self._threads = threads or _cores()
        self._name = name or folder.resolve().name
        self._tokens = PairTokenizer(
            _tokenizer(tokenizers, folder / "tokenizer.json"),
            max_tokens=chosen_max_tokens(
                max_tokens,
                config=json_in(folder, "config.json"),
                tokenizer_config=json_in(folder, "tokenizer_config.json"),
            ),
            max_item_tokens=max_item_tokens,
        )
        try:
            self._alone = _mentions(self._file, _DYNAMIC_OPERATORS)
            self._is_int8 = _mentions(self._file, _INT8_OPERATORS)
            self._session: Any = _session(onnxruntime, self._file, threads=1 if self._alone else self._threads)
        except Exception as error:
            raise InputError(f"{self._file} cannot be read as an ONNX model: {error}") from error
        self._workers = ThreadPoolExecutor(self._threads, "adacur-onnx") if self._alone else None
        self._inputs: dict[str, npt.DTypeLike] = {
            wanted.name: np.int32 if "int32" in wanted.type else np.int64 for wanted in self._session.get_inputs()
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
            # Large models keep their weights beside the graph, in model.onnx_data or model.onnx.data.
            weights=weights_hash(self._file.parent.glob(f"{self._file.name}*")),
            dtype="int8" if self._is_int8 else "float16" if self._is_float16 else "float32",
            max_tokens=self._tokens.max_tokens,
            max_item_tokens=self._tokens.max_item_tokens,
            source=str(self._file.resolve()),
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return check_scores(self._scores(self._tokens.pairs(pairs)), pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        scores = self._scores(self._tokens.grid(queries, items))
        return check_grid(scores.reshape(len(queries), len(items)), queries, items)

    def close(self) -> None:
        """Free the model; the scorer cannot score any more."""
        if self._workers is not None:
            self._workers.shutdown()
        self._session = None

    def __enter__(self) -> OnnxCrossEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _scores(self, pairs: TokenPairs) -> FloatArray:
        if self._session is None:
            raise ScorerFailed(f"The scorer {self._name!r} has been closed. Open it again to score.")
        scores = np.empty(len(pairs), np.float32)
        if self._workers is None:
            for batch in length_batches(pairs.lengths, tokens=_BATCH_TOKENS):
                scores[batch] = self._logits(pairs.padded(batch, pad_id=self._tokens.pad_id))[:, 0]
            return scores

        stop = threading.Event()
        longest_first = np.argsort(-pairs.lengths, kind="stable")

        def score_share(worker: int) -> None:
            for position in longest_first[worker :: self._threads]:
                if stop.is_set():
                    return
                scores[position] = self._logits(pairs.padded([position], pad_id=self._tokens.pad_id))[0, 0]

        try:
            for share in [self._workers.submit(score_share, worker) for worker in range(self._threads)]:
                share.result()
        finally:
            # After Ctrl-C the other workers would otherwise go on to the end of their shares.
            stop.set()
        return scores

    def _logits(self, inputs: dict[str, TokenArray]) -> FloatArray:
        session = self._session
        fed = {name: inputs[name].astype(dtype, copy=False) for name, dtype in self._inputs.items()}
        try:
            logits: FloatArray = session.run([self._output], fed)[0]
        except Exception as error:
            raise ScorerFailed(
                f"The ONNX model {self._name!r} failed on {len(inputs['input_ids'])} pairs: {error}"
            ) from error
        return logits

    def _check_model(self) -> None:
        unknown = sorted(self._inputs.keys() - _KNOWN_INPUTS)
        if unknown:
            raise InputError(f"{self._file} asks for {unknown}; a cross-encoder is fed only {sorted(_KNOWN_INPUTS)}.")
        probe = self._tokens.pairs([(Query("probe", "a"), Item("probe", "b"))])
        logits = self._logits(probe.padded([0], pad_id=self._tokens.pad_id))
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
        found = f"it holds {[file.name for file in files]}; name one of them" if files else "it holds none"
        raise InputError(f"Expected an .onnx file or a folder with one; got {str(path)!r}: {found}.")
    return files[0]


def _folder_with_tokenizer(file: Path) -> Path:
    # Hub repositories often keep the graph in a folder "onnx" below the tokenizer.
    for folder in (file.parent, file.parent.parent):
        if (folder / "tokenizer.json").is_file():
            return folder
    raise InputError(f"An ONNX cross-encoder needs a tokenizer.json beside it; there is none in {file.parent}.")


def _tokenizer(tokenizers: Any, file: Path) -> Any:
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:
        raise InputError(f"{file} cannot be read as a tokenizer: {error}") from error


def _mentions(file: Path, operators: Sequence[bytes]) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(operator) >= 0 for operator in operators)


def _session(onnxruntime: Any, file: Path, *, threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
