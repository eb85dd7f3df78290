"""Forward passes: an encoder without padding, any model with padding, and a language model over prompts."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from adacur.scorers.cross_encoders.decoder import PromptBatches, decoder_body
from adacur.scorers.cross_encoders.opened_model import OpenedModel
from adacur.scorers.cross_encoders.packed_encoder import PackedEncoder, PackedTokens
from adacur.scorers.cross_encoders.pair_batches import PairBatches
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs

_log = logging.getLogger(__name__)
_Batches = Callable[[TokenPairs], Any]
# Compiling takes seconds; a model that has had this much to do will have more.
_TOKENS_BEFORE_COMPILING = 20_000_000


class PackedForward:
    """The model as an encoder over packed tokens, and its head."""

    def __init__(
        self, torch: Any, model: Any, batches: _Batches, *, head: Callable[[Any], Any], takes_types: bool
    ) -> None:
        self._encoder = PackedEncoder(torch, model.base_model, takes_types=takes_types)
        self._head, self.batches = head, batches

    def batch_end(self, batches: PairBatches, start: int, *, tokens: int) -> int:
        return batches.packed_end(start, tokens=tokens)

    def logits(self, batches: PairBatches, start: int, end: int) -> Any:
        return self.of_packed(batches.packed(start, end))

    @property
    def can_be_recorded(self) -> bool:
        """Whether `of_packed` can be a CUDA graph."""
        return self._encoder.can_be_recorded

    def of_packed(self, tokens: PackedTokens) -> Any:
        """Logits of packed pairs."""
        return self._head(self._encoder.vectors(tokens).float())


class PaddedForward:
    """Any model as it is, over padded batches; compiled in long runs, if it may be."""

    def __init__(
        self,
        torch: Any,
        model: Any,
        batches: _Batches,
        *,
        read: Callable[[Any], Any],
        takes_types: bool,
        may_compile: bool,
    ) -> None:
        self._torch, self._model, self._read, self.batches = torch, model, read, batches
        self._takes_types = takes_types and "token_type_ids" in inspect.signature(model.forward).parameters
        self._may_compile, self._n_tokens = may_compile, 0

    def batch_end(self, batches: PairBatches, start: int, *, tokens: int) -> int:
        return batches.padded_end(start, tokens=tokens)

    def logits(self, batches: PairBatches, start: int, end: int) -> Any:
        inputs = batches.padded(start, end)
        if not self._takes_types:
            del inputs["token_type_ids"]
        self._n_tokens += batches.tokens(start, end)
        if self._may_compile and self._n_tokens > _TOKENS_BEFORE_COMPILING:
            self._model, self._may_compile = compiled_or_plain(self._torch, self._model, example=inputs), False
        return self._read(self._model(**inputs).logits.float())


class PromptedForward:
    """A language model over prompts: its body, and the rows of its head that are read."""

    def __init__(self, torch: Any, body: Any, head: Any, *, device: Any, dtype: Any) -> None:
        self._body, self._head = decoder_body(body, device=device, dtype=dtype), head.to(device)
        self.batches = partial(PromptBatches, torch, device=device)

    def batch_end(self, batches: PromptBatches, start: int, *, tokens: int) -> int:
        return batches.end(start, tokens=tokens, padded=self._body.pads)

    def logits(self, batches: PromptBatches, start: int, end: int) -> Any:
        return self._head(batches.hidden(self._body, start, end))


def compiled_or_plain(torch: Any, model: Any, *, example: dict[str, Any]) -> Any:
    """A model compiled, or as it is where that fails: most often for want of a C compiler."""
    try:
        with warnings.catch_warnings():
            # The compiler's own imports use what torch has deprecated.
            warnings.simplefilter("ignore", DeprecationWarning)
            compiled = torch.compile(model, dynamic=True)
            compiled(**example)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _log.warning("torch.compile failed, so scoring goes on without it, slower: %s", error)
        return model
    return compiled


def forward_of(
    torch: Any, opened: OpenedModel, *, device: Any, dtype: Any, pad_id: int, may_compile: bool
) -> PackedForward | PaddedForward | PromptedForward:
    """The fastest forward pass that can run a model, with its body in `dtype` and all behind it in float32."""
    model = opened.model
    if opened.head is not None:
        body = in_dtype(model.base_model, dtype).to(device).eval()
        return PromptedForward(torch, body, opened.head, device=device, dtype=dtype)
    model = _with_float32_head(model, dtype).to(device).eval()
    # The configuration of a body counts two labels by default.
    n_labels = model.config.num_labels if opened.shape == "pairs" and opened.tags is None else 1
    rows = opened.readout.rows(opened.tokenizer.backend_tokenizer, n_rows=n_labels)
    weights = torch.tensor(opened.readout.weights, device=device)
    takes_types = "token_type_ids" in opened.tokenizer.model_input_names
    batches = partial(PairBatches, torch, device=device, pad_id=pad_id)

    def read(logits: Any) -> Any:
        return logits[:, rows] @ weights

    packed = partial(PackedForward, torch, model, batches, takes_types=takes_types)
    if PackedEncoder.can_run(model.base_model):
        if opened.tags is not None:
            from adacur.scorers.cross_encoders.emb_module import tag_scores

            return packed(head=tag_scores)
        if opened.shape == "pooled" and model.pooling == "cls":
            return packed(head=lambda vectors: read(model.layers(vectors[:, 0])))
        if hasattr(model, "classifier"):
            return packed(head=lambda vectors: read(_classified(model, vectors)))
    return PaddedForward(torch, model, batches, read=read, takes_types=takes_types, may_compile=may_compile)


def _classified(model: Any, vectors: Any) -> Any:
    """Logits of a classifier by the vectors of first tokens, (pairs, 1, hidden size)."""
    pooler = getattr(model.base_model, "pooler", None)
    # Both heads read the first of the tokens they are given.
    return model.classifier(vectors if pooler is None else pooler(vectors))


def _with_float32_head(model: Any, dtype: Any) -> Any:
    """The model with its body in `dtype` and all behind it in float32."""
    # The checkpoint may hold half precision already; the head must not pass through `dtype` on its way.
    model.float()
    body = model.base_model
    head = [child for child in model.children() if child is not body]
    pooler = getattr(body, "pooler", None)
    if pooler is not None:
        head.append(pooler)
    in_dtype(body, dtype, leaving=pooler)
    for module in head:
        module.register_forward_pre_hook(_in_float32, with_kwargs=True)
    return model


def in_dtype(body: Any, dtype: Any, *, leaving: Any = None) -> Any:
    """A transformer's body in `dtype`, but for one of its children."""
    # Rotary frequencies in half precision turn the tokens far into a text by wrong angles.
    frequencies = {name: buffer for name, buffer in body.named_buffers() if "inv_freq" in name}
    for child in body.children():
        if child is not leaving:
            child.to(dtype)
    for name, buffer in frequencies.items():
        owner, _, own_name = name.rpartition(".")
        setattr(body.get_submodule(owner), own_name, buffer.float())
    return body


def _in_float32(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def cast(value: Any) -> Any:
        return value.float() if getattr(value, "is_floating_point", bool)() else value

    return tuple(cast(value) for value in args), {name: cast(value) for name, value in kwargs.items()}
