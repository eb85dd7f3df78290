"""Rounds of exact scores and predictions within a budget: ADACUR, ANNCUR, re-ranking and exact search."""

from adacur.search.adaptive import AdaptiveSearch
from adacur.search.anchor_index import AnchorIndex, SearchOptions
from adacur.search.compression import Compression
from adacur.search.editing import Change, Edit
from adacur.search.methods import ANNCUR, AdaCUR, Exact, Rerank
from adacur.search.opening import compress, load
from adacur.search.refresh import Refreshed, refresh
from adacur.search.search_log import SearchLog, SearchLogWarning
from adacur.search.settings import GaussianSettings
from adacur.search.tuned import TuningWarning
from adacur.search.tuning import Tuning

__all__ = [
    "ANNCUR",
    "AdaCUR",
    "AdaptiveSearch",
    "AnchorIndex",
    "Change",
    "Compression",
    "Edit",
    "Exact",
    "GaussianSettings",
    "Refreshed",
    "Rerank",
    "SearchLog",
    "SearchLogWarning",
    "SearchOptions",
    "Tuning",
    "TuningWarning",
    "compress",
    "load",
    "refresh",
]
