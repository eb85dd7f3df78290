"""Reading, scoring and writing go on at the same time, and several devices share the blocks."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from adacur.errors import IncompleteIndex, ScorerFailed, StorageFull
from adacur.records import Item, Query
from adacur.store import IndexFolder, verify
from adacur.store.blocks import ScoreBlocks
from adacur.store.estimate import time_scorer
from adacur.store.items import StoredItems

PATIENCE = 60.0


class Watched:
    """A known scorer that calls somebody before each grid."""

    def __init__(self, scorer, before) -> None:
        self.scorer = scorer
        self.card = scorer.card
        self.before = before
        self.grids: list[str] = []

    def score(self, pairs):
        return self.scorer.score(pairs)

    def score_grid(self, queries, items):
        self.grids.append(items[0].id)
        self.before(len(self.grids))
        return self.scorer.score_grid(queries, items)


# --- at the same time


def test_a_block_is_written_and_another_read_while_one_is_scored(known, tmp_path, monkeypatch) -> None:
    began, was_read = [threading.Event() for _ in range(7)], [threading.Event() for _ in range(7)]
    write, read = ScoreBlocks.write, StoredItems.at

    def write_while_the_next_is_scored(self, block, values) -> None:
        if block + 1 < 6:
            assert began[block + 1].wait(PATIENCE)
        write(self, block, values)

    def note_reading(self, positions):
        items = read(self, positions)
        was_read[positions.start // 10].set()
        return items

    def score_while_the_next_is_read(grids: int) -> None:
        block = grids - 1
        began[block].set()
        if block + 1 < 6:
            assert was_read[block + 1].wait(PATIENCE)

    monkeypatch.setattr(ScoreBlocks, "write", write_while_the_next_is_scored)
    monkeypatch.setattr(StoredItems, "at", note_reading)
    folder = known.build(tmp_path / "index", scorer=Watched(known.scorer, score_while_the_next_is_read))
    assert folder.matrix.tolist() == known.scores.T.tolist()
    assert verify(folder.path).ok


def test_the_scorer_is_asked_in_the_thread_that_builds(known, tmp_path) -> None:
    # A model may belong to the thread that opened it.
    threads = set()
    known.build(tmp_path / "index", scorer=Watched(known.scorer, lambda _: threads.add(threading.get_ident())))
    assert threads == {threading.get_ident()}


# --- what goes wrong


def test_a_disk_that_fails_stops_the_scoring_within_a_block(known, tmp_path, monkeypatch) -> None:
    write = ScoreBlocks.write

    def full_at_the_third(self, block, values) -> None:
        if block == 2:
            raise OSError(28, "No space left on device")
        write(self, block, values)

    monkeypatch.setattr(ScoreBlocks, "write", full_at_the_third)
    scorer = Watched(known.scorer, lambda _: None)
    # Block 3 was being scored by then and found room.
    with pytest.raises(StorageFull):
        known.build(tmp_path / "index", block_items=3, scorer=scorer)
    assert scorer.grids == ["i0", "i3", "i6", "i9"]
    monkeypatch.undo()
    resumed = Watched(known.scorer, lambda _: None)
    assert known.build(tmp_path / "index", scorer=resumed).matrix.tolist() == known.scores.T.tolist()
    assert resumed.grids[:2] == ["i6", "i12"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_when_the_scorer_fails_the_block_before_is_still_written(known, tmp_path, monkeypatch, error) -> None:
    failed = threading.Event()
    write = ScoreBlocks.write

    def write_after_the_failure(self, block, values) -> None:
        if block == 2:
            assert failed.wait(PATIENCE)
        write(self, block, values)

    def fail_at_the_fourth(grids: int) -> None:
        if grids == 4:
            failed.set()
            raise error("out of luck")

    monkeypatch.setattr(ScoreBlocks, "write", write_after_the_failure)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else ScorerFailed):
        known.build(tmp_path / "index", scorer=Watched(known.scorer, fail_at_the_fourth))
    with pytest.raises(IncompleteIndex):
        IndexFolder.open(tmp_path / "index")
    resumed = Watched(known.scorer, lambda _: None)
    assert known.build(tmp_path / "index", scorer=resumed).matrix.tolist() == known.scores.T.tolist()
    assert resumed.grids == ["i30", "i40", "i50"]


ITEMS = [Item(f"i{number}", f"text number {number}") for number in range(330)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(70)]


def test_compiling_for_a_shape_is_not_taken_for_slowness(known, clock) -> None:
    compiled = set()

    class Compiling:
        card = known.scorer.card

        def score_grid(self, queries, items):
            size = len(queries) * len(items)
            if size in (1, 16, 128) and size not in compiled:
                compiled.add(size)
                clock.sleep(0.5)
            clock.sleep(2e-5 * size)
            return np.zeros((len(queries), len(items)))

    timing = time_scorer(ITEMS, ANCHORS, scorer=Compiling(), seconds=0.05)
    assert compiled == {1, 16, 128}
    assert timing.mean > 4 * 128 / 0.5
