"""Forward passes: any model over padded batches; an extra knows faster ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from adacur.names import FORWARDS, named
from adacur.scorers.cross_encoders.opened_model import OpenedModel
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs


class Forward(Protocol):
    """Logits of batches of pairs; `batches` makes them ready."""

    batches: Callable[[TokenPairs], Any]

    def batch_end(self, batches: Any, start: int, *, tokens: int) -> int:
        """Where a batch of at most `tokens` tokens ends that begins at `start`."""
        ...

    def logits(self, batches: Any, start: int, end: int) -> Any:
        """One score per pair of this batch."""
        ...


class PaddedBatches:
    """Pairs in order of their length, longest first; a batch is a range of that order, padded on the right."""

    def __init__(self, torch: Any, pairs: TokenPairs, *, device: Any, pad_id: int) -> None:
        self._torch, self._pairs, self._device, self._pad_id = torch, pairs, device, pad_id
        self._order = np.argsort(-pairs.lengths, kind="stable")
        self._lengths = pairs.lengths[self._order]
        self.order = self._sent(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def end(self, start: int, *, tokens: int, evenly: bool = True) -> int:
        """Where a batch of at most `tokens` tokens ends that begins here, padding included; it has one pair at least.

        Padding is `evenly` kept below a tenth of a pair unless the batch is small.
        """
        longest = int(self._lengths[start])
        end = min(len(self), start + max(1, tokens // longest))
        if not evenly:
            return end
        enough = start + max(1, tokens // (8 * longest))
        return min(end, enough + int(np.count_nonzero(self._lengths[enough:end] * 10 >= longest * 9)))

    def inputs(self, start: int, end: int) -> dict[str, Any]:
        """These pairs as arguments of a model's forward."""
        pairs, lengths = self._pairs, self._lengths[start:end].tolist()
        rows = np.zeros((3, end - start, lengths[0]), np.int64)
        ids, mask, types = rows
        ids[:] = self._pad_id
        for row, (at, length) in enumerate(zip(self._order[start:end].tolist(), lengths, strict=True)):
            ids[row, :length], types[row, :length] = pairs.texts.pair(pairs.query_of[at], pairs.item_of[at])
            mask[row, :length] = 1
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: self._sent(array) for name, array in arrays.items()}

    def _sent(self, array: Any) -> Any:
        return self._torch.from_numpy(array).to(self._device)


class PaddedForward:
    """Any model as it is; `scores` makes them of a batch's inputs."""

    def __init__(self, batches: Callable[[TokenPairs], PaddedBatches], scores: Callable[[dict[str, Any]], Any]) -> None:
        self.batches, self._scores = batches, scores

    def batch_end(self, batches: PaddedBatches, start: int, *, tokens: int) -> int:
        return batches.end(start, tokens=tokens)

    def logits(self, batches: PaddedBatches, start: int, end: int) -> Any:
        return self._scores(batches.inputs(start, end))


def forward_of(torch: Any, opened: OpenedModel, *, device: Any, dtype: Any, pad_id: int) -> Forward:
    """The fastest forward pass that can run a model, with its body in `dtype` and all behind it in float32."""
    fast: Callable[..., Forward | None] = named(FORWARDS)
    if (forward := fast(torch, opened, device=device, dtype=dtype)) is not None:
        return forward
    scores = _of_pairs if opened.head is None else _of_prompts
    batches = partial(PaddedBatches, torch, device=device, pad_id=pad_id)
    return PaddedForward(batches, scores(torch, opened, device=device, dtype=dtype))


def _of_pairs(torch: Any, opened: OpenedModel, *, device: Any, dtype: Any) -> Callable[[dict[str, Any]], Any]:
    parts = model_parts(torch, opened, device=device, dtype=dtype)
    takes_types = parts.takes_types and "token_type_ids" in inspect.signature(parts.model.forward).parameters

    def scores(inputs: dict[str, Any]) -> Any:
        if not takes_types:
            del inputs["token_type_ids"]
        return parts.read(parts.model(**inputs).logits.float())

    return scores


def _of_prompts(torch: Any, opened: OpenedModel, *, device: Any, dtype: Any) -> Callable[[dict[str, Any]], Any]:
    body, head = in_dtype(opened.model.base_model, dtype).to(device).eval(), opened.head
    assert head is not None
    head = head.to(device)

    def scores(inputs: dict[str, Any]) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        # Causal attention never looks at the padding, which is on the right.
        hidden = body(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
        return head(hidden[torch.arange(len(ids), device=ids.device), mask.sum(1) - 1])

    return scores


class ModelParts(NamedTuple):
    """A model on its device, what reads a score from its logits, and whether its tokenizer gives token types."""

    model: Any
    read: Callable[[Any], Any]
    takes_types: bool


def model_parts(torch: Any, opened: OpenedModel, *, device: Any, dtype: Any) -> ModelParts:
    """A model of plain pairs, ready to run."""
    model = _with_float32_head(opened.model, dtype).to(device).eval()
    rows = opened.readout.rows(opened.tokenizer.backend_tokenizer, n_rows=model.config.num_labels)
    weights = torch.tensor(opened.readout.weights, device=device)

    def read(logits: Any) -> Any:
        return logits[:, rows] @ weights

    return ModelParts(model, read, "token_type_ids" in opened.tokenizer.model_input_names)


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
