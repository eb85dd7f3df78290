"""Whether it helps on one's own data: measures, an evaluation of several methods, and the report.

- measures.py: what is measured.
- collection.py: what it is measured on; evaluating.py: the runs, each stored once (runs.py,
  with how certain a mean and a difference are).
- searchability.py, depth_verdict.py, depths.py: judged quality by depth, phantom hits, what to do about them, and how
  deep an evaluation can look.
- comparison.py, report.py: runs side by side, in words and as a page.
"""

from adacur.evaluation.comparison import Row, compare, verdict
from adacur.evaluation.depth_verdict import DepthVerdict
from adacur.evaluation.evaluating import Evaluation, Start, evaluate
from adacur.evaluation.measures import judged_quality, top_k_recall
from adacur.evaluation.report import write_report
from adacur.evaluation.runs import PairedDifference, Run, bootstrap_interval, paired_difference
from adacur.evaluation.searchability import Curve, Depth, Phantom, Searchability, searchability

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
