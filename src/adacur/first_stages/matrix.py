"""Known scores, looked up: to replay a first stage or exact search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.budget import check_k
from adacur.core.errors import InputError, UnknownName
from adacur.core.protocols import FirstStage, Ranking
from adacur.core.records import Item, Query, as_queries
from adacur.core.scores import check_grid
from adacur.data.stored import read_array, read_json
from adacur.first_stages.ranking import best_first, check_ids
from adacur.first_stages.saved import read_ids, unreadable_is_damage, write_json, write_settings

__all__ = ["Matrix"]


class Matrix(FirstStage):
    """A matrix of scores, one row per query and one column per item; queries are known by their id."""

    name = "matrix"

    def __init__(self, *, queries: Sequence[Query], items: Sequence[Item], scores: FloatArray) -> None:
        self._scores = check_grid(scores, queries, items)
        self._ids = check_ids(item.id for item in items)
        self._rows = {id_: row for row, id_ in enumerate(check_ids(query.id for query in queries))}

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

    @classmethod
    def build(
        cls, items: Iterable[Item], *, queries: Sequence[Query] = (), scores: FloatArray | None = None, **unused: Any
    ) -> Matrix:
        """The known `scores` of `queries`; there is nothing that these could be made from."""
        if scores is None:
            raise InputError("Known scores cannot be built from items; give queries=… and scores=….")
        return cls(queries=queries, items=list(items), scores=scores)

    def check_can_grow(self) -> None:
        """Refuse: the scores of new items are not known."""
        raise InputError("A first stage of known scores cannot take in new items; their scores are not known.")

    def updated(self, items: Iterable[Item], *, unchanged: IntArray, **unused: Any) -> Matrix:
        """Some of its items, with their scores."""
        items = list(items)
        if len(items) > len(unchanged):
            self.check_can_grow()
        queries = [Query(id_, id_) for id_ in self._rows]
        return Matrix(queries=queries, items=items, scores=self._scores[:, unchanged])

    def settings(self) -> dict[str, Any]:
        """How much is known."""
        return {"n_queries": len(self._rows)}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """The k highest known scores per query."""
        check_k(k)
        return [self._search(query, k) for query in as_queries(queries)]

    def _search(self, query: Query, k: int) -> Ranking:
        if query.id not in self._rows:
            raise UnknownName(
                f"No scores are known for query {query.id!r}; the matrix holds {len(self._rows)} queries. "
                "Search with the Query records it was made with: a plain text gets an id of its own."
            )
        row = self._scores[self._rows[query.id]]
        best = best_first(row, self._ids, k)
        return Ranking(best, np.asarray(row[best]))

    def save(self, folder: str | Path) -> None:
        """Write the scores and the ids of queries and items."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / "scores.npy", self._scores)
        write_json(folder / "queries.json", list(self._rows))
        write_settings(folder, kind=self.name, ids=self._ids, settings=self.settings())

    @classmethod
    def load(cls, folder: str | Path, **unused: Any) -> Matrix:
        """Open what `save` wrote."""
        folder = Path(folder)
        with unreadable_is_damage(folder, "matrix"):
            queries = [Query(id_, id_) for id_ in read_json(folder / "queries.json")]
            items = [Item(id_, id_) for id_ in read_ids(folder)]
            return cls(queries=queries, items=items, scores=read_array(folder / "scores.npy", kind="f", ndim=2))
