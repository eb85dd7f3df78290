"""What a plan says of items that live in a vector engine, and of first stages that live there too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from adacur.approximation.engine_rows import Outline
from adacur.core.arrays import FloatArray
from adacur.core.errors import EmptyInput
from adacur.core.records import Query
from adacur.engines.vector_store import Found, Nearest, VectorStore, Where


class EngineWarning(UserWarning):
    """A vector engine stopped answering, or holds something else than it seems to."""


@dataclass(frozen=True, slots=True, eq=False)
class EngineItems:
    """The items of a collection, as a search uses them.

    - `vector`: the one whose rows predictions are made of, as `outline` says, which is None where there is nothing to
      predict from;
    - `where`: the metadata that items must have;
    - `exact`: False where the engine may use an index that misses some;
    - `by_document`: whether items are passages of documents, which k then counts.
    """

    store: VectorStore
    n_items: int
    vector: str = ""
    outline: Outline | None = None
    where: Where = None
    exact: bool = True
    by_document: bool = False

    def best(self, questions: Sequence[Nearest]) -> list[Found]:
        """Answers to all questions."""
        return self.store.best(self.vector, questions, where=self.where, exact=self.exact)

    def counted(self) -> EngineItems:
        """The same, counted again."""
        return replace(self, n_items=self.store.count(self.where))

    def filtered(self, where: Where) -> EngineItems:
        """Those that have this metadata."""
        if where is None:
            return self
        n_items = self.store.count(where)
        if not n_items:
            raise EmptyInput("The filter leaves no item to search. Widen it.")
        return replace(self, where=where, n_items=n_items)


@dataclass(frozen=True, slots=True, eq=False)
class EngineStage:
    """A first stage in an engine: by a vector of the items and an encoder of queries, or by words where it has none."""

    name: str
    store: VectorStore
    vector: str = ""
    embed_queries: Callable[[Sequence[Query]], FloatArray] | None = None
    exact: bool = True

    def search(self, queries: Sequence[Query], n: int, *, where: Where) -> list[Found]:
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
        """How many it is made of."""
        return len(self.stages)
