"""`adacur evaluate` as its users meet it."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.functional.commands import ADACUR, environment, here

SCORER = """
import os, time, zlib

def score(pairs):
    with open(os.environ.get("LOG", os.devnull), "a") as log:
        log.write("x" * len(pairs))
    time.sleep(float(os.environ.get("SECONDS_PER_PAIR", "0")) * len(pairs))
    return [len(set(a.split()) & set(b.split())) + zlib.crc32((a + b).encode()) / 2**32 for a, b in pairs]
"""
PLACES = ("harbour", "mill", "orchard", "quarry", "station", "tower", "valley")


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "words.py").write_text(SCORER)
    beir = tmp_path / "places"
    (beir / "qrels").mkdir(parents=True)
    items = [{"_id": f"d{n}", "text": f"the {PLACES[n % 7]} by the {PLACES[n * 3 % 7]}, plot {n}"} for n in range(60)]
    queries = [{"_id": f"q{n}", "text": f"who lives near the {PLACES[n % 7]} and plot {n}"} for n in range(40)]
    (beir / "corpus.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (beir / "queries.jsonl").write_text("".join(json.dumps(query) + "\n" for query in queries))
    (beir / "qrels" / "test.tsv").write_text("".join(f"q{n}\td{n % 7}\t1\n" for n in range(12)))
    return tmp_path


START = ("evaluate", "places", "--scorer", "words:score", "--anchors", "15", "--queries", "6", "--budgets", "10,20")


def test_one_command_leads_from_a_folder_to_results_and_a_verdict(folder) -> None:
    done = here(*START, cwd=folder, width=120)
    assert done.code == 0, done.err
    assert "60 items × 21 queries = 1,260 pairs" in done.err
    for method in ("gaussian", "adacur", "anncur", "rerank", "exact"):
        assert method in done.out
    for column in ("budget", "paid", "recall@10", "nDCG@10"):
        assert column in done.out
    assert "Is the scorer worth its calls?" in done.err
    assert "--first bm25,dense" in done.err
    assert "Can the scorer be searched?" in done.err
    again = here(*START, "--json", cwd=folder)
    rows = json.loads(again.out)
    assert len(rows["runs"]) == 10
    exact = next(row for row in rows["runs"] if row["method"] == "exact")
    assert " ".join(done.err.split()).count(rows["verdict"]) == 1
    assert exact["measures"]["recall@10"] == {"value": 1.0, "low": 1.0, "high": 1.0, "n": 6}
    searched = next(row for row in rows["runs"] if row["method"] == "gaussian")
    for rival in ("rerank", "first"):
        change = searched["differences"][rival]["recall@10"]
        assert change["low"] <= change["value"] <= change["high"]


def test_a_killed_evaluation_goes_on_where_it_was(folder) -> None:
    slow = subprocess.Popen(
        [ADACUR, *START],
        cwd=folder,
        env=environment(SECONDS_PER_PAIR="0.005"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    # The test queries are scored by then, the anchor queries are not.
    while not list(folder.glob("places-results/scores/*/15-*/manifest.json")):
        assert slow.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    slow.send_signal(signal.SIGKILL)
    slow.wait()
    assert not (folder / "places-results" / "runs").exists()
    done = here(*START, cwd=folder, LOG=str(folder / "calls"))
    assert done.code == 0, done.err
    # Of 60 × 21 pairs those of the six test queries are not paid again; timing and recognising take a few.
    assert len((folder / "calls").read_text()) < 60 * 18
    assert len(list((folder / "places-results" / "runs" / "places").glob("*.json"))) == 10


def test_a_function_with_a_name_has_its_scores_kept_in_a_file(folder) -> None:
    few = (*START, "--methods", "rerank", "--cache", "scores.sqlite")
    here(*few, cwd=folder).refused("--scorer-set name=")
    assert here(*few, "--scorer-set", "name=words-1", cwd=folder).code == 0
    assert (folder / "scores.sqlite").exists()
