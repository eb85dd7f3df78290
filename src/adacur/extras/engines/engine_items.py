"""Items and first stages that live in a vector engine, as plans name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adacur.arrays import FloatArray
from adacur.extras.engines.linear_prediction import Outline
from adacur.extras.engines.vector_store import Found, Nearest, VectorStore, Where
from adacur.records import Query
from adacur.search.filters import nothing_passes

# Items that are looked at for the names that a filter may have.
_SAMPLED = 50


class EngineWarning(UserWarning):
    """A vector engine stopped answering, or its content is not what it seems to be."""


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


@dataclass(frozen=True, slots=True, eq=False)
class EngineFirst:
    """Where a search in an engine starts: one stage, or several joined by reciprocal ranks."""

    name: str
    stages: tuple[EngineStage, ...]

    @property
    def n_stages(self) -> int:
        """How many stages it joins."""
        return len(self.stages)
