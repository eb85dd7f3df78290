"""Cross-encoders on the CPU, without torch."""

from __future__ import annotations

import logging
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import is_whole
from adacur.core.errors import InputError, ScorerFailed
from adacur.core.extras import require
from adacur.core.protocols import Reopening, ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_grid, check_scores
from adacur.scorers.cross_encoders.checkpoints import has_chat_template
from adacur.scorers.cross_encoders.emb_cross_encoder import EmbHead
from adacur.scorers.cross_encoders.int8_graph import MISLED_FUSION, quantise_pair_by_pair
from adacur.scorers.cross_encoders.int8_products import PRECISE, int8_products
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenArray, TokenPairs, chosen_max_tokens
from adacur.scorers.cross_encoders.weights import json_in, settings_hash, weights_hash

__all__ = ["OnnxCrossEncoder"]

_log = logging.getLogger("adacur.scorers.cross_encoders.onnx")

_TOKENS_PER_RUN = 512
_TRIALS = 3
_PAIRS_PER_WORKER_AND_TRIAL = 8
# On a busy machine a smaller lead is chance.
_LEAD_OF_A_RIVAL = 1.1
_DYNAMIC_OPERATORS = (b"DynamicQuantize", b"MatMulInteger", b"ConvInteger")
_INT8_OPERATORS = (*_DYNAMIC_OPERATORS, b"QLinearMatMul", b"QGemm", b"QAttention", b"DequantizeLinear")
# Above this many tokens an int8 pair costs as much in company as alone; below, what is paid per run is half of it.
_SHORT_PAIR = 32
_LEAST_SHORT_PAIRS_PER_RUN, _MOST_SHORT_PAIRS_PER_RUN = 4, 16
# A second graph is made when about as much time went into short pairs as it takes to make one.
_SHORT_PAIRS_BEFORE_A_SECOND_GRAPH = 512
_MOST_PADDING = 0.3  # of the longest pair of a run
_KNOWN_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}


@dataclass(frozen=True, slots=True)
class _Shape:
    """Runs side by side, each on one thread, and the tokens of a run (one pair at least)."""

    workers: int
    tokens: int


