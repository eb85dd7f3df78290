"""Queries with known scores, searched as if they were unknown.

- `tune` (tune_index.py): which settings suit an index; `compress`: its features in less memory;
- `evaluate` (evaluating.py): methods compared on a collection;
- `try_collection` (trial.py): whether it is worth it, before any index.
"""

from __future__ import annotations

from adacur.replay.advice import Answer
from adacur.replay.certificates import find_costs
from adacur.replay.comparison import Row, Run, compare, paired_difference
from adacur.replay.compression import Compression, compress, decompress
from adacur.replay.evaluating import Evaluation, Start, evaluate
from adacur.replay.judged_tuning import JudgedQueries, judged_queries
from adacur.replay.measures import bootstrap_interval, exact_scores, judged_quality, mean_of, top_k_recall
from adacur.replay.measuring import TrialSizes
from adacur.replay.searches import replay
from adacur.replay.trial import Trial, try_collection
from adacur.replay.tune_index import tune
from adacur.search.tuned import Judged, Mean, Tuning

__all__ = [
    "Answer",
    "Compression",
    "Evaluation",
    "Judged",
    "JudgedQueries",
    "Mean",
    "Row",
    "Run",
    "Start",
    "Trial",
    "TrialSizes",
    "Tuning",
    "bootstrap_interval",
    "compare",
    "compress",
    "decompress",
    "evaluate",
    "exact_scores",
    "find_costs",
    "judged_quality",
    "judged_queries",
    "mean_of",
    "paired_difference",
    "replay",
    "top_k_recall",
    "try_collection",
    "tune",
]
