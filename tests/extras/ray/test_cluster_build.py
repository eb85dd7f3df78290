"""Blocks that are scored by several processes, here or on a cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from adacur import Cached
from adacur.cli.app import app
from adacur.errors import IncompleteIndex, InputError, NonFiniteScore, ScorerFailed
from adacur.extras.ray import Ray
from adacur.protocols import Reopening
from adacur.records import Item, Query
from adacur.scorers import FunctionScorer
from adacur.store import IndexFolder, Progress, build_scores, estimate, verify
from adacur.store.executor import workers_and_speed

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
    return [file.read_bytes() for file in sorted((folder / "parts/built/scores").glob("*.npy"))]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("local") / "index").path


def assert_equal(folder: Path, local: Path) -> None:
    assert chunks(folder) == chunks(local)
    assert IndexFolder.open(folder).manifest.probes == IndexFolder.open(local).manifest.probes
    assert verify(folder).ok


# --- who scores


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_cluster_writes_what_one_process_writes_and_a_worker_that_is_killed_costs_its_block_only(
    ray_cluster, tmp_path, local
) -> None:
    progress, log = Progress(), tmp_path / "log"
    scorer = logged(log, nap=0.01, trouble="killed")
    assert_equal(build(tmp_path / "index", scorer, executor=Ray(), progress=progress).path, local)
    times = Counter(block for _, block in begun(log))
    assert sorted(times) == list(range(N_BLOCKS))
    assert {block for block, n in times.items() if n > 1} == {5}
    pids = {pid for pid, _ in begun(log)}
    assert os.getpid() not in pids
    assert len(pids) in (2, 3)
    assert progress.blocks_done == N_BLOCKS


DRIVER = """
import sys
from pathlib import Path
import test_cluster_build as tests
tests.build(Path(sys.argv[1]), tests.logged(Path(sys.argv[2]), nap=0.3), executor=tests.Ray(sys.argv[3]))
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
    out, err = driver.communicate()
    assert out == b""
    # Ray prints nothing; on a busy machine it may give up a worker that is slow to start, which the build tells.
    assert all(line.startswith(b"A worker died without one") for line in err.splitlines()), err
    with pytest.raises(IncompleteIndex):
        IndexFolder.open(path)
    build(path, logged(log))
    times = Counter(block for _, block in begun(log))
    assert sorted(times) == list(range(N_BLOCKS))
    # Two were being scored; each of those two may have stored one more before it was ended.
    assert sum(times.values()) - N_BLOCKS <= 4
    assert_equal(path, local)


def test_a_scorer_of_another_name_in_a_worker_is_refused(ray_cluster, tmp_path) -> None:
    class Renamed:
        card = FunctionScorer(score, name="sines").card
        score = staticmethod(score)

        def reopening(self):
            return Reopening(other)

    with pytest.raises(ScorerFailed):
        build(tmp_path / "index", Renamed(), executor=Ray())


def test_a_score_that_is_not_a_number_is_named_and_finished_blocks_are_kept(ray_cluster, tmp_path, local) -> None:
    def with_nan(pairs):
        return [
            float("nan") if text == "text 103" else value for (_, text), value in zip(pairs, score(pairs), strict=True)
        ]

    with pytest.raises(NonFiniteScore, match="'i103'"):
        build(tmp_path / "index", FunctionScorer(with_nan, name="sines"), executor=Ray(workers=1))
    log = tmp_path / "log"
    assert_equal(build(tmp_path / "index", logged(log)).path, local)
    assert len(begun(log)) == N_BLOCKS - 5


def other():
    return FunctionScorer(score, name="cosines")


# --- at the door


@pytest.mark.parametrize("executor", [2, "ray", True])
def test_workers_that_make_no_sense_are_refused_before_anything_is_written(tmp_path, executor) -> None:
    with pytest.raises(InputError, match=str(executor)):
        build(tmp_path / "index", executor=executor)
    with pytest.raises(InputError, match=str(executor)):
        estimate(ITEMS, ANCHORS, scorer=FunctionScorer(score), n_items=400, n_anchors=8, executor=executor)
    assert not (tmp_path / "index").exists()
    with pytest.raises(InputError, match="0"):
        Ray(workers=0)


def test_a_cache_and_a_scorer_that_cannot_travel_are_refused(ray_cluster, tmp_path) -> None:
    with (
        Cached(FunctionScorer(score, name="sines"), tmp_path / "cache") as cached,
        pytest.raises(InputError),
    ):
        build(tmp_path / "index", cached, executor=Ray())
    lock = threading.Lock()
    bound = FunctionScorer(lambda pairs: score(pairs) if lock else [], name="sines")
    with pytest.raises(ScorerFailed):
        build(tmp_path / "index", bound, executor=Ray())


def test_an_estimate_counts_on_every_worker(ray_cluster) -> None:
    scorer = FunctionScorer(score, name="sines")
    sizes = {"n_items": 10_000, "n_anchors": 8, "most_calls": 1000}
    cost = estimate(ITEMS, ANCHORS, scorer=scorer, executor=Ray(), **sizes)
    assert cost.workers == Ray().capacity(cpus=1, gpus=0) >= 2
    assert cost.seconds == pytest.approx(80_000 / cost.pairs_per_second)
    assert workers_and_speed(Ray(workers=5), scorer) == (5, 5.0)


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
    ran = CliRunner().invoke(app, ["build", "items.txt", "i.adacur", *options, "--ray", "local", "--workers", "2"])
    assert ran.exit_code == 0, ran.output
    assert "60 items × 5 anchor queries" in ran.output
    assert verify(tmp_path / "i.adacur").ok
