"""The forward pass of BERT-like encoders over packed tokens: nothing is computed for padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from adacur.extras.kernels.attention import attend, has_kernel, kernels_for
from adacur.extras.kernels.pair_batches import PackedTokens

_MODEL_TYPES = {"bert", "camembert", "roberta", "xlm-roberta"}
# A smaller product is over before the kernel's tiles have filled the device.
_ROWS_FOR_KERNEL = 4096
_ACTIVATIONS = {"gelu": "none", "gelu_fast": "tanh", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    joint_weight: Any
    joint_bias: Any
    out: tuple[Any, Any]
    norm: tuple[Any, Any]
    up: tuple[Any, Any]
    down: tuple[Any, Any]
    last_norm: tuple[Any, Any]


class PackedEncoder:
    """A BERT, RoBERTa, XLM-R or CamemBERT body that answers with the vectors of a few tokens of each text.

    The last layer is computed for these alone, since a cross-encoder's head reads nothing else.
    """

    def __init__(self, torch: Any, body: Any, *, takes_types: bool) -> None:
        config = body.config
        self._torch = torch
        self._functional = torch.nn.functional
        self._heads: int = config.num_attention_heads
        self._size: int = config.hidden_size
        self._epsilon: float = config.layer_norm_eps
        self._gelu = _ACTIVATIONS[config.hidden_act]
        embeddings = body.embeddings
        self._words = embeddings.word_embeddings.weight
        self._places = embeddings.position_embeddings.weight
        types = embeddings.token_type_embeddings.weight
        # Where the tokenizer gives no types, transformers takes all for the first.
        self._types = types if takes_types else types[:1].expand_as(types)
        self._norm = (embeddings.LayerNorm.weight, embeddings.LayerNorm.bias)
        # The others count positions from behind the padding id.
        self._pad_id: int | None = None if config.model_type == "bert" else config.pad_token_id
        self._layers = [_layer(torch, layer) for layer in body.encoder.layer]
        self._programs = _programs(torch, self._layers[0].up[0]) if self._gelu == "none" else 0

    @staticmethod
    def can_run(body: Any) -> bool:
        """Whether this body computes what the forward pass here computes."""
        config = body.config
        return (
            config.model_type in _MODEL_TYPES
            and (config.model_type == "bert" or config.pad_token_id is not None)
            and config.hidden_act in _ACTIVATIONS
            and getattr(config, "position_embedding_type", "absolute") in (None, "absolute")
            and not getattr(config, "is_decoder", False)
            and not getattr(config, "add_cross_attention", False)
            and config.num_hidden_layers > 0
        )

    @property
    def can_be_recorded(self) -> bool:
        """Whether `vectors` never waits for the device, so that a CUDA graph can hold it."""
        weight = self._layers[0].joint_weight
        return has_kernel(self._torch, weight.device, dtype=weight.dtype, head_size=self._size // self._heads)

    def vectors(self, tokens: PackedTokens) -> Any:
        """The vectors that a head reads, (texts, rows per text, hidden size)."""
        linear = self._functional.linear
        starts, longest = tokens.starts, tokens.longest
        states = self._embed(tokens.ids, tokens.types, self._places_of(tokens))
        for layer in self._layers[:-1]:
            query, key, value = self._split(linear(states, layer.joint_weight, layer.joint_bias))
            attended = attend(
                self._torch,
                query,
                key,
                value,
                query_starts=starts,
                starts=starts,
                query_longest=longest,
                longest=longest,
            )
            states = self._rest(attended.view(-1, self._size), states, layer)
        last, size = self._layers[-1], self._size
        n_texts, per_text = tokens.read_rows.shape
        last_states = states[tokens.read_rows.flatten()]
        query = self._split(linear(last_states, last.joint_weight[:size], last.joint_bias[:size]))[0]
        key, value = self._split(linear(states, last.joint_weight[size:], last.joint_bias[size:]))
        attended = attend(
            self._torch,
            query,
            key,
            value,
            query_starts=per_text * self._torch.arange(n_texts + 1, dtype=starts.dtype, device=starts.device),
            starts=starts,
            query_longest=per_text,
            longest=longest,
        )
        vectors = self._rest(attended.view(-1, size), last_states, last)
        return vectors.view(n_texts, per_text, size)

    def _places_of(self, tokens: PackedTokens) -> Any:
        """Rows of the position embeddings."""
        if self._pad_id is None:
            return tokens.positions
        # A text may spell the padding token, and transformers does not count that.
        is_counted = tokens.ids != self._pad_id
        counted = self._torch.cumsum(is_counted, 0)
        first_rows = self._torch.arange(len(counted), device=counted.device) - tokens.positions
        before = self._functional.pad(counted, (1, 0))[first_rows]
        return (counted - before) * is_counted + self._pad_id

    def _embed(self, ids: Any, types: Any, places: Any) -> Any:
        return self._add_norm(self._words[ids] + self._types[types], self._places[places], *self._norm)

    def _split(self, joint: Any) -> tuple[Any, ...]:
        parts = joint.shape[1] // self._size
        split: tuple[Any, ...] = joint.view(len(joint), parts, self._heads, self._size // self._heads).unbind(1)
        return split

    def _rest(self, attended: Any, states: Any, layer: _Layer) -> Any:
        """What follows attention in a layer."""
        linear = self._functional.linear
        states = self._add_norm(linear(attended, *layer.out), states, *layer.norm)
        return self._add_norm(linear(self._gelu_of(states, *layer.up), *layer.down), states, *layer.last_norm)

    def _add_norm(self, change: Any, states: Any, weight: Any, bias: Any) -> Any:
        if states.dtype != self._torch.float32 and (kernels := kernels_for(states.device)) is not None:
            return kernels.add_norm(self._torch, change, states, weight, bias, self._epsilon)
        return self._functional.layer_norm(change + states, (self._size,), weight, bias, self._epsilon)

    def _gelu_of(self, states: Any, weight: Any, bias: Any) -> Any:
        if self._programs and len(states) >= _ROWS_FOR_KERNEL:
            kernels = kernels_for(states.device)
            return kernels.linear_gelu(self._torch, states, weight, bias, programs=self._programs)
        return self._functional.gelu(self._functional.linear(states, weight, bias), approximate=self._gelu)


def _layer(torch: Any, layer: Any) -> _Layer:
    inner, out = layer.attention.self, layer.attention.output
    parts = (inner.query, inner.key, inner.value)
    return _Layer(
        joint_weight=torch.cat([part.weight for part in parts]),
        joint_bias=torch.cat([part.bias for part in parts]),
        out=_weights(out.dense),
        norm=_weights(out.LayerNorm),
        up=_weights(layer.intermediate.dense),
        down=_weights(layer.output.dense),
        last_norm=_weights(layer.output.LayerNorm),
    )


def _weights(module: Any) -> tuple[Any, Any]:
    return module.weight, module.bias


def _programs(torch: Any, weight: Any) -> int:
    """Multiprocessors that the GELU kernel can use; none where it cannot run."""
    kernels = kernels_for(weight.device)
    in_half = weight.dtype in (torch.float16, torch.bfloat16)
    if (
        kernels is None
        or not in_half
        or any(size % 8 for size in weight.shape)
        or not kernels.can_join_gelu(torch, weight.device)
    ):
        return 0
    return int(torch.cuda.get_device_properties(weight.device).multi_processor_count)
