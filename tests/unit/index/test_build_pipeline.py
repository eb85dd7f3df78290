"""Reading, scoring and writing go on at the same time, and several devices share the blocks."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from adacur.core.errors import IncompleteIndex, NonFiniteScore, ScorerFailed, StorageFull
from adacur.core.protocols import ScorerCard
from adacur.core.records import Item, Query
from adacur.index import IndexFolder, block_items_for, build_scores, estimate, verify
from adacur.index import build as building
from adacur.index.blocks import ScoreBlocks
from adacur.index.estimate import time_scorer

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
    write, read = ScoreBlocks.write, building._block_items

    def write_while_the_next_is_scored(self, block, values) -> None:
        if block + 1 < 6:
            assert began[block + 1].wait(PATIENCE)
        write(self, block, values)

    def note_reading(connection, positions):
        items = read(connection, positions)
        was_read[positions.start // 10].set()
        return items

    def score_while_the_next_is_read(grids: int) -> None:
        block = grids - 1
        began[block].set()
        if block + 1 < 6:
            assert was_read[block + 1].wait(PATIENCE)

    monkeypatch.setattr(ScoreBlocks, "write", write_while_the_next_is_scored)
    monkeypatch.setattr(building, "_block_items", note_reading)
    folder = known.build(tmp_path / "index", scorer=Watched(known.scorer, score_while_the_next_is_read))
    assert folder.matrix.tolist() == known.scores.T.tolist()
    assert verify(folder.path).ok


def test_the_scorer_is_asked_in_the_thread_that_builds(known, tmp_path) -> None:
    # A model may belong to the thread that opened it.
    threads = set()
    known.build(tmp_path / "index", scorer=Watched(known.scorer, lambda _: threads.add(threading.get_ident())))
    assert threads == {threading.get_ident()}


def test_only_a_few_blocks_are_in_memory_however_slow_the_disk(known, tmp_path, monkeypatch) -> None:
    write = ScoreBlocks.write
    alive: list[tuple[int, ...]] = []
    # A count holds what it counts; two at a time would count each other.
    counting = threading.Lock()

    def count(_=None) -> None:
        with counting:
            kinds = [type(one) for one in gc.get_objects()]
            alive.append((kinds.count(building._Block), kinds.count(building._Scored)))

    def write_slowly(self, block, values) -> None:
        time.sleep(0.02)
        count()
        write(self, block, values)

    monkeypatch.setattr(ScoreBlocks, "write", write_slowly)
    known.build(tmp_path / "index", block_items=6, scorer=Watched(known.scorer, count))
    blocks, scored = (max(column) for column in zip(*alive, strict=True))
    # One is read and one is scored, or has just been; one is written and one waits for that.
    assert blocks <= 3
    assert scored <= 2, alive


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
    with pytest.raises(StorageFull, match=r"3 of.*18 blocks"):
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
    with pytest.raises(IncompleteIndex, match="3 of 6"):
        IndexFolder.open(tmp_path / "index")
    resumed = Watched(known.scorer, lambda _: None)
    assert known.build(tmp_path / "index", scorer=resumed).matrix.tolist() == known.scores.T.tolist()
    assert resumed.grids == ["i30", "i40", "i50"]


# --- several devices

ITEMS = [Item(f"i{number}", f"text number {number}") for number in range(330)]
ANCHORS = [Query(f"a{number}", f"anchor {number}") for number in range(70)]


class Sines:
    """A scorer with `devices` devices; `trouble` befalls whoever scores item 100 in another process.

    "together" is no trouble: nobody scores before two processes do.
    """

    def __init__(self, log: Path, devices: int = 1, trouble: str = "", parent: int = 0) -> None:
        self.card = ScorerCard(name="sines", backend="sines", weights=f"sines{'!' if trouble == 'other' else ''}")
        self.log = log
        self.devices = devices
        self.trouble = trouble
        self.parent = parent or os.getpid()

    def replicas(self):
        again = functools.partial(Sines, self.log, trouble=self.trouble, parent=self.parent)
        return [again] * self.devices

    def score(self, pairs):
        return np.array([np.sin(len(query.text) * float(item.id[1:])) for query, item in pairs], dtype=np.float32)

    def score_grid(self, queries, items):
        with self.log.open("a") as stream:
            stream.write(f"{os.getpid()} {items[0].id}\n")
        while self.trouble == "together" and len({line.split()[0] for line in self.log.read_text().splitlines()}) < 2:
            time.sleep(0.001)
        scores = self.score([(query, item) for query in queries for item in items]).reshape(len(queries), len(items))
        if os.getpid() != self.parent and any(item.id == "i100" for item in items):
            if self.trouble == "killed once" and not (mark := self.log.with_suffix(".mark")).exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.trouble == "nan":
                scores[3, 0] = np.nan
        return scores


def build(path: Path, **options) -> IndexFolder:
    scorer = Sines(path.with_suffix(".log"), **options)
    return build_scores(ITEMS, ANCHORS, scorer=scorer, path=path, block_items=20)


def scored(path: Path) -> list[tuple[str, str]]:
    return [tuple(line.split()) for line in path.with_suffix(".log").read_text().splitlines()]


def test_two_processes_write_the_folder_that_one_writes(tmp_path) -> None:
    one, two = build(tmp_path / "one"), build(tmp_path / "two", devices=2, trouble="together")
    chunks = [sorted((folder.path / "scores.zarr").rglob("c/*/0")) for folder in (one, two)]
    assert [file.read_bytes() for file in chunks[0]] == [file.read_bytes() for file in chunks[1]]
    assert len(chunks[0]) == 17
    assert one.manifest.probes == two.manifest.probes
    assert one.manifest.items_digest == two.manifest.items_digest
    assert verify(two.path).ok
    workers, blocks = zip(*scored(two.path), strict=True)
    assert len(set(workers)) == 2
    assert str(os.getpid()) not in workers
    assert len(set(blocks)) == len(blocks) == 17


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_the_block_of_a_killed_process_is_scored_by_another(tmp_path) -> None:
    folder = build(tmp_path / "index", devices=2, trouble="killed once")
    assert folder.matrix.tobytes() == build(tmp_path / "one").matrix.tobytes()
    _, blocks = zip(*scored(folder.path), strict=True)
    assert len(blocks) - len(set(blocks)) == 1


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
@pytest.mark.parametrize(
    ("trouble", "error", "said"),
    [
        ("killed", ScorerFailed, r"died on a task \(by SIGKILL\).*Finished blocks are kept"),
        ("nan", NonFiniteScore, "query 'a3' and item 'i100'"),
        ("other", ScorerFailed, "must be alike"),
    ],
)
def test_trouble_in_a_process_reaches_the_user_and_finished_blocks_are_kept(tmp_path, trouble, error, said) -> None:
    path = tmp_path / "index"
    scorer = Sines(path.with_suffix(".log"), devices=2, trouble=trouble)
    scorer.card = Sines(path).card
    with pytest.raises(error, match=said):
        build_scores(ITEMS, ANCHORS, scorer=scorer, path=path, block_items=20)
    before = set() if trouble == "other" else {block for _, block in scored(path)}
    folder = build(path)
    assert folder.matrix.tobytes() == build(tmp_path / "one").matrix.tobytes()
    again = [block for worker, block in scored(path) if worker == str(os.getpid())]
    # Blocks that were begun are scored again only if they were in somebody's hands when the trouble came.
    assert len(before & set(again)) <= 2
    assert verify(path).ok


def test_replicas_that_do_not_pickle_are_refused_in_words(tmp_path) -> None:
    scorer = Sines(tmp_path / "log")
    scorer.replicas = lambda: [lambda: scorer] * 2
    with pytest.raises(ScorerFailed, match="'sines'"):
        build_scores(ITEMS, ANCHORS, scorer=scorer, path=tmp_path / "index", block_items=20)


def test_a_small_build_and_a_single_device_stay_in_this_process(tmp_path) -> None:
    small = Sines(tmp_path / "small.log", devices=2)
    build_scores(ITEMS[:50], ANCHORS, scorer=small, path=tmp_path / "small", block_items=10)
    build(tmp_path / "single", devices=1)
    assert {worker for name in ("small", "single") for worker, _ in scored(tmp_path / name)} == {str(os.getpid())}


# --- the size of a block


def test_blocks_suit_the_device() -> None:
    medquad = {"n_items": 15_809, "n_anchors": 400, "dtype": "float32"}
    assert block_items_for(40_000, **medquad) == 2000
    assert block_items_for(50, **medquad) == 16
    # Several devices get eight blocks each at the least.
    assert block_items_for(320_000, **medquad, workers=8) == 248
    assert block_items_for(320_000, **(medquad | {"n_items": 1_000_000}), workers=8) == 2000
    assert block_items_for(320_000, **(medquad | {"n_items": 20}), workers=8) == 16


def test_compiling_for_a_shape_is_not_taken_for_slowness(known) -> None:
    compiled = set()

    class Compiling:
        card = known.scorer.card

        def score_grid(self, queries, items):
            size = len(queries) * len(items)
            if size in (1, 16, 128) and size not in compiled:
                compiled.add(size)
                time.sleep(0.5)
            time.sleep(2e-5 * size)
            return np.zeros((len(queries), len(items)))

    timing = time_scorer(ITEMS, ANCHORS, scorer=Compiling(), seconds=0.05)
    assert compiled == {1, 16, 128}
    assert timing.mean > 4 * 128 / 0.5


def test_an_estimate_counts_on_every_device(tmp_path) -> None:
    scorer = Sines(tmp_path / "log", devices=4)
    cost = estimate(ITEMS, ANCHORS, scorer=scorer, n_items=10_000, n_anchors=70, most_calls=2000)
    assert cost.workers == 4
    assert cost.seconds == pytest.approx(700_000 / cost.pairs_per_second)
