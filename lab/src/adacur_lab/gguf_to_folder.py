"""A causal language model from a GGUF file as a transformers folder: config, tokenizer, float16 safetensors.

    python -m adacur_lab.gguf_to_folder FILE.gguf [PIECE …] FOLDER

Pieces of one file, as `split -b` makes them, are joined in the order given. The weights are those of the quantised
model. Needs torch, transformers and the package gguf; where nothing can be installed, a folder with gguf and its
dist-info on PYTHONPATH will do.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any


def gguf_to_folder(pieces: list[Path], target: Path) -> None:
    """Write `target` from a GGUF file in one or several pieces."""
    with tempfile.TemporaryDirectory() as scratch:
        joined = Path(scratch) / "model.gguf"
        with joined.open("wb") as file:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, file)
        _write(joined, target)


def _write(file: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options: dict[str, Any] = {"gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float16, **options)
    # A model read from GGUF refuses to be saved: its weights go into a fresh one.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = AutoModelForCausalLM.from_config(config, dtype=torch.float16)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(target)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, **options)
    # Some versions of transformers read other special tokens into the tokenizer than into the configuration.
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(config.eos_token_id)
    pad_id = config.eos_token_id if config.pad_token_id is None else config.pad_token_id
    tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad_id)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    gguf_to_folder([Path(given) for given in sys.argv[1:-1]], Path(sys.argv[-1]))
