"""How many searches a server answers, and how fast, with scorer calls shared across requests and without.

    python -m lab.benchmarks.serve_load [--requests 2000] [--clients 64] [--rows titles,onnx,popular,device]

Starts three servers per row on loopback: one that scores each request's pairs in calls of their own (apart), one whose
requests share calls in the queue of their scorer (queue, docs/design/serving.md), and one that steps all of them in
one loop (loop). Sends each the same requests from 64 clients at a time, in turns of an eighth of the load, so that all
meet the same machine. Every answer is compared with that of a search in this process, alone. The rows:

- titles: the int8 cross-encoder on this CPU, titles of articles, every question asked once;
- onnx: the same with the first eight tokens of the articles;
- popular: the same again with questions asked as often as in real logs (Zipf): some are asked by several at once;
- device: a function that takes 5 ms a call and 0.1 ms a pair, one call at a time, as a GPU or a service would.

    python -m lab.benchmarks.serve_load --model FOLDER --items corpus.jsonl.gz --queries queries.jsonl.gz

serves a torch cross-encoder instead, on a GPU where there is one (predictions too), and asks for the best 10 within 100
calls, by the default method and by re-ranking in turns. The last queries of the file are the index's anchor queries.
`--smoke` does it with a tiny random model, anywhere: it shows that the script works, nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import uvicorn

import adacur
from adacur import AnchorIndex, Hits, Item, Query
from adacur.arrays import FloatArray
from adacur.data import pseudo_queries, wikivital
from adacur.extras.server import create_app, searching
from adacur.extras.server.running import listening
from adacur.protocols import Scorer
from adacur.records import Pair
from adacur.scorers import FunctionScorer
from adacur.search import rounds
from adacur.search.plan import Plan

ITEMS = 200
ANCHORS = 20
ITEM_TOKENS = 8
K, BUDGET = 3, 10
TURNS = 8
ZIPF_QUESTIONS = 500
WARMING = ("a river", "an opera", "a metal", "a war", "a plant", "a king", "a number", "a dance")
ROWS = ("titles", "onnx", "popular", "device")
CALLS = ("apart", "queue", "loop")
_turn = threading.Lock()


def device(pairs: list[tuple[str, str]]) -> list[float]:
    """Scores at a price per call."""
    with _turn:
        time.sleep(0.005 + 0.0001 * len(pairs))
    return for_free(pairs)


def for_free(pairs: list[tuple[str, str]]) -> list[float]:
    """The same scores."""
    return [float(sum(map(ord, query + item)) * 7919 % 1009) for query, item in pairs]


@dataclass
class Load:
    """What one server was seen to do."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    calls: float = 0.0
    pairs: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def throughput(self) -> float:
        return len(self.latencies) / self.seconds

    def latency(self, share: float) -> float:
        return float(np.quantile(self.latencies, share))


