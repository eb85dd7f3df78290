"""Queries with known scores, searched as if they were unknown.

- `tune` (tune_index.py): which settings suit an index; `compress`: its features in less memory;
- `evaluate` (evaluating.py): methods compared on judged data, in words and as a page;
- `try_collection` (trial.py): whether it is worth it, before any index.
"""

from __future__ import annotations

from adacur.replay.advice import Answer
from adacur.replay.comparison import Row, compare
from adacur.replay.compression import Compression, compress, decompress
from adacur.replay.depth_verdict import DepthVerdict
from adacur.replay.evaluating import Evaluation, Start, evaluate
from adacur.replay.held_out import replay
from adacur.replay.judged_tuning import JudgedQueries
from adacur.replay.measures import exact_scores, judged_quality, top_k_recall
from adacur.replay.report import write_report
from adacur.replay.runs import PairedDifference, Run, bootstrap_interval, paired_difference
from adacur.replay.searchability import Curve, Depth, Phantom, Searchability, searchability
from adacur.replay.trial import Trial, try_collection
from adacur.replay.trial_sizes import TrialSizes
from adacur.replay.tune_index import judged_queries, tune
from adacur.search.tuned import Judged, Tuning

__all__ = [
    "Answer",
    "Compression",
    "Curve",
    "Depth",
    "DepthVerdict",
    "Evaluation",
    "Judged",
    "JudgedQueries",
    "PairedDifference",
    "Phantom",
    "Row",
    "Run",
    "Searchability",
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
    "judged_quality",
    "judged_queries",
    "paired_difference",
    "replay",
    "searchability",
    "top_k_recall",
    "try_collection",
    "tune",
    "write_report",
]
