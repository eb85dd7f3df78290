"""Commands as tests run them: in this process, or in one of their own where the process is the point."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from adacur.cli import messages
from adacur.cli import run as run_here

__all__ = ["ADACUR", "Ran", "environment", "here", "run", "write_lines"]

ADACUR = Path(sys.executable).with_name("adacur")
_SET_BY_TESTS = ("MOOD", "LOG", "SECONDS_PER_PAIR")


@dataclass(frozen=True)
class Ran:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str

    def json(self) -> list[Any]:
        """Every line of stdout, which must be JSON and nothing else."""
        return [json.loads(line) for line in self.out.splitlines()]

    def refused(self, *words: str) -> None:
        """Check that there was one clear error, and no traceback."""
        assert self.code == 1, self
        assert "Traceback" not in self.err
        # A progress bar leaves its line open.
        (message,) = (line for line in self.err.replace("\r", "\n").splitlines() if line.startswith("Error: "))
        for word in words:
            assert word in message
        assert self.out == ""


def environment(**extra: str) -> dict[str, str]:
    """The environment of a command in a process of its own."""
    ours = {name: value for name, value in os.environ.items() if name not in _SET_BY_TESTS}
    return ours | {"COLUMNS": "100", "NO_COLOR": "1"} | extra


def run(*arguments: object, cwd: Path, **extra: str) -> Ran:
    """What the command leaves when it runs in a process of its own."""
    done = subprocess.run(
        [ADACUR, *map(str, arguments)],
        cwd=cwd,
        env=environment(**extra),
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def here(*arguments: object, cwd: Path | None = None, width: int = 100, **extra: str) -> Ran:
    """What the command leaves when it runs in this process; modules that it imports from `cwd` are forgotten."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    folder = Path.cwd() if cwd is None else cwd
    modules = set(sys.modules)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("default")
        patch.chdir(folder)
        for name in _SET_BY_TESTS:
            patch.delenv(name, raising=False)
        for name, value in {"COLUMNS": str(width), "NO_COLOR": "1", **extra}.items():
            patch.setenv(name, value)
        # A console reads its width when it is made, which it was when this file was collected.
        for console in (messages.output, messages.notes):
            patch.setattr(console, "_width", width)
        patch.setattr(sys, "argv", ["adacur", *map(str, arguments)])
        patch.setattr(sys, "path", [*sys.path])
        # Whatever this process does, in the folder lies only what the command wrote.
        patch.setattr(sys, "dont_write_bytecode", True)
        try:
            run_here()
        except SystemExit as stop:
            code = stop.code or 0
    # The next folder may have a file by the same name.
    for name in set(sys.modules) - modules:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == folder:
            del sys.modules[name]
    return Ran(code, out.getvalue(), err.getvalue())


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
