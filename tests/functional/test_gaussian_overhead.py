"""The benchmark of what the Gaussian costs runs, at a size where its figures mean nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "gaussian_overhead.py"


def figures(*options: str) -> dict[str, float]:
    if not BENCHMARK.exists():
        pytest.skip("benchmarks are in the repository, not in the source distribution")
    command = [sys.executable, str(BENCHMARK), "--items", "2000", "--anchors", "40", "--repeats", "1", *options]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    found = re.findall(r"^ *([a-z][a-z0-9, ]*?[a-z0-9]) +(\d+\.\d+)", ran.stdout, flags=re.MULTILINE)
    return {name: float(number) for name, number in found}


def test_a_search_is_timed_with_and_without_compression() -> None:
    told = figures("--budget", "40", "--rounds", "4", "--dimensions", "16")
    assert set(told) == {"literal float64", "literal float32", "full", "rank 256 float32", "rank 128 int8"}


def test_rounds_on_a_device_are_timed() -> None:
    pytest.importorskip("torch")
    told = figures("--gpu", "--device", "cpu", "--budget", "40", "--rounds", "4", "--dimensions", "16")
    assert {"reading the bytes", "product with all rows", "predict and choose, a round"} <= set(told)
