"""Cross-encoders and language models with torch and transformers, on a GPU or the CPU."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.budget import at_least
from adacur.errors import InputError, ScorerFailed
from adacur.protocols import Items, Reopening, ScorerCard
from adacur.records import Item, Pair, Query
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder, settings_hash, weight_files, weights_hash
from adacur.scorers.cross_encoders.forwards import forward_of
from adacur.scorers.cross_encoders.opened_model import AnyPrompt, open_model
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs
from adacur.scorers.cross_encoders.readout import Readout
from adacur.scorers.wrapping import Closing, closed

_log = logging.getLogger(__name__)
_DTYPES = ("float32", "bfloat16", "float16")
_CPU_BATCH_TOKENS = 4096
_GPU_BATCH_TOKENS = 65_536
_LARGE_GPU_BATCH_TOKENS = 262_144
_LARGE_GPU_BYTES = 32 << 30
# A grid is cut into parts of this many pairs, to bound the memory that their bookkeeping takes.
_PAIRS_AT_ONCE = 1 << 22


class TorchCrossEncoder(Closing):
    """A transformers model as a scorer, from a folder or by a hub name; raw float32 logits.

    Its files say what it is: a classifier of plain pairs, an [EMB] cross-encoder, or a language model that reads a
    prompt: a causal one, or a classifier with a chat template.

    - `prompt`: in place of the model's own, a text with {query} and {item}, or messages for its chat template
    - `instruction`: the task, where the prompt has a place for it; another instruction is another scorer
    - `readout`: in place of the model's own, such as ("yes", "no"), "token('Yes')" or "labels(1, 0)": see `Readout`

    The body runs in `dtype` (by default float16 on CUDA, float32 on the CPU) and the head in float32, since
    half-precision logits tie. `batch_tokens` bounds the tokens of one forward pass; a device that runs out of memory
    gets half as many from then on, and a warning is logged. `device` is by default the first GPU, if there is one;
    a build with executor=Ray() scores on all of them. BERT, RoBERTa, XLM-R, CamemBERT run without padding; on CUDA in
    half precision, their calls of up to 512 pairs run as CUDA graphs, recorded when a shape is met first. A language
    model runs by default in the half precision that it was saved in, and what prompts share is computed once.
    """

    can_batch_callers = True

    def __init__(
        self,
        name_or_folder: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        max_tokens: int | None = None,
        max_item_tokens: int | None = None,
        batch_tokens: int | None = None,
        name: str | None = None,
        prompt: AnyPrompt | None = None,
        instruction: str | None = None,
        readout: Readout | str | Sequence[str] | None = None,
    ) -> None:
        self._torch = require("torch", extra="torch")
        require("transformers", extra="torch")
        self._device = self._torch.device(_device(self._torch, device))
        if dtype not in (None, *_DTYPES):
            raise InputError(f"dtype is one of {', '.join(_DTYPES)}; got {dtype!r}.")
        at_least(1, batch_tokens=batch_tokens)
        self._most_batch_tokens = batch_tokens or _default_batch_tokens(self._torch, self._device)
        self._batch_tokens = self._most_batch_tokens
        is_local = Path(name_or_folder).is_dir()
        self._folder = checkpoint_folder(name_or_folder)
        self._name = name or (self._folder.resolve().name if is_local else str(name_or_folder))
        self._source = str(self._folder.resolve()) if is_local else str(name_or_folder)
        opened = open_model(self._folder, prompt=prompt, instruction=instruction, readout=readout)
        self.prompt, self.readout = opened.prompt, opened.readout
        self._dtype = dtype or (opened.half if self._device.type == "cuda" else "float32")
        self._options: dict[str, Any] = {
            "dtype": self._dtype,
            "max_tokens": max_tokens,
            "max_item_tokens": max_item_tokens,
            "batch_tokens": batch_tokens,
            "name": self._name,
            "prompt": prompt,
            "instruction": instruction,
            "readout": readout,
        }
        self._limit = opened.token_limit(max_tokens, self._folder)
        self._tokens = PairTokenizer(
            opened.tokenizer.backend_tokenizer,
            max_tokens=self._limit.tokens,
            max_item_tokens=max_item_tokens,
            prompt=opened.prompt,
        )
        # Counted without scoring: tokens per pair, and which items are cut with this query.
        self.tokens_of, self.cut = self._tokens.lengths, self._tokens.cut
        pad_id = opened.model.config.pad_token_id
        self._pad_id: int = self._tokens.pad_id if pad_id is None else pad_id
        self._forward: Any = forward_of(
            self._torch,
            opened,
            device=self._device,
            dtype=getattr(self._torch, self._dtype),
            pad_id=self._pad_id,
        )
        recorded = getattr(self._forward, "recorded", None)
        self._recorded: Any = None if recorded is None else recorded(device=self._device, pad_id=self._pad_id)
        # One forward at a time: two at once would need twice the memory and be no faster.
        self._lock = threading.Lock()

    @cached_property
    def card(self) -> ScorerCard:
        files = weight_files(self._folder)
        return ScorerCard(
            name=self._name,
            backend="torch",
            weights=weights_hash(files),
            dtype=self._dtype,
            max_tokens=self._limit.tokens,
            limited_by=self._limit.origin,
            max_item_tokens=self._tokens.max_item_tokens,
            source=self._source,
            settings=settings_hash(self._folder),
            prompt=None if self.prompt is None else self.prompt.text,
            readout=None if self.readout == Readout.label() else str(self.readout),
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return self._scores(self._tokens.pairs(pairs), recorded=True)

    def score_at(self, items: Items, queries: Sequence[Query], query_of: IntArray, positions: IntArray) -> FloatArray:
        """Scores of queries[query_of[i]] with the item at positions[i]; an item is read and tokenised once.

        The scorer keeps the tokens that were used last, up to 256 MB.
        """
        # Before tokens are kept that nobody would free.
        self._check_open()
        distinct, item_of = np.unique(positions, return_inverse=True)
        texts = self._tokens.texts_of(queries, self._tokens.items_at(items, distinct))
        return self._scores(TokenPairs(texts, query_of, item_of), recorded=True)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items); each item is tokenised and sent to the device once."""
        texts = self._tokens.texts(queries, items)
        scores = np.empty((len(queries), len(items)), np.float32)
        at_once = max(1, _PAIRS_AT_ONCE // max(1, len(queries)))
        for start in range(0, len(items), at_once):
            part = texts.with_items(start, start + at_once)
            scores[:, start : start + at_once] = self._scores(part.grid()).reshape(len(queries), len(part.items))
        return scores

    def reopening(self) -> Reopening:
        """What opens this scorer elsewhere: on one GPU if it is on a GPU here, else on one CPU."""
        on_gpu = self._device.type == "cuda"
        return Reopening(
            partial(TorchCrossEncoder, self._source, device=self._device.type, **self._options),
            gpus=int(on_gpu),
            share=1.0 if on_gpu else 1 / self._torch.get_num_threads(),
        )

    def close(self) -> None:
        """Free the model; the scorer cannot score any more."""
        with self._lock:
            self._forward = self._recorded = None
            self._tokens.forget()
            # A model may refer to itself.
            gc.collect()
            if self._device.type == "cuda":
                self._torch.cuda.empty_cache()

    def _scores(self, pairs: TokenPairs, *, recorded: bool = False) -> FloatArray:
        """One score per pair; a small call may take a `recorded` forward pass."""
        if not len(pairs):
            return np.empty(0, np.float32)
        with self._torch.inference_mode():
            if recorded and self._recorded is not None:
                with self._lock:
                    self._check_open()
                    scores = self._recorded.scores(pairs, most_tokens=self._batch_tokens)
                if scores is not None:
                    return np.asarray(scores)
            self._check_open()
            # Before the lock: while the device computes for one call, the host prepares another.
            return self._batch_by_batch(self._forward.batches(pairs))

    def _batch_by_batch(self, batches: Any) -> FloatArray:
        with self._lock:
            self._check_open()
            scores = self._torch.empty(len(batches), dtype=self._torch.float32, device=self._device)
            start = 0
            while start < len(batches):
                end = self._forward.batch_end(batches, start, tokens=self._batch_tokens)
                n_refused = 0
                try:
                    scores[batches.order[start:end]] = self._forward.logits(batches, start, end)
                    start = end
                except self._torch.OutOfMemoryError:
                    n_refused = end - start
                if n_refused:
                    # Only outside the except block is the memory of the failed attempt free.
                    self._take_less(n_refused)
            answers: FloatArray = scores.cpu().numpy()
            return answers

    def _check_open(self) -> None:
        if self._forward is None:
            raise closed(self._name)

    def _take_less(self, n_pairs: int) -> None:
        if self._recorded is not None and self._recorded.drop():
            # Their memory may be all that was missing.
            return
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()
        if n_pairs == 1:
            # No batch was small enough: what filled the device is not this scorer, and may be gone by the next call.
            self._batch_tokens = self._most_batch_tokens
            raise ScorerFailed(
                f"The device {str(self._device)!r} has too little memory left for one pair. Free some, lower "
                "max_tokens or max_item_tokens, or use device='cpu'."
            )
        self._batch_tokens = max(1, self._batch_tokens // 2)
        _log.warning(
            "The device %s ran out of memory; batches of %s go on with at most %d tokens.",
            self._device,
            self._name,
            self._batch_tokens,
        )


def _device(torch: Any, device: str | None) -> str:
    """The device to run on; by default the GPU if there is one."""
    there = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    name = device or (there[0] if there else "cpu")
    try:
        named = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device must be a torch device such as 'cpu' or 'cuda:0'; got {name!r}.") from error
    if named.type == "cuda" and (named.index or 0) >= len(there):
        seen = ", ".join(there) or "no CUDA device"
        raise InputError(f"There is no device {name!r}; torch sees {seen} here. Use that, or device='cpu'.")
    return name


def _default_batch_tokens(torch: Any, device: Any) -> int:
    if device.type != "cuda":
        return _CPU_BATCH_TOKENS
    is_large = torch.cuda.get_device_properties(device).total_memory >= _LARGE_GPU_BYTES
    return _LARGE_GPU_BATCH_TOKENS if is_large else _GPU_BATCH_TOKENS
