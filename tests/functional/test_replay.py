"""The replay benchmark: figures that were measured before this code existed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "lab" / "benchmarks" / "recall_at_budget.py"
# Top-1, Top-10 and Top-100 recall: 500 anchors, the first 100 test queries, dense first batch, 5 rounds, B = 100.
KNOWN = {
    "scifact": {"adacur": (0.950, 0.854, 0.503), "rerank": (0.950, 0.790, 0.393)},
    "wikivital": {"adacur": (0.860, 0.653, 0.257), "rerank": (0.910, 0.803, 0.436)},
    "mondo": {"adacur": (0.950, 0.745, 0.333), "rerank": (0.990, 0.823, 0.418)},
}


@pytest.mark.parametrize("domain", KNOWN)
def test_recall_by_replay_is_the_recall_that_was_measured(domain, shared_folder, tmp_path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARK), "--scores", str(shared_folder / "scores" / domain), "--budgets", "100"]
    subprocess.run([*command, "--methods", "adacur,rerank", "--json", str(out)], check=True, capture_output=True)
    rows = {(row["method"], row["k"]): row for row in json.loads(out.read_text())}
    for method, recalls in KNOWN[domain].items():
        for k, recall in zip((1, 10, 100), recalls, strict=True):
            row = rows[method, k]
            assert row["recall"] == pytest.approx(recall, abs=0.02)
            assert row["low"] <= row["recall"] <= row["high"]
            assert (row["domain"], row["budget"], row["rounds"], row["anchors"]) == (domain, 100, 5, 500)
