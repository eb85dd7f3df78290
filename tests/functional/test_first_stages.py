"""First stages and pools on the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import adacur

ADACUR = Path(sys.executable).with_name("adacur")
QUESTION = "which river runs by the old harbour?"
STAGES = ("bm25", "tfidf", "dense", "multi-vector")
SCORER = """
import zlib

def score(pairs):
    return [len(set(query.split()) & set(text.split())) + zlib.crc32((query + text).encode()) / 2**32
            for query, text in pairs]
"""


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"NO_COLOR": "1"}
    return subprocess.run(
        [ADACUR, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", check=False
    )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scorer and an index that keeps every first stage, built by the command."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "my_scorer.py").write_text(SCORER)
    things = ("river", "harbour", "comet", "violin", "glacier")
    rows = [
        {"_id": f"d{i}", "text": f"The {things[i % 5]} by the old {things[i * i % 4]}, number {i}."} for i in range(40)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--scorer", "my_scorer:score", "-n", 5, "--first", ",".join(STAGES), "--json")
    done = run("build", "items.jsonl", "i.adacur", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["first"]) == {*STAGES, "random"}
    return folder


def search(folder: Path, *options: object) -> dict[str, Any]:
    done = run("search", "i.adacur", "--scorer", "my_scorer:score", QUESTION, "-k", 3, "--json", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("stage", STAGES)
def test_a_pool_confines_a_search_to_the_best_of_every_stage(shop: Path, stage: str) -> None:
    answer = search(shop, "--first", stage, "--pool", 6, "--method", "rerank")
    best = adacur.load(shop / "i.adacur", scorer=lambda pairs: [0.0] * len(pairs), check=False).first_stage(stage)
    allowed = set(best.search([QUESTION], 6)[0].ids)

    assert answer["calls"] == 6
    assert answer["settings"]["pool"] == 6
    assert answer["settings"]["first"] == stage
    assert {hit["id"] for hit in answer["hits"]} <= allowed


@pytest.mark.parametrize("method", ["gaussian", "adacur", "anncur"])
def test_every_method_keeps_to_the_pool(shop: Path, method: str) -> None:
    answer = search(shop, "--first", "tfidf", "--pool", 8, "--method", method)

    assert answer["calls"] == 8
    assert answer["settings"]["method"] == method


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--pool", 2, "--first", "tfidf"), "k=3, pool=2"),
        (("--pool", 9, "--first", "random"), "needs a first stage"),
        (("--pool", 9, "--method", "exact"), "does not take pool"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(shop: Path, options: tuple[object, ...], says: str) -> None:
    done = run("search", "i.adacur", "--scorer", "my_scorer:score", QUESTION, "-k", 3, *options, cwd=shop)

    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
