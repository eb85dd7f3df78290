"""Faster forward passes: an encoder without padding, and a language model whose prompts share their beginnings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from adacur.extras.kernels.decoder import PromptBatches
from adacur.extras.kernels.decoder_forward import PackedDecoder
from adacur.extras.kernels.packed_encoder import PackedEncoder
from adacur.extras.kernels.pair_batches import PackedTokens, PairBatches
from adacur.extras.kernels.recorded import RecordedForward
from adacur.scorers.cross_encoders.forwards import ModelParts, in_dtype, model_parts
from adacur.scorers.cross_encoders.opened_model import OpenedModel


class PackedForward:
    """The model as an encoder over packed tokens, and its `head`, which reads first tokens, or what `reads` names."""

    def __init__(
        self,
        torch: Any,
        parts: ModelParts,
        *,
        device: Any,
        head: Callable[[Any], Any],
        reads: Callable[[PackedTokens], Any] | None = None,
    ) -> None:
        self._torch = torch
        self._encoder = PackedEncoder(torch, parts.model.base_model, takes_types=parts.takes_types)
        self._head, self._reads, self.batches = head, reads, partial(PairBatches, torch, device=device)

    def batch_end(self, batches: PairBatches, start: int, *, tokens: int) -> int:
        return batches.packed_end(start, tokens=tokens)

    def logits(self, batches: PairBatches, start: int, end: int) -> Any:
        return self.of_packed(batches.packed(start, end))

    def recorded(self, *, device: Any, pad_id: int) -> RecordedForward | None:
        """Small calls as CUDA graphs; None where they cannot be recorded."""
        if not self._encoder.can_be_recorded:
            return None
        return RecordedForward(self._torch, self.of_packed, device=device, pad_id=pad_id)

    def of_packed(self, tokens: PackedTokens) -> Any:
        """Logits of packed pairs."""
        if self._reads is not None:
            tokens = replace(tokens, read_rows=self._reads(tokens))
        return self._head(self._encoder.vectors(tokens).float())


class PromptedForward:
    """A language model over prompts: its body, and the rows of its head that are read."""

    def __init__(self, torch: Any, body: Any, head: Any, *, device: Any, dtype: Any) -> None:
        self._body, self._head = PackedDecoder(body, device=device, dtype=dtype), head.to(device)
        self.batches = partial(PromptBatches, torch, device=device)

    def batch_end(self, batches: PromptBatches, start: int, *, tokens: int) -> int:
        return batches.end(start, tokens=tokens)

    def logits(self, batches: PromptBatches, start: int, end: int) -> Any:
        return self._head(batches.hidden(self._body, start, end))


def fast_forward(torch: Any, opened: OpenedModel, *, device: Any, dtype: Any) -> PackedForward | PromptedForward | None:
    """The forward pass of a language model or an encoder that runs without padding; None for others."""
    if opened.head is not None:
        if not PackedDecoder.can_run(opened.model.base_model):
            return None
        body = in_dtype(opened.model.base_model, dtype).to(device).eval()
        return PromptedForward(torch, body, opened.head, device=device, dtype=dtype)
    # An [EMB] head says itself what it reads; a classifier reads the vectors of first tokens.
    reads, head = getattr(opened.model, "packed_reads", None), getattr(opened.model, "head_scores", None)
    can_read = reads is not None or hasattr(opened.model, "classifier")
    if not PackedEncoder.can_run(opened.model.base_model) or not can_read:
        return None
    parts = model_parts(torch, opened, device=device, dtype=dtype)
    head = head or (lambda vectors: parts.read(_classified(parts.model, vectors)))
    return PackedForward(torch, parts, device=device, head=head, reads=reads)


def _classified(model: Any, vectors: Any) -> Any:
    """Logits of a classifier by the vectors of first tokens, (pairs, 1, hidden size)."""
    pooler = getattr(model.base_model, "pooler", None)
    # Both heads read the first of the tokens they are given.
    return model.classifier(vectors if pooler is None else pooler(vectors))
