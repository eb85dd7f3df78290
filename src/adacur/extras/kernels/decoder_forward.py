"""The forward pass of Llama-like decoders over packed tokens: no padding, and what sequences share runs once."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adacur.arrays import IntArray
from adacur.errors import InputError
from adacur.extras.kernels.attention import has_kernel
from adacur.extras.kernels.shared_prefixes import Spans, TokenBatch, token_batch
from adacur.requirements import require

_log = logging.getLogger(__name__)
_BODIES = {"llama": "LlamaModel", "qwen2": "Qwen2Model", "qwen3": "Qwen3Model"}
# Those whose frequencies do not depend on how long a text is.
_ROPE_TYPES = {"default", "linear", "llama3", "yarn"}
# A smaller product is over before the kernel's tiles have filled the device.
_ROWS_FOR_KERNEL = 4096
_TILE = 128


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
        self._kernels = self._usable_kernels()
        self._programs = self._swiglu_programs()
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
        run = attend if self._kernels is None else self._kernels.attend_on_gpu
        for some in spans:
            run(self._torch, query, key, value, some, answers)
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

    def _usable_kernels(self) -> Any:
        """The module of Triton kernels where they can run all of this model, else None."""
        if not has_kernel(self._torch, self._device, dtype=self._dtype, head_size=self._head_size):
            return None
        return decoder_kernels_for(self._device, self._dtype)

    def _swiglu_programs(self) -> int:
        """Multiprocessors that the SwiGLU kernel can use; none where it cannot run."""
        torch = self._torch
        if self._kernels is None or self._wide % _TILE or self.size % 8:
            return 0
        if torch.cuda.get_device_capability(self._device)[0] < 9:
            return 0
        try:
            rows = torch.zeros(128, 64, dtype=self._dtype, device=self._device)
            self._kernels.linear_swiglu(torch, rows, torch.cat([rows, rows]), programs=1)
        except Exception as error:
            _log.warning("The SwiGLU kernel cannot be used, so decoding takes a slower way: %s", error)
            return 0
        return int(torch.cuda.get_device_properties(self._device).multi_processor_count)


@functools.cache
def decoder_kernels_for(device: Any, dtype: Any) -> Any:
    """The module of the decoder's Triton kernels where they run on this device, else None."""
    try:
        import torch

        from adacur.extras.kernels import decoder_kernels as kernels

        joint = torch.zeros(2, 3, 16, dtype=dtype, device=device)
        places = torch.tensor([0, 2, 0, 0], dtype=torch.int32, device=device)
        one = places[1:2]
        spans = Spans(places[:2], places[:1], one, places[:1], places[:1], 2, 2, 0)
        kernels.attend_on_gpu(torch, joint[:, :1], joint[:, 1:2], joint[:, 2:], spans, torch.empty_like(joint[:, :1]))
        kernels.rms_norm(torch, joint.view(6, 16), joint[0, 0], 1e-6)
        table = torch.ones(2, 8, device=device)
        kernels.turn(torch, joint.view(2, 48), places[:2] * 0, (table, table), n_heads=2, norms=None, epsilon=1e-6)
    except Exception as error:
        _log.warning("The decoder's kernels cannot be used, so decoding takes a slower way: %s", error)
        return None
    return kernels


def attend(torch: Any, query: Any, key: Any, value: Any, spans: Spans, answers: Any) -> None:
    """Causal attention into the texts' rows of `answers`, by way of a padded copy: where the kernel cannot run.

    Shapes are (tokens, heads, head size); key and value may have fewer heads, each for a group of the query's.
    """
    device, before = query.device, spans.longest_prefix
    column = torch.arange(before + spans.longest, device=device)[None, :] - before
    is_key = torch.where(column < 0, column + before < spans.prefix_counts[:, None], column < spans.counts[:, None])
    place = torch.where(column < 0, spans.prefix_starts[:, None] + before, spans.starts[:, None]) + column
    place = torch.where(is_key, place, spans.starts[:, None])
    row = torch.arange(spans.longest_query, device=device)[None, :]
    n_queries = (spans.query_starts[1:] - spans.query_starts[:-1])[:, None]
    is_query = row < n_queries
    query_place = torch.where(is_query, spans.query_starts[:-1, None] + row, spans.query_starts[:-1, None])
    # Without prefixes and with a query for each key, no row that counts sees what was filled up.
    is_plain = not before and spans.longest_query == spans.longest
    last = spans.counts[:, None] - n_queries + row
    sees = None if is_plain else (is_key[:, None, :] & (column[:, None, :] <= last[:, :, None]))[:, None]
    group = query.shape[1] // key.shape[1]
    attended = torch.nn.functional.scaled_dot_product_attention(
        query[query_place].transpose(1, 2),
        key[place].transpose(1, 2).repeat_interleave(group, 1),
        value[place].transpose(1, 2).repeat_interleave(group, 1),
        attn_mask=sees,
        is_causal=is_plain,
    ).transpose(1, 2)
    answers[query_place[is_query]] = attended[is_query]


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
