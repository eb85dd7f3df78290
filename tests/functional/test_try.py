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

from tests.functional.commands import ADACUR, environment, here, write_lines

SCORERS = """
import os, time

def shared(pairs):
    if "SECONDS_PER_PAIR" in os.environ and len(pairs) >= 100 and len({query for query, _ in pairs}) == 1:
        time.sleep(len(pairs) * float(os.environ["SECONDS_PER_PAIR"]))
    return [len(set(query.split()) & set(text.split())) + len(text) / 1000 for query, text in pairs]
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


def test_the_advice_fits_a_screen_and_its_commands_run_as_printed(place: Path) -> None:
    cache = {"ADACUR_CACHE": str(place / "cache")}
    ran = here(*TRY, "--json", "trial.json", cwd=place, **cache)

    assert ran.code == 0, ran.err
    assert "Plan: score" in ran.err
    assert len(ran.out.splitlines()) < 30
    for question in ("scorer", "first stage", "budget", "fuse", "method", "anchor index", "depth"):
        assert f"\n{question} " in f"\n{ran.out}"
    commands = [line.strip() for line in ran.out.splitlines() if line.startswith("  adacur ")]
    full = json.loads((place / "trial.json").read_text())
    assert full["commands"] == commands
    assert {row["first"] for row in full["figures"]["rerank"]} == {"bm25"}
    build, search, *others = commands
    assert " -n 20 " in build
    assert full["build_calls"] == 20 * 200
    assert "Next (the first makes 4,000 calls for anchor queries, in " in ran.err
    assert build.startswith("adacur build 'my folder' 'my folder.adacur'")
    for line in (build, search):
        done = here(*shlex.split(line)[1:], cwd=place, **cache)
        assert done.code == 0, (line, done.err)
    assert all(line.split()[1] in ("build", "try", "train") for line in others)


def test_ctrl_c_keeps_what_was_scored_and_the_same_command_goes_on(place: Path) -> None:
    cache = {"ADACUR_CACHE": str(place / "cache")}
    process = subprocess.Popen(
        [ADACUR, *TRY],
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

    again = here(*TRY, cwd=place, **cache)
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
