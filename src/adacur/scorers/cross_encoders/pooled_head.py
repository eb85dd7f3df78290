"""A transformer, a pooling and dense layers as one classifier, as sentence-transformers writes them; needs torch."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from adacur.errors import InputError
from adacur.scorers.cross_encoders.checkpoints import (
    check_complete,
    pooling_of,
    read_model,
    read_tokenizer,
    st_modules,
)
from adacur.scorers.cross_encoders.weights import json_in


class PooledClassifier(torch.nn.Module):  # type: ignore[misc]
    """Pairs to logits of one label: the body, its tokens pooled in one `way`, and layers in float32."""

    def __init__(self, body: Any, way: str, layers: Any) -> None:
        super().__init__()
        self.body, self.pooling, self.layers = body, way, layers
        self.config = body.config

    @property
    def base_model(self) -> Any:
        return self.body

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        hidden = self.body(input_ids=input_ids, attention_mask=attention_mask, **types).last_hidden_state
        return SimpleNamespace(logits=self.layers(self._pooled(hidden.float(), attention_mask)))

    def _pooled(self, hidden: Any, mask: Any) -> Any:
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "lasttoken":
            return hidden[torch.arange(len(hidden), device=hidden.device), mask.sum(1) - 1]
        tokens = mask[..., None].to(hidden.dtype)
        if self.pooling == "max":
            return hidden.masked_fill(tokens == 0, -torch.inf).amax(1)
        return (hidden * tokens).sum(1) / tokens.sum(1)


def load_pooled_classifier(folder: Path) -> tuple[Any, PooledClassifier]:
    """Tokenizer and model of a folder whose modules `checkpoints.shape_of` calls "pooled"."""
    modules = st_modules(folder)
    tokenizer = read_tokenizer(folder)
    body, missing = read_model(folder, "AutoModel")
    # A pooler that nothing reads may be missing.
    check_complete((name for name in missing if not name.startswith("pooler.")), folder)
    try:
        layers = torch.nn.Sequential(*(_layer(kind, folder / path) for kind, path in modules[2:]))
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a cross-encoder of several modules: {error}") from error
    return tokenizer, PooledClassifier(body, str(pooling_of(folder / modules[1][1])), layers)


def _layer(kind: str, folder: Path) -> Any:
    if kind == "Dropout":
        return torch.nn.Identity()
    config, weights = json_in(folder, "config.json"), _weights(folder)
    if kind == "LayerNorm":
        norm = torch.nn.LayerNorm(config["dimension"])
        norm.load_state_dict({name.removeprefix("norm."): value for name, value in weights.items()})
        return norm
    linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    linear.load_state_dict({name.removeprefix("linear."): value for name, value in weights.items()})
    activation = str(config.get("activation_function", "torch.nn.Tanh")).rpartition(".")[2]
    return torch.nn.Sequential(linear, getattr(torch.nn, activation)())


def _weights(folder: Path) -> dict[str, Any]:
    if (folder / "model.safetensors").is_file():
        read: dict[str, Any] = load_file(folder / "model.safetensors")
        return read
    old: dict[str, Any] = torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True)
    return old
