"""Triton kernels on the CPU, by Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_interpreted(*parts: str) -> None:
    """Run a program in a process where Triton interprets: it must know that before it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", "".join(map(textwrap.dedent, parts))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
