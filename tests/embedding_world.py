"""A world whose scores follow from vectors: items, anchor queries, their encoder and a scorer that counts its pairs."""

from __future__ import annotations

import numpy as np

from adacur import Item, Query
from adacur.first_stages.encoders import EncoderCard
from adacur.protocols import ScorerCard

N_ITEMS, N_ANCHORS, DIMENSION = 300, 40, 8
_DRAWS = np.random.default_rng(3)
ITEM_VECTORS = _DRAWS.normal(size=(N_ITEMS, DIMENSION)).astype(np.float32)
QUERY_VECTORS = _DRAWS.normal(size=(N_ANCHORS + 5, DIMENSION)).astype(np.float32)
TRUTH = np.exp(QUERY_VECTORS @ ITEM_VECTORS.T / 2) + 0.05 * _DRAWS.normal(size=(N_ANCHORS + 5, N_ITEMS))
ITEMS = [Item(f"i{at}", f"item {at}") for at in range(N_ITEMS)]
ANCHORS = [Query(f"q{at}", f"query {at}") for at in range(N_ANCHORS)]


def number(text):
    return int(text.split()[-1])


class Encoder:
    """Vectors by the number in a text."""

    dimension = DIMENSION
    card = EncoderCard(kind="numbers", dimension=DIMENSION)

    def encode_queries(self, texts):
        return QUERY_VECTORS[[number(text) for text in texts]]

    def encode_items(self, texts):
        return ITEM_VECTORS[[number(text) for text in texts]]


class Scorer:
    """The truth, counted."""

    def __init__(self, *, weights="w", sign=1.0):
        self.card = ScorerCard(name="truth", backend="function", weights=weights)
        self.asked = []
        self._sign = sign

    def score(self, pairs):
        self.asked += [(query.id, item.id) for query, item in pairs]
        return np.array([self._sign * TRUTH[number(query.text), number(item.text)] for query, item in pairs])
