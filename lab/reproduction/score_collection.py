"""A folder of exact scores of a collection, as `python -m adacur_lab reproduce --scores` reads it. Wants a GPU.

    python lab/reproduction/score_collection.py --model CHECKPOINT --items corpus.jsonl.gz --queries queries.jsonl.gz \
        --out scores/NAME [--anchors 500] [--test 200] [--seed 7] [--max-item-tokens 160]

Queries are drawn with a seed, each text once. CHECKPOINT is what `adacur_lab.dequantise` writes; embeddings are
the int8 bge-small's, on the CPU. This made the scores of medquad.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adacur import Query
from adacur.data import fetch, read_items, read_queries
from adacur.first_stages import bge_small
from adacur.scorers import TorchCrossEncoder

# Logits from −16 to 16 in even steps: in the same two bytes, float16 has steps sixteen times as wide at 16.
SCALE, OFFSET = 2048, 16
QUERIES_AT_ONCE = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--items", required=True, type=Path)
    parser.add_argument("--queries", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    arguments = parser.parse_args()
    items = list(read_items(arguments.items))
    every = list(read_queries(arguments.queries))
    chosen = distinct(every, arguments.anchors + arguments.test, seed=arguments.seed)
    scorer = TorchCrossEncoder(arguments.model, max_item_tokens=arguments.max_item_tokens)
    blocks = [chosen[start : start + QUERIES_AT_ONCE] for start in range(0, len(chosen), QUERIES_AT_ONCE)]
    scores = np.concatenate([whole_numbers(scorer.score_grid(block, items)) for block in blocks])
    encoder = bge_small(fetch("bge-small-en-v1.5"))
    arguments.out.mkdir(parents=True)
    np.savez_compressed(arguments.out / "scores.npz", scores=scores)
    for kind, vectors in (
        ("items", encoder.encode_items([item.text for item in items])),
        ("queries", encoder.encode_queries([query.text for query in chosen])),
    ):
        np.save(arguments.out / f"dense_{kind}.npy", np.asarray(vectors, dtype=np.float16))
    meta = {
        "domain": arguments.out.name,
        "decode": f"logit = value / {SCALE} - {OFFSET}",
        "n_anchor_queries": arguments.anchors,
        "anchor_query_ids": [query.id for query in chosen[: arguments.anchors]],
        "test_query_ids": [query.id for query in chosen[arguments.anchors :]],
        "item_ids": [item.id for item in items],
        "scorer": str(dataclasses.replace(scorer.card, source=None)),
    }
    (arguments.out / "meta.json").write_text(json.dumps(meta))


def distinct(queries: Sequence[Query], n: int, *, seed: int) -> list[Query]:
    """So many of the queries in an order of chance, no text twice."""
    once: dict[str, Query] = {}
    for query in random.Random(seed).sample(queries, len(queries)):
        once.setdefault(" ".join(query.text.casefold().split()), query)
    return list(once.values())[:n]


def whole_numbers(logits: np.ndarray) -> np.ndarray:
    return np.clip(np.round((logits + OFFSET) * SCALE), 0, np.iinfo(np.uint16).max).astype(np.uint16)


if __name__ == "__main__":
    main()
