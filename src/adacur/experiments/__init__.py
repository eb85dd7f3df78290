"""Experiments: what to run (spec), where (testbed), running it once (runner), and keeping it (store)."""

from adacur.experiments.methods import METHODS, Asked
from adacur.experiments.runner import Failure, Outcome, StoredRun, evaluate, measured_run
from adacur.experiments.spec import Spec, spec_text
from adacur.experiments.starting import starting_spec
from adacur.experiments.testbed import Testbed
from adacur.experiments.trec import write_trec

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
    "starting_spec",
    "write_trec",
]
