"""What is measured, kept apart from how things are found."""

from adacur.evaluation.anchor_spectrum import Spectrum, spectrum
from adacur.evaluation.cost import search_cost
from adacur.evaluation.first_stage import first_stage_ceiling, phantom_share
from adacur.evaluation.judged import judged_quality
from adacur.evaluation.judged_tuning import JudgedChoice, JudgedTuning, calls_to_tune_fuse, tune_fuse
from adacur.evaluation.prediction import approximation_error, predictions
from adacur.evaluation.recall import top_k_recall
from adacur.evaluation.runs import Run
from adacur.evaluation.significance import (
    PairedDifference,
    bootstrap_interval,
    holm,
    paired_difference,
    sign_flip_test,
)

__all__ = [
    "JudgedChoice",
    "JudgedTuning",
    "PairedDifference",
    "Run",
    "Spectrum",
    "approximation_error",
    "bootstrap_interval",
    "calls_to_tune_fuse",
    "first_stage_ceiling",
    "holm",
    "judged_quality",
    "paired_difference",
    "phantom_share",
    "predictions",
    "search_cost",
    "sign_flip_test",
    "spectrum",
    "top_k_recall",
    "tune_fuse",
]
