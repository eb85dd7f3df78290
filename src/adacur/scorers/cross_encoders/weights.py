"""Which weights a model has, and what else in its folder decides its scores."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adacur.errors import FileFormatError
from adacur.requirements import require

_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "adapter_config.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "*.jinja",
)
_WITHOUT_EFFECT = {
    "_name_or_path",
    "name_or_path",
    "transformers_version",
    "torch_dtype",
    "dtype",
    "truncation",
    "padding",
}


def weight_files(folder: Path) -> list[Path]:
    """The files of a model's weights, those of its modules too."""
    for name in ("*.safetensors", "pytorch_model*.bin"):
        if files := [*folder.glob(name), *folder.glob(f"*_*/{name}")]:
            return files
    return []


def weights_hash(files: Iterable[Path]) -> str:
    """The first 32 hex digits of a SHA-256 over the files' content, in order of their names."""
    digest = hashlib.sha256()
    for path in sorted(files):
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


def tensors_digest(tensors: Mapping[str, Any]) -> str:
    """A SHA-256 of weights in memory, with their names, types and shapes."""
    torch, digest = require("torch", extra="torch"), hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes, since numpy has no bfloat16.
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def settings_hash(folder: Path, *, files: Iterable[str] = _FILES) -> str:
    """A hash of the files that decide, with the weights, what a model makes of a text: `files` are their patterns.

    JSON counts by its content, not by its layout.
    """
    digest = hashlib.sha256()
    for path in sorted({path for pattern in files for path in folder.glob(pattern)}):
        content = path.read_bytes()
        if path.suffix == ".json":
            content = json.dumps(with_effect(json_in(folder, path.name)), sort_keys=True).encode()
        digest.update(f"{path.name} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def with_effect(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that tell of a folder's history, or that a scorer sets anew."""
    return {name: value for name, value in settings.items() if name not in _WITHOUT_EFFECT}


def json_in(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a folder; empty where there is no such file."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid JSON: {error}") from error
    return content if isinstance(content, dict) else {}
