"""Qdrant's relevance feedback, with its engine (qdrant-edge-py) and its trainer (qdrant-relevance-feedback).

A feedback query ranks items by `a · (query·x) + c · Σ confidence^b · (positive·x − negative·x)` over all pairs of the
scored examples that it is given, where confidence is the difference of their scores. Qdrant's documentation asks for
weights trained for each collection, dual encoder and scorer.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import qdrant_edge
from qdrant_relevance_feedback import RelevanceFeedback
from qdrant_relevance_feedback.feedback import Feedback
from qdrant_relevance_feedback.retriever import Retriever

from adacur.arrays import FloatArray
from adacur_lab.rivals.questions import Question, round_sizes

__all__ = [
    "Checked",
    "Engine",
    "FeedbackSearch",
    "FeedbackSettings",
    "LinearForm",
    "Weights",
    "train_weights",
    "tune_feedback",
]

# What their trainer asks the scorer for each training query, and how many of these are examples: its defaults.
TRAINED_ON = 50
_EXAMPLES = 5
_AT_ONCE = 2000  # points in an update of the shard
# Qdrant's documentation calls four or five enough.
_N_EXAMPLES = (5, 10)
_B = (0.0, 0.5, 1.0)
_C = (0.003, 0.01, 0.03, 0.1)


class Weights(NamedTuple):
    """The three weights of the formula."""

    a: float
    b: float
    c: float


@dataclass(frozen=True, slots=True)
class FeedbackSettings:
    """The weights, how many of the scored items a query gets as examples, and which: the best, or best and worst."""

    weights: Weights
    n_examples: int = 5
    examples: Literal["best", "both ends"] = "best"


class Asked(NamedTuple):
    """A feedback query: the examples' positions and scores, and how many unscored items to return."""

    vector: FloatArray
    examples: list[tuple[int, float]]
    without: set[Any]  # the engine takes other kinds of ids as well
    n: int


class Ranks(Protocol):
    """Answers feedback queries."""

    def best(self, asked: Sequence[Asked], weights: Weights) -> list[list[int]]:
        """For each query the positions of its best unscored items."""
        ...


class Engine:
    """Qdrant's engine in this process: an exact search of one shard."""

    def __init__(self, vectors: FloatArray) -> None:
        self._vectors = vectors
        folder = tempfile.mkdtemp(prefix="qdrant-")
        self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        config = qdrant_edge.EdgeConfig(
            vectors=qdrant_edge.EdgeVectorParams(size=vectors.shape[1], distance=qdrant_edge.Distance.Dot)
        )
        self._shard = qdrant_edge.EdgeShard.create(f"{folder}/shard", config)
        for start in range(0, len(vectors), _AT_ONCE):
            block = vectors[start : start + _AT_ONCE]
            points = [qdrant_edge.Point(start + row, vector.tolist()) for row, vector in enumerate(block)]
            self._shard.update(qdrant_edge.UpdateOperation.upsert_points(points))

    def best(self, asked: Sequence[Asked], weights: Weights) -> list[list[int]]:
        """Feedback queries, as Qdrant computes them."""
        strategy = qdrant_edge.NaiveFeedbackStrategy(*weights)
        return [[int(point.id) for point in self._shard.query(self._request(one, strategy))] for one in asked]

    def nearest(self, vector: list[float], n: int, among: set[Any] | None = None) -> list[Any]:
        """The n points nearest to a vector, with their vectors."""
        only = None if among is None else qdrant_edge.Filter(must=[qdrant_edge.HasIdCondition(among)])
        request = qdrant_edge.QueryRequest(
            limit=n,
            query=qdrant_edge.Query.Nearest(vector),
            filter=only,
            with_vector=True,
            params=qdrant_edge.SearchParams(exact=True),
        )
        return list(self._shard.query(request))

    def close(self) -> None:
        """Give back its memory and its folder."""
        self._shard.close()
        self._remove_folder()

    def _request(self, asked: Asked, strategy: Any) -> Any:
        examples = [
            qdrant_edge.FeedbackItem(self._vectors[position].tolist(), score) for position, score in asked.examples
        ]
        return qdrant_edge.QueryRequest(
            limit=asked.n,
            query=qdrant_edge.Query.FeedbackNaive(
                qdrant_edge.FeedbackNaiveQuery(asked.vector.tolist(), examples, strategy)
            ),
            filter=qdrant_edge.Filter(must_not=[qdrant_edge.HasIdCondition(asked.without)]),
            params=qdrant_edge.SearchParams(exact=True),
        )


