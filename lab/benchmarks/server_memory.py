"""How a server's memory grows with the distinct queries that it answers.

    python lab/benchmarks/server_memory.py [--queries 30000] [--words 200] [--together 32]

Serves an index of 600 items in a process of its own, with BM25 and a dense first stage that remembers the queries it
has encoded, and asks it distinct questions of so many words: some together by search, and one of them by re-ranking as
well. Prints the resident memory of that process every 5,000 questions or so, and by how much it grew with each question
since the last row. What a server remembers of texts is bounded (`adacur.remembered`, and caches of tokens): its growth
has to end.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.extras.server import create_app
from adacur.extras.server.running import listening
from adacur.first_stages import EncoderCard
from adacur.scorers import FunctionScorer

ITEMS, ANCHORS, DIMENSION = 600, 20, 384
TOLD_EVERY = 5000


def vectors(texts: Sequence[str]) -> Any:
    """Vectors that follow from the texts."""
    seeds = [int.from_bytes(text.encode()[:32].rjust(32), "little") for text in texts]
    return np.stack([np.random.default_rng(seed).normal(size=DIMENSION).astype(np.float32) for seed in seeds])


class Encoder:
    """A dual encoder that needs no model."""

    dimension = DIMENSION
    card = EncoderCard(kind="numbers", dimension=DIMENSION)
    encode_queries = encode_items = staticmethod(vectors)


def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """Scores that follow from the texts."""
    return [float((len(query) * 31 + len(item) * 17 + ord(query[0]) * ord(item[-1])) % 1009) for query, item in pairs]


def question(number: int, words: int) -> str:
    """A text that no other number has."""
    drawn = np.random.default_rng(number).integers(10**6, size=words)
    return f"{number} " + " ".join(f"w{one}" for one in drawn)


def index() -> AnchorIndex:
    items = [Item(f"i{at}", f"item number {at} w{at} w{at * 7}") for at in range(ITEMS)]
    anchors = [Query(f"a{at}", question(at, 10)) for at in range(ANCHORS)]
    scores = np.array([score([(query.text, item.text) for item in items]) for query in anchors])
    first = {"bm25": adacur.BM25.build(items), "dense": adacur.Dense.build(items, encoder=Encoder())}
    return AnchorIndex.from_arrays(
        items=items, anchor_queries=anchors, scores=scores, scorer=FunctionScorer(score, can_batch_callers=True),
        first=first,
    )  # fmt: skip


def serve() -> None:
    """Serve, and say where."""
    at = listening("127.0.0.1", 0)
    sys.stdout.write(f"{at.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(create_app({"small": index()}), log_config=None, access_log=False)
    uvicorn.Server(config).run(sockets=[at])


def resident(process: int) -> float:
    """Megabytes of a process."""
    (line,) = (one for one in Path(f"/proc/{process}/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


async def ask(port: int, process: int, *, queries: int, words: int, together: int) -> None:
    told_at, told = 0, 0.0
    print("| distinct questions | MB | KB a question |")
    print("|---|---|---|")
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=600) as http:
        while (await http.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)
        for start in range(0, queries, together):
            texts = [question(number, words) for number in range(start, start + together)]
            asked: dict[str, Any] = {"queries": texts, "k": 3, "budget": 10, "rounds": 2}
            (await http.post("/v1/search", json=asked)).raise_for_status()
            reranked = {"query": texts[0], "documents": ["one", "two"]}
            (await http.post("/v1/rerank", json=reranked)).raise_for_status()
            done = start + together
            if not told_at or done - told_at >= TOLD_EVERY or done >= queries:
                now = resident(process)
                more = f"{(now - told) / (done - told_at) * 1024:.2f}" if told_at else ""
                print(f"| {done:,} | {now:.1f} | {more} |", flush=True)
                told_at, told = done, now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=30_000)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--together", type=int, default=32)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        asyncio.run(ask(port, server.pid, queries=given.queries, words=given.words, together=given.together))
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
