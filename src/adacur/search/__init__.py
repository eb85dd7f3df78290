"""Rounds of exact scores and predictions within a budget.

Where to change what, in the order in which a search meets it: `anchor_index` is the face; `planning` puts an index
version, a method, a budget and a first stage together; `methods` is the one table of methods, a class each; `rounds` is
the loop that calls the scorer, and `adaptive` one search of it (ask, tell, stop); `prospects` says which items are
promising, `device_search` and `engine_search` where a device or a vector engine holds them. `stepping` runs the
searches of a server, `spending` keeps to budgets of tokens and money. `export` writes an index into an engine, and
`engine_index` opens one there, or a collection as it is. `editing` changes an index, `opening` loads one, `search_log`,
`refresh` and `learning` learn from searches, `tuned` reads tunings. `relevance` says what scores mean, `effort` when a
search has done enough, and `explaining` why an item is a hit.
"""

from adacur.search.adaptive import AdaptiveSearch
from adacur.search.anchor_index import AnchorIndex
from adacur.search.editing import Change, Edit
from adacur.search.effort import EffortPoint, EffortRule
from adacur.search.engine_index import search_in
from adacur.search.engine_items import EngineWarning
from adacur.search.explaining import AnchorSaid, Explanation, FirstStageSaid
from adacur.search.export import Exported, export
from adacur.search.filters import Filter
from adacur.search.learning import Learning
from adacur.search.methods import (
    ANNCUR,
    AXN,
    METHODS,
    AdaCUR,
    Exact,
    First,
    Gaussian,
    Method,
    Plan,
    Rerank,
    method_named,
)
from adacur.search.opening import load
from adacur.search.options import SearchOptions, search_options
from adacur.search.planning import plan_search
from adacur.search.refresh import Refreshed, refresh
from adacur.search.relevance import Calibration, Relevance
from adacur.search.search_log import Lesson, SearchLog, SearchLogWarning, mask_private
from adacur.search.tuned import GaussianSettings, Tuning, TuningWarning

__all__ = [
    "ANNCUR",
    "AXN",
    "METHODS",
    "AdaCUR",
    "AdaptiveSearch",
    "AnchorIndex",
    "AnchorSaid",
    "Calibration",
    "Change",
    "Edit",
    "EffortPoint",
    "EffortRule",
    "EngineWarning",
    "Exact",
    "Explanation",
    "Exported",
    "Filter",
    "First",
    "FirstStageSaid",
    "Gaussian",
    "GaussianSettings",
    "Learning",
    "Lesson",
    "Method",
    "Plan",
    "Refreshed",
    "Relevance",
    "Rerank",
    "SearchLog",
    "SearchLogWarning",
    "SearchOptions",
    "Tuning",
    "TuningWarning",
    "export",
    "load",
    "mask_private",
    "method_named",
    "plan_search",
    "refresh",
    "search_in",
    "search_options",
]
