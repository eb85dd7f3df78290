"""Moves what int8 models compute, as another processor would: scores by up to .3, vectors by a hundredth.

int8 products are rounded, and on some processors saturate, as the processor does it. What moves is decided by the
seed in $ADACUR_REHEARSAL and the tokens of a text or pair, so that the same pair moves alike alone, in company, in a
grid and in another process, as it would on that other processor.
"""

from __future__ import annotations

import hashlib
import importlib.util
import mmap
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

MOST_OF_A_SCORE = 0.3
MOST_OF_A_VECTOR = 1e-2
INT8_OPERATORS = (b"DynamicQuantize", b"MatMulInteger", b"ConvInteger", b"QLinearMatMul", b"QGemm", b"QAttention")


class WhenImported(MetaPathFinder):
    """onnxruntime with other sessions, once it is imported: many programs never need it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != "onnxruntime":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_replace(module: Any) -> None:
                execute(module)
                module.InferenceSession = moved_sessions(module.InferenceSession)

            spec.loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec


def moved_sessions(plain: Any) -> Any:
    class InferenceSession(plain):  # type: ignore[misc]
        def __init__(self, model: Any, *arguments: Any, **options: Any) -> None:
            super().__init__(model, *arguments, **options)
            self.is_int8 = is_int8(model)

        def run(self, names: Any, fed: dict[str, Any], *arguments: Any) -> list[Any]:
            outputs: list[Any] = super().run(names, fed, *arguments)
            if self.is_int8 and "input_ids" in fed:
                outputs[0] = moved(outputs[0], fed["input_ids"], fed.get("attention_mask"))
            return outputs

    return InferenceSession


def is_int8(model: Any) -> bool:
    if isinstance(model, bytes):
        return any(operator in model for operator in INT8_OPERATORS)
    with open(model, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return any(content.find(operator) >= 0 for operator in INT8_OPERATORS)


def moved(output: Any, ids: Any, mask: Any) -> Any:
    """A row is a pair's score or a text's vectors, of shape (…, dimension)."""
    import numpy as np

    output = output.copy()
    for row, tokens in enumerate(np.asarray(ids, np.int64)):
        kept = tokens if mask is None else tokens[np.asarray(mask[row], bool)]
        noise = np.random.default_rng(seed_of(kept.tobytes()))
        if output[row].size == 1:
            output[row] += noise.uniform(-MOST_OF_A_SCORE, MOST_OF_A_SCORE)
        else:
            relative = noise.uniform(-MOST_OF_A_VECTOR, MOST_OF_A_VECTOR, output.shape[-1])
            output[row] += (relative * np.abs(output[row]).mean()).astype(output.dtype)
    return output


def seed_of(tokens: bytes) -> int:
    seed = os.environ["ADACUR_REHEARSAL"].encode()
    return int.from_bytes(hashlib.blake2b(tokens, key=seed[:64], digest_size=8).digest(), "big")


if "onnxruntime" in sys.modules:
    runtime = sys.modules["onnxruntime"]
    runtime.InferenceSession = moved_sessions(runtime.InferenceSession)
else:
    sys.meta_path.insert(0, WhenImported())
