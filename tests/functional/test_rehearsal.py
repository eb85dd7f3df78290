"""The rehearsal of another processor moves what int8 models compute, by no more than it says, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

REHEARSAL = Path(__file__).parents[1] / "rehearsal"
PROGRAM = """
import json
import adacur
from adacur.data import fetch
from adacur.first_stages import bge_small

queries = [adacur.Query("a", "who discovered penicillin?"), adacur.Query("b", "a planet with rings")]
items = [adacur.Item(text, text) for text in ("Alexander Fleming", "Saturn is a planet with rings of ice and rock.")]
with adacur.scorer("ms-marco-MiniLM-L-12-v2") as scorer:
    grid = scorer.score_grid(queries, items)
    pairs = scorer.score([(query, item) for query in queries for item in items])
vectors = bge_small(fetch("bge-small-en-v1.5")).encode_items([item.text for item in items])
print(json.dumps({"grid": grid.ravel().tolist(), "pairs": pairs.tolist(), "vectors": vectors.tolist()}))
"""


def computed(seed: str | None) -> dict[str, np.ndarray]:
    plain = {name: value for name, value in os.environ.items() if name != "ADACUR_REHEARSAL"}
    paths = [path for path in plain.pop("PYTHONPATH", "").split(os.pathsep) if path and path != str(REHEARSAL)]
    if seed is not None:
        plain["ADACUR_REHEARSAL"] = seed
        paths = [str(REHEARSAL), *paths]
    plain["PYTHONPATH"] = os.pathsep.join(paths)
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=plain, capture_output=True, text=True, check=True)
    return {name: np.array(values) for name, values in json.loads(ran.stdout).items()}


@pytest.fixture(scope="module")
def unmoved() -> dict[str, np.ndarray]:
    return computed(None)


def test_a_seed_moves_each_pair_by_at_most_three_tenths_and_alike_in_a_grid(unmoved) -> None:
    first, second = computed("1"), computed("2")
    for run in (first, second):
        assert run["grid"].tolist() == run["pairs"].tolist()
        moves = run["pairs"] - unmoved["pairs"]
        assert np.all(np.abs(moves) <= 0.3 + 1e-5)
        assert len(set(moves.round(4))) == len(moves)
        lengths = np.linalg.norm(run["vectors"] - unmoved["vectors"], axis=1)
        assert np.all((lengths > 0) & (lengths < 0.02))
    assert not np.any(first["pairs"] == second["pairs"])
