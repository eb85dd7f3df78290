"""A small collection with metadata, and a scorer that needs no model, to see how hosts show what an index finds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import adacur
from adacur import Item
from adacur.scorers import FunctionScorer

KINDS = ["river", "city", "mountain", "ship"]
PLACES = ["north", "south", "coast", "desert", "capital", "island"]
ITEMS = [
    Item(
        f"item-{n}",
        f"a {KINDS[n % 4]} of the {PLACES[n % 6]} known by the number {n} since {1500 + n}",
        {"kind": KINDS[n % 4], "year": 1500 + n, "rivals": [f"item-{n - 1}", f"item-{n + 1}"]},
    )
    for n in range(60)
]
QUERY = "a ship of the coast since 1527"


def shared_words(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """How many words two texts share; no two items score alike."""
    return [
        len(set(query.split()) & set(text.split())) + zlib.crc32(f"{query}|{text}".encode()) / 2**33
        for query, text in pairs
    ]


def make_index(path: Path) -> Path:
    """An index of the collection in a folder, with BM25 as its first stage."""
    scorer = FunctionScorer(shared_words)
    adacur.build(ITEMS, 8, scorer=scorer, path=path, progress=False, tune=False).close()
    return path
