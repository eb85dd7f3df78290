"""`adacur demo` with the real models, articles and shipped index."""

from __future__ import annotations

import os
from pathlib import Path

from tests.functional.commands import Ran, here

QUESTION = "who discovered penicillin?"


def demo(*options: str, cwd: Path) -> Ran:
    return here("demo", "--query", QUESTION, "--budget", "20", *options, cwd=cwd, width=120, PATH=os.defpath)


def test_the_demo_shows_what_was_found_and_spent_beside_re_ranking(tmp_path: Path) -> None:
    ran = demo("--no-build", cwd=tmp_path)

    assert ran.code == 0, ran.err
    assert "CC-BY-SA-4.0" in ran.err
    assert "10,033 articles × 250 anchor queries" in ran.out
    lines = ran.out.splitlines()
    header = next(line for line in lines if "score" in line and "round" in line)
    # Two tables side by side: ours, and that of re-ranking at the same budget.
    assert header.count("score") == header.count("round") == 2
    rows = lines[lines.index(header) + 2 :][:5]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0].count("Alexander Fleming") == 2
    for method in ("adacur", "re-rank"):
        (spent,) = (line for line in lines if line.startswith(method) and "scorer calls" in line)
        assert "20 scorer calls" in spent
        assert all(f"{step} " in spent for step in ("first", "choose", "score"))
        assert spent.count(" s") >= 3
    assert "building a small index" not in ran.out
    assert "build items.jsonl my.adacur`" in ran.out
    assert list(tmp_path.iterdir()) == []
