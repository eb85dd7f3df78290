"""What searches with a deadline find on a server, alone and in company.

    python lab/benchmarks/deadlines.py [--shared] [--model] [--gather] [--deadlines 500,1000] [--clients 1,2,4,8]

Serves an index on loopback, with a function of 10 ms a pair as its scorer, and lets some clients ask for the best 5
within 100 calls and a deadline, one question after another. By default calls hold the pairs of one search, as of any
function; with `--shared` they may hold those of several. `--model` serves the shipped index with its int8 model.
`--gather` asks without a server: as many `asearch` awaited together.

For each deadline and number of clients: the calls and hits of an answer, the share of the deadline that it took (the
mean and the latest), and how many pairs the scorer did in that time: what the deadline paid for, all clients together,
is `calls of all`, and alone one client gets as many.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx2
import numpy as np
import uvicorn

import adacur
from adacur import AnchorIndex, Budget, Item, Query
from adacur.extras.server import create_app
from adacur.extras.server.running import listening
from adacur.scorers import FunctionScorer

SECONDS_A_PAIR = 0.01
ITEMS, ANCHORS = 600, 20
K, BUDGET = 5, 100
# Questions of each client.
ASKED = 4
WORDS = ("river", "opera", "metal", "war", "plant", "king", "number", "dance", "island", "ship", "star", "bread")


@dataclass
class Answered:
    """One answer: how many calls and hits, after which share of its deadline."""

    calls: int
    hits: int
    share: float


Ask = Callable[[str, float], Awaitable[tuple[int, int]]]


def for_free(pairs: list[tuple[str, str]]) -> list[float]:
    """Scores that follow from the texts."""
    return [float(sum(map(ord, query + item)) * 7919 % 1009) for query, item in pairs]


def slow(pairs: list[tuple[str, str]]) -> list[float]:
    """The same at 10 ms a pair."""
    time.sleep(SECONDS_A_PAIR * len(pairs))
    return for_free(pairs)


def questions(n: int, *, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, 4)) for _ in range(n)]


def small_index(*, shared: bool) -> AnchorIndex:
    """Some items of a few words, with anchor scores of the function."""
    items = [Item(f"i{at}", f"{text} {at}") for at, text in enumerate(questions(ITEMS, seed=0))]
    anchors = [Query(f"a{at}", text) for at, text in enumerate(questions(ANCHORS, seed=1))]
    scores = np.array([for_free([(query.text, item.text) for item in items]) for query in anchors])
    scorer = FunctionScorer(slow, can_batch_callers=shared)
    return AnchorIndex.from_arrays(items=items, anchor_queries=anchors, scores=scores, scorer=scorer)


async def measured(ask: Ask, *, deadline: float, clients: int) -> list[Answered]:
    """The answers of some clients, each of which asks one question after another."""
    found: list[Answered] = []

    async def client(number: int) -> None:
        for question in questions(ASKED, seed=2 + number):
            started = time.perf_counter()
            calls, hits = await ask(f"{question} {number}", deadline)
            found.append(Answered(calls, hits, (time.perf_counter() - started) / deadline))

    await asyncio.gather(*(client(number) for number in range(clients)))
    return found


async def table(ask: Ask, *, deadlines: list[float], clients: list[int]) -> None:
    # What is opened or compiled by the first searches is not part of it.
    for warming in ("bread and opera", "a king of metal"):
        await ask(warming, 5.0)
    print("| deadline | clients | calls | fewest | calls of all | hits | share of the deadline used | latest |")
    print("|---|---|---|---|---|---|---|---|")
    for deadline in deadlines:
        for n in clients:
            found = await measured(ask, deadline=deadline, clients=n)
            calls = [one.calls for one in found]
            print(
                f"| {1000 * deadline:.0f} ms | {n} | {np.mean(calls):.1f} | {min(calls)} | {n * np.mean(calls):.0f} | "
                f"{np.mean([one.hits for one in found]):.1f} | {np.mean([one.share for one in found]):.2f} | "
                f"{max(one.share for one in found):.2f} |",
                flush=True,
            )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


async def over_http(index: AnchorIndex, **cells: list[float] | list[int]) -> None:
    """The table of a server in this process."""
    at = listening("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app({"small": index}), log_config=None, access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [at]})
    thread.start()
    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{at.getsockname()[1]}", timeout=120) as http:
        while (await http.get("/readyz")).status_code != 200:
            await asyncio.sleep(0.1)

        async def ask(question: str, deadline: float) -> tuple[int, int]:
            body = {"query": question, "k": K, "budget": BUDGET, "deadline_ms": round(1000 * deadline)}
            answer = await http.post("/v1/search", json=body)
            (found,) = answer.raise_for_status().json()["results"]
            return found["calls"], len(found["hits"])

        await table(ask, **cells)  # type: ignore[arg-type]
    server.should_exit = True
    thread.join()


async def gathered(index: AnchorIndex, **cells: list[float] | list[int]) -> None:
    """The table of searches that are awaited together."""

    async def ask(question: str, deadline: float) -> tuple[int, int]:
        hits = await index.asearch(question, K, budget=Budget(BUDGET, deadline=deadline))
        return hits.trace.calls, len(hits)

    await table(ask, **cells)  # type: ignore[arg-type]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", action="store_true", help="calls may hold the pairs of several searches")
    parser.add_argument("--model", action="store_true", help="the shipped index and its model")
    parser.add_argument("--gather", action="store_true", help="asearch awaited together, without a server")
    parser.add_argument("--deadlines", default="500,1000,2000,4000", help="in milliseconds")
    parser.add_argument("--clients", default="1,2,4,8")
    given = parser.parse_args()
    index = adacur.load("wikivital") if given.model else small_index(shared=given.shared)
    deadlines = [float(one) / 1000 for one in given.deadlines.split(",")]
    clients = [int(one) for one in given.clients.split(",")]
    asyncio.run((gathered if given.gather else over_http)(index, deadlines=deadlines, clients=clients))


if __name__ == "__main__":
    main()
