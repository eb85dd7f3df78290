"""Scorers: the expensive f(query, item), from a matrix, a function, an ONNX file or a transformers checkpoint."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.scorers.function import FunctionScorer
    from adacur.scorers.grid import ascore, score_grid
    from adacur.scorers.matrix import MatrixScorer
    from adacur.scorers.metered import Metered
    from adacur.scorers.onnx import OnnxCrossEncoder
    from adacur.scorers.opening import scorer
    from adacur.scorers.torch import TorchCrossEncoder

__all__ = [
    "FunctionScorer",
    "MatrixScorer",
    "Metered",
    "OnnxCrossEncoder",
    "TorchCrossEncoder",
    "ascore",
    "score_grid",
    "scorer",
]

_MODULES = {
    "FunctionScorer": "function",
    "MatrixScorer": "matrix",
    "Metered": "metered",
    "OnnxCrossEncoder": "onnx",
    "TorchCrossEncoder": "torch",
    "ascore": "grid",
    "score_grid": "grid",
    "scorer": "opening",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
