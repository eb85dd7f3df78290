"""First stages: random, matrix, BM25, dense. Each answers `search(queries, k)` with hits, best first."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.retrievers.bm25 import BM25
    from adacur.retrievers.dense import Dense
    from adacur.retrievers.encoders import Encoder, EncoderCard, OnnxEncoder, SentenceTransformerEncoder, bge_small
    from adacur.retrievers.matrix import MatrixRetriever
    from adacur.retrievers.random import RandomRetriever
    from adacur.retrievers.saved import load_retriever, read_settings

__all__ = [
    "BM25",
    "Dense",
    "Encoder",
    "EncoderCard",
    "MatrixRetriever",
    "OnnxEncoder",
    "RandomRetriever",
    "SentenceTransformerEncoder",
    "bge_small",
    "load_retriever",
    "read_settings",
]

_HOMES = {
    "BM25": "bm25",
    "Dense": "dense",
    "Encoder": "encoders",
    "EncoderCard": "encoders",
    "MatrixRetriever": "matrix",
    "OnnxEncoder": "encoders",
    "RandomRetriever": "random",
    "SentenceTransformerEncoder": "encoders",
    "bge_small": "encoders",
    "load_retriever": "saved",
    "read_settings": "saved",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
