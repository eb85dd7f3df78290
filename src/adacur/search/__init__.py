"""Rounds of exact scores and predictions within a budget: ADACUR, ANNCUR, re-ranking and exact search."""

from adacur.search.adaptive import AdaptiveSearch
from adacur.search.anchor_index import AnchorIndex
from adacur.search.compression import Compression
from adacur.search.editing import Change, Edit
from adacur.search.methods import ANNCUR, AXN, METHODS, AdaCUR, Exact, Gaussian, Method, Rerank, method_named
from adacur.search.opening import compress, load
from adacur.search.plan import Filter, First, Plan
from adacur.search.planning import SearchOptions, plan_search, search_options
from adacur.search.refresh import Refreshed, refresh
from adacur.search.search_log import SearchLog, SearchLogWarning
from adacur.search.settings import GaussianSettings
from adacur.search.tuned import TuningWarning
from adacur.search.tuning import Tuning

__all__ = [
    "ANNCUR",
    "AXN",
    "METHODS",
    "AdaCUR",
    "AdaptiveSearch",
    "AnchorIndex",
    "Change",
    "Compression",
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
    "compress",
    "load",
    "method_named",
    "plan_search",
    "refresh",
    "search_options",
]
