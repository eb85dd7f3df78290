"""Scorers: the expensive f(query, item), from a model, a service, another library, a function or a matrix."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.scorers.cached import Cached, CacheWarning
    from adacur.scorers.cross_encoders.emb_cross_encoder import (
        EmbHead,
        load_emb_cross_encoder,
        make_emb_cross_encoder,
        save_emb_cross_encoder,
    )
    from adacur.scorers.cross_encoders.onnx import OnnxCrossEncoder
    from adacur.scorers.cross_encoders.onnx_export import export_onnx
    from adacur.scorers.cross_encoders.torch import TorchCrossEncoder
    from adacur.scorers.function import FunctionScorer
    from adacur.scorers.grid import ascore, score_grid
    from adacur.scorers.http import HttpScorer, ProbabilityWarning
    from adacur.scorers.langchain import LangChainScorer
    from adacur.scorers.matrix import MatrixScorer
    from adacur.scorers.metered import Metered
    from adacur.scorers.opening import scorer
    from adacur.scorers.pyterrier import PyTerrierScorer
    from adacur.scorers.rerankers import RerankersScorer
    from adacur.scorers.sentence_transformers import SentenceTransformersScorer
    from adacur.scorers.shared_batches import SharedBatches

__all__ = [
    "CacheWarning",
    "Cached",
    "EmbHead",
    "FunctionScorer",
    "HttpScorer",
    "LangChainScorer",
    "MatrixScorer",
    "Metered",
    "OnnxCrossEncoder",
    "ProbabilityWarning",
    "PyTerrierScorer",
    "RerankersScorer",
    "SentenceTransformersScorer",
    "SharedBatches",
    "TorchCrossEncoder",
    "ascore",
    "export_onnx",
    "load_emb_cross_encoder",
    "make_emb_cross_encoder",
    "save_emb_cross_encoder",
    "score_grid",
    "scorer",
]

_MODULES = {
    "CacheWarning": "cached",
    "ProbabilityWarning": "http",
    "SharedBatches": "shared_batches",
    "Cached": "cached",
    "EmbHead": "cross_encoders.emb_cross_encoder",
    "FunctionScorer": "function",
    "HttpScorer": "http",
    "LangChainScorer": "langchain",
    "MatrixScorer": "matrix",
    "Metered": "metered",
    "OnnxCrossEncoder": "cross_encoders.onnx",
    "PyTerrierScorer": "pyterrier",
    "RerankersScorer": "rerankers",
    "SentenceTransformersScorer": "sentence_transformers",
    "TorchCrossEncoder": "cross_encoders.torch",
    "ascore": "grid",
    "export_onnx": "cross_encoders.onnx_export",
    "load_emb_cross_encoder": "cross_encoders.emb_cross_encoder",
    "make_emb_cross_encoder": "cross_encoders.emb_cross_encoder",
    "save_emb_cross_encoder": "cross_encoders.emb_cross_encoder",
    "score_grid": "grid",
    "scorer": "opening",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
