"""What is measured, kept apart from how things are found."""

from adacur.evaluation.judged import judged_quality
from adacur.evaluation.recall import bootstrap_interval, top_k_recall

__all__ = ["bootstrap_interval", "judged_quality", "top_k_recall"]
