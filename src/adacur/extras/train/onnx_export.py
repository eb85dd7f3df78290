"""Cross-encoders as ONNX graphs, for CPUs without torch."""

from __future__ import annotations

import inspect
import logging
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from adacur.errors import InputError
from adacur.extras.train.emb_cross_encoder import load_emb_cross_encoder
from adacur.extras.train.run_folder import written_whole
from adacur.names import EMB_KEY
from adacur.records import Item, Query
from adacur.requirements import require
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder, json_in, load_classifier, quiet, token_limit
from adacur.scorers.cross_encoders.onnx import OnnxCrossEncoder
from adacur.scorers.cross_encoders.torch import TorchCrossEncoder

# Of different lengths: a graph that froze a size fails on them.
_PROBES = [
    (Query("short", "a"), Item("short", "b")),
    (Query("long", "a b b a"), Item("long", "b a a " * 4)),
    (Query("other", "a b"), Item("other", "b b a " * 2)),
]
_LARGEST_DIFFERENCE = 1e-3


def export_onnx(name_or_folder: str | Path, target: str | Path, *, int8: bool = False, opset: int = 18) -> None:
    """Write a folder that `OnnxCrossEncoder` opens from one that `TorchCrossEncoder` opens, [EMB] or single-label.

    Scores of the graph are compared with torch's before it is kept. `int8` quantises weights, and activations while
    it runs: a quarter of the size, faster, and scores that move. `target` is new, or empty.
    """
    for module in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime"):
        require(module, extra="training")
    folder = checkpoint_folder(name_or_folder)
    with written_whole(Path(target)) as unfinished, quiet(require("transformers", extra="training")):
        graph = unfinished / "model.onnx"
        shutil.copy(folder / "config.json", unfinished)
        _write_graph(folder, graph, opset=opset)
        _compare(folder, graph)
        if int8:
            _quantise(graph)


def _write_graph(folder: Path, graph: Path, *, opset: int) -> None:
    """The graph and the tokenizer's files beside it."""
    torch = require("torch", extra="training")
    is_emb = EMB_KEY in json_in(folder, "config.json")
    tokenizer, model = (load_emb_cross_encoder if is_emb else load_classifier)(folder)
    limit = token_limit(None, config=model.config.to_dict(), tokenizer_length=tokenizer.model_max_length, folder=folder)
    # Which of the folder's files says so stays behind.
    tokenizer.model_max_length = limit.tokens
    tokenizer.save_pretrained(graph.parent)
    model = model.float().eval()
    # Written out as plain products, attention can be run, fused and quantised by every version of the runtime.
    model.base_model.set_attn_implementation("eager")
    words = ["a b c", "a b c"]
    inputs = dict(tokenizer(words, words, return_tensors="pt", return_token_type_ids=True))
    names = [name for name in tokenizer.model_input_names if name in inspect.signature(model.forward).parameters]
    with _silent():
        program = torch.onnx.export(
            model,
            kwargs={name: inputs[name] for name in names},
            input_names=names,
            output_names=["logits"],
            dynamic_shapes={name: {0: "pairs", 1: "tokens"} for name in names},
            opset_version=opset,
            dynamo=True,
            verbose=False,
        )
        program.save(graph)


def _compare(folder: Path, graph: Path) -> None:
    with TorchCrossEncoder(folder, device="cpu", dtype="float32") as torch_scorer, OnnxCrossEncoder(graph) as ours:
        expected, scores = torch_scorer.score(_PROBES), ours.score(_PROBES)
    difference = float(np.abs(scores - expected).max())
    if difference > _LARGEST_DIFFERENCE * max(1.0, float(np.abs(expected).max())):
        raise InputError(
            f"The ONNX graph of {folder} must score as torch does; {len(_PROBES)} pairs differ by up to "
            f"{difference:.2g}: {scores.tolist()} and {expected.tolist()}. This model cannot be exported."
        )


def _quantise(graph: Path) -> None:
    quantization = require("onnxruntime.quantization", extra="training")
    onnx = require("onnx", extra="training")
    model = onnx.load(graph)
    # The quantiser turns weights round, and would find the shapes that the exporter noted contradicted.
    del model.graph.value_info[:]
    for file in graph.parent.glob("model.onnx*"):
        file.unlink()
    with _silent():
        # Seven bits: with eight, processors without VNNI overflow and score otherwise.
        quantization.quantize_dynamic(
            model, graph, weight_type=quantization.QuantType.QInt8, per_channel=True, reduce_range=True
        )


@contextmanager
def _silent() -> Iterator[None]:
    """Exporter and quantiser without their warnings, which concern their own authors."""
    # The quantiser logs on the root logger, which would configure itself for want of a handler.
    root, handler = logging.getLogger(), logging.NullHandler()
    disabled = root.manager.disable
    root.addHandler(handler)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)
