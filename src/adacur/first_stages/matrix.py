"""Known scores, looked up: replay of a first stage or of exact search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from adacur.core.arrays import FloatArray
from adacur.core.budget import check_k
from adacur.core.errors import UnknownName
from adacur.core.records import Item, Query, as_queries
from adacur.core.results import Hits
from adacur.core.scores import check_grid
from adacur.first_stages.ranking import best_first, check_ids

__all__ = ["MatrixRetriever"]


class MatrixRetriever:
    """A matrix of scores, one row per query and one column per item; queries are known by their id."""

    name = "matrix"

    def __init__(self, *, queries: Sequence[Query], items: Sequence[Item], scores: FloatArray) -> None:
        self._scores = check_grid(scores, queries, items)
        self._ids = check_ids(item.id for item in items)
        self._rows = {id_: row for row, id_ in enumerate(check_ids(query.id for query in queries))}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """The k highest known scores per query."""
        check_k(k)
        return [self._search(query, k) for query in as_queries(queries)]

    def _search(self, query: Query, k: int) -> Hits:
        if query.id not in self._rows:
            raise UnknownName(
                f"No scores are known for query {query.id!r}; the matrix holds {len(self._rows)} queries. "
                "Search with the Query records it was made with: a plain text gets an id of its own."
            )
        row = self._scores[self._rows[query.id]]
        best = best_first(row, self._ids, k)
        return Hits(query=query, ids=tuple(self._ids[position] for position in best), scores=np.asarray(row[best]))
