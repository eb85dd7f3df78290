"""Folders of exact scores, as `adacur_lab.experiments.Testbed.from_score_folder` reads and documents them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from adacur import AnchorIndex, Dense, Item, Query
from adacur.scorers import MatrixScorer
from adacur_lab.experiments import Testbed
from adacur_lab.known_vectors import KnownVectors


@dataclass(frozen=True)
class ScoreFolder:
    """One domain, ready to replay."""

    domain: str
    items: list[Item]
    anchors: list[Query]
    test: list[Query]
    anchor_scores: np.ndarray
    test_scores: np.ndarray
    dense_scores: np.ndarray
    item_embeddings: np.ndarray
    query_embeddings: np.ndarray
    anchor_embeddings: np.ndarray

    @property
    def scorer(self) -> MatrixScorer:
        return MatrixScorer(queries=self.test, items=self.items, scores=self.test_scores)

    def embed_queries(self, queries: Sequence[Query]) -> np.ndarray:
        """The dual encoder's vectors of anchor and test queries, looked up by their ids."""
        vectors = np.concatenate([self.anchor_embeddings, self.query_embeddings])
        rows = {query.id: row for row, query in enumerate([*self.anchors, *self.test])}
        return vectors[[rows[query.id] for query in queries]]

    @cached_property
    def dense(self) -> Dense:
        """The dual encoder as a first stage, which knows anchor and test queries."""
        queries = [*self.anchors, *self.test]
        encoder = KnownVectors(queries, self.embed_queries(queries))
        return Dense.from_embeddings([item.id for item in self.items], self.item_embeddings, encoder=encoder)

    @cached_property
    def index(self) -> AnchorIndex:
        """The index as a user has it, with the dense first stage, and a scorer of the test queries."""
        given = {"items": self.items, "scorer": self.scorer, "first": {"dense": self.dense}}
        if not self.anchors:
            return AnchorIndex.from_items(**given)
        return AnchorIndex.from_arrays(anchor_queries=self.anchors, scores=self.anchor_scores, **given)


def read_score_folder(folder: str | Path, *, n_anchors: int, n_queries: int, held_out: bool = False) -> ScoreFolder:
    """The first `n_anchors` anchor queries and the first `n_queries` test queries of a folder.

    With `held_out`, the last `n_queries` anchor queries take the place of the test queries.
    """
    testbed = Testbed.from_score_folder(folder, n_queries=n_queries, held_out=n_queries if held_out else 0)
    if testbed.item_embeddings is None or testbed.query_embeddings is None or testbed.anchor_embeddings is None:
        raise SystemExit(f"{folder} holds no embeddings, and these benchmarks start from them")
    return ScoreFolder(
        domain=testbed.name,
        items=list(testbed.items),
        anchors=list(testbed.anchor_queries[:n_anchors]),
        test=list(testbed.test_queries),
        anchor_scores=testbed.anchor_scores[:n_anchors],
        test_scores=testbed.exact_scores,
        dense_scores=testbed.query_embeddings @ testbed.item_embeddings.T,
        item_embeddings=testbed.item_embeddings,
        query_embeddings=testbed.query_embeddings,
        anchor_embeddings=testbed.anchor_embeddings[:n_anchors],
    )
