"""Triton kernels on the CPU, by Triton's interpreter."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import textwrap

# Each program runs in a fork of a process that has imported everything, which takes longer than most programs.
SERVER = """
import json, os, sys, traceback
for line in sys.stdin:
    child = os.fork()
    if not child:
        failure = ""
        try:
            exec(json.loads(line))
        except BaseException:
            failure = traceback.format_exc()
        print(json.dumps(failure), flush=True)
        os._exit(0)
    if code := os.waitpid(child, 0)[1]:
        print(json.dumps(f"ended with {code}"), flush=True)
# Without what Triton says of its own leaks.
os._exit(0)
"""


@functools.cache
def interpreter(imports: str) -> subprocess.Popen[str]:
    """A process where Triton interprets, which it must know before it is imported."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(imports) + SERVER],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(process.communicate)
    return process


def run_interpreted(imports: str, program: str) -> None:
    """Run a program in a process of its own, after imports that are done once."""
    process = interpreter(imports)
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps(textwrap.dedent(program)), file=process.stdin, flush=True)
    failure = json.loads(process.stdout.readline() or '"the imports failed"')
    assert not failure, failure
