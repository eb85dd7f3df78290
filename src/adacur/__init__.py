"""k-nearest-neighbour search with cross-encoders, within a budget of scorer calls.

index = adacur.build(items, anchor_queries, scorer=scorer, path="wiki.adacur")
hits = index.search("who discovered penicillin?", k=10, budget=100)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.building import build
    from adacur.core.budget import Budget
    from adacur.core.errors import AdacurError
    from adacur.core.records import Item, Query
    from adacur.core.results import Hit, Hits, Trace
    from adacur.data import pseudo_queries
    from adacur.engines import Ray
    from adacur.first_stages import BM25, Dense
    from adacur.first_stages.encoders import encoder
    from adacur.scorers import Cached, scorer
    from adacur.search import ANNCUR, AXN, AdaCUR, AnchorIndex, Exact, First, Gaussian, Rerank, load, search_in
    from adacur.tuning import tune

__version__ = "0.1.0"

# Where public names live. Looked up on first use: importing adacur must not import what it may never need.
_NAMES_IN = {
    "building": ("build",),
    "core.budget": ("Budget",),
    "core.errors": ("AdacurError",),
    "core.records": ("Item", "Query"),
    "core.results": ("Hit", "Hits", "Trace"),
    "data": ("pseudo_queries",),
    "engines": ("Ray",),
    "first_stages": ("BM25", "Dense"),
    "first_stages.encoders": ("encoder",),
    "scorers": ("Cached", "scorer"),
    "search": ("ANNCUR", "AXN", "AdaCUR", "AnchorIndex", "Exact", "First", "Gaussian", "Rerank", "load", "search_in"),
    "tuning": ("tune",),
}
# Everything else is found where it lives, e.g. adacur.scorers.HttpScorer.
_ROOMS = (
    "approximation",
    "core",
    "data",
    "engines",
    "evaluation",
    "first_stages",
    "index",
    "integrations",
    "scorers",
    "search",
    "serving",
    "training",
    "tuning",
)

__all__ = [
    "ANNCUR",
    "AXN",
    "BM25",
    "AdaCUR",
    "AdacurError",
    "AnchorIndex",
    "Budget",
    "Cached",
    "Dense",
    "Exact",
    "First",
    "Gaussian",
    "Hit",
    "Hits",
    "Item",
    "Query",
    "Ray",
    "Rerank",
    "Trace",
    "build",
    "encoder",
    "load",
    "pseudo_queries",
    "scorer",
    "search_in",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"adacur.{name}")
    for module, names in _NAMES_IN.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"adacur.{module}"), name)
            return value
    raise AttributeError(f"module 'adacur' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
