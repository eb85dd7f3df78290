"""First stages: random, matrix, BM25, TF-IDF, dense, multi-vector. Each answers `search(queries, k)`, best first."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.first_stages.bm25 import BM25
    from adacur.first_stages.dense import Dense
    from adacur.first_stages.encoders import (
        Encoder,
        EncoderCard,
        OnnxEncoder,
        SentenceTransformerEncoder,
        TokenEncoder,
        bge_small,
    )
    from adacur.first_stages.matrix import MatrixRetriever
    from adacur.first_stages.multi_vector import MultiVector
    from adacur.first_stages.random import RandomRetriever
    from adacur.first_stages.saved import load_retriever, read_settings
    from adacur.first_stages.tfidf import TfIdf

__all__ = [
    "BM25",
    "Dense",
    "Encoder",
    "EncoderCard",
    "MatrixRetriever",
    "MultiVector",
    "OnnxEncoder",
    "RandomRetriever",
    "SentenceTransformerEncoder",
    "TfIdf",
    "TokenEncoder",
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
    "MultiVector": "multi_vector",
    "OnnxEncoder": "encoders",
    "RandomRetriever": "random",
    "SentenceTransformerEncoder": "encoders",
    "TfIdf": "tfidf",
    "TokenEncoder": "encoders",
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