class LinearForm:
    """The same ranking by one matrix product for all queries, since the formula is linear in x."""

    def __init__(self, vectors: FloatArray) -> None:
        self._vectors = vectors

    def best(self, asked: Sequence[Asked], weights: Weights) -> list[list[int]]:
        """All queries in one product."""
        scores = np.stack([self._direction(one, weights) for one in asked]) @ self._vectors.T
        found = []
        for row, one in zip(scores, asked, strict=True):
            row[list(one.without)] = -np.inf
            n = min(one.n, len(row) - len(one.without))
            best = np.argpartition(-row, max(0, n - 1))[:n]
            found.append([int(position) for position in best[np.argsort(-row[best])]])
        return found

    def _direction(self, asked: Asked, weights: Weights) -> FloatArray:
        positions, scores = zip(*asked.examples, strict=True)
        confidence = np.subtract.outer(scores, scores)
        strength = np.where(confidence > 0, np.maximum(confidence, 1e-300) ** weights.b, 0.0)
        # A pair adds its positive's vector and takes its negative's away.
        each = strength.sum(axis=1) - strength.sum(axis=0)
        moved = weights.a * asked.vector + weights.c * (each @ self._vectors[list(positions)])
        return np.asarray(moved, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class Checked:
    """The matrix product's answers, with the engine asked about every tenth query: it must find the same items.

    The engine compares each item with every example of each pair: 0.1 s a query for 28,000 items and ten examples.
    """

    form: LinearForm
    engine: Engine
    every: int = 10

    def best(self, asked: Sequence[Asked], weights: Weights) -> list[list[int]]:
        """The product's answers; an error where the engine finds other items."""
        found = self.form.best(asked, weights)
        for ours, theirs in zip(found[:: self.every], self.engine.best(asked[:: self.every], weights), strict=True):
            # Rounding may exchange the last item for the next.
            if len(set(ours) - set(theirs)) > 1:
                raise ArithmeticError(f"Qdrant's engine must find the same items; it found {theirs}, and not {ours}.")
        return found


@dataclass(frozen=True, eq=False)
class FeedbackSearch:
    """Rounds of feedback queries: score the first stage's best, then what the feedback ranks best, again and again."""

    ranks: Ranks
    settings: FeedbackSettings
    rounds: int = 5

    def search(self, questions: Sequence[Question]) -> None:
        """All questions step together; they must have one budget."""
        first, *later = round_sizes(questions[0].budget, self.rounds)
        for question in questions:
            question.score(question.unscored(first))
        for size in later:
            asked = [Asked(one.vector, self._examples(one), set(one.calls), size) for one in questions]
            for question, found in zip(questions, self.ranks.best(asked, self.settings.weights), strict=True):
                question.score(found)

    def _examples(self, question: Question) -> list[tuple[int, float]]:
        ordered = sorted(question.calls.items(), key=lambda call: -call[1])
        n = min(self.settings.n_examples, len(ordered))
        if self.settings.examples == "best":
            return ordered[:n]
        return ordered[: n - n // 2] + ordered[len(ordered) - n // 2 :]


def train_weights(engine: Engine, questions: Sequence[Question]) -> Weights:
    """The weights that Qdrant's trainer fits to these questions with its defaults, at 50 scorer calls each.

    Its client talks to the engine in this process: the trainer asks for the nearest points, and for the similarity of
    two points, a query each.
    """

    class Vectors(Retriever):  # type: ignore[misc]
        def embed_query(self, query: Question) -> list[float]:
            return [float(value) for value in query.vector]

    class Scores(Feedback):  # type: ignore[misc]
        def score(self, query: Question, responses: list[int]) -> list[float]:
            return query.score(responses)

    class Positions(RelevanceFeedback):  # type: ignore[misc]
        def retrieve_payload(self, responses: list[Any]) -> list[int]:
            return [point.id for point in responses]

    def query_points(*, query: Any, limit: int, query_filter: Any = None, **_: Any) -> Any:
        among = None if query_filter is None else set(query_filter.must[0].has_id)
        return SimpleNamespace(points=engine.nearest(query, limit, among))

    trainer = Positions(Vectors(), Scores(), SimpleNamespace(query_points=query_points), "items")
    fresh = [replace(question, budget=TRAINED_ON, calls={}) for question in questions]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints every query and every hundredth epoch
        fitted = trainer.train(queries=fresh, limit=TRAINED_ON, context_limit=_EXAMPLES)
    return Weights(fitted["a"], max(0.0, fitted["b"]), fitted["c"])


def tune_feedback(
    form: LinearForm, quality: Callable[[FeedbackSearch], float], *, trained: Weights
) -> FeedbackSettings:
    """The settings of the best quality, of the trained weights and of a grid; `quality` replays questions to tune on.

    With one pair of examples, as their trainer has it, c is of the order of 1; a query sums over all pairs, so the
    trained c is also tried divided by their number.
    """

    def candidates() -> list[FeedbackSettings]:
        grid = [Weights(1.0, b, c) for b in _B for c in _C]
        return [
            FeedbackSettings(weights, n, examples)
            for n in _N_EXAMPLES
            for examples in ("best", "both ends")
            for weights in [trained, trained._replace(c=trained.c / (n * (n - 1) / 2)), *grid]
        ]

    return max(candidates(), key=lambda settings: quality(FeedbackSearch(form, settings)))
