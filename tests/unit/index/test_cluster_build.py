"""Blocks that are stored by whoever scored them, here or on a cluster, and survive everybody."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adacur import Cached
from adacur.cli.app import app
from adacur.core.errors import (
    DamagedIndex,
    IncompleteIndex,
    IndexFolderError,
    IndexLocked,
    InputError,
    ScorerFailed,
    StorageFull,
)
from adacur.core.records import Item, Query
from adacur.index import IndexFolder, Workforce, build_scores, estimate, read_manifest, verify
from adacur.index.blocks import RECORDS, BlockRecord, BlockRecords
from adacur.scorers import FunctionScorer

ITEMS = [Item(f"i{number}", f"text {number}") for number in range(240)]
ANCHORS = [Query(f"a{number}", "x" * (number + 1)) for number in range(8)]
BLOCK = 20
N_BLOCKS = len(ITEMS) // BLOCK


def score(pairs):
    return [float(np.sin(len(query) * float(text.split()[1]))) for query, text in pairs]


def logged(log: Path, nap: float = 0.0, trouble: str = "", parent: int = 0):
    """A scorer that notes the blocks it begins; `trouble` comes with the block of item 100, to a worker and once."""
    parent = parent or os.getpid()

    def score_and_tell(pairs):
        # A handful of pairs only serves to recognise the scorer.
        if len(pairs) > 8:
            with log.open("a") as stream:
                stream.write(f"{os.getpid()} {pairs[0][1].split()[1]}\n")
        time.sleep(nap)
        mark = log.with_suffix(".mark")
        if pairs[0][1] == "text 100" and trouble and os.getpid() != parent and not mark.exists():
            mark.touch()
            if trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if trouble == "full":
                from adacur.index.blocks import ScoreBlocks

                def write(self, block, values):
                    raise OSError(28, "No space left on device")

                # In the worker's process, which ends with the error.
                ScoreBlocks.write = write
        return [float(np.sin(len(query) * float(text.split()[1]))) for query, text in pairs]

    return FunctionScorer(score_and_tell, name="sines")


def begun(log: Path) -> list[tuple[int, int]]:
    """(process, block) of each block that was begun."""
    lines = [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []
    return [(pid, item // BLOCK) for pid, item in lines if item % BLOCK == 0]


def build(path: Path, scorer=None, **options) -> IndexFolder:
    scorer = scorer or FunctionScorer(score, name="sines")
    return build_scores(ITEMS, ANCHORS, scorer=scorer, path=path, block_items=BLOCK, **options)


def chunks(folder: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((folder / "scores.zarr" / "c").glob("*/0"))]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("local") / "index").path


def assert_equal(folder: Path, local: Path) -> None:
    assert chunks(folder) == chunks(local)
    assert IndexFolder.open(folder).manifest.probes == IndexFolder.open(local).manifest.probes
    assert verify(folder).ok
    assert not (folder / RECORDS).exists()


# --- records


class Stopped(Exception):
    """The driver's end, as far as it can be had within a test."""


def stopped_build(path: Path, after: int) -> None:
    def stop(progress) -> None:
        if progress.blocks_done >= after:
            raise Stopped

    with contextlib.suppress(Stopped):
        build(path, progress=stop)


def forget_rows(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path / "items.sqlite", isolation_level=None)) as connection:
        connection.execute("DELETE FROM blocks")


def test_records_outlive_the_drivers_own_notes(tmp_path, local) -> None:
    path, log = tmp_path / "index", tmp_path / "log"
    stopped_build(path, after=5)
    recorded = sorted(int(file.stem) for file in (path / RECORDS).glob("*.json"))
    assert len(recorded) >= 5
    forget_rows(path)
    build(path, logged(log))
    assert sorted(block for _, block in begun(log)) == [block for block in range(N_BLOCKS) if block not in recorded]
    assert_equal(path, local)


