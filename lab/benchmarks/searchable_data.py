"""The data of searchable_scorers.py: training and test apart, and vectors of all texts, small enough to travel.

python lab/benchmarks/searchable_data.py split DATA OUT --scores DIR
python lab/benchmarks/searchable_data.py embed OUT --encoder FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adacur.data import JudgedCollection, read_beir, split_queries
from adacur.extras.train.judged_queries import words_of
from adacur.first_stages.encoders import bge_small
from adacur.model.rows import PackedRows

COLLECTIONS = ("mondo", "medquad", "scifact")
# Queries to learn from, held-out ones included.
LEARNT = {"mondo": 7900, "medquad": 4000, "scifact": 806}


def split(asked: argparse.Namespace) -> None:
    """BEIR folders in which no query of the training shares a text or a relevant item with the test's.

    scifact is split as its authors do: its training claims may be about abstracts of the test.
    """
    for name in asked.collections:
        collection = read_beir(asked.data / name, split="train" if name == "scifact" else None)
        if name == "scifact":
            test = read_beir(asked.data / name, split="test")
        else:
            meta = asked.scores / name / "meta.json"
            ids = set(json.loads(meta.read_text())["test_query_ids"]) if meta.exists() else set()
            chosen = [query for query in collection.judged if query.id in ids]
            chosen = chosen or list(split_queries(collection.judged, anchors=0, test=asked.test, seed=0).test)
            test = JudgedCollection(
                name, collection.items, chosen, {one.id: collection.qrels[one.id] for one in chosen}
            )
        write_split(asked.out / name, collection, test, n=asked.train, characters=asked.characters)


def write_split(folder: Path, collection: JudgedCollection, test: JudgedCollection, *, n: int, characters: int) -> None:
    tested = {words_of(query.text) for query in test.judged}
    of_test = {item for query in test.judged for item, grade in test.qrels[query.id].items() if grade > 0}
    free = [
        query
        for query in collection.judged
        if words_of(query.text) not in tested
        and (collection.name == "scifact" or not of_test & collection.qrels[query.id].keys())
    ]
    learnt = split_queries(free, anchors=0, test=min(n, len(free)), seed=1).test
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    items = [{"_id": item.id, "text": item.text[:characters]} for item in collection.items]
    queries = [{"_id": query.id, "text": query.text} for query in (*learnt, *test.judged)]
    for file, rows in (("corpus", items), ("queries", queries)):
        with gzip.open(folder / f"{file}.jsonl.gz", "wt", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for part, chosen, qrels in (("train", learnt, collection.qrels), ("test", test.judged, test.qrels)):
        lines = [f"{query.id}\t{item}\t{grade}\n" for query in chosen for item, grade in qrels[query.id].items()]
        (folder / "qrels" / f"{part}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    print(f"{folder.name}: {len(items):,} items, {len(learnt):,} queries to learn from, {len(test.judged)} to test")


def embed(asked: argparse.Namespace) -> None:
    """Vectors of all items and queries by bge-small, rounded to int8; those of items from --scores if it has them."""
    encoder = bge_small(asked.encoder)
    for name in asked.collections:
        started = time.monotonic()
        training, test = read_parts(asked.data, name)
        queries, stored = [*training.judged, *test.judged], asked.scores / name / "dense_items.npy"
        if stored.exists():
            ids = json.loads((asked.scores / name / "meta.json").read_text())["item_ids"]
            of_item = dict(zip(ids, np.load(stored).astype(np.float32), strict=True))
            items = np.stack([of_item[item.id] for item in training.items])
        else:
            items = encoder.encode_items([item.text for item in training.items])
        save_vectors(
            asked.data / name,
            [item.id for item in training.items],
            items,
            [query.id for query in queries],
            encoder.encode_queries([query.text for query in queries]),
        )
        print(f"{name}: {len(items):,} items, {len(queries):,} queries, {time.monotonic() - started:.0f} s", flush=True)


def save_vectors(
    folder: Path, items: list[str], of_items: np.ndarray, queries: list[str], of_queries: np.ndarray
) -> None:
    arrays: dict[str, np.ndarray] = {"item_ids": np.array(items), "query_ids": np.array(queries)}
    for side, vectors in (("item", of_items), ("query", of_queries)):
        packed = PackedRows.unfilled(vectors.shape, storage="int8")
        packed.fill(0, vectors)
        arrays |= {f"{side}_vectors": packed.values, f"{side}_scales": packed.scales}
    np.savez(folder / "vectors.npz", **arrays)


def read_vectors(folder: Path, side: str, ids: Sequence[str]) -> np.ndarray:
    """Vectors of these ids, of length 1."""
    with np.load(folder / "vectors.npz") as stored:
        row_of = {id_: row for row, id_ in enumerate(stored[f"{side}_ids"].tolist())}
        rows = [row_of[id_] for id_ in ids]
        vectors = stored[f"{side}_vectors"][rows].astype(np.float32) * stored[f"{side}_scales"][rows, None]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def read_parts(
    data: Path, name: str, *, n_items: int = 0, n_queries: int = 0
) -> tuple[JudgedCollection, JudgedCollection]:
    """The training's part of a collection and the test's, of the same items; for a rehearsal, a few of each."""
    parts = [read_beir(data / name, split=part) for part in ("train", "test")]
    judged = [sorted(part.judged, key=lambda query: query.id) for part in parts]
    # A draw, as ids may follow a subject.
    judged[0] = list(split_queries(judged[0], anchors=0, test=min(LEARNT[name], len(judged[0])), seed=1).test)
    judged = [queries[: n_queries or None] for queries in judged]
    items = list(parts[0].items)
    if n_items:
        kept = {id_ for part, own in zip(parts, judged, strict=True) for query in own for id_ in part.qrels[query.id]}
        items = sorted(items, key=lambda item: item.id not in kept)[:n_items]
    there = {item.id for item in items}
    training, test = (
        JudgedCollection(
            name,
            items,
            [query for query in own if there & part.qrels[query.id].keys()],
            {query.id: part.qrels[query.id] for query in own if there & part.qrels[query.id].keys()},
        )
        for part, own in zip(parts, judged, strict=True)
    )
    return training, test


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    splitting, embedding = (commands.add_parser(name) for name in ("split", "embed"))
    for command in (splitting, embedding):
        command.add_argument("data", type=Path)
        command.add_argument("--collections", type=lambda text: text.split(","), default=list(COLLECTIONS))
        command.add_argument("--scores", type=Path, default=Path("../shared/scores"))
    splitting.add_argument("out", type=Path)
    splitting.add_argument("--train", type=int, default=7900, help="queries to learn from, held-out ones included")
    splitting.add_argument("--test", type=int, default=200)
    splitting.add_argument("--characters", type=int, default=1600, help="where items are cut, to travel light")
    embedding.add_argument("--encoder", type=Path, required=True)
    asked = parser.parse_args()
    {"split": split, "embed": embed}[asked.command](asked)


if __name__ == "__main__":
    main()
