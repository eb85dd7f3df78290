"""Collections small enough to be learnt in a test: an item is about one word, and so are the queries for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from adacur import AnchorIndex, Item, Query
from adacur.data import JudgedCollection
from tests.unit.scorers.cross_encoders.tiny_models import WORDS

N_ITEMS = 60
FILLERS = WORDS[30:]


def word_collection(n_queries: int = 150, *, n_topics: int = 30) -> JudgedCollection:
    """Items of equal topic differ in fillers, and all are relevant to a query with that topic."""
    rng = np.random.default_rng(0)

    def about(topic: int) -> str:
        return " ".join(rng.permutation([WORDS[topic], WORDS[topic], *rng.choice(FILLERS, 2)]))

    items = [Item(f"i{n}", about(n % n_topics)) for n in range(N_ITEMS)]
    topics = rng.integers(n_topics, size=n_queries).tolist()
    # The number keeps query texts apart, so that none is both learnt and held out.
    queries = [Query(f"q{n}", f"{about(topic)} {n}") for n, topic in enumerate(topics)]
    qrels = {f"q{n}": {f"i{at}": 1 for at in range(topic, N_ITEMS, n_topics)} for n, topic in enumerate(topics)}
    return JudgedCollection("words", items, queries, qrels)


def word_index(n_queries: int = 150, *, n_topics: int = 6) -> AnchorIndex:
    """All items scored for all queries: 4 for the right topic, and less than 2 for the rest."""
    collection = word_collection(n_queries, n_topics=n_topics)
    scores = 2 * np.random.default_rng(1).random((n_queries, N_ITEMS))
    for row, query in enumerate(collection.queries):
        scores[row, [int(id_[1:]) for id_ in collection.qrels[query.id]]] += 4
    return AnchorIndex.from_arrays(items=collection.items, anchor_queries=collection.queries, scores=scores)


def pooled(base: Path, folder: Path) -> Path:
    """A base as a model of sentence-transformers with the mean of tokens' vectors, of length 1: quick to learn."""
    import sentence_transformers

    modules = sentence_transformers.sentence_transformer.modules
    tower = [modules.Transformer(str(base)), modules.Pooling(32, "mean"), modules.Normalize()]
    model = sentence_transformers.SentenceTransformer(modules=tower, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder
