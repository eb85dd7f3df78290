"""Items in random order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adacur.core.budget import check_k
from adacur.core.protocols import FirstStage, Ranking
from adacur.core.records import Item, Query, as_queries
from adacur.core.seeds import item_keys, stream_key, uniform
from adacur.first_stages.placing import best_by_id
from adacur.first_stages.ranking import check_ids
from adacur.first_stages.saved import read_ids, read_settings, unreadable_is_damage, write_settings

__all__ = ["Random"]


class Random(FirstStage):
    """A seeded draw per (query, item); independent of the batch and of the order of the items."""

    name = "random"

    def __init__(self, ids: Iterable[str], *, seed: int = 0) -> None:
        self._ids = check_ids(ids)
        self._keys = item_keys(self._ids)
        self._seed = seed

    @property
    def ids(self) -> Sequence[str]:
        """The ids of its items, by position."""
        return self._ids

    @classmethod
    def build(cls, items: Iterable[Item], *, seed: int = 0, **unused: Any) -> Random:
        """Draw among these items."""
        return cls((item.id for item in items), seed=seed)

    def updated(self, items: Iterable[Item], **unused: Any) -> Random:
        """Draw among other items, with the same seed."""
        return Random.build(items, seed=self._seed)

    def settings(self) -> dict[str, Any]:
        """The seed."""
        return {"seed": self._seed}

    def search(self, queries: Sequence[Query | str], k: int) -> list[Ranking]:
        """k items per query; the scores are the draws."""
        check_k(k)
        return [self._search(query, k) for query in as_queries(queries)]

    def _search(self, query: Query, k: int) -> Ranking:
        draws = uniform(stream_key(self._seed, "random", query.id), self._keys)
        best = best_by_id(draws, self._ids, k)
        return Ranking(best, draws[best])

    def save(self, folder: str | Path) -> None:
        """Write the ids and the seed."""
        write_settings(Path(folder), kind=self.name, ids=self._ids, settings=self.settings())

    @classmethod
    def load(cls, folder: str | Path, **unused: Any) -> Random:
        """Open what `save` wrote."""
        with unreadable_is_damage(folder, "random"):
            return cls(read_ids(folder), seed=int(read_settings(folder)["seed"]))
