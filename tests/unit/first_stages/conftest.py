from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from adacur.first_stages import OnnxEncoder

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "query", ":", "river", "city", "water", "old"]


def tiny_model(folder: Path, *, seed: int = 0) -> Path:
    """An ONNX model that looks each token's vector up, and a tokenizer of ten words that pads, as many files do."""
    onnx = pytest.importorskip("onnx")
    tokenizers = pytest.importorskip("tokenizers")
    folder.mkdir(parents=True, exist_ok=True)
    table = np.random.default_rng(seed).normal(size=(len(WORDS), 8)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])],
        "lookup",
        [onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "tokens"])],
        [onnx.helper.make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, ["batch", "tokens", 8])],
        [onnx.numpy_helper.from_array(table, "table")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=32)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(name="tiny_model")
def tiny_model_fixture():
    return tiny_model


@pytest.fixture
def tiny_onnx_encoder():
    return lambda folder, *, seed=0: OnnxEncoder(tiny_model(folder, seed=seed), pooling="mean")
