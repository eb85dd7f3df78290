"""The server keeps to its OpenAPI document, whatever schemathesis makes up.

    schemathesis --config-file tests/functional/schemathesis.toml run http://127.0.0.1:8000/openapi.json

does the same to a server that runs, with as many examples as one has patience for.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adacur.extras.server import ServerSettings, create_app
from tests.serving_world import serving, world_index

CONFIG = Path(__file__).with_name("schemathesis.toml")
KEY = "a-key"


@pytest.mark.parametrize("keys", [(), (KEY,)], ids=["open", "with keys"])
def test_no_request_that_schemathesis_makes_up_meets_a_failure(keys, tmp_path):
    # With keys, what counts is whether anything can be had without one.
    phases, examples = ("examples,fuzzing", "1") if keys else ("examples,coverage,fuzzing", "5")
    # Small limits: what lies over them stays small enough to be sent.
    settings = ServerSettings(api_keys=keys, max_budget=50, max_k=50, max_document_chars=300, max_query_chars=200)
    with serving(create_app({"small": world_index(n_items=30)}, settings=settings)) as url:
        command = [str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(CONFIG), "run"]
        command += [f"{url}/openapi.json", "--checks", "all", "--seed", "1", "--continue-on-failure", "--no-color"]
        command += ["--phases", phases, "--max-examples", examples]
        command += ["--header", f"Authorization: Bearer {KEY}"] if keys else []
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout
    print(done.stdout[done.stdout.index("Test cases:") :])  # noqa: T201
    assert int(found[1]) > (5 if keys else 150)
    assert "Tested: 9" in done.stdout
