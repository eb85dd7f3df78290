"""Cross-encoders with torch and transformers, on a GPU or the CPU."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import FetchError, InputError, ScorerFailed
from adacur.core.extras import require
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Pair, Query
from adacur.core.scores import check_grid, check_scores
from adacur.scorers.pair_tokens import PairTokenizer, TokenArray, TokenTexts, chosen_max_tokens, length_batches, padded
from adacur.scorers.weights import weights_hash

__all__ = ["TorchCrossEncoder"]

_DTYPES = ("float32", "bfloat16", "float16")
_CPU_BATCH_TOKENS = 4096
_GPU_BATCH_TOKENS = 65_536
_LARGE_GPU_BATCH_TOKENS = 262_144
_LARGE_GPU_BYTES = 32 << 30


class TorchCrossEncoder:
    """A transformers sequence classifier with one label, from a folder or a hub name; raw float32 logits.

    The body runs in `dtype` (by default float16 on CUDA, float32 on the CPU) and the head in float32, since
    half-precision logits tie. `batch_tokens` bounds the padded tokens of one forward pass.
    """

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
    ) -> None:
        self._torch = require("torch", extra="torch")
        transformers = require("transformers", extra="torch")
        self._device = _device(self._torch, device)
        self._dtype = dtype or ("float16" if self._device.type == "cuda" else "float32")
        if self._dtype not in _DTYPES:
            raise InputError(f"dtype is one of {', '.join(_DTYPES)}; got {dtype!r}.")
        if batch_tokens is not None and batch_tokens < 1:
            raise InputError(f"batch_tokens must be at least 1; got {batch_tokens}.")
        self._batch_tokens = batch_tokens or _default_batch_tokens(self._torch, self._device)
        is_local = Path(name_or_folder).is_dir()
        self._folder = Path(name_or_folder) if is_local else _fetched(str(name_or_folder))
        self._name = name or (self._folder.resolve().name if is_local else str(name_or_folder))
        self._source = str(self._folder.resolve()) if is_local else str(name_or_folder)

        tokenizer, model = _load(transformers, self._folder)
        config = model.config.to_dict()
        self._tokens = PairTokenizer(
            tokenizer.backend_tokenizer,
            max_tokens=chosen_max_tokens(
                max_tokens, config=config, tokenizer_config={"model_max_length": tokenizer.model_max_length}
            ),
            max_item_tokens=max_item_tokens,
        )
        pad_id = config.get("pad_token_id")
        self._pad_id: int = self._tokens.pad_id if pad_id is None else pad_id
        self._takes_types = (
            "token_type_ids" in tokenizer.model_input_names
            and "token_type_ids" in inspect.signature(model.forward).parameters
        )
        self._model: Any = _with_float32_head(model, getattr(self._torch, self._dtype)).to(self._device).eval()
        # One forward at a time: two at once would need twice the memory and be no faster.
        self._lock = threading.Lock()

    @cached_property
    def card(self) -> ScorerCard:
        files = list(self._folder.glob("*.safetensors")) or list(self._folder.glob("pytorch_model*.bin"))
        return ScorerCard(
            name=self._name,
            backend="torch",
            weights=weights_hash(files),
            dtype=self._dtype,
            max_tokens=self._tokens.max_tokens,
            max_item_tokens=self._tokens.max_item_tokens,
            source=self._source,
        )

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        tokens = self._tokens.pairs(pairs)
        scores = np.empty(len(pairs), np.float32)
        with self._running():
            batches = list(length_batches(tokens.lengths, tokens=self._batch_tokens))
            inputs = (self._on_device(tokens.padded(batch, pad_id=self._pad_id)) for batch in batches)
            answers = [self._logits(batch) for batch in inputs]
            # Copied last, so that the device never waits for the next batch to be padded.
            for batch, answer in zip(batches, answers, strict=True):
                scores[batch] = answer.cpu().numpy()
        return check_scores(scores, pairs)

    def score_grid(self, queries: Sequence[Query], items: Sequence[Item]) -> FloatArray:
        """Scores of shape (queries, items); ids are joined on the device, one pass per item chunk and query length."""
        scores = np.empty((len(queries), len(items)), np.float32)
        if scores.size:
            texts = self._tokens.texts(queries, items)
            with self._running():
                self._fill_grid(scores, texts)
        return check_grid(scores, queries, items)

    def close(self) -> None:
        """Free the model; the scorer cannot score any more."""
        with self._lock:
            self._model = None
            if self._device.type == "cuda":
                self._torch.cuda.empty_cache()

    def __enter__(self) -> TorchCrossEncoder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _fill_grid(self, scores: FloatArray, texts: TokenTexts) -> None:
        # Queries of one length share passes, and leave an item the same room.
        by_length = np.argsort(texts.head_lengths, kind="stable")
        runs = _runs(texts.head_lengths[by_length])
        heads = [
            self._on_device(padded([texts.heads[at] for at in by_length[start:end]], pad_id=self._pad_id))
            for start, end in runs
        ]
        most_room = int(texts.rooms.max())
        kept = np.minimum(texts.item_lengths, most_room)
        longest_pairs = kept + len(texts.template.suffix) + int(texts.head_lengths.max())
        for chunk in length_batches(longest_pairs, tokens=self._batch_tokens):
            rows = [texts.template.tail(texts.items[at][:most_room]) for at in chunk]
            tails = self._on_device(padded(rows, pad_id=self._pad_id))
            answers = self._torch.empty((len(by_length), len(chunk)), dtype=self._torch.float32, device=self._device)
            for (start, end), group in zip(runs, heads, strict=True):
                room = int(texts.rooms[by_length[start]])
                fitting = tails if kept[chunk[0]] <= room else self._cut(tails, room)
                self._fill_group(answers[start:end], group, fitting)
            scores[np.ix_(by_length, chunk)] = answers.cpu().numpy()

    def _fill_group(self, answers: Any, heads: dict[str, Any], tails: dict[str, Any]) -> None:
        n_heads, n_tails = answers.shape
        tokens = n_tails * (heads["input_ids"].shape[1] + tails["input_ids"].shape[1])
        at_once = max(1, self._batch_tokens // tokens)
        for start in range(0, n_heads, at_once):
            end = min(start + at_once, n_heads)
            joined = {
                name: self._torch.cat(
                    (heads[name][start:end].repeat_interleave(n_tails, 0), tails[name].repeat(end - start, 1)), 1
                )
                for name in tails
            }
            answers[start:end] = self._logits(joined).view(end - start, n_tails)

    def _cut(self, tails: dict[str, Any], room: int) -> dict[str, Any]:
        """Tails whose items keep at most `room` tokens, with the suffix right behind."""
        template = self._tokens.template
        width = room + len(template.suffix)
        mask = tails["attention_mask"]
        too_long = mask.sum(1, keepdim=True) > width
        cut = {"attention_mask": mask[:, :width]}
        for name, suffix in (("input_ids", template.suffix), ("token_type_ids", template.suffix_types)):
            ends = self._torch.where(
                too_long, self._torch.as_tensor(suffix, device=self._device), tails[name][:, room:width]
            )
            cut[name] = self._torch.cat((tails[name][:, :room], ends), 1)
        return cut

    def _on_device(self, inputs: dict[str, TokenArray]) -> dict[str, Any]:
        return {name: self._torch.from_numpy(array).to(self._device) for name, array in inputs.items()}

    def _logits(self, inputs: dict[str, Any]) -> Any:
        if not self._takes_types:
            inputs = {name: tensor for name, tensor in inputs.items() if name != "token_type_ids"}
        return self._model(**inputs).logits[:, 0].float()

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._lock, self._torch.inference_mode():
            if self._model is None:
                raise ScorerFailed(f"The scorer {self._name!r} has been closed. Open it again to score.")
            try:
                yield
            except self._torch.cuda.OutOfMemoryError as error:
                raise ScorerFailed(
                    f"The device ran out of memory in a pass of up to {self._batch_tokens} tokens. "
                    f"Lower batch_tokens. ({error})"
                ) from error


def _runs(sorted_lengths: IntArray) -> list[tuple[int, int]]:
    starts = [0, *(np.flatnonzero(np.diff(sorted_lengths)) + 1).tolist(), len(sorted_lengths)]
    return list(pairwise(starts))


def _device(torch: Any, asked: str | None) -> Any:
    if asked is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(asked)
    except RuntimeError as error:
        raise InputError(f"device is a torch device such as 'cpu' or 'cuda:0'; got {asked!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device {asked!r} was asked for, but torch sees no CUDA device here. Use device='cpu'.")
    return device


def _default_batch_tokens(torch: Any, device: Any) -> int:
    if device.type != "cuda":
        return _CPU_BATCH_TOKENS
    is_large = torch.cuda.get_device_properties(device).total_memory >= _LARGE_GPU_BYTES
    return _LARGE_GPU_BATCH_TOKENS if is_large else _GPU_BATCH_TOKENS


def _fetched(name: str) -> Path:
    """The folder of a hub model, fetched unless the hub's cache has it."""
    hub = require("huggingface_hub", extra="torch")
    files = ["*.json", "*.txt", "*.model", "*.safetensors"]
    try:
        folder = Path(hub.snapshot_download(name, allow_patterns=files))
        if not any(folder.glob("*.safetensors")):
            folder = Path(hub.snapshot_download(name, allow_patterns=[*files, "pytorch_model*.bin"]))
    except (OSError, ValueError) as error:
        raise FetchError(f"The model {name!r} is no folder here and could not be fetched: {error}") from error
    return folder


