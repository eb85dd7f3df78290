"""Whatever interrupts a build, its scores are those of a build that nothing interrupted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adacur.errors import IncompleteIndex, IndexLocked, ScorerFailed
from adacur.records import Item, Query
from adacur.scorers.known import MatrixScorer
from adacur.store import IndexFolder, build_scores, verify

BUILD = """
import os, sys, time
import numpy as np
from adacur.protocols import ScorerCard
from adacur.records import Item, Query
from adacur.store import build_scores

path, log, seconds = sys.argv[1], os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT), float(sys.argv[3])

class Logged:
    card = ScorerCard(name="logged", backend="function")

    def score(self, pairs):
        return np.array([np.sin(len(query.text) * float(item.id[1:])) for query, item in pairs], dtype=np.float32)

    def score_grid(self, queries, items):
        os.write(log, (items[0].id + "\\n").encode())
        time.sleep(seconds)
        return self.score([(query, item) for query in queries for item in items]).reshape(len(queries), len(items))

items = (Item(f"i{number}", f"text {number}") for number in range(1000))
anchors = [Query(f"a{number}", "x" * (number + 1)) for number in range(6)]
build_scores(items, anchors, scorer=Logged(), path=path, block_items=25)
"""


def start(folder: Path, log: Path, *, seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-W", "error", "-c", BUILD, str(folder), str(log), str(seconds)])


def scored(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def wait_for(condition, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not condition():
        time.sleep(0.001)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_build_killed_again_and_again_equals_one_that_was_left_alone(tmp_path) -> None:
    whole = start(tmp_path / "whole", tmp_path / "whole.log", seconds=0)
    assert whole.wait() == 0
    assert len(scored(tmp_path / "whole.log")) == 40

    draw = random.Random(0)
    folder, log = tmp_path / "killed", tmp_path / "killed.log"
    kills = 0
    for _ in range(6):
        process = start(folder, log, seconds=0.004)
        already = len(scored(log))
        more = draw.randint(0, 12)
        if more:
            wait_for(lambda: len(scored(log)) >= already + more, process)  # noqa: B023
        else:
            # While items come in, before the first block.
            wait_for(folder.exists, process)
        time.sleep(draw.uniform(0, 0.012))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    if kills == 6:
        with pytest.raises(IncompleteIndex):
            IndexFolder.open(folder)
    assert start(folder, log, seconds=0).wait() == 0

    assert IndexFolder.open(folder).matrix.tobytes() == IndexFolder.open(tmp_path / "whole").matrix.tobytes()
    assert IndexFolder.open(folder).manifest.probes == IndexFolder.open(tmp_path / "whole").manifest.probes
    times = Counter(scored(log))
    assert len(times) == 40
    # A kill can cost two blocks: the one being scored, and the one being written.
    assert sum(times.values()) - 40 <= 2 * kills
    assert kills > 0
    assert verify(folder).ok


def test_a_second_builder_is_turned_away_at_once_and_the_first_finishes(tmp_path) -> None:
    folder, log = tmp_path / "index", tmp_path / "log"
    first = start(folder, log, seconds=0.05)
    wait_for(lambda: len(scored(log)) >= 3, first)
    asked = []

    class Asked:
        card = MatrixScorer(["a"], ["i"], [[0.0]]).card

        def score(self, pairs):
            asked.append(pairs)

    try:
        for _ in range(3):
            with pytest.raises(IndexLocked, match="Another process"):
                build_scores([Item("i", "text")], ["a"], scorer=Asked(), path=folder)
    finally:
        assert first.wait() == 0
    assert asked == []
    assert verify(folder).ok
    assert len(scored(log)) == 40


@settings(max_examples=30, deadline=None)
@given(
    n_items=st.integers(1, 40),
    n_anchors=st.integers(1, 6),
    block_items=st.integers(1, 45),
    dtype=st.sampled_from(["float32", "float16"]),
    stops=st.lists(st.integers(0, 10), max_size=4),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_chain_of_failures_ends_in_the_same_scores(n_items, n_anchors, block_items, dtype, stops, seed) -> None:
    scores = np.random.default_rng(seed).normal(size=(n_anchors, n_items)).astype(np.float32) * 10
    items = [Item(f"i{position}", f"text {position}") for position in range(n_items)]
    anchors = [Query(f"a{position}", f"anchor {position}") for position in range(n_anchors)]
    known = MatrixScorer(anchors, items, scores)
    asked: Counter[str] = Counter()

    class Stopping:
        card = known.card

        def __init__(self, grids: int) -> None:
            self.left = grids

        def score(self, pairs):
            return known.score(pairs)

        def score_grid(self, queries, some):
            if not self.left:
                raise RuntimeError("stopped")
            self.left -= 1
            asked.update(item.id for item in some)
            return known.score_grid(queries, some)

    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "index"
        for grids in [*stops, 10**6]:
            try:
                build_scores(items, anchors, scorer=Stopping(grids), path=path, dtype=dtype, block_items=block_items)
            except ScorerFailed:
                continue
        folder = IndexFolder.open(path)
        assert folder.matrix.tolist() == scores.T.astype(dtype).astype(np.float32).tolist()
        assert set(asked.values()) == {1}
        assert len(asked) == n_items
        assert verify(path).ok
        assert folder.items.at(range(n_items)) == items
        assert 1 <= len(folder.manifest.probes) <= min(32, scores.size)
