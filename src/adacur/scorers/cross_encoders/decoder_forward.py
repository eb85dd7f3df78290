"""The forward pass of Llama-like decoders over packed tokens: no padding, and what sequences share runs once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adacur.core.arrays import IntArray
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.scorers.cross_encoders.attention import Spans, attend_padded, has_kernel, kernels_for

_BODIES = {"llama": "LlamaModel", "qwen2": "Qwen2Model", "qwen3": "Qwen3Model"}
# Those whose frequencies do not depend on how long a text is.
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
# A smaller product is over before the kernel's tiles have filled the device.
_ROWS_FOR_KERNEL = 4096
_TILE = 128


class TokenBatch(NamedTuple):
    """Prefixes one behind the other, then continuations, and what each sees; on the host or on the device.

    `read_rows` are the rows of the sequences' last tokens, and `read_spans` what these see.
    """

    ids: Any
    positions: Any
    n_positions: int
    spans: tuple[Spans, ...]
    read_rows: Any
    read_spans: Spans


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    first_norm: Any
    joint: tuple[Any, Any]
    head_norms: Any
    out: tuple[Any, Any]
    second_norm: Any
    gate_up: tuple[Any, Any]
    down: tuple[Any, Any]


class PackedDecoder:
    """A Llama, Qwen2 or Qwen3 body that answers with the last token's vector of each sequence, behind the final norm.

    `model` is a body that `can_run`, or a model around it; its weights are copied to `device` in `dtype`. The last
    layer is computed for the last tokens alone. A call is one forward pass: its caller must leave memory for it.
    """

    def __init__(self, model: Any, *, device: Any, dtype: Any) -> None:
        torch = self._torch = require("torch", extra="torch")
        body = model.base_model
        config = body.config
        self._device = torch.device(device)
        self._dtype = getattr(torch, dtype) if isinstance(dtype, str) else dtype
        self._heads: int = config.num_attention_heads
        self._shared: int = config.num_key_value_heads
        self._head_size: int = body.layers[0].self_attn.head_dim
        self._epsilon: float = config.rms_norm_eps
        self._wide: int = config.intermediate_size
        self.size: int = config.hidden_size
        has_kernels = has_kernel(torch, self._device, dtype=self._dtype, head_size=self._head_size)
        self._kernels: Any = kernels_for(self._device, self._dtype) if has_kernels else None
        self._programs = 0
        if self._kernels is not None and self._wide % _TILE == 0 and self.size % 8 == 0:
            self._programs = self._kernels.joining_programs(torch, self._device)
        sent = functools.partial(_on, device=self._device, dtype=self._dtype)
        with torch.no_grad():
            self._words = sent(body.embed_tokens.weight)
            self._norm = sent(body.norm.weight)
            self._layers = [self._layer(layer, sent) for layer in body.layers]
        # A new one: a body in half precision has lost digits of its frequencies.
        self._rotary = type(body.rotary_emb)(config)
        self._turns = (torch.empty(0), torch.empty(0))

    @staticmethod
    def fits(config: Any) -> bool:
        """Whether the body of a model with this configuration computes what the forward pass here computes."""
        rope = getattr(config, "rope_parameters", None) or {}
        return (
            getattr(config, "model_type", None) in _BODIES
            and config.hidden_act in ("silu", "swish")
            and isinstance(rope, dict)
            and rope.get("rope_type") in _ROPE_TYPES
            and rope.get("partial_rotary_factor", 1) == 1
            and getattr(config, "partial_rotary_factor", 1) == 1
            and not getattr(config, "use_sliding_window", False)
            and all(kind == "full_attention" for kind in getattr(config, "layer_types", None) or ())
            and getattr(config, "is_causal", True) is not False
            and getattr(config, "quantization_config", None) is None
            and config.num_hidden_layers > 0
            and config.num_attention_heads % config.num_key_value_heads == 0
        )

    @staticmethod
    def can_run(body: Any) -> bool:
        """Whether this very body fits: transformers' own class, with its own parameters and no others."""
        config = body.config
        if not PackedDecoder.fits(config):
            return False
        kind = type(body)
        if kind.__name__ != _BODIES[config.model_type] or kind.__module__.partition(".")[0] != "transformers":
            return False
        stray = {
            name for name, _ in body.named_parameters() if not name.startswith(("layers.", "embed_tokens.", "norm."))
        }
        parts = {".".join(name.split(".")[2:-1]) for name, _ in body.named_parameters() if name.startswith("layers.")}
        return not stray and parts <= _PARTS and len(body.layers) == config.num_hidden_layers

    @property
    def pads(self) -> bool:
        """Whether its attention copies texts to the length of the longest."""
        return self._kernels is None

    def last_hidden(self, sequences: Sequence[ArrayLike]) -> Any:
        """Vectors of the sequences' last tokens, (sequences, hidden size), float32 on the device."""
        n = len(sequences)
        return self.last_hidden_shared([()], sequences, np.zeros(n, np.intp), continuation_of=np.arange(n))

    def last_hidden_shared(
        self,
        prefixes: Sequence[ArrayLike],
        continuations: Sequence[ArrayLike],
        prefix_of: ArrayLike,
        *,
        continuation_of: ArrayLike,
    ) -> Any:
        """The same for the sequences prefixes[prefix_of[i]] + continuations[continuation_of[i]], each prefix run once.

        Either part may be empty, not both.
        """
        batch = token_batch(prefixes, continuations, prefix_of, continuation_of)
        lowest, highest = batch.ids.min(), batch.ids.max()
        # On a GPU, a row that is not there would take the whole process down.
        if not 0 <= lowest <= highest < len(self._words):
            raise InputError(
                f"Token ids must lie between 0 and {len(self._words) - 1}; got {lowest} to {highest}. Is the tokenizer "
                "another model's?"
            )
        with self._torch.inference_mode():
            return self._vectors(self._on_device(batch))

    def _vectors(self, batch: TokenBatch) -> Any:
        """Vectors behind the final norm, of the last tokens."""
        linear = self._torch.nn.functional.linear
        turns = self._turns_for(batch.n_positions)
        query_size = self._heads * self._head_size
        states = self._words[batch.ids]
        for layer in self._layers[:-1]:
            joint = linear(self._normed(states, layer.first_norm), *layer.joint)
            self._turn(joint, batch.positions, turns, layer.head_norms, n_heads=self._heads + self._shared)
            query, key, value = self._split(joint)
            self._rest(self._attend(query, key, value, batch.spans), states, layer)
        layer, (weight, bias) = self._layers[-1], self._layers[-1].joint
        normed = self._normed(states, layer.first_norm)
        joint = linear(normed, weight[query_size:], None if bias is None else bias[query_size:])
        norms = layer.head_norms
        self._turn(joint, batch.positions, turns, None if norms is None else norms[self._heads :], n_heads=self._shared)
        key, value = joint.view(len(joint), 2, self._shared, self._head_size).unbind(1)
        states = states[batch.read_rows]
        query = linear(normed[batch.read_rows], weight[:query_size], None if bias is None else bias[:query_size])
        own_norms = None if norms is None else norms[: self._heads]
        self._turn(query, batch.positions[batch.read_rows], turns, own_norms, n_heads=self._heads)
        query = query.view(len(query), self._heads, self._head_size)
        self._rest(self._attend(query, key, value, (batch.read_spans,)), states, layer)
        return self._normed(states, self._norm).float()

    def _split(self, joint: Any) -> tuple[Any, Any, Any]:
        heads = joint.view(len(joint), -1, self._head_size)
        query, key, value = heads.split([self._heads, self._shared, self._shared], 1)
        return query, key, value

    def _attend(self, query: Any, key: Any, value: Any, spans: Sequence[Spans]) -> Any:
        answers = self._torch.empty(query.shape, dtype=query.dtype, device=query.device)
        run = attend_padded if self._kernels is None else self._kernels.attend_on_gpu
        for some in spans:
            run(self._torch, query, key, value, some, answers, causal=True)
        return answers.view(len(query), -1)

    def _rest(self, attended: Any, states: Any, layer: _Layer) -> None:
        """What follows attention in a layer, added to the states in place."""
        _add_linear(states, attended, *layer.out)
        _add_linear(states, self._gated(self._normed(states, layer.second_norm), *layer.gate_up), *layer.down)

    def _gated(self, states: Any, weight: Any, bias: Any) -> Any:
        if self._programs and bias is None and len(states) >= _ROWS_FOR_KERNEL:
            return self._kernels.linear_swiglu(self._torch, states, weight, programs=self._programs)
        functional = self._torch.nn.functional
        joint = functional.linear(states, weight, bias).view(len(states), -1, 2, _side_by_side(self._wide))
        gate, up = joint.unbind(2)
        return (functional.silu(gate) * up).view(len(states), self._wide)

    def _normed(self, states: Any, weight: Any) -> Any:
        if self._kernels is not None:
            return self._kernels.rms_norm(self._torch, states, weight, self._epsilon)
        return _rms_norm(states, weight, self._epsilon)

    def _turn(self, joint: Any, positions: Any, turns: tuple[Any, Any], norms: Any, *, n_heads: int) -> None:
        """Rotary embedding in place of the first `n_heads` heads, behind their norm where the model has one."""
        if self._kernels is not None:
            self._kernels.turn(
                self._torch, joint, positions, turns, n_heads=n_heads, norms=norms, epsilon=self._epsilon
            )
            return
        heads = joint.view(len(joint), -1, self._head_size)[:, :n_heads]
        left, right = (heads if norms is None else _rms_norm(heads, norms, self._epsilon)).float().chunk(2, 2)
        cosines, sines = (table[positions][:, None, :] for table in turns)
        half = self._head_size // 2
        # Both are computed before either is written over.
        turned = left * cosines - right * sines, right * cosines + left * sines
        heads[:, :, :half], heads[:, :, half:] = turned

    def _turns_for(self, n_positions: int) -> tuple[Any, Any]:
        """Cosines and sines, float32, a row per position and half a head wide: those of the model's own module."""
        torch = self._torch
        if len(self._turns[0]) < n_positions:
            positions = torch.arange(1 << (n_positions - 1).bit_length())[None, :]
            both = self._rotary(torch.empty(1, dtype=torch.float32), positions)
            half = self._head_size // 2
            cosines, sines = (table[0, :, :half].contiguous().to(self._device) for table in both)
            self._turns = cosines, sines
        return self._turns

    def _on_device(self, batch: TokenBatch) -> TokenBatch:
        spans = (*batch.spans, batch.read_spans)
        arrays = [array for some in spans for array in some[:5]]
        ids, positions, read_rows, *rest = self._sent([batch.ids, batch.positions, batch.read_rows, *arrays])
        *sent, read_spans = (Spans._make((*rest[5 * at : 5 * at + 5], *some[5:])) for at, some in enumerate(spans))
        return TokenBatch(ids, positions, batch.n_positions, tuple(sent), read_rows, read_spans)

    def _sent(self, arrays: Sequence[IntArray]) -> Any:
        """Arrays on the device as int32, in one copy that the host does not wait for."""
        joined = self._torch.from_numpy(np.concatenate(arrays).astype(np.int32))
        if self._device.type == "cuda":
            joined = joined.pin_memory().to(self._device, non_blocking=True)
        return joined.split([len(array) for array in arrays])

    def _layer(self, layer: Any, sent: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        head_norms = None
        if hasattr(attention, "q_norm"):
            query, key = sent(attention.q_norm.weight), sent(attention.k_norm.weight)
            head_norms = self._torch.cat([query.expand(self._heads, -1), key.expand(self._shared, -1)])
        return _Layer(
            first_norm=sent(layer.input_layernorm.weight),
            joint=_joined(self._torch, [attention.q_proj, attention.k_proj, attention.v_proj], sent),
            head_norms=head_norms,
            out=(sent(attention.o_proj.weight), sent(attention.o_proj.bias)),
            second_norm=sent(layer.post_attention_layernorm.weight),
            gate_up=_joined(self._torch, [mlp.gate_proj, mlp.up_proj], sent, rows=_side_by_side(self._wide)),
            down=(sent(mlp.down_proj.weight), sent(mlp.down_proj.bias)),
        )


def token_batch(
    prefixes: Sequence[ArrayLike], continuations: Sequence[ArrayLike], prefix_of: ArrayLike, continuation_of: ArrayLike
) -> TokenBatch:
    """The sequences prefixes[prefix_of[i]] + continuations[continuation_of[i]]; either part may be empty, not both."""
    used, prefix = np.unique(prefix_of, return_inverse=True)
    taken = np.asarray(continuation_of)
    arrays = [np.asarray(prefixes[at], np.int64) for at in used]
    arrays += [np.asarray(continuations[at], np.int64) for at in taken]
    lengths = np.array([len(array) for array in arrays])
    starts = np.cumsum(lengths) - lengths
    prefix_lengths, own = np.split(lengths, [len(used)])
    all_prefix_starts, own_starts = np.split(starts, [len(used)])
    before, prefix_starts = prefix_lengths[prefix], all_prefix_starts[prefix]
    if len(empty := np.flatnonzero(before + own == 0)):
        raise InputError(f"A sequence must have at least one token; sequence {empty[0]} has none.")
    offsets = np.concatenate((np.zeros(len(used), np.int64), before))
    has_own = own > 0
    # A sequence without a continuation of its own ends where its prefix ends.
    read_starts, read_counts = np.where(has_own, own_starts, prefix_starts), np.where(has_own, own, before)
    read_before = before * has_own
    nothing = np.zeros(len(used), np.int64)
    groups = (
        (all_prefix_starts, prefix_lengths, nothing, nothing),
        (own_starts, own, prefix_starts, before),
    )
    return TokenBatch(
        ids=np.concatenate(arrays),
        positions=np.arange(lengths.sum()) - np.repeat(starts - offsets, lengths),
        n_positions=int((before + own).max()),
        spans=tuple(_spans(*(part[group[1] > 0] for part in group)) for group in groups if group[1].any()),
        read_rows=read_starts + read_counts - 1,
        read_spans=Spans(
            np.arange(len(taken) + 1),
            read_starts,
            read_counts,
            prefix_starts,
            read_before,
            longest_query=1,
            longest=int(read_counts.max()),
            longest_prefix=int(read_before.max()),
        ),
    )


def _spans(starts: IntArray, counts: IntArray, prefix_starts: IntArray, prefix_counts: IntArray) -> Spans:
    """Texts that lie close together, with a query for each token."""
    longest = int(counts.max())
    query_starts = np.append(starts, starts[-1] + counts[-1])
    return Spans(
        query_starts, starts, counts, prefix_starts, prefix_counts,
        longest_query=longest, longest=longest, longest_prefix=int(prefix_counts.max()),
    )  # fmt: skip


# What parameters may belong to; an adapter adds others.
_PARTS = {
    "embed_tokens",
    "norm",
    "input_layernorm",
    "post_attention_layernorm",
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")),
}


def _on(tensor: Any, *, device: Any, dtype: Any) -> Any:
    return None if tensor is None else tensor.detach().to(device=device, dtype=dtype)


def _joined(torch: Any, modules: Sequence[Any], sent: Any, *, rows: int | None = None) -> tuple[Any, Any]:
    """Weight and bias of several linear maps as one; with `rows`, that many of each in turn."""

    def join(tensors: Sequence[Any]) -> Any:
        if rows is None:
            return torch.cat(tensors)
        return torch.stack([tensor.view(-1, rows, *tensor.shape[1:]) for tensor in tensors], 1).flatten(0, 2)

    biases = [sent(module.bias) for module in modules]
    return join([sent(module.weight) for module in modules]), None if biases[0] is None else join(biases)


def _side_by_side(wide: int) -> int:
    """Rows of gate and of up in turn: those of a tile of the SwiGLU kernel, where they come out even."""
    return _TILE if wide % _TILE == 0 else wide


def _add_linear(states: Any, rows: Any, weight: Any, bias: Any) -> None:
    # In place, the product adds to the states as it is computed.
    states.addmm_(rows, weight.t())
    if bias is not None:
        states += bias


def _rms_norm(states: Any, weight: Any, epsilon: float) -> Any:
    wide = states.float()
    normed = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return weight * normed.to(states.dtype)
