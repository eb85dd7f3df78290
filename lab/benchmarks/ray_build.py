"""A build on a Ray cluster of two nodes, which loses a worker, a node, and its driver, must end equal to a local one.

    python lab/benchmarks/ray_build.py [--items 200000] [--anchors 100] [--block-items 1000]

Both nodes run on this machine, one CPU each. Every build has a folder of its own; the trouble comes when a third of its
blocks have been begun. A lost node is followed by a new one, a killed driver by the same command again. Compares the
digest of all chunks and the probes, and counts the blocks that were begun more than once.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import adacur
from adacur.store import IndexFolder

SCORER = """
import os, sys, zlib

def score(pairs):
    # A line per call: who, where, and which item; a handful of pairs only serves to recognise the scorer.
    if len(pairs) > 100:
        log = os.open(os.environ["BLOCK_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        ray = sys.modules.get("ray")
        node = ray.get_runtime_context().get_node_id() if ray and ray.is_initialized() else "here"
        os.write(log, f"{os.getpid()} {node} {pairs[0][1].split()[1]}\\n".encode())
        os.close(log)
    queries = {query: zlib.crc32(query.encode()) for query, _ in pairs}
    return [zlib.crc32(item.encode(), queries[query]) / 2**32 for query, item in pairs]
"""

BUILD = """
import sys
import adacur
import checksum_scorer

folder, log, address = sys.argv[1:4]
n_items, n_anchors, block_items = map(int, sys.argv[4:7])

def score(pairs):
    # A closure: it takes the name of the log to wherever it goes.
    import os

    os.environ["BLOCK_LOG"] = log
    return checksum_scorer.score(pairs)

items = (adacur.Item(f"i{n}", f"item {n}") for n in range(n_items))
anchors = [adacur.Query(f"a{n}", f"anchor {n}") for n in range(n_anchors)]
where = {"on": adacur.Ray(address)} if address else {}
scorer = adacur.scorers.FunctionScorer(score, name="checksum")
adacur.build(items, anchors, scorer=scorer, path=folder, first=(), block_items=block_items, progress=False, tune=False,
             **where)
"""


def begun(log: Path, block_items: int) -> list[tuple[int, str, int]]:
    """Who began a block, on which node, and which block, in order; a block takes several calls."""
    found = log.read_text().splitlines() if log.exists() else []
    calls = (line.split() for line in found)
    return list(dict.fromkeys((int(pid), node, int(item) // block_items) for pid, node, item in calls))


def digest(folder: Path) -> str:
    chunks = sorted((folder / "parts/built/scores").glob("*.npy"), key=lambda chunk: int(chunk.stem))
    total = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        total.update(chunk.read_bytes())
    return total.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--anchors", type=int, default=100)
    parser.add_argument("--block-items", type=int, default=1000)
    arguments = parser.parse_args()
    n_blocks = -(-arguments.items // arguments.block_items)
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)
        (here / "checksum_scorer.py").write_text(SCORER)
        sizes = [str(arguments.items), str(arguments.anchors), str(arguments.block_items)]
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        second = [cluster.add_node(num_cpus=1)]

        def start(name: str, address: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-c", BUILD, str(here / name), str(here / f"{name}.log"), address, *sizes]
            return subprocess.Popen(command, cwd=here)

        def build(name: str, address: str, trouble: Callable[[subprocess.Popen[bytes], Path], bool]) -> float:
            log = here / f"{name}.log"
            started = time.perf_counter()
            process = start(name, address)
            while len(begun(log, arguments.block_items)) < n_blocks // 3:
                if process.poll() is not None:
                    sys.exit(f"{name} ended before its trouble, with {process.returncode}")
                time.sleep(0.01)
            if trouble(process, log):
                process.wait()
                process = start(name, address)
            if process.wait():
                sys.exit(f"{name} failed with {process.returncode}")
            return time.perf_counter() - started

        def nothing(process: subprocess.Popen[bytes], log: Path) -> bool:
            return False

        def kill_an_actor(process: subprocess.Popen[bytes], log: Path) -> bool:
            os.kill(begun(log, arguments.block_items)[-1][0], signal.SIGKILL)
            return False

        def kill_a_node(process: subprocess.Popen[bytes], log: Path) -> bool:
            cluster.remove_node(second.pop(), allow_graceful=False)
            second.append(cluster.add_node(num_cpus=1))
            return False

        def kill_the_driver(process: subprocess.Popen[bytes], log: Path) -> bool:
            process.send_signal(signal.SIGKILL)
            return True

        print(f"{arguments.items:,} items × {arguments.anchors} anchors in {n_blocks} blocks, two nodes of one CPU")
        print(
            f"{'':24}{'seconds':>8}{'nodes':>7}{'workers':>9}{'twice':>7}  {'equal':6}{'verify':8}digest of the scores"
        )
        seconds = build("local", "", nothing)
        expected, probes = digest(here / "local"), IndexFolder.open(here / "local").manifest.probes
        print(f"{'local, one process':24}{seconds:8.1f}{1:7}{1:9}{0:7}  {'':6}{'ok':8}{expected}", flush=True)
        failed = False
        for name, trouble in (
            ("undisturbed", nothing),
            ("an actor killed", kill_an_actor),
            ("a node killed", kill_a_node),
            ("the driver killed", kill_the_driver),
        ):
            folder = name.replace(" ", "-")
            seconds = build(folder, cluster.address, trouble)
            pids, nodes, blocks = zip(*begun(here / f"{folder}.log", arguments.block_items), strict=True)
            twice = sum(times > 1 for times in collections.Counter(blocks).values())
            found = digest(here / folder)
            same = found == expected and IndexFolder.open(here / folder).manifest.probes == probes
            sound = adacur.store.verify(here / folder).ok
            print(
                f"{name:24}{seconds:8.1f}{len(set(nodes)):7}{len(set(pids)):9}{twice:7}  {'yes' if same else 'NO':6}"
                f"{'ok' if sound else 'DAMAGED':8}{found}",
                flush=True,
            )
            failed |= not (same and sound)
        cluster.shutdown()
        print(
            "twice: blocks that were begun more than once; nodes, workers: all that worked on it, in turn or together"
        )
        if failed:
            sys.exit(1)


if __name__ == "__main__":
    main()
