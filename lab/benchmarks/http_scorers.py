"""What concurrency brings with a rerank server, and what trouble costs.

    python lab/benchmarks/http_scorers.py [--pairs 4000] [--latency 0.02] [--share 0.1]

A TEI server on loopback answers every request after the same time. In trouble, it breaks off, answers too late (the
timeout is 25 times the latency), or says 429 or 503 to a share of the requests. Every score is checked.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np

from adacur import Item, Query
from adacur.scorers.http import HttpScorer

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.rerank_servers import RerankServer, Trouble, logit_of


def pairs_per_second(pairs, *, concurrency: int, latency: float, share: float) -> tuple[float, int]:
    """The rate, and how many requests it took."""
    trouble = Trouble(share=share, delay=100 * latency)
    limits = {"concurrency": concurrency, "timeout": 25 * latency, "backoff": latency, "attempts": 10}
    with (
        RerankServer("tei", latency=latency, reply=trouble) as server,
        HttpScorer(server.root, kind="tei", **limits) as scorer,
    ):
        started = time.perf_counter()
        scores = scorer.score(pairs)
        seconds = time.perf_counter() - started
        requests = len(server.posts)
    np.testing.assert_array_equal(scores, [logit_of(query.text, item.text) for query, item in pairs])
    return len(pairs) / seconds, requests


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--share", type=float, default=0.1)
    chosen = parser.parse_args()

    items = [Item(str(n), f"item {n}") for n in range(chosen.pairs // 40)]
    pairs = list(product([Query(str(n), f"query {n}") for n in range(40)], items))
    print(f"{len(pairs)} pairs, {chosen.latency * 1000:g} ms a request, every score checked\n")
    print("| server | concurrency | requests | pairs/s | of concurrency 1, clean |")
    print("|---|---:|---:|---:|---:|")
    reference = 0.0
    for share, concurrency in product((0.0, chosen.share), (1, 8)):
        rate, requests = pairs_per_second(pairs, concurrency=concurrency, latency=chosen.latency, share=share)
        reference = reference or rate
        server = f"{share:.0%} of requests in trouble" if share else "clean"
        print(f"| {server} | {concurrency} | {requests} | {rate:,.0f} | {rate / reference:.2f} |")


if __name__ == "__main__":
    main()