class OnnxCrossEncoder:
    """A cross-encoder in an ONNX file with a tokenizer.json beside it, [EMB] ones included; raw float32 logits.

    Pairs run one at a time on one thread each, `threads` of them side by side (all cores by default), so that a
    score does not depend on the pairs beside it: models with dynamic int8 quantisation scale their activations by
    the largest in the whole run. Of those, many short pairs share runs of a second graph that scales each pair by
    itself; other models share runs between pairs of one length. Both only where a probe shows that it changes no bit.

    The first large call is scored in turns by rival shapes, one pair per run or several, all threads or half of
    them, and the fastest stays. A number given as `threads` is kept.
    """

    shares_calls = True

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
        if threads is not None and not (is_whole(threads) and threads >= 1):
            raise InputError(f"threads is a whole number of at least 1, or None for all cores; got {threads!r}.")
        self._file = _model_file(Path(model))
        folder = self._folder = _folder_with_tokenizer(self._file)
        self._threads = threads or _cores()
        self._threads_were_given = threads is not None
        self._name = name or folder.resolve().name
        config = json_in(folder, "config.json")
        head = EmbHead.from_config(config)
        if head is None and has_chat_template(folder):
            raise InputError(
                f"The tokenizer in {folder} writes pairs into a chat template, which an ONNX graph does not know; "
                "scored as a plain pair, every score would be wrong. Give the checkpoint that it was made from, which "
                "sentence-transformers can run."
            )
        self._tokens = PairTokenizer(
            _tokenizer(tokenizers, folder / "tokenizer.json"),
            max_tokens=chosen_max_tokens(
                max_tokens, config=config, tokenizer_config=json_in(folder, "tokenizer_config.json")
            ),
            max_item_tokens=max_item_tokens,
            head=head,
        )
        try:
            self._alone = _mentions(self._file, _DYNAMIC_OPERATORS)
            self._is_int8 = _mentions(self._file, _INT8_OPERATORS)
            self._session: Any = _session(onnxruntime, self._file)
        except Exception as error:
            raise InputError(f"{self._file} cannot be read as an ONNX model: {error}") from error
        self._workers, self._process = ThreadPoolExecutor(self._threads, "adacur-onnx"), os.getpid()
        self._lock = threading.Lock()
        self._calls = 0
        # The session of several pairs, once its maker has made one.
        self._together: Any = None
        self._maker: threading.Thread | None = None
        self._n_short = 0
        self._inputs: dict[str, npt.DTypeLike] = {
            wanted.name: np.int32 if "int32" in wanted.type else np.int64 for wanted in self._session.get_inputs()
        }
        outputs = {output.name: output.type for output in self._session.get_outputs()}
        self._output = "logits" if "logits" in outputs else next(iter(outputs))
        self._is_float16 = "float16" in outputs[self._output]
        self._rivals = self._shapes()
        self._shape = self._rivals[0]
        self._check_model()

    @cached_property
    def card(self) -> ScorerCard:
        head = {} if self._tokens.head is None else self._tokens.head.to_config()
        return ScorerCard(
            name=self._name,
            backend="onnx",
            weights=weights_hash(_files_with_weights(self._file), settings=head),
            dtype="int8" if self._is_int8 else "float16" if self._is_float16 else "float32",
            max_tokens=self._tokens.max_tokens,
            max_item_tokens=self._tokens.max_item_tokens,
            source=str(self._file.resolve()),
            settings=settings_hash(self._folder, files=["tokenizer.json"]),
            arithmetic=int8_products() if self._is_int8 else None,
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return check_scores(self._scores(self._tokens.pairs(pairs)), pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items)."""
        scores = self._scores(self._tokens.grid(queries, items))
        return check_grid(scores.reshape(len(queries), len(items)), queries, items)

    def reopening(self) -> Reopening:
        """What opens this scorer elsewhere: on as many threads as were asked for, else on one."""
        threads = self._threads if self._threads_were_given else 1
        limits = {"max_tokens": self._tokens.max_tokens, "max_item_tokens": self._tokens.max_item_tokens}
        opener = partial(OnnxCrossEncoder, self._file.resolve(), **limits, threads=threads, name=self._name)
        return Reopening(opener, cpus=threads, share=threads / self._threads)

    def close(self) -> None:
        """Free the model; the scorer cannot score any more, and calls under way in other threads end with an error."""
        with self._lock:
            self._session = self._together = None
        self._workers.shutdown()

    def __enter__(self) -> OnnxCrossEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _scores(self, pairs: TokenPairs) -> FloatArray:
        scores = np.empty(len(pairs), np.float32)
        lengths = pairs.lengths
        longest_first = np.argsort(-lengths, kind="stable")
        with self._under_way() as is_only_call:
            if is_only_call and len(self._rivals) > 1:
                longest_first = self._race(pairs, lengths, longest_first, scores)
            together = self._together
            runs_of = _runs if together is None else _runs_with_short_pairs_together
            runs = runs_of(lengths, longest_first, self._shape)
            self._fill(scores, pairs, runs, workers=self._shape.workers, together=together)
            if self._alone:
                self._count_short(lengths)
        return scores

    def _race(self, pairs: TokenPairs, lengths: IntArray, longest_first: IntArray, scores: FloatArray) -> IntArray:
        """Score the first pairs with every rival in turn, keep the fastest shape; the positions that remain."""
        per_heat = _PAIRS_PER_WORKER_AND_TRIAL * self._threads
        if len(longest_first) < _TRIALS * len(self._rivals) * per_heat:
            return longest_first
        may_share = not self._alone and self._sharing_changes_nothing()
        rivals = [shape for shape in self._rivals if shape.tokens == 1 or may_share]
        n_heats = _TRIALS * len(rivals)
        # Neighbours in length, so that no rival gets the longer pairs.
        entrants = longest_first[: n_heats * per_heat]
        seconds_per_token: dict[_Shape, list[float]] = {shape: [] for shape in rivals}
        for heat, shape in enumerate(islice(cycle(rivals), n_heats)):
            positions = entrants[heat * per_heat : (heat + 1) * per_heat]
            started = time.perf_counter()
            self._fill(scores, pairs, _runs(lengths, positions, shape), workers=shape.workers)
            seconds = time.perf_counter() - started
            seconds_per_token[shape].append(seconds / int(lengths[positions].sum()))
        if self._calls > 1:
            # Another call came in between; the next large one decides.
            return longest_first[len(entrants) :]
        usual = rivals[0]
        best = min(rivals, key=lambda shape: min(seconds_per_token[shape]))
        if min(seconds_per_token[usual]) < _LEAD_OF_A_RIVAL * min(seconds_per_token[best]):
            best = usual
        _log.debug("%s: chose %s from %s", self._name, best, seconds_per_token)
        self._shape, self._rivals = best, [best]
        return longest_first[len(entrants) :]

    def _shapes(self) -> list[_Shape]:
        """The usual shape first."""
        shapes = [_Shape(self._threads, 1)]
        if not self._alone:
            shapes.append(_Shape(self._threads, _TOKENS_PER_RUN))
        # Two logical cores may share one that computes; below four there is nothing to gain.
        if not self._threads_were_given and self._threads >= 4:
            shapes += [_Shape(self._threads // 2, shape.tokens) for shape in shapes]
        return shapes

    def _sharing_changes_nothing(self) -> bool:
        """Whether pairs of one length score together as they do alone, to the last bit."""
        texts = [" ".join("ab"[number >> place & 1] for place in range(24)) for number in range(0, 6000, 500)]
        return self._scores_as_alone(self._session, [(Query(text, text[0]), Item(text, text)) for text in texts])

    def _count_short(self, lengths: IntArray) -> None:
        """After enough short pairs in company, make the graph in which they share runs; until then they run alone."""
        n_short = int(np.count_nonzero(lengths <= _SHORT_PAIR))
        if n_short < _LEAST_SHORT_PAIRS_PER_RUN * self._shape.workers:
            return
        with self._lock:
            self._n_short += n_short
            if self._maker is None and self._n_short >= _SHORT_PAIRS_BEFORE_A_SECOND_GRAPH:
                self._maker = threading.Thread(target=self._make_second_graph, name="adacur-onnx-second-graph")
                self._maker.start()

    def _make_second_graph(self) -> None:
        """Have a session in which each pair is quantised for itself, if it gives the very same scores."""
        try:
            with TemporaryDirectory(prefix="adacur-") as folder:
                graph = Path(folder) / "model.onnx"
                if not quantise_pair_by_pair(self._file, graph):
                    return
                session = _session(require("onnxruntime", extra="onnx"), graph, without=[MISLED_FUSION])
            if self._scores_as_alone(session, _pairs_of_many_lengths()):
                with self._lock:
                    self._together = session if self._session is not None else None
        # Whatever a foreign graph makes onnx or onnxruntime raise: its pairs can run alone.
        except Exception as error:
            _log.debug("%s: no graph for several pairs: %s", self._name, error)

    def _scores_as_alone(self, session: Any, made_up: Sequence[Pair]) -> bool:
        """Whether these pairs score together as they do alone, to the last bit."""
        pairs = self._tokens.pairs(made_up)

        def logits(session: Any, positions: Sequence[int]) -> FloatArray:
            return self._logits(pairs.padded(positions, pad_id=self._tokens.pad_id), session).reshape(len(positions))

        alone = np.concatenate([logits(self._session, [at]) for at in range(len(pairs))])
        return all(np.array_equal(logits(session, range(size)), alone[:size]) for size in (2, 3, 8, len(pairs)))

    def _fill(
        self, scores: FloatArray, pairs: TokenPairs, runs: list[IntArray], *, workers: int, together: Any = None
    ) -> None:
        """Run the runs, those of several pairs in `together` where it is given."""
        waiting = deque(runs)

        def work() -> None:
            try:
                while waiting:
                    try:
                        positions = waiting.popleft()
                    except IndexError:
                        return
                    session = self._session
                    # Not after close(), which ends calls under way.
                    if session is not None and together is not None and len(positions) > 1:
                        session = together
                    logits = self._logits(pairs.padded(positions, pad_id=self._tokens.pad_id), session)
                    scores[positions] = logits.reshape(len(positions))
            finally:
                # After an error the other workers would otherwise go on to the end.
                waiting.clear()

        try:
            for share in [self._submitted(work) for _ in range(min(workers, len(runs)))]:
                share.result()
        finally:
            # The same after Ctrl-C, which only the caller hears.
            waiting.clear()

    def _submitted(self, work: Callable[[], None]) -> Future[None]:
        with self._lock:
            if self._process != os.getpid():
                # A forked child inherits the pool without its threads, and would wait for them for ever.
                self._workers, self._process = ThreadPoolExecutor(self._threads, "adacur-onnx"), os.getpid()
                if self._together is None:
                    self._maker = None
        try:
            return self._workers.submit(work)
        except RuntimeError as error:
            raise self._closed() from error

    @contextmanager
    def _under_way(self) -> Iterator[bool]:
        """Whether this is the only call: another beside it would spoil the times."""
        if self._session is None:
            raise self._closed()
        with self._lock:
            self._calls += 1
            is_only_call = self._calls == 1
        try:
            yield is_only_call
        finally:
            with self._lock:
                self._calls -= 1

    def _closed(self) -> ScorerFailed:
        return ScorerFailed(f"The scorer {self._name!r} has been closed. Open it again to score.")

    def _logits(self, inputs: dict[str, TokenArray], session: Any) -> FloatArray:
        # The session is held here, so that close() in another thread frees the model only after this run.
        if session is None:
            raise self._closed()
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
        logits = self._logits(probe.padded([0], pad_id=self._tokens.pad_id), self._session)
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


def _files_with_weights(file: Path) -> set[Path]:
    """The graph, and the files beside it that large models keep their weights in, whatever these are called."""
    files = {*file.parent.glob(f"{file.name}*")}
    # The key under which a graph names such a file.
    if _mentions(file, [b"location"]):
        files |= {path for path in file.parent.iterdir() if path.is_file() and _mentions(file, [path.name.encode()])}
    return files


def _mentions(file: Path, operators: Sequence[bytes]) -> bool:
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(operator) >= 0 for operator in operators)


def _runs(lengths: IntArray, positions: IntArray, shape: _Shape) -> list[IntArray]:
    """Positions of one length per run, in the order given; enough runs that no worker waits for the last."""
    if not len(positions):
        return []
    most_pairs = -(-len(positions) // (4 * shape.workers))
    runs: list[IntArray] = []
    for same in np.split(positions, np.flatnonzero(np.diff(lengths[positions])) + 1):
        at_once = max(1, min(most_pairs, shape.tokens // int(lengths[same[0]])))
        runs += [same[start : start + at_once] for start in range(0, len(same), at_once)]
    return runs


def _runs_with_short_pairs_together(lengths: IntArray, longest_first: IntArray, shape: _Shape) -> list[IntArray]:
    """Long pairs as usual, short ones in as few runs as they fit, the same number for every worker."""
    n_long = int(np.count_nonzero(lengths[longest_first] > _SHORT_PAIR))
    long, short = longest_first[:n_long], longest_first[n_long:]
    runs_per_worker = max(1, -(-len(short) // (shape.workers * _MOST_SHORT_PAIRS_PER_RUN)))
    at_once = -(-len(short) // (shape.workers * runs_per_worker))
    if at_once < _LEAST_SHORT_PAIRS_PER_RUN:
        return _runs(lengths, longest_first, shape)
    return [*_runs(lengths, long, shape), *_padded_runs(lengths, short, at_once)]


def _padded_runs(lengths: IntArray, longest_first: IntArray, at_once: int) -> list[IntArray]:
    """Neighbours in length, padded to the longest of their run."""
    runs: list[list[int]] = []
    for position in longest_first.tolist():
        longest = lengths[runs[-1][0]] if runs else 0
        if runs and len(runs[-1]) < at_once and lengths[position] >= (1 - _MOST_PADDING) * longest:
            runs[-1].append(position)
        else:
            runs.append([position])
    return [np.array(run, np.intp) for run in runs]


def _pairs_of_many_lengths() -> list[Pair]:
    """Made-up pairs whose queries differ in length too: items may all be cut to one."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    n_words = [(3, 1), (1, 3), (2, 4), (4, 3), (3, 6), (6, 4), (5, 7), (8, 5), (9, 8), (12, 7), (13, 9), (17, 8)]
    texts = [
        tuple(" ".join(letters[(7 * at + step * step) % 26] for step in range(n)) for n in words)
        for at, words in enumerate(n_words)
    ]
    return [(Query(query, query), Item(item, item)) for query, item in texts]


def _session(onnxruntime: Any, file: Path, *, without: Sequence[str] = ()) -> Any:
    options = onnxruntime.SessionOptions()
    # Runs side by side use the cores better than threads inside a run, and no sum is split by the core count.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry(PRECISE, "1")
    return onnxruntime.InferenceSession(
        str(file),
        options,
        providers=["CPUExecutionProvider"],
        # The fused kernel is not vectorised: without it int8 models are a fifth faster.
        disabled_optimizers=["SkipLayerNormFusion", *without],
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
