"""Score files of queries against all items of a collection on a GPU, with the package's own `score_grid`.

    python lab/reproduction/score_queries.py --model FOLDER --items items.jsonl.gz --queries a.jsonl […] \
        --out FOLDER [--max-item-tokens 192] [--dtype float16]

Writes NAME.npy per file of queries: float16, items × queries, the layout of an index. This made the matrix that
ships with the package (queries: `adacur queries`, 250 sentences).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path

import numpy as np

from adacur.data import read_items, read_queries
from adacur.scorers import TorchCrossEncoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--items", required=True, type=Path)
    parser.add_argument("--queries", required=True, type=Path, action="append")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--max-item-tokens", type=int, default=192)
    parser.add_argument("--dtype", default=None)
    arguments = parser.parse_args()
    items = list(read_items(arguments.items))
    scorer = TorchCrossEncoder(arguments.model, dtype=arguments.dtype, max_item_tokens=arguments.max_item_tokens)
    (arguments.out / "card.json").write_text(json.dumps(dataclasses.asdict(scorer.card)))
    for file in arguments.queries:
        queries = list(read_queries(file))
        started = time.perf_counter()
        scores = scorer.score_grid(queries, items)
        seconds = time.perf_counter() - started
        np.save(arguments.out / f"{file.stem.removesuffix('.jsonl')}.npy", scores.T.astype(np.float16))
        print(
            f"{file.name}: {len(queries)} queries × {len(items)} items in {seconds:.1f} s, "
            f"{scores.size / seconds:,.0f} pairs/s, scores {scores.min():.2f} … {scores.max():.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
