"""The right table as an index, and what changes where both tables are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from adacur.arrays import FloatArray
from adacur.errors import InputError
from adacur.matching.tables import Table
from adacur.protocols import Items, Scorer
from adacur.records import Item, Pair, Query
from adacur.scorers.wrapping import Wrapping
from adacur.search import AnchorIndex, load
from adacur.search.plan import Place, Plan

_MANIFEST = "manifest.json"


def open_right(
    right: Any, *, text: str | None, id_: str | None, first: Any, encoder: Any, scorer: Any, progress: bool
) -> AnchorIndex:
    """The rows to match with: an index as it is, an index folder opened, or a table read into memory."""
    if isinstance(right, str | Path) and (Path(right) / _MANIFEST).is_file():
        right = load(right, scorer=scorer, encoder=encoder)
    if isinstance(right, AnchorIndex):
        if text is not None or id_ is not None:
            raise InputError("An index has its texts and ids already: leave right_text and right_id out.")
        return right
    table = Table(right, text, id_, "right")
    table.count()
    # Words are looked up in the table anyway; without an encoder there is nothing else to begin with.
    stages = first or ("bm25" if encoder is None else ("bm25", "dense"))
    return AnchorIndex.from_items(list(table), first=stages, encoder=encoder, progress=progress)


@dataclass(frozen=True, slots=True)
class WithoutSelf:
    """A place of candidates where no row is its own candidate; `inner` is the place, `items` have the rows' ids."""

    inner: Place
    items: Items

    def open(self, plan: Plan, k: int) -> _OpenWithoutSelf:
        """Ready for searches of this plan."""
        return _OpenWithoutSelf(self.inner.open(replace(plan, candidates=self.inner), k), self.items)

    def settings(self) -> Mapping[str, Any]:
        """The choices that a result should name."""
        return self.inner.settings()


class _OpenWithoutSelf:
    def __init__(self, inner: Any, items: Items) -> None:
        self._inner, self._items = inner, items
        self.by_position = inner.by_position

    @property
    def together(self) -> int:
        return int(self._inner.together)

    def begin(self, queries: Sequence[Query]) -> Any:
        batch = self._inner.begin(queries)
        own = self._items.positions(query.id for query in queries)
        for at, search in enumerate(batch.searches):
            search.candidates.scored(own[at : at + 1])
        return batch

    def gave_up(self, error: Exception) -> str | None:
        return None


class OnceEach(Wrapping):
    """A scorer of the pairs of one table, which scores a pair and its reverse alike, in the order of their ids.

    Around a cache, so that the reverse costs nothing.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def score(self, pairs: Sequence[Pair]) -> FloatArray:
        """One score per pair, in order."""
        return self.scorer.score([_in_order(query, item) for query, item in pairs])


def _in_order(query: Query, item: Item) -> Pair:
    if query.id <= item.id:
        return query, item
    return Query(item.id, item.text), Item(query.id, query.text)