class Connection:
    """Just enough HTTP for a load: what a client library computes, the server on the same cores cannot."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def opened(cls, url: str) -> Connection:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def post(self, path: str, content: dict[str, object]) -> dict[str, Any]:
        body = json.dumps(content).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        self._writer.write(f"{head}\r\n\r\n".encode() + body)
        status, *headers = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        length = next(int(line.partition(":")[2]) for line in headers if line.startswith("content-length:"))
        answer = await self._reader.readexactly(length)
        if " 200 " not in status:
            raise SystemExit(f"{status}: {answer.decode()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        self._writer.close()


class Server:
    """A server of an index on loopback, until `stop`."""

    def __init__(self, index: Path, calls: str, *row: str, quiet: bool = True) -> None:
        command = [sys.executable, "-m", "lab.benchmarks.serve_load", "--serve", str(index), "--calls", calls, *row]
        errors = subprocess.DEVNULL if quiet else None
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            raise SystemExit(f"the server did not start: {line}")
        self.url = found[0]

    async def answer(
        self,
        questions: Sequence[str],
        *,
        clients: int,
        truth: dict[str, list[object]],
        seen: Callable[[dict[str, Any]], object] = lambda hit: (hit["id"], hit["score"]),
        **options: object,
    ) -> Load:
        """Send these questions from so many clients at a time; `seen` is what of a hit must be as in the truth."""
        body = {"k": K, "budget": BUDGET} | options
        load = Load()
        waiting = iter(questions)
        async with httpx2.AsyncClient(base_url=self.url, timeout=120) as http:

            async def client() -> None:
                connection = await Connection.opened(self.url)
                for question in waiting:
                    started = time.perf_counter()
                    answer = await connection.post("/v1/search", {"query": question, **body})
                    load.latencies.append(time.perf_counter() - started)
                    hits = answer["results"][0]["hits"]
                    load.wrong += [seen(hit) for hit in hits] != truth[question]
                connection.close()

            before, cpu = await self._spent(http), self._cpu_seconds()
            started = time.perf_counter()
            await asyncio.gather(*(client() for _ in range(clients)))
            load.seconds = time.perf_counter() - started
            load.cpu_seconds = self._cpu_seconds() - cpu
            load.calls, load.pairs = (after - was for after, was in zip(await self._spent(http), before, strict=True))
        return load

    async def ready(self) -> None:
        async with httpx2.AsyncClient(base_url=self.url, timeout=60) as http:
            while (await http.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.1)
            # What is opened or compiled by the first searches is not part of the load.
            warming = [f"{first} and {second}" for first in WARMING for second in WARMING]
            for some in (warming[::2], warming[1::2]):
                answer = await http.post("/v1/search", json={"queries": some, "k": K, "budget": BUDGET})
                answer.raise_for_status()

    async def _spent(self, http: httpx2.AsyncClient) -> tuple[float, float]:
        text = (await http.get("/metrics")).text
        return tuple(  # type: ignore[return-value]
            float(re.findall(rf"^adacur_scorer_{name}\S* (\S+)$", text, re.MULTILINE)[0])
            for name in ("calls_total", "pairs_per_call_sum")
        )

    def _cpu_seconds(self) -> float:
        """Of the server's process, which tells more than a clock where others use the machine as well."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def small_index(folder: Path, *, scorer: object, titles: bool = False) -> Path:
    """Some articles or their titles, scored for real."""
    articles = wikivital()[:: len(wikivital()) // ITEMS][:ITEMS]
    items = [Item(item.id, str(item.metadata["title"]) if titles else item.text) for item in articles]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adacur.build(items, ANCHORS, scorer=scorer, path=folder, progress=False, tune=False).close()
    return folder


def questions_of(row: str, n: int) -> list[str]:
    """What is asked, in order."""
    different = [query.text for query in pseudo_queries(wikivital(), max(n, ZIPF_QUESTIONS), seed=1)]
    if row != "popular":
        return different[:n]
    weights = 1 / np.arange(1, ZIPF_QUESTIONS + 1)
    drawn = np.random.default_rng(0).choice(ZIPF_QUESTIONS, size=n, p=weights / weights.sum())
    return [different[at] for at in drawn]


def busy() -> str:
    """How busy the machine is with other things."""
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


async def measured(row: str, index: Path, *, n: int, clients: int) -> None:
    questions = questions_of(row, n)
    different = list(dict.fromkeys(questions))
    started = time.perf_counter()
    with adacur.load(index, scorer=for_free if row == "device" else None, check=False) as alone:
        found = [alone.search(question, K, budget=BUDGET) for question in different]
        truth: dict[str, list[object]] = {
            question: [(hit.id, hit.score) for hit in hits] for question, hits in zip(different, found, strict=True)
        }
    serial = len(different) / (time.perf_counter() - started)
    print(f"\n{row}: {n} requests, {len(different)} different questions, {clients} clients, k={K}, budget={BUDGET}")
    print(f"one after the other in one process: {serial:.1f}/s ({busy()})", flush=True)
    servers = {calls: Server(index, calls, "--rows", row) for calls in CALLS}
    try:
        loads: dict[str, list[Load]] = {name: [] for name in servers}
        for server in servers.values():
            await server.ready()
        for turn in range(TURNS):
            share = questions[turn * n // TURNS : (turn + 1) * n // TURNS]
            for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                loads[name].append(await servers[name].answer(share, clients=clients, truth=truth))
    finally:
        for server in servers.values():
            server.stop()
    total = table(loads)
    for name in CALLS[:-1]:
        pairs = zip(loads["loop"], loads[name], strict=True)
        by_turn = [loop.throughput / other.throughput for loop, other in pairs]
        print(
            f"loop / {name}: {total['loop'].throughput / total[name].throughput:.2f} times the throughput "
            f"(turn by turn {', '.join(f'{ratio:.2f}' for ratio in by_turn)}); {busy()}",
            flush=True,
        )


def table(loads: dict[str, list[Load]]) -> dict[str, Load]:
    """Print what servers were seen to do, all turns together."""
    total: dict[str, Load] = {}
    print("| calls | searches/s | p50 | p99 | CPU per search | scorer calls | pairs a call | pairs | wrong answers |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, parts in loads.items():
        total[name] = one = Load(
            seconds=sum(part.seconds for part in parts),
            latencies=[latency for part in parts for latency in part.latencies],
            wrong=sum(part.wrong for part in parts),
            calls=sum(part.calls for part in parts),
            pairs=sum(part.pairs for part in parts),
            cpu_seconds=sum(part.cpu_seconds for part in parts),
        )
        print(
            f"| {name} | {one.throughput:.1f} | {one.latency(0.5):.2f} s | {one.latency(0.99):.2f} s | "
            f"{1000 * one.cpu_seconds / len(one.latencies):.0f} ms | "
            f"{one.calls:,.0f} | {one.pairs / one.calls:.1f} | {one.pairs:,.0f} | {one.wrong} of {len(one.latencies)} |"
        )
    return total


class Apart:
    """A scorer that does not say that its calls may be shared."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.card = scorer, scorer.card

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        return self.scorer.score(pairs)


async def _in_the_queue(
    index: AnchorIndex, plan: Plan, query: Query, k: int, **options: Any
) -> AsyncGenerator[Hits, None]:
    """Each search by itself; calls of the scorer wait for each other."""
    del options["so_far"]
    with index.searching(plan) as answers:
        async for hits in rounds.asearch_iter(plan, [query], k, **options):
            answers[:] = hits
            yield hits[0]


def serve(folder: Path, *, row: str, calls: str, model: Path | None = None, max_item_tokens: int = 0) -> None:
    """Serve an index whose requests share calls in this way."""
    scorer: Any = FunctionScorer(device, can_batch_callers=True) if row == "device" else None
    where = None
    if model is not None:
        from lab.benchmarks.serve_model import opened

        scorer, where = opened(model, max_item_tokens)
    index = adacur.load(folder, scorer=scorer, check=False, device=where)
    if model is not None:
        scorer.prepare(index.items)
    if calls == "apart":
        index = index.with_scorer(Apart)
    if calls == "queue":
        vars(searching)["stepped"] = _in_the_queue
    at = listening("127.0.0.1", 0)
    print(f"http://127.0.0.1:{at.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(create_app({"small": index}), log_config=None, access_log=False)).run(sockets=[at])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--serve", type=Path, help="serve this index, and send no load")
    parser.add_argument("--calls", choices=CALLS, default="loop")
    parser.add_argument("--model", type=Path, help="a torch cross-encoder; needs --items and --queries")
    parser.add_argument("--items", type=Path)
    parser.add_argument("--queries", type=Path)
    parser.add_argument("--anchors", type=int, default=100, help="of the queries, how many are anchor queries")
    parser.add_argument("--n-items", type=int, default=20_000)
    parser.add_argument("--n-queries", type=int, default=2_500)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--smoke", action="store_true")
    # What `gpu_search.real_bench` reads besides.
    parser.set_defaults(device=None, pairs=[], repeats=0)
    given = parser.parse_args()
    if given.serve is not None:
        tokens = given.max_item_tokens
        serve(given.serve, row=given.rows, calls=given.calls, model=given.model, max_item_tokens=tokens)
        return
    with tempfile.TemporaryDirectory() as folder:
        if given.smoke or given.model is not None:
            from lab.benchmarks.serve_model import with_a_model

            asyncio.run(with_a_model(given, Path(folder)))
            return
        for row in given.rows.split(","):
            scorer: object = "lab.benchmarks.serve_load:device"
            if row != "device":
                scorer = adacur.scorer("ms-marco-MiniLM-L-12-v2", max_item_tokens=ITEM_TOKENS)
            index = small_index(Path(folder) / f"{row}.adacur", scorer=scorer, titles=row == "titles")
            asyncio.run(measured(row, index, n=given.requests, clients=given.clients))


if __name__ == "__main__":
    main()
