"""Assemble the numbers that ship with the package. The second step wants a GPU.

    adacur queries wikivital -n 250 -o pseudo250.jsonl
    python lab/reproduction/score_queries.py --model CHECKPOINT --items … --queries pseudo250.jsonl --out SCORED
    python lab/reproduction/ship_wikivital.py --scores SCORED/pseudo250.npy --card SCORED/card.json

Embeds the articles with the int8 bge-small on the CPU (a minute and a half on two cores).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

import adacur
from adacur.data import fetch, pseudo_queries, wikivital
from adacur.first_stages import Dense, bge_small
from adacur.store.database import digest_texts

SEED = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--card", type=Path, required=True)
    arguments = parser.parse_args()
    target = Path(adacur.__file__).parents[1] / "adacur_wikivital"
    target.mkdir(parents=True, exist_ok=True)
    scores = np.load(arguments.scores)
    items = wikivital()
    anchors = pseudo_queries(items, scores.shape[1], seed=SEED)
    dense = Dense.build(items, encoder=bge_small(fetch("bge-small-en-v1.5")), storage="int8", progress=True)
    np.save(target / "scores.npy", scores)
    dense.save(target)
    for not_shipped in (*target.glob("ids*"), target / "retriever.json"):
        not_shipped.unlink()
    about = {
        "n_anchors": len(anchors),
        "seed": SEED,
        "items_digest": digest_texts((item.id, item.text) for item in items),
        "anchors_digest": digest_texts((query.id, query.text) for query in anchors),
        "scorer": json.loads(arguments.card.read_text()) | {"source": None},
    }
    (target / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
