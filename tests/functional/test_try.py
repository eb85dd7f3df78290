"""`adacur try` as its users meet it: a folder, one screen of advice, and commands that run as printed."""

from __future__ import annotations

import json
import shlex
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from adacur import Hits, Query
from adacur.data import read_qrels
from adacur.replay import judged_quality
from tests.functional.commands import ADACUR, environment, here, write_lines

SCORERS = """
import adacur
import os, time

def shared(pairs):
    if "SECONDS_PER_PAIR" in os.environ and len(pairs) >= 100 and len({query for query, _ in pairs}) == 1:
        time.sleep(len(pairs) * float(os.environ["SECONDS_PER_PAIR"]))
    return [len(set(query.split()) & set(text.split())) + len(text) / 1000 for query, text in pairs]

def knowing(pairs):
    return [own + 9 * (text.split()[0][:2] == query[:2] and len(text.split()[-1]) == 2)
            for own, (query, text) in zip(shared(pairs), pairs)]

named = adacur.scorer(shared, name="shared-words-1")
"""
TRY = ("try", "my folder", "--scorer", "word_scorers:shared", "--encoder", "none", "--calls", "5000")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a name that a shell must quote, 200 items, 30 judged queries, and a scorer beside it."""
    draw = np.random.default_rng(0)
    texts = [" ".join(f"t{at % 10}w{one}" for one in draw.integers(9, size=5)) + f" n{at}" for at in range(200)]
    asked = [" ".join(f"t{at % 10}w{one}" for one in draw.integers(9, size=3)) for at in range(30)]
    folder = tmp_path / "my folder"
    folder.mkdir()
    write_lines(folder / "corpus.jsonl", [{"_id": f"d{at}", "text": text} for at, text in enumerate(texts)])
    write_lines(folder / "queries.jsonl", [{"_id": f"q{at}", "text": text} for at, text in enumerate(asked)])
    (folder / "qrels.tsv").write_text("".join(f"q{at}\td{at % 10}\t1\n" for at in range(30)))
    (tmp_path / "word_scorers.py").write_text(SCORERS)
    return tmp_path


@pytest.mark.parametrize(("scorer", "worth"), [("knowing", True), ("shared", False)])
def test_the_advice_fits_a_screen_and_its_commands_do_what_was_measured(place: Path, scorer: str, worth: bool) -> None:
    cache = {"ADACUR_CACHE": str(place / "cache")}
    given = (*TRY[:3], f"word_scorers:{scorer}", *TRY[4:])
    ran = here(*given, "--save-queries", "asked.jsonl", cwd=place, **cache)

    assert ran.code == 0, ran.err
    assert "Plan: score" in ran.err
    assert "asked.jsonl" in ran.err
    assert len(ran.out.splitlines()) < 30
    for question in ("scorer", "first stage"):
        assert f"\n{question} " in f"\n{ran.out}"
    for question in ("budget", "method"):
        assert (f"\n{question} " in f"\n{ran.out}") == worth
    commands = [line.strip() for line in ran.out.splitlines() if line.startswith("  adacur ")]
    (full,) = here(*given, "--json", "--save-queries", "asked.jsonl", cwd=place, **cache).json()
    assert full["commands"] == commands
    assert {row["first"] for row in full["figures"]["rerank"]} == {"bm25"}
    build, search, *others = commands
    assert build.startswith("adacur build 'my folder' 'my folder-")
    assert " -n 0 " in build
    assert ("--method first" in search) == (not worth)
    for line in (build, search):
        done = here(*shlex.split(line)[1:], cwd=place, **cache)
        assert done.code == 0, (line, done.err)
    assert all(line.split()[1] in ("build", "try", "train") for line in others)
    # The printed search, for the queries that are named, has the printed quality.
    words = [word for word in shlex.split(search)[1:] if word != "your question"]
    answered = here(*words, "--queries", "asked.jsonl", "--json", cwd=place, **cache)
    found = [json.loads(line) for line in answered.out.splitlines()]
    answers = [
        Hits(Query(one["query"]["id"], ""), tuple(hit["id"] for hit in one["hits"]), np.zeros(len(one["hits"])))
        for one in found
    ]
    way = full["figures"]["way"]
    quality = float(judged_quality(answers[: way["queries"]], read_qrels(place / "my folder"))["nDCG@10"].mean())
    assert len(answers) == full["n_queries"]
    assert quality == pytest.approx(way["nDCG@10"], abs=1e-6)
    assert f"{way['nDCG@10']:.3f} by " in full["answers"][0]["words"]


def test_ctrl_c_keeps_what_was_scored_and_the_same_command_goes_on(place: Path) -> None:
    cache = {"ADACUR_CACHE": str(place / "cache")}
    # A cache knows a function by its name.
    command = [part.replace(":shared", ":named") for part in TRY]
    process = subprocess.Popen(
        [ADACUR, *command],
        cwd=place,
        env=environment(SECONDS_PER_PAIR="0.003", **cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
    )
    try:
        give_up = time.monotonic() + 120
        while not (kept := stored(place / "cache" / "try" / "scores.sqlite")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < give_up, "nothing is scored"
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert out == ""
    assert err.endswith("Interrupted. What is finished is kept: run the same command again to continue.\n")

    again = here(*command, cwd=place, **cache)
    assert again.code == 0
    (line,) = (line for line in again.err.splitlines() if "more were known" in line)
    assert int(line.partition("s. ")[2].split()[0].replace(",", "")) >= kept


def stored(file: Path) -> int:
    if not file.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            return int(connection.execute("SELECT count(*) FROM scores").fetchone()[0])
    except sqlite3.OperationalError:
        return 0


def test_what_cannot_be_tried_is_one_clear_error(place: Path) -> None:
    (place / "empty").mkdir()
    here("try", "empty", *TRY[2:], cwd=place).refused("found none")
    here("try", "absent", *TRY[2:], cwd=place).refused("absent")
    here(*TRY[:-1], "50", cwd=place).refused("50 calls", "20 queries")
    here(*TRY, "--minutes", "0", cwd=place).refused("minutes", "0.0")
