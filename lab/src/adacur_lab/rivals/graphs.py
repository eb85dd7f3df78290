"""Rivals that walk a graph of nearest neighbours: GAR with its authors' code, and a greedy walk."""

from __future__ import annotations

import hashlib
import heapq
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
from pyterrier_adaptive import GAR, CorpusGraph, NpTopKCorpusGraph

from adacur.arrays import FloatArray
from adacur_lab.rivals.questions import Question

__all__ = ["N_NEIGHBOURS", "GraphAdaptive", "GreedyWalk", "neighbour_graph"]

# pyterrier-adaptive's defaults: the neighbours in its graphs, and the documents in a batch.
N_NEIGHBOURS = 16
BATCH = 16


class _Nearest(pt.Transformer):  # type: ignore[misc]
    """The items nearest to items, by the dual encoder's vectors: the retriever that a corpus graph is made with."""

    def __init__(self, ids: Sequence[str], vectors: FloatArray, n: int) -> None:
        self._ids = np.array(ids, dtype=object)
        self._rows = {id_: row for row, id_ in enumerate(ids)}
        self._vectors = vectors
        self._n = n

    def transform(self, frame: Any) -> Any:
        rows = [self._rows[id_] for id_ in frame["qid"]]
        scores = self._vectors[rows] @ self._vectors.T
        best = np.argpartition(-scores, self._n, axis=1)[:, : self._n]
        held = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-held, axis=1, kind="stable")
        return pd.DataFrame(
            {
                "qid": np.repeat(frame["qid"].to_numpy(), self._n),
                "docno": self._ids[np.take_along_axis(best, order, axis=1).ravel()],
                "score": np.take_along_axis(held, order, axis=1).ravel(),
            }
        )


def neighbour_graph(ids: Sequence[str], vectors: FloatArray, *, folder: Path) -> Any:
    """pyterrier-adaptive's graph of each item's 16 nearest neighbours, made once and kept in the folder."""
    digest = hashlib.blake2b(np.ascontiguousarray(vectors).data, digest_size=6).hexdigest()
    target = folder / f"graph-{len(ids)}-{N_NEIGHBOURS}-{digest}"
    if not target.exists():
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        documents = ({"docno": id_, "text": id_} for id_ in ids)
        nearest = _Nearest(ids, vectors, N_NEIGHBOURS + 1)
        CorpusGraph.from_retriever(nearest, documents, partial, k=N_NEIGHBOURS)
        partial.rename(target)
    return NpTopKCorpusGraph(target)


class _LookUp(pt.Transformer):  # type: ignore[misc]
    """The scorer of one question."""

    def __init__(self, question: Question, rows: dict[str, int]) -> None:
        self._question = question
        self._rows = rows

    def transform(self, frame: Any) -> Any:
        return frame.assign(score=self._question.score([self._rows[id_] for id_ in frame["docno"]]))


class GraphAdaptive:
    """GAR (MacAvaney, Tonellotto and Macdonald, CIKM 2022), by pyterrier-adaptive, with its defaults.

    It takes batches of 16 in turn from the first stage and from the neighbours of what scored best, so that B calls
    take B / 16 rounds.
    """

    def __init__(self, graph: Any, ids: Sequence[str]) -> None:
        self._graph = graph
        self._ids = ids
        self._rows = {id_: row for row, id_ in enumerate(ids)}

    def search(self, questions: Sequence[Question]) -> None:
        """Re-rank each question's first stage adaptively."""
        for question in questions:
            n = question.budget
            frame = pd.DataFrame(
                {
                    "docno": [self._ids[int(position)] for position in question.ranked[:n]],
                    "score": question.first_scores[:n].astype(float),
                }
            ).assign(qid=question.query.id, query=question.query.text)
            scorer = _LookUp(question, self._rows)
            GAR(scorer, self._graph, num_results=n, batch_size=BATCH, backfill=False).transform(frame)


@dataclass(frozen=True, eq=False)
class GreedyWalk:
    """Greedy search of the neighbour graph by the scorer: always to the neighbours of the best item not yet left.

    It starts from the first stage's best `share` of the budget. As in Reranker-Guided Search (arXiv 2509.07163), whose
    code is not public; this is written after its description. Each step is a scorer call of at most 16 pairs.
    """

    edges: Any
    share: float = 0.5

    def search(self, questions: Sequence[Question]) -> None:
        """Walk from each question's first stage."""
        for question in questions:
            self._walk(question)

    def _walk(self, question: Question) -> None:
        frontier: list[tuple[float, int]] = []

        def score(positions: list[int]) -> None:
            for position, value in zip(positions, question.score(positions), strict=True):
                heapq.heappush(frontier, (-value, position))

        score(question.unscored(max(1, round(self.share * question.budget))))
        while question.left and frontier:
            _, best = heapq.heappop(frontier)
            near = dict.fromkeys(int(position) for position in self.edges[best])
            score([position for position in near if position not in question.calls][: question.left])
        # The neighbourhood may be exhausted before the budget is.
        question.score(question.unscored(question.left))
