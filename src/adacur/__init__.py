"""k-nearest-neighbour search with cross-encoders, within a budget of scorer calls.

index = adacur.build(items, anchor_queries, scorer=scorer, path="wiki.adacur")
hits = index.search("who discovered penicillin?", k=10, budget=100)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from adacur.approximation import EmbeddingRegression, GaussianModel, PseudoInverse, Softmax, TopK, Uniform
    from adacur.building import build
    from adacur.core.budget import Budget
    from adacur.core.errors import AdacurError
    from adacur.core.records import Item, Query
    from adacur.core.results import Hit, Hits, Round, Trace
    from adacur.data import pseudo_queries, read_items, read_queries
    from adacur.engines import Ray
    from adacur.first_stages import (
        BM25,
        Dense,
        MatrixRetriever,
        MultiVector,
        OnnxEncoder,
        RandomRetriever,
        SentenceTransformerEncoder,
        TfIdf,
    )
    from adacur.first_stages.opening import encoder
    from adacur.index import DriftWarning, estimate, verify
    from adacur.scorers import (
        Cached,
        CacheWarning,
        EmbHead,
        FunctionScorer,
        HttpScorer,
        LangChainScorer,
        MatrixScorer,
        Metered,
        OnnxCrossEncoder,
        ProbabilityWarning,
        PyTerrierScorer,
        RerankersScorer,
        SentenceTransformersScorer,
        SharedBatches,
        TorchCrossEncoder,
        export_onnx,
        scorer,
    )
    from adacur.search import (
        ANNCUR,
        AdaCUR,
        AnchorIndex,
        Exact,
        GaussianSettings,
        Rerank,
        SearchLog,
        SearchLogWarning,
        Tuning,
        TuningWarning,
        compress,
        load,
        refresh,
    )
    from adacur.training import (
        TeacherScores,
        Trained,
        TrainingSettings,
        distill,
        train_cross_encoder,
        train_dual_encoder,
    )

    # Not imported even here: rooms below the integrations import this module.
    from_pretrained: Callable[..., AnchorIndex]
    push_to_hub: Callable[..., str]

__version__ = "0.1.0"

# Where each public name lives. Looked up on first use: importing adacur must not import what it may never need.
_ROOM_OF = {
    "ANNCUR": "search",
    "AdaCUR": "search",
    "AdacurError": "core.errors",
    "AnchorIndex": "search",
    "BM25": "first_stages",
    "Budget": "core.budget",
    "CacheWarning": "scorers",
    "Cached": "scorers",
    "Dense": "first_stages",
    "DriftWarning": "index",
    "EmbHead": "scorers",
    "EmbeddingRegression": "approximation",
    "Exact": "search",
    "FunctionScorer": "scorers",
    "GaussianModel": "approximation",
    "GaussianSettings": "search",
    "Hit": "core.results",
    "Hits": "core.results",
    "HttpScorer": "scorers",
    "Item": "core.records",
    "LangChainScorer": "scorers",
    "MatrixRetriever": "first_stages",
    "MatrixScorer": "scorers",
    "Metered": "scorers",
    "MultiVector": "first_stages",
    "OnnxCrossEncoder": "scorers",
    "OnnxEncoder": "first_stages",
    "ProbabilityWarning": "scorers",
    "PseudoInverse": "approximation",
    "PyTerrierScorer": "scorers",
    "Query": "core.records",
    "RandomRetriever": "first_stages",
    "Ray": "engines",
    "Rerank": "search",
    "RerankersScorer": "scorers",
    "Round": "core.results",
    "SentenceTransformerEncoder": "first_stages",
    "SentenceTransformersScorer": "scorers",
    "SharedBatches": "scorers",
    "SearchLog": "search",
    "SearchLogWarning": "search",
    "Softmax": "approximation",
    "TeacherScores": "training",
    "TfIdf": "first_stages",
    "TopK": "approximation",
    "TorchCrossEncoder": "scorers",
    "Trace": "core.results",
    "Trained": "training",
    "TrainingSettings": "training",
    "Tuning": "search",
    "TuningWarning": "search",
    "Uniform": "approximation",
    "build": "building",
    "compress": "search",
    "distill": "training",
    "encoder": "first_stages.opening",
    "estimate": "index",
    "export_onnx": "scorers",
    "from_pretrained": "integrations.hub",
    "load": "search",
    "refresh": "search",
    "pseudo_queries": "data",
    "push_to_hub": "integrations.hub",
    "read_items": "data",
    "read_queries": "data",
    "scorer": "scorers",
    "train_cross_encoder": "training",
    "train_dual_encoder": "training",
    "verify": "index",
}

__all__ = [
    "ANNCUR",
    "BM25",
    "AdaCUR",
    "AdacurError",
    "AnchorIndex",
    "Budget",
    "CacheWarning",
    "Cached",
    "Dense",
    "DriftWarning",
    "EmbHead",
    "EmbeddingRegression",
    "Exact",
    "FunctionScorer",
    "GaussianModel",
    "GaussianSettings",
    "Hit",
    "Hits",
    "HttpScorer",
    "Item",
    "LangChainScorer",
    "MatrixRetriever",
    "MatrixScorer",
    "Metered",
    "MultiVector",
    "OnnxCrossEncoder",
    "OnnxEncoder",
    "ProbabilityWarning",
    "PseudoInverse",
    "PyTerrierScorer",
    "Query",
    "RandomRetriever",
    "Ray",
    "Rerank",
    "RerankersScorer",
    "Round",
    "SearchLog",
    "SearchLogWarning",
    "SentenceTransformerEncoder",
    "SentenceTransformersScorer",
    "SharedBatches",
    "Softmax",
    "TeacherScores",
    "TfIdf",
    "TopK",
    "TorchCrossEncoder",
    "Trace",
    "Trained",
    "TrainingSettings",
    "Tuning",
    "TuningWarning",
    "Uniform",
    "build",
    "compress",
    "distill",
    "encoder",
    "estimate",
    "export_onnx",
    "from_pretrained",
    "load",
    "pseudo_queries",
    "push_to_hub",
    "read_items",
    "read_queries",
    "refresh",
    "scorer",
    "train_cross_encoder",
    "train_dual_encoder",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'adacur' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"adacur.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
