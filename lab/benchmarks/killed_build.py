"""A build that is killed again and again must end equal to one that was left alone.

    python lab/benchmarks/killed_build.py [--items 20000] [--anchors 50] [--kills 5] [--seed 0]

Builds once without interruption and once in a process that is killed with SIGKILL at random moments and started again.
Compares scores, items and probes, and counts how many blocks were scored more than once.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import adacur
from adacur.store import IndexFolder

BLOCK = 100

BUILD = """
import sys, time, zlib
import adacur
folder, log = sys.argv[1:3]
n_items, n_anchors, block_items = map(int, sys.argv[3:6])

def score(pairs):
    # One line per block, named by its first item; a handful of pairs only serves to recognise the scorer.
    if len(pairs) > 100:
        with open(log, "a") as stream:
            stream.write(pairs[0][1] + "\\n")
    time.sleep(0.01)
    return [(zlib.crc32(f"{query}|{item}".encode()) % 10_000) / 1000 for query, item in pairs]

items = (adacur.Item(f"i{n}", f"item {n}") for n in range(n_items))
anchors = [adacur.Query(f"a{n}", f"anchor {n}") for n in range(n_anchors)]
scorer = adacur.scorers.FunctionScorer(score, name="checksum")
adacur.build(items, anchors, scorer=scorer, path=folder, first=(), block_items=block_items, progress=False)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--anchors", type=int, default=50)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as temporary:
        here = Path(temporary)

        def command(name: str, log: Path) -> list[str]:
            sizes = [str(arguments.items), str(arguments.anchors), str(BLOCK)]
            return [sys.executable, "-c", BUILD, str(here / name), str(log), *sizes]

        started = time.perf_counter()
        subprocess.run(command("whole", here / "whole.log"), check=True)
        whole_seconds = time.perf_counter() - started
        blocks_before = []
        for _ in range(arguments.kills):
            process = subprocess.Popen(command("killed", here / "killed.log"))
            time.sleep(rng.uniform(0.1, whole_seconds / 2))
            process.send_signal(signal.SIGKILL)
            process.wait()
            log = here / "killed.log"
            blocks_before.append(len(log.read_text().splitlines()) if log.exists() else 0)
        subprocess.run(command("killed", here / "killed.log"), check=True)
        whole, killed = IndexFolder.open(here / "whole"), IndexFolder.open(here / "killed")
        same = (
            whole.matrix.tobytes() == killed.matrix.tobytes()
            and whole.manifest.items_digest == killed.manifest.items_digest
            and whole.manifest.probes == killed.manifest.probes
        )
        times = collections.Counter((here / "killed.log").read_text().splitlines())
        twice = sum(1 for count in times.values() if count > 1)
        n_blocks = whole.manifest.n_blocks
        print(f"{arguments.items:,} items × {arguments.anchors} anchors in {n_blocks} blocks of {BLOCK} items")
        print(f"uninterrupted: {whole_seconds:.1f} s; blocks begun when killed: {blocks_before}")
        damaged = not adacur.store.verify(here / "killed").ok
        print(f"equal to the uninterrupted build: {same}; verify finds damage: {damaged}")
        # A kill can cost two blocks: the one being scored, and the one being written.
        again = sum(times.values()) - n_blocks
        print(f"blocks scored more than once: {twice}, {again} times in all (kills: {arguments.kills})")
        if not same or again > 2 * arguments.kills:
            sys.exit(1)


if __name__ == "__main__":
    main()
