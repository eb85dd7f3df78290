"""A world in which items come and go: texts with scores and vectors that follow from them, and nothing to load."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import adacur
from adacur import AnchorIndex, Hits, Item, Query
from adacur.first_stages import EncoderCard
from adacur.search import search_options

METHODS = ("gaussian", "adacur", "anncur", "rerank", "exact")
WORDS = ("red", "green", "blue", "round", "square", "heavy", "light", "ancient", "modern", "odd")


def vector(text: str, dimension: int = 6) -> np.ndarray:
    """Numbers that follow from a text."""
    seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return np.random.default_rng(seed).normal(size=dimension).astype(np.float32)


def score(pairs: Sequence[tuple[str, str]]) -> list[float]:
    """A scorer of few dimensions, so that anchor scores predict it."""
    return [float(vector(query).astype(np.float64) @ vector(item)) for query, item in pairs]


class Counted:
    """The scorer as a function that counts its calls, and fails when told to."""

    __name__ = "score"

    def __init__(self, fail_at: int | None = None) -> None:
        self.calls = 0
        self.fail_at = fail_at

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        self.calls += len(pairs)
        if self.fail_at is not None and self.calls >= self.fail_at:
            raise TimeoutError("the scorer is asleep")
        return score(pairs)


class Encoder:
    """A dual encoder that counts the items it was asked for."""

    dimension = 6
    card = EncoderCard(kind="numbers", dimension=6)

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([vector(text) for text in texts])

    def encode_items(self, texts: Sequence[str]) -> np.ndarray:
        self.encoded += texts
        return np.stack([vector(text) + 0.5 * vector(text + "!") for text in texts])

    def encode_query_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.stack([vector(word) for word in text.split()]) for text in texts]

    def encode_item_tokens(self, texts: Sequence[str]) -> list[np.ndarray]:
        self.encoded += texts
        return self.encode_query_tokens(texts)


def item(number: int, edition: int = 0) -> Item:
    """An item by number; another edition has another text."""
    words = [WORDS[(number * step + edition) % len(WORDS)] for step in (1, 3, 7)]
    return Item(f"i{number}", f"{' '.join(words)} thing number{number} edition{edition}", {"edition": edition})


def query(number: int) -> Query:
    """An anchor query by number."""
    return Query(f"q{number}", f"which {WORDS[number % len(WORDS)]} thing is {number}?")


def build(path: Path, items: Sequence[Item], anchors: Sequence[Query], **options: object) -> AnchorIndex:
    """An index without a tuning."""
    options = {"scorer": score, "progress": False, "tune": False} | options
    return adacur.build(items, anchors, path=path, **options)


def found(index: AnchorIndex, asked: Sequence[str], *, method: str, **options: object) -> list[object]:
    """What searches find: ids, scores and rounds, and every position scored on the way, by its id."""
    k = 3
    limits = {} if method == "exact" else {"budget": 12}
    limits |= {"rounds": 3} if method in ("gaussian", "adacur") else {}
    hits = index.search(asked, k, **search_options(index, method=method, **limits, **options))
    return [_told(one, index) for one in hits]


def _told(hits: Hits, index: AnchorIndex) -> object:
    scored = [sorted(index.items.ids[position] for position in round_.positions) for round_ in hits.trace.rounds]
    return [(hit.id, hit.score, hit.round, hit.item) for hit in hits], scored
