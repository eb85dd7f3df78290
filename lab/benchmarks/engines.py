"""Items in vector engines against items in memory: the same searches, and what they cost.

    python lab/benchmarks/engines.py agree --scores DIR [--scores DIR …] [--queries 200] [--few 20]
    python lab/benchmarks/engines.py speed --scores DIR [--items 27990,200000] [--engines lancedb,pgvector]

500 anchor queries, B = 100, 5 rounds, k = 10, first stage "dense"; engines search exactly unless stated otherwise.

`agree` counts the queries for which an engine's search scores the same items in the same rounds as memory's. Of the
others it tells by how much the items that were chosen differently differ in what they were chosen by, at the first
round that is not the same: predictions that the first stage has raised, or its own scores in round 1.

`speed` compresses a folder of scores (rank 128, int8) and searches it one query at a time, in a process of its own for
every figure. Items beyond those of the folder are copies of them with a little noise in their rows, whose scores are a
little lower. Milliseconds are of a query besides the scorer: the median, the least, and the median of processor time;
memory is that of the searching process (its own, and mapped files) less what it held before it opened the index.
Processor time and memory of a server are not counted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from five_million import Memory, write_items
from score_folders import ScoreFolder, read_score_folder

import adacur
from adacur import AnchorIndex, Dense, Gaussian, Query
from adacur.approximation import PackedRows
from adacur.approximation.item_factors import ScoreScale
from adacur.core.protocols import ScorerCard
from adacur.core.seeds import item_keys
from adacur.engines.store_urls import open_store
from adacur.engines.vector_store import Nearest
from adacur.search import export
from adacur.search.first_stages import save_first_stage
from adacur.search.fusion import Fusion
from adacur.search.planning import Snapshot
from adacur.search.prospects import MemoryProspects
from adacur.tuning import compress
from adacur_lab.known_vectors import KnownVectors

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.postgres_servers import running_postgres

N_ANCHORS, BUDGET, K, RANK = 500, 100, 10, 128
METHOD, VECTORS = Gaussian(rounds=5), ("features", "dense")
WARM_UP, TIMED, ROWS_AT_ONCE = 5, 20, 4096
LIMIT, ENOUGH = 600, 400  # Seconds of a cell, and of searches after which no further query is begun.
NOISE, LOWER = 0.05, 0.1
HEAD = (
    "engine                      export     index        ms     best      cpu  × memory queries recall   own MB  mapped"
)
ENGINES = ("qdrant-edge", "qdrant :memory:", "lancedb", "pgvector")


def urls(work: Path, names: Sequence[str] = ENGINES) -> dict[str, str]:
    """Where each engine keeps its collection; starts a Postgres where it is among them."""
    places = {
        "qdrant-edge": f"qdrant-edge://{work}/edge/items",
        "qdrant :memory:": "qdrant://:memory:/items",
        "lancedb": f"lancedb://{work}/lance/items",
    }
    if "pgvector" in names:
        places["pgvector"] = f"{running_postgres().new_database()}&table=items"
    return {name: places[name] for name in ENGINES if name in names}


def agree(folder: ScoreFolder, *, n_few: int, work: Path) -> None:
    path = work / f"{folder.domain}.adacur"
    folder.index.save(path)
    given = {"scorer": folder.scorer, "encoder": folder.dense.open_encoder(), "check": False}
    index = adacur.load(path, **given)
    options = {"k": K, "budget": BUDGET, "method": METHOD, "first": "dense"}
    here, chosen_by, best = [], [], MemoryProspects.best

    def remembering(self: MemoryProspects, n: int, **given: Any) -> Any:
        chosen_by[-1].append(self._raised(given["predicted"]))
        return best(self, n, **given)

    MemoryProspects.best = remembering
    for at, query in enumerate(folder.test):
        chosen_by.append([folder.dense_scores[at]])
        here.append([round_.positions.tolist() for round_ in index.search(query, **options).trace.rounds])
    MemoryProspects.best = best
    numbers = {item.id: number for number, item in enumerate(folder.items)}
    print(f"\n{folder.domain}: {len(folder.items):,} items")
    print("engine            queries  same items  same order  differ  within rounding  largest margin")
    for name, url in urls(work / folder.domain).items():
        with closing(open_store(url)) as store:
            export(index, store, progress=False)
            index_there, there = adacur.load(path, store=store, **given), []
            for query in folder.test[: n_few if name == "qdrant :memory:" else None]:
                hits = index_there.search(query, **options)
                there.append([[numbers[item.id] for item in round_.items] for round_ in hits.trace.rounds])
        n, ordered, margins = len(there), 0, []
        for at, (ours, theirs) in enumerate(zip(here[:n], there, strict=True)):
            ordered += ours == theirs
            margins += list(first_margin(ours, theirs, chosen_by[at]))
        # Inner products of some 900 float32 numbers, added up in another order, differ by this much.
        tiny = sum(margin < 1e-4 for margin in margins)
        counts = f"{n:>8} {n - len(margins):>11} {ordered:>11} {len(margins):>7} {tiny:>16}"
        print(f"{name:<16} {counts} {max(margins, default=0.0):>15.1e}", flush=True)


def first_margin(ours: list[list[int]], theirs: list[list[int]], values: list[np.ndarray]) -> Iterator[float]:
    """How much better ours of what differs in the first round that differs are, relative to the spread of values."""
    for mine, other, row in zip(ours, theirs, values, strict=True):
        if set(mine) != set(other):
            left, right = list(set(mine) - set(other)), list(set(other) - set(mine))
            yield float((row[left].max() - row[right].min()) / row.std())
            return


def write_base(scores: Path, work: Path) -> None:
    """The folder of scores as a compressed index, and what is known of its queries."""
    folder = read_score_folder(scores, n_anchors=N_ANCHORS, n_queries=WARM_UP + TIMED)
    folder.index.save(work / "base.adacur")
    compress(adacur.load(work / "base.adacur", encoder=folder.dense.open_encoder(), check=False), rank=RANK)
    queries = [*folder.anchors, *folder.test]
    ids, vectors = np.array([query.id for query in queries]), folder.embed_queries(queries)
    np.savez(work / "queries.npz", ids=ids, vectors=vectors, scores=folder.test_scores)


def clocks() -> np.ndarray:
    """Seconds of the clock, and of all processors for this process."""
    return np.array([time.perf_counter(), time.process_time()])


class Known:
    """The queries, their vectors, and a scorer that looks up the folder's scores and knows how long it took."""

    card = ScorerCard(name="lookup", backend="numpy")

    def __init__(self, work: Path) -> None:
        with np.load(work / "queries.npz") as arrays:
            queries = [Query(str(id_), str(id_)) for id_ in arrays["ids"]]
            self.encoder, self.scores = KnownVectors(queries, arrays["vectors"]), arrays["scores"]
        self.anchors, self.test = queries[:N_ANCHORS], queries[N_ANCHORS:]
        self.seconds = np.zeros(2)
        self._rows = {query.id: row for row, query in enumerate(self.test)}

    def at(self, query: Query, positions: np.ndarray) -> np.ndarray:
        """Scores of the items at these positions, of which the later ones are copies of the first."""
        copy, real = np.divmod(positions, self.scores.shape[1])
        lower = np.where(copy > 0, LOWER * (positions * 2_654_435_761 % 2**32) / 2**32, 0.0)
        return self.scores[self._rows[query.id], real] - lower

    def score(self, pairs: Any) -> np.ndarray:
        started = clocks()
        scores = self.at(pairs[0][0], np.array([int(item.text) for _, item in pairs]))
        self.seconds += clocks() - started
        return scores

    def best(self, query: Query, n_items: int) -> set[str]:
        """The texts of its best items."""
        return set(map(str, np.argsort(-self.at(query, np.arange(n_items)), kind="stable")[:K].tolist()))


