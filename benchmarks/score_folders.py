"""Folders of exact scores: scores.npz, dense_items.npy, dense_queries.npy and meta.json.

meta.json names the queries (anchors first, then test queries) and items, and says how the integers in scores.npz
decode to logits. Any search can be replayed from such a folder without a model.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adacur import Item, MatrixRetriever, MatrixScorer, Query


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

    @property
    def scorer(self) -> MatrixScorer:
        return MatrixScorer(queries=self.test, items=self.items, scores=self.test_scores)

    @property
    def dense(self) -> MatrixRetriever:
        return MatrixRetriever(queries=self.test, items=self.items, scores=self.dense_scores)


def read_score_folder(folder: str | Path, *, n_anchors: int, n_queries: int, held_out: bool = False) -> ScoreFolder:
    """The first `n_anchors` anchor queries and the first `n_queries` test queries of a folder.

    With `held_out`, the last `n_queries` anchor queries take the place of the test queries: to choose by, since test
    queries are for reporting.
    """
    folder = Path(folder)
    meta = json.loads((folder / "meta.json").read_text())
    first_test = meta["n_anchor_queries"]
    query_ids = [*meta["anchor_query_ids"], *meta["test_query_ids"]]
    if held_out:
        first_test -= n_queries
    else:
        n_queries = min(n_queries, meta["n_test_queries"])
    n_anchors = min(n_anchors, first_test)
    with np.load(folder / "scores.npz") as stored:
        values = stored["scores"]
    decode = re.fullmatch(r"logit = value / ([\d.]+) ([+-]) ([\d.]+)", meta["decode"])
    if decode is None:
        raise SystemExit(f"{folder}/meta.json: cannot read the decoding rule {meta['decode']!r}")
    scale, sign, offset = decode.groups()

    def logits(rows: slice) -> np.ndarray:
        return values[rows].astype(np.float32) / float(scale) + float(sign + offset)

    items = np.load(folder / "dense_items.npy").astype(np.float32)
    queries = np.load(folder / "dense_queries.npy").astype(np.float32)
    chosen = slice(first_test, first_test + n_queries)
    return ScoreFolder(
        domain=meta.get("domain", folder.name),
        items=[Item(id_, id_) for id_ in meta["item_ids"]],
        anchors=[Query(id_, id_) for id_ in query_ids[:n_anchors]],
        test=[Query(id_, id_) for id_ in query_ids[chosen]],
        anchor_scores=logits(slice(0, n_anchors)),
        test_scores=logits(chosen),
        dense_scores=queries[chosen] @ items.T,
        item_embeddings=items,
    )
