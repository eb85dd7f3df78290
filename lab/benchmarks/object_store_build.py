"""A build to S3, with a store that fails and a builder that is killed, must end equal to a local one.

    python lab/benchmarks/object_store_build.py [--items 2000] [--anchors 100] [--block-items 100]

The S3 API is moto's server on loopback. A tenth of the requests are answered 503 by a proxy in front of it; a builder
is killed when half of its blocks have been begun, and the same build is run again with its cache, or with an empty one
as on another machine. Compares the digest of all scores and the answers to 100 queries, and counts the blocks that were
scored more than once.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import adacur
from adacur.core.errors import IndexLocked
from tests.object_stores import BUCKET, Proxy, environment, s3_server

QUERIES = 100


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--items", type=int, default=2000)
    options.add_argument("--anchors", type=int, default=100)
    options.add_argument("--block-items", type=int, default=100)
    options.add_argument("--build", nargs=3, metavar=("PATH", "LOG", "KILL_AFTER"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.build:
        path, log, kill_after = asked.build
        build(asked, path, Path(log), kill_after=int(kill_after))
        return
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, s3_server() as endpoint:
        os.environ.update(environment(endpoint))
        compare(asked, Path(folder), endpoint)


def build(asked: argparse.Namespace, path: str, log: Path, *, kill_after: int = 10**9) -> adacur.AnchorIndex:
    begun = 0

    def score(pairs: list[tuple[str, str]]) -> list[float]:
        nonlocal begun
        # A handful of pairs only serves to recognise the scorer.
        if len(pairs) > 100:
            begun += 1
            if begun > kill_after:
                os.kill(os.getpid(), signal.SIGKILL)
            with log.open("a") as stream:
                stream.write(pairs[0][1].split()[1] + "\n")
        return score_pairs(pairs)

    items = (adacur.Item(f"i{n}", f"item {n} of kind {n % 13}") for n in range(asked.items))
    anchors = [adacur.Query(f"a{n}", f"anchor {n} kind {n % 13}") for n in range(asked.anchors)]
    scorer = adacur.scorers.FunctionScorer(score, name="checksum")
    return adacur.build(
        items, anchors, scorer=scorer, path=path, block_items=asked.block_items, tune=False, progress=False
    )


def score_pairs(pairs: list[tuple[str, str]]) -> list[float]:
    return [zlib.crc32(f"{query}\0{item}".encode()) / 2**28 - 8 for query, item in pairs]


def compare(asked: argparse.Namespace, folder: Path, endpoint: str) -> None:
    print(f"{asked.items} items x {asked.anchors} anchor queries, blocks of {asked.block_items} items")
    print(f"{'build':34} {'scores':>16} {'answers':>16} {'twice':>5} {'503s':>5} {'seconds':>8}")
    half = -(-asked.items // asked.block_items) // 2
    draw = random.Random(0)
    row(asked, folder, "in a folder", str(folder / "local"))
    row(asked, folder, "to S3", f"s3://{BUCKET}/plain")
    with Proxy(endpoint, lambda *_: 503 if draw.random() < 0.1 else None) as proxy:
        os.environ["AWS_ENDPOINT_URL"] = proxy.endpoint
        row(asked, folder, "to S3, a tenth of requests fail", f"s3://{BUCKET}/failing", proxy=proxy)
        os.environ["AWS_ENDPOINT_URL"] = endpoint
    row(asked, folder, "to S3, killed and run again", f"s3://{BUCKET}/killed", kill_after=half)
    row(asked, folder, "to S3, killed, on another machine", f"s3://{BUCKET}/moved", kill_after=half, moves=True)


def row(
    asked: argparse.Namespace,
    folder: Path,
    name: str,
    path: str,
    *,
    kill_after: int = 0,
    moves: bool = False,
    proxy: Proxy | None = None,
) -> None:
    log = folder / f"{name}.log"
    os.environ["ADACUR_CACHE"] = str(folder / f"{name} cache")
    began = time.perf_counter()
    if kill_after:
        sizes = ["--items", asked.items, "--anchors", asked.anchors, "--block-items", asked.block_items]
        line = [sys.executable, __file__, *sizes, "--build", path, log, kill_after]
        ended = subprocess.run(list(map(str, line)), env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])})
        assert ended.returncode == -signal.SIGKILL
    if moves:
        os.environ["ADACUR_CACHE"] = str(folder / f"{name} other cache")
        # A machine that is gone cannot say so: its lock lapses.
        while True:
            try:
                build(asked, path, log)
                break
            except IndexLocked:
                time.sleep(5)
    else:
        build(asked, path, log)
    seconds = time.perf_counter() - began
    os.environ["ADACUR_CACHE"] = str(folder / f"{name} reader's cache")
    with adacur.load(path, scorer=adacur.scorers.FunctionScorer(score_pairs, name="checksum"), check=False) as index:
        scores = hashlib.sha256(index.matrix.tobytes()).hexdigest()[:16]
        found = index.search([f"item {n} kind {n % 13}" for n in range(QUERIES)], 10, budget=100)
        hits = [[(hit.id, hit.score) for hit in one] for one in found]
    answers = hashlib.sha256(repr(hits).encode()).hexdigest()[:16]
    twice = sum(count > 1 for count in collections.Counter(log.read_text().splitlines()).values())
    assert adacur.verify(path).ok
    print(
        f"{name:34} {scores:>16} {answers:>16} {twice:>5} {proxy.refused if proxy else 0:>5} {seconds:>8.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
