"""Experiments: what to run (spec), where (testbed), running it once (runner), and keeping it (store)."""

from adacur_lab.experiments.methods import METHODS, Asked
from adacur_lab.experiments.runner import Failure, Outcome, StoredRun, evaluate, measured_run
from adacur_lab.experiments.spec import Spec, spec_text
from adacur_lab.experiments.testbed import Testbed

__all__ = [
    "METHODS",
    "Asked",
    "Failure",
    "Outcome",
    "Spec",
    "StoredRun",
    "Testbed",
    "evaluate",
    "measured_run",
    "spec_text",
]
