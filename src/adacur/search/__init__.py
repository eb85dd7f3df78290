"""Rounds of exact scores and predictions within a budget: ADACUR, ANNCUR, re-ranking and exact search."""

from adacur.search.adaptive import AdaptiveSearch
from adacur.search.anchor_index import AnchorIndex
from adacur.search.editing import Change, Edit
from adacur.search.methods import (
    ANNCUR,
    AXN,
    METHODS,
    AdaCUR,
    Exact,
    Filter,
    First,
    Gaussian,
    Method,
    Plan,
    Rerank,
    method_named,
)
from adacur.search.opening import load
from adacur.search.planning import SearchOptions, plan_search, search_options
from adacur.search.refresh import Refreshed, refresh
from adacur.search.search_log import SearchLog, SearchLogWarning
from adacur.search.tuned import GaussianSettings, Tuning, TuningWarning

__all__ = [
    "ANNCUR",
    "AXN",
    "METHODS",
    "AdaCUR",
    "AdaptiveSearch",
    "AnchorIndex",
    "Change",
    "Edit",
    "Exact",
    "Filter",
    "First",
    "Gaussian",
    "GaussianSettings",
    "Method",
    "Plan",
    "Refreshed",
    "Rerank",
    "SearchLog",
    "SearchLogWarning",
    "SearchOptions",
    "Tuning",
    "TuningWarning",
    "load",
    "method_named",
    "plan_search",
    "refresh",
    "search_options",
]
