"""First stages and pools on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import adacur
from adacur.first_stages import FIRST_STAGES
from tests.functional.test_cli import here

QUESTION = "which river runs by the old harbour?"
STAGES = tuple(FIRST_STAGES)
JOINED = "+".join(sorted(STAGES))
SCORED = ("--scorer", "my_scorers:score")
SCORER = """
import zlib

def score(pairs):
    return [len(set(query.split()) & set(text.split())) + zlib.crc32((query + text).encode()) / 2**32
            for query, text in pairs]
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scorer and an index that keeps every first stage, built by the command."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "my_scorers.py").write_text(SCORER)
    things = ("river", "harbour", "comet", "violin", "glacier")
    rows = [
        {"_id": f"d{i}", "text": f"The {things[i % 5]} by the old {things[i * i % 4]}, number {i}."} for i in range(40)
    ]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (*SCORED, "-n", 5, "--first", ",".join(STAGES), "--json")
    ran = here("build", "items.jsonl", "i.adacur", *options, cwd=folder)
    assert ran.code == 0, ran.err
    assert set(json.loads(ran.out)["first"]) == {*STAGES, JOINED, "random"}
    return folder


@pytest.mark.parametrize("stage", [*STAGES, JOINED])
def test_a_pool_confines_a_search_to_the_best_of_every_stage(shop: Path, stage: str) -> None:
    options = ("-k", 3, "--first", stage, "--pool", 6, "--method", "rerank", "--json")
    ran = here("search", "i.adacur", *SCORED, QUESTION, *options, cwd=shop)
    assert ran.code == 0, ran.err
    answer = json.loads(ran.out)
    index = adacur.load(shop / "i.adacur", scorer=lambda pairs: [0.0] * len(pairs), check=False)
    (best,) = index.first_stage(stage).search([QUESTION], 6)

    assert answer["calls"] == 6
    assert answer["settings"]["pool"] == 6
    assert answer["settings"]["first"] == stage
    assert {hit["id"] for hit in answer["hits"]} <= {index.items.ids[position] for position in best.positions}


@pytest.mark.parametrize(
    ("options", "values"),
    [(("--pool", 2, "--first", "bm25"), ("3", "2")), (("--pool", 9, "--method", "exact"), ("pool",))],
)
def test_a_pool_that_cannot_be_is_refused(shop: Path, options: tuple[object, ...], values: tuple[str, ...]) -> None:
    here("search", "i.adacur", *SCORED, QUESTION, "-k", 3, *options, cwd=shop).refused(*values)