def write_index(work: Path, n_items: int) -> None:
    """An index folder as `adacur index compress` leaves it, less the anchor scores."""
    known, path, source = Known(work), work / f"{n_items}.adacur", work / "base.adacur"
    base = adacur.load(source, encoder=known.encoder, check=False)
    features, dense = base.snapshot.gaussian_model().features_of(base.anchors), base.snapshot.item_vectors()
    rows, vectors = features.factors.stored(np.arange(len(base))).astype(np.float32), dense.all_rows()
    widths = [part.shape[1] for part in features.factors.parts]
    manifest = write_items(path, n_items, known.anchors)
    target = path / "gaussian"
    shutil.copytree(source / "gaussian", target, ignore=shutil.ignore_patterns("part*", "means*", "keys*", "check*"))

    def allocate(name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return np.lib.format.open_memmap(target / f"{name}.npy", mode="w+", dtype=np.dtype(dtype), shape=shape)

    parts = [
        PackedRows.unfilled((n_items, width), storage="int8", allocate=allocate, name=f"part{number}")
        for number, width in enumerate(widths)
    ]
    means, embeddings = allocate("means", (n_items,), "float32"), np.empty((n_items, vectors.shape[1]), np.float16)
    spread, spread_of_vectors = NOISE * rows.std(axis=0), NOISE * vectors.shape[1] ** -0.5
    for start in range(0, n_items, ROWS_AT_ONCE):
        positions = np.arange(start, min(start + ROWS_AT_ONCE, n_items))
        real, rng = positions % len(base), np.random.default_rng([1, start])
        noise = rng.standard_normal((len(real), rows.shape[1] + vectors.shape[1]), dtype=np.float32)
        noise *= (positions >= len(base))[:, None]
        blocks = np.split(rows[real] + noise[:, : rows.shape[1]] * spread, np.cumsum(widths)[:-1], axis=1)
        for part, block in zip(parts, blocks, strict=True):
            part.fill(start, block)
        means[positions] = features.means[real]
        embeddings[positions] = vectors[real] + noise[:, rows.shape[1] :] * spread_of_vectors
    ids = [f"item-{position:08d}" for position in range(n_items)]
    np.save(target / "keys.npy", item_keys(ids))
    save_first_stage(Dense.from_embeddings(ids, embeddings, encoder=known.encoder, storage="float16"), path)
    settings = json.loads((target / "features.json").read_text())
    settings |= {"items_digest": manifest.items_digest, "anchors_digest": manifest.anchors_digest}
    (target / "features.json").write_text(json.dumps(settings))


def opened(work: Path, n_items: int, known: Known, **options: Any) -> AnchorIndex:
    # The folder has no scores, of which the scale of `fuse` is made; no search here fuses.
    Snapshot.fusion = lambda snapshot, weight: Fusion(weight, ScoreScale.plain())  # type: ignore[method-assign]
    return adacur.load(work / f"{n_items}.adacur", scorer=known, encoder=known.encoder, check=False, **options)


def exported(url: str, work: Path, n_items: int) -> dict[str, float]:
    index = opened(work, n_items, Known(work))
    with closing(open_store(url)) as store:
        started = time.perf_counter()
        export(index, store, progress=False)
        return {"seconds": time.perf_counter() - started}


def index_built(url: str, work: Path, n_items: int) -> dict[str, float]:
    """Make the indexes that `exact=False` may use, on both vectors."""
    store: Any = opened(work, n_items, Known(work), store=url).snapshot.engine.store.store
    started = time.perf_counter()
    if url.startswith("lancedb"):
        for vector in VECTORS:
            store._there[0].create_index(vector, config=importlib.import_module("lancedb.index").IvfFlat("dot"))
    elif url.startswith("qdrant-edge"):
        store.best("dense", [Nearest(np.zeros(store.dimensions()["dense"]), 1)], exact=False)
    else:
        statements = ["SET statement_timeout = 0", "SET maintenance_work_mem = '2GB'"]
        statements += [f"CREATE INDEX ON {store._place} USING hnsw ({of} vector_ip_ops)" for of in VECTORS]
        store._connections.write(lambda connection: [connection.execute(statement) for statement in statements])
    return {"seconds": time.perf_counter() - started}


def searched(url: str, work: Path, n_items: int, *, exact: bool) -> dict[str, float]:
    """Median milliseconds of a query besides the scorer, recall, and memory in MB."""
    known, seconds, recalls = Known(work), [], []
    with Memory() as before:
        begun = time.perf_counter()
    if url == "memory":
        index = opened(work, n_items, known)
    else:
        store = open_store(url)
        if ":memory:" in url:
            export(opened(work, n_items, known), store, progress=False)
        index = opened(work, n_items, known, store=store, exact=exact)
    options = {"budget": BUDGET, "method": METHOD, "first": "dense"}
    for query in known.test[:WARM_UP]:
        index.search(query, K, **options)
    with Memory() as memory:
        for query in known.test[WARM_UP:]:
            known.seconds[:] = 0.0
            started = clocks()
            hits = index.search(query, K, **options)
            seconds.append(clocks() - started - known.seconds)
            recalls.append(len(known.best(query, n_items) & {item.text for item in hits.items}) / K)
            if time.perf_counter() - begun > ENOUGH:
                break
    (clock, processors), best = 1000 * np.median(seconds, axis=0), 1000 * np.min(seconds, axis=0)[0]
    found = {"ms": clock, "best": best, "cpu": processors, "queries": len(seconds), "recall": np.mean(recalls)}
    return found | {"own": memory.own - before.own, "mapped": memory.mapped - before.mapped}


def cell(*arguments: Any) -> tuple[dict[str, float], str]:
    """A step in a process of its own: what it measured and how long it took, or why there is nothing."""
    command = [sys.executable, "-W", "ignore", __file__, "cell", *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"more than {LIMIT // 60} minutes"
    if done.returncode:
        return {}, f"failed: {done.stderr.strip().splitlines()[-1][:400]}"
    found = json.loads(done.stdout.strip().splitlines()[-1]) or {}
    return found, f"{found['seconds']:,.1f} s" if "seconds" in found else ""


def speed(scores: Path, sizes: list[int], engines: Sequence[str], work: Path, *, exact_only: bool) -> None:
    cell("base", scores, work)
    print(f"{scores.name}, compressed to rank {RANK}")
    places = urls(work / "stores", engines)
    for n_items in sizes:
        cell("index", work, n_items)
        print(f"\n{n_items:,} items, load {os.getloadavg()[0]:.1f}\n{HEAD}", flush=True)
        found, told = cell("search", "memory", work, n_items, "exact")
        in_memory = found.get("ms", math.nan)
        row("memory, int8", "", "", found, told, in_memory)
        for name, url in places.items():
            # What lives in a process is written by the one that searches.
            found, told = ({"seconds": 0}, "") if ":memory:" in url else cell("export", url, work, n_items)
            if not found:
                print(f"{name:<24} export: {told}", flush=True)
                continue
            row(name, told, "", *cell("search", url, work, n_items, "exact"), in_memory)
            if exact_only or ":memory:" in url:
                continue
            found, told = cell("ann", url, work, n_items)
            searched_so = cell("search", url, work, n_items, "approximate") if found else ({}, "")
            row(f"{name}, exact=False", "", told, *searched_so, in_memory)
        shutil.rmtree(work / "stores", ignore_errors=True)
        shutil.rmtree(work / f"{n_items}.adacur")


def row(name: str, export: str, index: str, found: dict[str, float], told: str, in_memory: float) -> None:
    if found:
        told = f"{found['ms']:>9,.1f} {found['best']:>8,.1f} {found['cpu']:>8,.1f} {found['ms'] / in_memory:>9.1f}"
        told += f" {found['queries']:>7} {found['recall']:>6.3f} {found['own']:>8,.0f} {found['mapped']:>7,.0f}"
    print(f"{name:<24} {export:>9} {index:>9} {told}", flush=True)


CELLS: dict[str, Callable[..., Any]] = {
    "base": lambda scores, work: write_base(Path(scores), Path(work)),
    "index": lambda work, n: write_index(Path(work), int(n)),
    "export": lambda url, work, n: exported(url, Path(work), int(n)),
    "ann": lambda url, work, n: index_built(url, Path(work), int(n)),
    "search": lambda url, work, n, how: searched(url, Path(work), int(n), exact=how == "exact"),
}


def main() -> None:
    if sys.argv[1:2] == ["cell"]:
        print(json.dumps(CELLS[sys.argv[2]](*sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["agree", "speed"])
    parser.add_argument("--scores", type=Path, action="append", required=True)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--few", type=int, default=20, help="queries of agree for the imitation of Qdrant in Python")
    parser.add_argument("--items", type=lambda text: list(map(int, text.split(","))), default=[27_990, 200_000])
    parser.add_argument("--engines", type=lambda text: text.split(","), default=ENGINES)
    parser.add_argument("--exact-only", action="store_true", help="build no index, and search exactly alone")
    given = parser.parse_args()
    packages = ("qdrant-client", "qdrant-edge-py", "lancedb", "psycopg", "numpy")
    print(f"engines.py {given.command}, {time.strftime('%Y-%m-%d %H:%M')}, load {os.getloadavg()[0]:.1f} at the start")
    print(f"{os.cpu_count()} cores; " + ", ".join(f"{package} {version(package)}" for package in packages))
    with tempfile.TemporaryDirectory(prefix="engines-") as scratch:
        for scores in given.scores:
            if given.command == "agree":
                folder = read_score_folder(scores, n_anchors=N_ANCHORS, n_queries=given.queries)
                agree(folder, n_few=given.few, work=Path(scratch))
            else:
                speed(scores, given.items, given.engines, Path(scratch), exact_only=given.exact_only)


if __name__ == "__main__":
    main()
