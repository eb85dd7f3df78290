"""`adacur demo` with the real models, articles and shipped index."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from adacur import BM25, AnchorIndex, Item, Query
from adacur.cli.demo import _show
from adacur.cli.messages import output
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


def test_each_table_names_the_first_stage_that_its_search_started_from(capsys: pytest.CaptureFixture[str]) -> None:
    items = [Item(f"i{at}", f"item number {at}") for at in range(8)]
    stages = {name: BM25.build(items) for name in ("words", "letters")}
    index = AnchorIndex.from_arrays(
        items=items,
        anchor_queries=[Query("a", "number 1"), Query("b", "number 2")],
        scores=np.arange(16.0).reshape(2, 8),
        scorer=lambda pairs: [float(len(text)) for _, text in pairs],
        first=stages,
    )
    searched = index.search("number 3", 2, budget=4, first="words")
    reranked = index.search("number 3", 2, budget=4, first="letters", method="rerank")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "_width", 120)
        _show("number 3", searched, reranked, budget=4)
    shown = " ".join(capsys.readouterr().out.split())
    assert "starting from words" in shown
    assert "re-rank letters's best 4" in shown
