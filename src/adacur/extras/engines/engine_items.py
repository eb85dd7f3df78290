"""Items and first stages that live in a vector engine, as plans name them, and predictions of such items.

A prediction is affine in an item's vector, so an engine that finds the largest inner products finds the most promising
items. Only what does not grow with the items is held here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from adacur.arrays import FloatArray, IntArray
from adacur.extras.engines.vector_store import Found, Nearest, VectorStore, Where
from adacur.model.approximation import Posterior
from adacur.model.features import Features
from adacur.model.posterior import rises
from adacur.model.rows import ItemFactors
from adacur.model.scale import ScoreScale
from adacur.records import Query
from adacur.search.filters import nothing_passes

_MOST_ITEMS = 1 << 40
# Items that are looked at for the names that a filter may have.
_SAMPLED = 50


class EngineWarning(UserWarning):
    """A vector engine stopped answering, or its content is not what it seems to be."""


@dataclass(frozen=True, slots=True, eq=False)
class Outline:
    """What predictions need to know of all items: the mean of their vectors, and their variance about it."""

    mean: FloatArray
    variance: float

    @classmethod
    def of(cls, sample: FloatArray) -> Outline:
        """The outline of items whose vectors these are a sample of."""
        rows = np.asarray(sample, dtype=np.float64)
        return cls(rows.mean(axis=0), float(rows.var(axis=0).sum()))

    def features(self, read: Callable[[IntArray], FloatArray]) -> Features:
        """Features of items whose vectors `read` fetches by position."""
        return Features(
            anchors=(),
            scale=ScoreScale.plain(),
            anchor_vectors=None,
            precisions=np.zeros(0),
            variance=0.0,
            embedding_variance=self.variance,
            # A broadcast value takes no memory; items are numbered as a search meets them.
            means=np.broadcast_to(np.float32(0), _MOST_ITEMS),
            factors=ItemFactors([_EngineRows(read, (_MOST_ITEMS, len(self.mean)))], self.mean),
        )


class _EngineRows:
    """Rows that an engine holds."""

    def __init__(self, read: Callable[[IntArray], FloatArray], shape: tuple[int, int]) -> None:
        self._read, self.shape = read, shape

    def rows(self, positions: IntArray) -> FloatArray:
        read: FloatArray = self._read(positions.reshape(-1)).astype(np.float64)
        return read.reshape(*positions.shape, self.shape[1])


@dataclass(frozen=True, slots=True, eq=False)
class LinearPrediction:
    """A query's prediction of any item: `weights` · its vector + `constant`.

    Of the `listed` items, which first stages rank, `rises` is what their ranks and words add.
    """

    weights: FloatArray
    constant: float
    listed: IntArray
    rises: FloatArray


def linear_predictions(posterior: Posterior) -> list[LinearPrediction]:
    """What `posterior.predict` computes, as weights of what is stored of an item."""
    centre, predictions = posterior.features.factors.centre, []
    for state in posterior.states:
        # The last two are of the item's mean, which is 0 without anchor queries, and of the level.
        weights, level = state.weights[0, :-2], state.weights[0, -1]
        predictions.append(
            LinearPrediction(
                weights=weights.astype(np.float32),
                constant=float(level - centre @ weights),
                listed=state.prior.listed[0],
                rises=rises(state)[0],
            )
        )
    return predictions


@dataclass(frozen=True, slots=True, eq=False)
class EngineItems:
    """The items of a collection, as a search uses them.

    - `vector`, `outline`: the vector that predictions are made from, and how; no outline if there is none;
    - `where`: the metadata that items must have;
    - `exact`: False where the engine may use an index that misses some.
    """

    store: VectorStore
    n_items: int
    vector: str = ""
    outline: Outline | None = None
    where: Where = None
    exact: bool = True

    def filtered(self, where: Where) -> EngineItems:
        """The items that have this metadata."""
        if where is None:
            return self
        n_items = self.store.count(where)
        if not n_items:
            raise nothing_passes(where, list(self.store.items(self.store.sample(_SAMPLED)).values()))
        return replace(self, where=where, n_items=n_items)


@dataclass(frozen=True, slots=True, eq=False)
class EngineStage:
    """A first stage in an engine: by a vector and an encoder of queries, or, without an encoder, by words."""

    name: str
    store: VectorStore
    vector: str = ""
    embed_queries: Callable[[Sequence[Query]], FloatArray] | None = None
    exact: bool = True

    def search(self, queries: Sequence[Query], n: int, *, where: Where) -> Sequence[Found]:
        """At most n items per query, best first."""
        if self.embed_queries is None:
            return [self.store.words(query.text, n, where=where) for query in queries]
        questions = [Nearest(vector, n) for vector in self.embed_queries(queries)]
        return self.store.best(self.vector, questions, where=where, exact=self.exact)

    def terms(self, query: Query, n: int, *, where: Where) -> list[Found]:
        """What each word of the query adds to the n items that it adds most to; nothing by vectors."""
        if self.embed_queries is not None or not self.store.adds_words:
            return []
        words = dict.fromkeys(re.findall(r"\w{2,}", query.text.casefold()))
        answers = [self.store.words(word, n + 1, where=where) for word in words]
        # Beyond the last that counts nothing is added, and just before it next to nothing.
        return [
            Found(one.keys[:n], one.values[:n] - (one.values[n] if len(one.values) > n else 0.0)) for one in answers
        ]


@dataclass(frozen=True, slots=True, eq=False)
class EngineFirst:
    """Where a search in an engine starts: one stage, or several joined by reciprocal ranks."""

    name: str
    stages: tuple[EngineStage, ...]

    @property
    def n_stages(self) -> int:
        """How many stages it joins."""
        return len(self.stages)
