"""Known scores, looked up: to replay a first stage or exact search. Not kept with an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from adacur.arrays import FloatArray
from adacur.budget import check_k
from adacur.errors import InputError, UnknownName
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.saved import check_ids
from adacur.protocols import FirstStage, Ranking
from adacur.records import Item, Query, as_queries
from adacur.scores import check_grid


class Matrix(FirstStage):
    """A matrix of scores, one row per query and one column per item; queries are known by their id."""

    name = "matrix"
    answers_anything = False

    def __init__(self, *, queries: Sequence[Query], items: Sequence[Item], scores: FloatArray) -> None:
        self._scores = check_grid(scores, queries, items)
        self._ids = check_ids(item.id for item in items)
        self._rows = {id_: row for row, id_ in enumerate(check_ids(query.id for query in queries))}

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

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
        best = best_by_id(row, self._ids, k)
        return Ranking(best, np.asarray(row[best]))

    @staticmethod
    def _refused(*given: Any, **options: Any) -> NoReturn:
        raise InputError(
            "Known scores cannot be built, updated or saved; give them: Matrix(queries=…, items=…, scores=…)."
        )

    build = load = updated = save = check_can_grow = _refused
