"""Items in random order: the first stage of those who have none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from adacur.core.budget import check_k
from adacur.core.records import Item, Query, as_queries
from adacur.core.results import Hits
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.first_stages.ranking import best_first, check_ids

__all__ = ["RandomRetriever"]


class RandomRetriever:
    """A seeded draw per (query, item); independent of the batch and of the order of the items."""

    name = "random"

    def __init__(self, items: Iterable[Item | str], *, seed: int = 0) -> None:
        self._ids = check_ids(item.id if isinstance(item, Item) else item for item in items)
        self._keys = item_keys(self._ids)
        self._seed = seed

    def search(self, queries: Sequence[Query | str], k: int) -> list[Hits]:
        """k items per query; the scores are the draws."""
        check_k(k)
        return [self._search(query, k) for query in as_queries(queries)]

    def _search(self, query: Query, k: int) -> Hits:
        draws = uniform(stream_key(self._seed, "random", query.id), self._keys)
        best = best_first(draws, self._ids, k)
        return Hits(query=query, ids=tuple(self._ids[position] for position in best), scores=draws[best])
