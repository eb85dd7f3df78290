"""k-nearest-neighbour search with cross-encoders, within a budget of scorer calls.

index = adacur.build(items, anchor_queries, scorer=scorer, path="wiki.adacur")
hits = index.search("who discovered penicillin?", k=10, budget=100)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adacur.budget import Budget
    from adacur.building import build
    from adacur.data import pseudo_queries
    from adacur.errors import AdacurError
    from adacur.extras.engines import search_in
    from adacur.extras.ray import Ray
    from adacur.first_stages import BM25, Dense
    from adacur.first_stages.encoders import encoder
    from adacur.matching import match
    from adacur.records import Item, Query
    from adacur.replay import tune
    from adacur.results import Hit, Hits, Trace
    from adacur.scorers import Cached, scorer
    from adacur.search import AnchorIndex, load
    from adacur.search.methods import ANNCUR, AdaCUR, Exact, FirstOnly, Gaussian, Rerank

__version__ = "0.1.0"

# Where public names live. Looked up on first use: importing adacur must not import what it may never need.
_NAMES_IN = {
    "building": ("build",),
    "budget": ("Budget",),
    "errors": ("AdacurError",),
    "records": ("Item", "Query"),
    "results": ("Hit", "Hits", "Trace"),
    "data": ("pseudo_queries",),
    "extras.ray": ("Ray",),
    "first_stages": ("BM25", "Dense"),
    "first_stages.encoders": ("encoder",),
    "matching": ("match",),
    "scorers": ("Cached", "scorer"),
    "search": ("AnchorIndex", "load"),
    "extras.engines": ("search_in",),
    "search.methods": ("ANNCUR", "AdaCUR", "Exact", "FirstOnly", "Gaussian", "Rerank"),
    "replay": ("tune",),
}
# Everything else is found where it lives, e.g. adacur.scorers.HttpScorer.
_ROOMS = ("data", "extras", "first_stages", "matching", "model", "replay", "scorers", "search", "store")

__all__ = [
    "ANNCUR",
    "BM25",
    "AdaCUR",
    "AdacurError",
    "AnchorIndex",
    "Budget",
    "Cached",
    "Dense",
    "Exact",
    "FirstOnly",
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
    "match",
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
