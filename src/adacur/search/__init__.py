"""Rounds of exact scores and predictions within a budget.

Where to change what, in the order in which a search meets it: `index` is the face; `planning` reads options and puts a
`snapshot` (one version of an index), a method, a budget and a first stage together to a `plan`;
`methods` is the one table of methods, a class each; `places` says where the items are; `rounds` is the loop that
calls the scorer, and `asktell` one search of it (ask, tell, stop); `candidates` says which items are promising,
`device_search` where a device holds the predictions; `spending` keeps to budgets and deadlines, `stopping` says when a
search has done enough; `finish` is what happens after the last round, with `relevance`. `editing` changes
an index, `opening` loads one, `index_stages` keeps its first stages, `tuned` reads tunings.
"""

from __future__ import annotations

from adacur.search.asktell import AskTell
from adacur.search.filters import Filter
from adacur.search.index import AnchorIndex
from adacur.search.methods import (
    ANNCUR,
    METHODS,
    AdaCUR,
    Exact,
    FirstOnly,
    Gaussian,
    Method,
    Rerank,
    method_named,
)
from adacur.search.opening import load
from adacur.search.plan import Plan
from adacur.search.planning import SearchOptions, plan_search, search_options
from adacur.search.relevance import Calibration, Relevance
from adacur.search.stopping import EffortPoint, EffortRule
from adacur.search.tuned import GaussianSettings, Tuning, TuningWarning
from adacur.store import Change, Edit

__all__ = [
    "ANNCUR",
    "METHODS",
    "AdaCUR",
    "AnchorIndex",
    "AskTell",
    "Calibration",
    "Change",
    "Edit",
    "EffortPoint",
    "EffortRule",
    "Exact",
    "Filter",
    "FirstOnly",
    "Gaussian",
    "GaussianSettings",
    "Method",
    "Plan",
    "Relevance",
    "Rerank",
    "SearchOptions",
    "Tuning",
    "TuningWarning",
    "load",
    "method_named",
    "plan_search",
    "search_options",
]
