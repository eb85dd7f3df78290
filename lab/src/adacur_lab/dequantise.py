"""An int8 ONNX cross-encoder of BERT's shape, as a float16 transformers checkpoint that a GPU can run.

    python -m adacur_lab.dequantise ONNX_FOLDER TORCH_FOLDER

The weights are those of the int8 model (scale × (q − zero point)); its dynamic quantisation of activations is not
imitated, so scores differ slightly. Needs onnx, torch and transformers.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np


def dequantise(source: Path, target: Path) -> None:
    """Write `target` from `source`/model.onnx, tokenizer files included."""
    import onnx
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    graph = onnx.load(str(source / "model.onnx")).graph
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def real(name: str) -> Any:
        stem = name.removesuffix("_quantized")
        zero, scale = (tensors[stem + part].astype(np.float32) for part in ("_zero_point", "_scale"))
        return (tensors[name].astype(np.float32) - zero) * scale

    state = {name: value for name, value in tensors.items() if re.search(r"\.(bias|weight)$", name)}
    state |= {
        name.removesuffix("_quantized"): real(name) for name in tensors if re.search("embeddings.*_quantized", name)
    }
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            weight = next(name for name in node.input if name.endswith("_quantized") and name in tensors)
            layer = re.sub(r"/(Gemm_)?MatMul_quant$", "", node.name).strip("/").replace("/", ".")
            # ONNX multiplies from the left, torch keeps the transpose.
            state[layer + ".weight"] = np.ascontiguousarray(real(weight).T)
    hidden = state["bert.embeddings.word_embeddings.weight"].shape[1]
    layers = 1 + max(int(found.group(1)) for name in state if (found := re.search(r"layer\.(\d+)\.", name)))
    config = BertConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        intermediate_size=4 * hidden,
        num_labels=1,
    )
    model = BertForSequenceClassification(config)
    model.load_state_dict({name: torch.tensor(np.array(value)) for name, value in state.items()}, strict=True)
    model.half().save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (source / name).exists():
            shutil.copy(source / name, target)


if __name__ == "__main__":
    dequantise(Path(sys.argv[1]), Path(sys.argv[2]))