def test_a_record_that_cannot_be_true_is_not_believed(tmp_path, local) -> None:
    path, log = tmp_path / "index", tmp_path / "log"
    stopped_build(path, after=7)
    forget_rows(path)
    files = [path / RECORDS / f"{block}.json" for block in range(7)]
    texts = [file.read_text() for file in files]
    files[1].write_text("")
    files[2].write_text("{}")
    files[3].write_text(texts[3][: len(texts[3]) // 2])
    files[4].write_text(texts[5])
    files[6].write_text(texts[6].replace('"pairs": 160', '"pairs": 161'))
    build(path, logged(log))
    assert {0, 5} & {block for _, block in begun(log)} == set()
    assert {1, 2, 3, 4, 6} <= {block for _, block in begun(log)}
    assert_equal(path, local)


def test_a_chunk_that_is_not_what_was_recorded_is_told_and_scored_again_by_the_next_run(tmp_path, local) -> None:
    path, log = tmp_path / "index", tmp_path / "log"
    stopped_build(path, after=5)
    record = BlockRecords(path, read_manifest(path)).get(1)
    assert record is not None
    BlockRecords(path, read_manifest(path)).add(BlockRecord(1, "0" * 32, record.pairs, record.seconds))
    with pytest.raises(DamagedIndex, match=r"block 1 .* not those that were recorded.*same build again"):
        build(path)
    build(path, logged(log))
    assert {block for _, block in begun(log)} == {1}
    assert_equal(path, local)


def test_a_worker_that_sees_another_folder_says_so(tmp_path) -> None:
    stopped_build(tmp_path / "index", after=3)
    manifest = read_manifest(tmp_path / "index")
    run = BlockRecords(tmp_path / "index", manifest).begin()
    BlockRecords(tmp_path / "index", manifest).join(run)
    with pytest.raises(IndexFolderError, match=r"The worker on .* does not see .*elsewhere: it finds no such folder"):
        BlockRecords(tmp_path / "elsewhere", manifest).join(run)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(IndexFolderError, match=r"something else there.*same place on every node"):
        BlockRecords(tmp_path / "elsewhere", manifest).join(run)


def test_the_worker_of_a_run_that_was_taken_over_leaves_the_folder_alone(tmp_path) -> None:
    stopped_build(tmp_path / "index", after=3)
    records = BlockRecords(tmp_path / "index", read_manifest(tmp_path / "index"))
    old = records.begin()
    records.check_run(old)
    new = records.begin()
    records.check_run(new)
    with pytest.raises(IndexLocked, match="taken over"):
        records.check_run(old)


# --- who scores


def test_several_processes_write_what_one_writes(tmp_path, local) -> None:
    assert_equal(build(tmp_path / "index", workers=2).path, local)


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_cluster_writes_what_one_process_writes_and_a_worker_that_is_killed_costs_its_block_only(
    ray_cluster, tmp_path, local
) -> None:
    seen, log = [], tmp_path / "log"
    scorer = logged(log, nap=0.01, trouble="killed")
    assert_equal(build(tmp_path / "index", scorer, engine="ray", progress=seen.append).path, local)
    times = Counter(block for _, block in begun(log))
    assert sorted(times) == list(range(N_BLOCKS))
    assert {block for block, n in times.items() if n > 1} == {5}
    pids = {pid for pid, _ in begun(log)}
    assert os.getpid() not in pids
    assert len(pids) in (2, 3)
    # On a busy machine the second worker may come when the first has done everything.
    assert max(progress.workers for progress in seen) <= 2
    assert seen[-1].blocks_done == N_BLOCKS


def test_a_full_disk_of_a_worker_is_told_and_finished_blocks_are_kept(ray_cluster, tmp_path, local) -> None:
    path, log = tmp_path / "index", tmp_path / "log"
    with pytest.raises(StorageFull, match=r"of 12 blocks are safely stored.*same build again"):
        build(path, logged(log, trouble="full"), engine="ray", workers=2)
    before = {block for _, block in begun(log)}
    log.unlink()
    build(path, logged(log))
    again = before & {block for _, block in begun(log)}
    # What the failed worker had, and what the other had just begun.
    assert 5 in again
    assert len(again) <= 2
    assert_equal(path, local)


DRIVER = """
import sys
from pathlib import Path
import test_cluster_build as tests
tests.build(Path(sys.argv[1]), tests.logged(Path(sys.argv[2]), nap=0.1), engine="ray", address=sys.argv[3])
"""


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_when_the_driver_is_killed_no_finished_block_is_scored_again(ray_cluster, tmp_path, local) -> None:
    path, log = tmp_path / "index", tmp_path / "log"
    command = [sys.executable, "-c", DRIVER, str(path), str(log), ray_cluster.address]
    driver = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while len(begun(log)) < 6:
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.005)
    driver.send_signal(signal.SIGKILL)
    assert driver.communicate() == (b"", b"")
    with pytest.raises(IncompleteIndex):
        IndexFolder.open(path)
    build(path, logged(log))
    times = Counter(block for _, block in begun(log))
    assert sorted(times) == list(range(N_BLOCKS))
    # Two were being scored; each of those two may have stored one more before it was ended.
    assert sum(times.values()) - N_BLOCKS <= 4
    assert_equal(path, local)


def test_a_scorer_of_another_name_in_a_worker_is_refused(tmp_path) -> None:
    class Renamed:
        card = FunctionScorer(score, name="sines").card
        score = staticmethod(score)

        def replicas(self):
            return [other, other]

    with pytest.raises(ScorerFailed, match="must be alike"):
        build(tmp_path / "index", Renamed(), workers=2)


def other():
    return FunctionScorer(score, name="cosines")


# --- at the door


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "spark"}, "engine is one of local, ray; got 'spark'"),
        ({"workers": 0}, "workers counts processes"),
        ({"address": "auto"}, "An address is that of a Ray cluster"),
    ],
)
def test_a_workforce_that_makes_no_sense_is_refused_before_anything_is_written(tmp_path, options, said) -> None:
    with pytest.raises(InputError, match=said):
        build(tmp_path / "index", **options)
    with pytest.raises(InputError, match=said):
        estimate(ITEMS, ANCHORS, scorer=FunctionScorer(score), n_items=400, **options)
    assert not (tmp_path / "index").exists()


