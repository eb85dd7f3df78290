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

# Where each public name lives. Looked up on first use: importing adacur must not import what it may never need.
_HOME_OF = {
    "ANNCUR": "search",
    "AXN": "search",
    "AdaCUR": "search",
    "AdacurError": "core.errors",
    "AnchorIndex": "search",
    "BM25": "first_stages",
    "Budget": "core.budget",
    "Cached": "scorers",
    "Dense": "first_stages",
    "Exact": "search",
    "First": "search",
    "Gaussian": "search",
    "Hit": "core.results",
    "Hits": "core.results",
    "Item": "core.records",
    "Query": "core.records",
    "Ray": "engines",
    "Rerank": "search",
    "Trace": "core.results",
    "build": "building",
    "encoder": "first_stages.encoders",
    "load": "search",
    "pseudo_queries": "data",
    "scorer": "scorers",
    "search_in": "search",
    "tune": "tuning",
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
    if name not in _HOME_OF:
        raise AttributeError(f"module 'adacur' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"adacur.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS, "__version__"])
