"""What the score cache costs: storing and looking up, and other ways to look up.

    python lab/benchmarks/score_cache.py [--pairs 100000] [--stored 1000000]

A scorer that costs nothing answers, so that all the time is the cache's. Texts are some 300 characters long.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from adacur import Item, Query
from adacur.protocols import ScorerCard
from adacur.scorers import Cached, score_grid

SCORES = "SELECT score FROM scores WHERE scorer = 1"


class Free:
    """Zeros for everything."""

    card = ScorerCard(name="free", backend="benchmark", weights="0", dtype="float32")

    def score(self, pairs: list[tuple[Query, Item]]) -> np.ndarray:
        return np.zeros(len(pairs), dtype=np.float32)

    def score_grid(self, queries: list[Query], items: list[Item]) -> np.ndarray:
        return np.zeros((len(queries), len(items)), dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--stored", type=int, default=1_000_000)
    arguments = parser.parse_args()
    n_items = 1000
    items = [Item(f"i{n}", f"item {n} " * 30) for n in range(n_items)]
    queries = [Query(f"q{n}", f"query {n}") for n in range(max(1, arguments.stored // n_items))]
    every = [(query, item) for query in queries for item in items]
    known = [every[at] for at in np.random.default_rng(0).permutation(len(every))[: arguments.pairs]]
    fresh = [(Query("new", f"new {n % 100}"), items[n // 100]) for n in range(arguments.pairs)][: 100 * n_items]
    print(f"{os.cpu_count()} cores, SQLite {sqlite3.sqlite_version}")
    with tempfile.TemporaryDirectory() as folder, Cached(Free(), Path(folder) / "scores.sqlite") as cached:
        timed(f"store a grid of {len(every):,}", len(every), lambda: score_grid(cached, queries, items))
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        print(f"  {size / len(every):.0f} bytes per score on disk, the log included")
        timed(f"look up {len(known):,} known pairs at random", len(known), lambda: cached.score(known))
        timed("  the same, awaited", len(known), lambda: asyncio.run(cached.ascore(known)))
        rows = queries[: max(1, arguments.pairs // n_items)]
        timed("look up as many as a grid", len(rows) * n_items, lambda: score_grid(cached, rows, items))
        timed(f"ask for and store {len(fresh):,} new pairs", len(fresh), lambda: cached.score(fresh))
        one = every[:20]
        timed("look up 20 pairs, 500 times", 500 * 20, lambda: [cached.score(one) for _ in range(500)])
        half = [*known[: len(known) // 2], *((Query("no", f"no {query.text}"), item) for query, item in fresh)]
        keys = cached._keys(half[: len(known)])
        print(f"{len(keys):,} keys, half of them known, in SQL alone:")
        timed("  as one blob per 8,192 (what Cached does)", len(keys), lambda: cached._known.find(keys))
        with contextlib.closing(sqlite3.connect(Path(folder) / "scores.sqlite")) as connection:
            connection.execute("PRAGMA cache_size = -65536")
            timed("  one SELECT per key", len(keys), lambda: one_by_one(connection, keys))
            timed("  joined with a temporary table", len(keys), lambda: by_table(connection, keys))
            few = keys[: len(keys) // 20]
            timed(f"  as VALUES, 300 at a time, {len(few):,} keys only", len(few), lambda: by_values(connection, few))


def one_by_one(connection: sqlite3.Connection, keys: list[bytes]) -> None:
    for key in keys:
        connection.execute(f"{SCORES} AND query = ? AND item = ?", (key[:16], key[16:])).fetchone()


def by_table(connection: sqlite3.Connection, keys: list[bytes]) -> None:
    connection.execute("CREATE TEMP TABLE wanted (n INTEGER PRIMARY KEY, q BLOB, i BLOB)")
    for start in range(0, len(keys), 8192):
        connection.execute("DELETE FROM wanted")
        rows = ((n, key[:16], key[16:]) for n, key in enumerate(keys[start : start + 8192]))
        connection.executemany("INSERT INTO wanted VALUES (?, ?, ?)", rows)
        joined = "SELECT n, score FROM wanted CROSS JOIN scores WHERE scorer = 1 AND query = q AND item = i"
        connection.execute(joined).fetchall()


def by_values(connection: sqlite3.Connection, keys: list[bytes]) -> None:
    for start in range(0, len(keys), 300):
        some = keys[start : start + 300]
        values = ",".join(["(?, ?)"] * len(some))
        halves = [half for key in some for half in (key[:16], key[16:])]
        connection.execute(f"{SCORES} AND (query, item) IN (VALUES {values})", halves).fetchall()


def timed(what: str, pairs: int, work: Callable[[], object]) -> None:
    started, busy = time.perf_counter(), time.process_time()
    work()
    seconds, processor = time.perf_counter() - started, time.process_time() - busy
    print(f"{what}: {seconds:.2f} s ({processor:.2f} s of processor), {1e6 * seconds / pairs:.1f} µs a pair")


if __name__ == "__main__":
    main()
