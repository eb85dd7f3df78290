"""Commands on an index in an object store."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.functional.commands import here

SCORER = "lengths_of_the_store_tests:score"


@pytest.fixture
def world(tmp_path, monkeypatch):
    (tmp_path / "lengths_of_the_store_tests.py").write_text(
        "def score(pairs):\n    return [float(len(query) * len(text) % 97) for query, text in pairs]\n"
    )
    (tmp_path / "items.txt").write_text("\n".join(f"item {'x' * number} number {number}" for number in range(150)))
    (tmp_path / "queries.txt").write_text("\n".join(f"query {'y' * number}" for number in range(24)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("lengths_of_the_store_tests", None)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """A command's lines on stdout and stderr."""
    ran = here(*arguments)
    assert ran.code == code, ran
    return ran.out, ran.err


def test_an_index_is_copied_to_a_url_searched_there_and_copied_back(world, s3_url):
    run("build", "items.txt", "here.adacur", "--anchors", "queries.txt", "--scorer", SCORER, "--block-items", "40")
    run("index", "copy", "here.adacur", s3_url)
    there, local = (
        json.loads(run("search", index, "item xxxx", "--scorer", SCORER, "--budget", "40", "--json")[0])
        for index in (s3_url, "here.adacur")
    )
    assert there["hits"] == local["hits"]
    assert json.loads(run("inspect", s3_url, "--json")[0])["blocks"] == 4
    assert s3_url in run("index", "verify", s3_url)[0]
    _, err = run("index", "remove", s3_url, "1", code=1)
    assert "copy" in err
    _, err = run("build", "items.txt", f"{s3_url}-2", "--scorer", SCORER, code=1)
    assert "copy" in err
    run("index", "copy", s3_url, "copied.adacur")
    run("index", "verify", "copied.adacur")


def test_a_scheme_that_nobody_knows_is_refused(world):
    for command in (
        ["index", "verify", "ftp://host/index"],
        ["build", "items.txt", "ftp://host/index", "--scorer", SCORER],
    ):
        _, err = run(*command, code=1)
        assert "s3://, gs://, az://" in err
        assert "ftp://host/index" in err
    assert not Path("ftp:").exists()
