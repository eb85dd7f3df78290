"""Builds, edits and compactions that are killed at their calls to the file system; all of them:
lab/benchmarks/killed_calls.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from lab.benchmarks.killed_calls import start_with_shim


@pytest.mark.skipif(sys.platform != "linux", reason="the shim is written for Linux")
def test_what_is_killed_at_any_call_is_continued_and_equals_what_was_not(tmp_path: Path) -> None:
    try:
        came = start_with_shim(tmp_path, ["--every", "173"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"the shim cannot be compiled here: {error}")
    kills, equal = map(int, re.findall(r"^all +(\d+) kills, +(\d+) equal", came.stdout, re.MULTILINE)[0])
    if not kills:
        pytest.skip("this Python does not call the C library through the shim")
    assert came.returncode == 0, came.stdout
    assert kills == equal >= 30