def test_a_cache_a_scorer_that_cannot_travel_and_too_few_devices_are_refused(tmp_path) -> None:
    scorer = FunctionScorer(score, name="sines")
    with Cached(scorer, tmp_path / "cache") as cached, pytest.raises(InputError, match="Leave the cache out"):
        build(tmp_path / "index", cached, workers=2)
    with pytest.raises(ScorerFailed, match=r"does not pickle.*top of a module"):
        build(tmp_path / "index", FunctionScorer(lambda pairs: score(pairs), name="sines"), workers=2)

    class TwoDevices:
        card = scorer.card
        score = staticmethod(score)

        def replicas(self):
            return [other, other]

    with pytest.raises(InputError, match=r"has 2 device\(s\) here.*workers=3"):
        build(tmp_path / "two", TwoDevices(), workers=3)


def test_an_estimate_counts_on_every_worker(ray_cluster) -> None:
    scorer = FunctionScorer(score, name="sines")
    sizes = {"n_items": 10_000, "n_anchors": (8,), "most_calls": 1000}
    (four,) = estimate(ITEMS, ANCHORS, scorer=scorer, workers=4, **sizes)
    assert four.devices == 4
    assert four.seconds == pytest.approx(80_000 / four.pairs_per_second)
    (cluster,) = estimate(ITEMS, ANCHORS, scorer=scorer, engine="ray", **sizes)
    assert cluster.devices == 2
    assert Workforce("ray").speed(scorer) == 2


def test_the_command_builds_on_a_cluster(ray_cluster, tmp_path, monkeypatch) -> None:
    (tmp_path / "lengths_of_the_cluster_tests.py").write_text(
        "def score(pairs):\n    return [float(len(q) + len(t)) for q, t in pairs]\n"
    )
    (tmp_path / "items.txt").write_text("\n".join(f"item number {number}" for number in range(60)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = [
        "--scorer",
        "lengths_of_the_cluster_tests:score",
        "-n",
        "5",
        "--no-tune",
        "--first",
        "bm25",
        "--block-items",
        "10",
    ]
    ran = CliRunner().invoke(app, ["build", "items.txt", "i.adacur", *options, "--engine", "ray", "--workers", "2"])
    assert ran.exit_code == 0, ran.output
    assert "by 2 workers" in ran.output
    assert "60 items × 5 anchor queries" in ran.output
    assert verify(tmp_path / "i.adacur").ok


def test_the_command_refuses_a_sparse_build_by_several_before_it_reads_or_pays_anything() -> None:
    options = ["--scorer", "absent:score", "--first", "dense", "--sparse", "5", "--engine", "ray"]
    ran = CliRunner().invoke(app, ["build", "absent.txt", "i.adacur", *options])
    assert isinstance(ran.exception, InputError)
    assert "in one process" in str(ran.exception)
