"""Whether it helps on one's own data: measures, an evaluation of several methods, and the report.

- recall.py, judged.py: what is measured.
- collection.py: what it is measured on; evaluating.py: the runs, each stored once (runs.py).
- searchability.py, depth_verdict.py, depths.py: judged quality by depth, phantom hits, what to do about them, and how
  deep an evaluation can look.
- significance.py, comparison.py, report.py: how certain it is, side by side, in words and as a page.
"""

from adacur.evaluation.comparison import Row, compare, verdict
from adacur.evaluation.depth_verdict import DepthVerdict
from adacur.evaluation.evaluating import Evaluation, Start, evaluate
from adacur.evaluation.judged import judged_quality
from adacur.evaluation.recall import top_k_recall
from adacur.evaluation.report import write_report
from adacur.evaluation.runs import Run
from adacur.evaluation.searchability import Curve, Depth, Phantom, Searchability, searchability
from adacur.evaluation.significance import PairedDifference, bootstrap_interval, paired_difference

__all__ = [
    "Curve",
    "Depth",
    "DepthVerdict",
    "Evaluation",
    "PairedDifference",
    "Phantom",
    "Row",
    "Run",
    "Searchability",
    "Start",
    "bootstrap_interval",
    "compare",
    "evaluate",
    "judged_quality",
    "paired_difference",
    "searchability",
    "top_k_recall",
    "verdict",
    "write_report",
]
