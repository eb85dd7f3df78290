"""Are searches over an index in shards the same as in one piece, and what do they take?

    python lab/benchmarks/sharded_search.py SCORE_FOLDER [--queries 200] [--anchors 500] [--budget 100]

Every method searches the same queries locally and over 1, 2 and 4 shards in Ray actors on this machine. Equal means:
the same items, scores and rounds of the best 10, and the same positions scored in every round. 4 shards are compared
on all queries, 1 and 2 on the first few. The last table counts the bytes of all messages between the driver and the
shards, as pickled.
"""

from __future__ import annotations

import argparse
import os
import pickle
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import read_score_folder

import adacur
from adacur import AnchorIndex, Budget, Dense, Hits
from adacur.core.products import blas_threads
from adacur.engines.standing import StandingHere
from adacur.first_stages import EncoderCard
from adacur.index import IndexFolder
from adacur.search import opening
from adacur.search.sharded import open_shards


class KnownTexts:
    """The dual encoder's vectors of queries, looked up by their texts."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self._vectors = dict(zip(texts, vectors.astype(np.float32), strict=True))
        self.dimension = vectors.shape[1]
        self.card = EncoderCard(kind="known", dimension=self.dimension)

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._vectors[text] for text in texts])

    encode_items = encode_queries


class Weighed:
    """Shards in this process that weigh every message."""

    def __init__(self, openers: Any) -> None:
        self._workers = StandingHere(openers)
        self.bytes = self.calls = 0

    def __len__(self) -> int:
        return len(self._workers)

    def call(self, method: str, arguments: Any) -> list[Any]:
        answers = self._workers.call(method, arguments)
        self.calls += 1
        self.bytes += sum(len(pickle.dumps(message, protocol=5)) for message in (*arguments, *answers) if message)
        return answers

    def share(self, value: Any) -> Any:
        return value

    def close(self) -> None:
        self._workers.close()


def same(ours: Hits, theirs: Hits) -> bool:
    rounds = zip(ours.trace.rounds, theirs.trace.rounds, strict=True)
    return (
        ours.ids == theirs.ids
        and np.array_equal(ours.scores, theirs.scores)
        and ours.rounds == theirs.rounds
        and all(np.array_equal(own.positions, other.positions) for own, other in rounds)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--budget", type=int, default=100)
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--timed", type=int, default=20)
    options = parser.parse_args()
    domain = read_score_folder(options.folder, n_anchors=options.anchors, n_queries=options.queries)
    encoder = KnownTexts(
        [query.text for query in (*domain.anchors, *domain.test)],
        np.concatenate([domain.anchor_embeddings, domain.query_embeddings]),
    )
    print(
        f"{domain.domain}: {len(domain.items)} items, {len(domain.anchors)} anchor queries, {len(domain.test)} test "
        f"queries, budget {options.budget}, 5 rounds, k = 10, dense first stage; BLAS threads: {blas_threads()}, "
        f"load of the machine: {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
    )
    budget = Budget(calls=options.budget, rounds=5)
    searches: dict[str, dict[str, Any]] = {
        "gaussian": {"budget": budget},
        "adacur": {"method": "adacur", "budget": budget},
        "adacur, softmax": {"method": "adacur", "budget": budget, "acquisition": adacur.Softmax(0.5)},
        "anncur": {"method": "anncur", "budget": budget},
        "axn": {"method": "axn", "budget": budget},
        "rerank": {"method": "rerank", "budget": budget},
        "exact": {"method": "exact"},
    }
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "index"
        dense = Dense.from_embeddings([item.id for item in domain.items], domain.item_embeddings, encoder=encoder)
        index = AnchorIndex.from_arrays(
            items=domain.items, anchor_queries=domain.anchors, scores=domain.anchor_scores, first={"dense": dense}
        )
        index.save(path)
        compare(path, domain, encoder, searches, options.timed)
        adacur.compress(path, rank=options.rank, encoder=encoder)
        named = f"gaussian, compressed to {options.rank} × int8"
        compare(path, domain, encoder, {named: {"budget": budget}}, options.timed)
        weigh(path, domain, encoder, {"budget": budget}, named)


def compare(path: Path, domain: Any, encoder: KnownTexts, searches: dict[str, dict[str, Any]], timed: int) -> None:
    found: dict[str, list[Hits]] = {}
    for n_shards in (None, 1, 2, 4):
        where = "local" if n_shards is None else f"{n_shards} shard{'s' if n_shards > 1 else ''}"
        with adacur.load(path, scorer=domain.scorer, encoder=encoder, check=False, shards=n_shards) as index:
            for name, options in searches.items():
                # The first search opens what it needs.
                index.search(domain.test[0], 10, **options)
                queries = domain.test[: None if n_shards in (None, 4) else timed]
                started = time.perf_counter()
                hits = index.search_batch(queries, 10, **options)
                together = 1000 * (time.perf_counter() - started) / len(hits)
                seconds = []
                for query in domain.test[: 0 if name == "exact" else timed // 2]:
                    started = time.perf_counter()
                    index.search(query, 10, **options)
                    seconds.append(time.perf_counter() - started)
                alone = f"{1000 * statistics.median(seconds):7.1f} ms alone" if seconds else " " * 16
                line = f"{name:36} {where:9} {together:7.1f} ms a query in a batch {alone}"
                if n_shards is None:
                    found[name] = hits
                else:
                    equal = sum(same(own, other) for own, other in zip(hits, found[name], strict=n_shards == 4))
                    line += f"   equal {equal}, unequal {len(hits) - equal}"
                print(line, flush=True)


def weigh(path: Path, domain: Any, encoder: KnownTexts, options: dict[str, Any], name: str) -> None:
    print(f"\nbytes of all messages of one search ({name}), shards in this process")
    for n_shards in (1, 2, 4, 8):
        folder = IndexFolder.open(path)
        shards = open_shards(folder, shards=n_shards, engine=Weighed)
        with opening._opened(folder, scorer=domain.scorer, encoder=encoder, check=False, shards=shards) as index:
            index.search(domain.test[0], 10, **options)
            workers = shards._workers
            before = workers.bytes, workers.calls
            index.search(domain.test[1], 10, **options)
            print(
                f"{n_shards} shards: {(workers.bytes - before[0]) / 1024:.0f} KiB in {workers.calls - before[1]} calls"
            )


if __name__ == "__main__":
    main()
