"""Faster forward passes: an encoder without padding, and a language model whose prompts share their beginnings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from adacur.extras.kernels.decoder import PromptBatches, decoder_body
from adacur.extras.kernels.packed_encoder import PackedEncoder
from adacur.extras.kernels.recorded import RecordedForward
from adacur.scorers.cross_encoders.forwards import ModelParts, in_dtype, model_parts
from adacur.scorers.cross_encoders.opened_model import OpenedModel
from adacur.scorers.cross_encoders.pair_batches import PackedTokens, PairBatches


class PackedForward:
    """The model as an encoder over packed tokens, and its head."""

    def __init__(self, torch: Any, parts: ModelParts, *, head: Callable[[Any], Any]) -> None:
        self._torch = torch
        self._encoder = PackedEncoder(torch, parts.model.base_model, takes_types=parts.takes_types)
        self._head, self.batches = head, parts.batches

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
        return self._head(self._encoder.vectors(tokens).float())


class PromptedForward:
    """A language model over prompts: its body, and the rows of its head that are read."""

    def __init__(self, torch: Any, body: Any, head: Any, *, device: Any, dtype: Any) -> None:
        self._body, self._head = decoder_body(body, device=device, dtype=dtype), head.to(device)
        self.batches = partial(PromptBatches, torch, device=device)

    def batch_end(self, batches: PromptBatches, start: int, *, tokens: int) -> int:
        return batches.end(start, tokens=tokens, padded=self._body.pads)

    def logits(self, batches: PromptBatches, start: int, end: int) -> Any:
        return self._head(batches.hidden(self._body, start, end))


def fast_forward(
    torch: Any, opened: OpenedModel, *, device: Any, dtype: Any, pad_id: int
) -> PackedForward | PromptedForward | None:
    """The forward pass of a language model, or of an encoder that runs without padding; None for others."""
    if opened.head is not None:
        body = in_dtype(opened.model.base_model, dtype).to(device).eval()
        return PromptedForward(torch, body, opened.head, device=device, dtype=dtype)
    if not PackedEncoder.can_run(opened.model.base_model) or not _can_read(opened):
        return None
    parts = model_parts(torch, opened, device=device, dtype=dtype, pad_id=pad_id)
    return PackedForward(torch, parts, head=_head(opened, parts))


def _can_read(opened: OpenedModel) -> bool:
    """Whether its head is known to read nothing but the vectors of first tokens, or of tags."""
    return opened.tags is not None or hasattr(opened.model, "classifier")


def _head(opened: OpenedModel, parts: ModelParts) -> Callable[[Any], Any]:
    """What makes scores of the vectors that are read."""
    model, read = parts.model, parts.read
    if opened.tags is not None:
        from adacur.extras.train.emb_module import tag_scores

        return tag_scores
    return lambda vectors: read(_classified(model, vectors))


def _classified(model: Any, vectors: Any) -> Any:
    """Logits of a classifier by the vectors of first tokens, (pairs, 1, hidden size)."""
    pooler = getattr(model.base_model, "pooler", None)
    # Both heads read the first of the tokens they are given.
    return model.classifier(vectors if pooler is None else pooler(vectors))
