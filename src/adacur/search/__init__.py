"""Rounds of exact scores and predictions within a budget: ADACUR, ANNCUR, re-ranking and exact search."""

from adacur.search.adaptive import AdaptiveSearch
from adacur.search.anchor_index import AnchorIndex, SearchOptions
from adacur.search.methods import ANNCUR, AdaCUR, Exact, Rerank
from adacur.search.opening import build, encoder, load, scorer

__all__ = [
    "ANNCUR",
    "AdaCUR",
    "AdaptiveSearch",
    "AnchorIndex",
    "Exact",
    "Rerank",
    "SearchOptions",
    "build",
    "encoder",
    "load",
    "scorer",
]