def _load(transformers: Any, folder: Path) -> tuple[Any, Any]:
    show_progress = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        labels = transformers.AutoConfig.from_pretrained(folder).num_labels
        if labels == 1:
            model, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, output_loading_info=True
            )
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a transformers cross-encoder: {error}") from error
    finally:
        if show_progress:
            transformers.utils.logging.enable_progress_bar()
    if labels != 1:
        raise InputError(
            f"A cross-encoder gives one logit per pair; {folder} has {labels} labels. Classifiers with several labels "
            "and dual encoders cannot be used as scorers."
        )
    if loading["missing_keys"]:
        raise InputError(
            f"The checkpoint in {folder} lacks the weights {sorted(loading['missing_keys'])}, which would be random. "
            "It is not a cross-encoder."
        )
    if not hasattr(tokenizer, "backend_tokenizer"):
        raise InputError(f"A scorer needs a fast tokenizer (tokenizer.json); {folder} has {type(tokenizer).__name__}.")
    return tokenizer, model


def _with_float32_head(model: Any, dtype: Any) -> Any:
    """The model with its body in `dtype` and all behind it in float32."""
    # The checkpoint may hold half precision already; the head must not pass through `dtype` on its way.
    model.float()
    body = model.base_model
    head = [child for child in model.children() if child is not body]
    pooler = getattr(body, "pooler", None)
    if pooler is not None:
        head.append(pooler)
    for child in body.children():
        if child is not pooler:
            child.to(dtype)
    for module in head:
        module.register_forward_pre_hook(_in_float32, with_kwargs=True)
    return model


def _in_float32(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cast(value: Any) -> Any:
        return value.float() if getattr(value, "is_floating_point", bool)() else value

    return tuple(cast(value) for value in args), {name: cast(value) for name, value in kwargs.items()}
