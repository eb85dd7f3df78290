"""Tokens of items by position, so that a search neither reads nor tokenises an item twice."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from adacur.arrays import IntArray
from adacur.protocols import Items
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenArray

# Some 130 MB. 10,000 articles cut to 160 tokens have a million; what does not fit at once begins anew now and then.
_MOST_TOKENS = 32_000_000
_ITEMS_AT_ONCE = 1024


@dataclass(slots=True, eq=False)
class _Table:
    """Known items of one collection, by position."""

    rows: dict[int, TokenArray] = field(default_factory=dict)
    n_tokens: int = 0

    def add(self, rows: dict[int, TokenArray]) -> None:
        self.rows.update(rows)
        self.n_tokens += _size(rows)


class ItemTables:
    """The tokens of the items of each collection, kept while the collection lives; safe to share between threads.

    All collections together keep at most `most_tokens` tokens; where more are needed, all begin anew. A collection is
    known by its object, under which items must not change.
    """

    def __init__(self, tokenizer: PairTokenizer, *, most_tokens: int = _MOST_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._most = most_tokens
        self._lock = threading.Lock()
        self._tables: WeakKeyDictionary[Items, _Table] = WeakKeyDictionary()

    def tokens(self, items: Items, positions: IntArray) -> list[TokenArray]:
        """The items at these positions, in that order; those that are not known yet are read and tokenised."""
        places = positions.tolist()
        with self._lock:
            table = self._table(items)
            # A copy of what this call needs: another thread may begin anew meanwhile.
            rows = {place: table.rows[place] for place in places if place in table.rows}
        new = [place for place in dict.fromkeys(places) if place not in rows]
        for start in range(0, len(new), _ITEMS_AT_ONCE):
            some = self._tokenised(items, new[start : start + _ITEMS_AT_ONCE])
            self._keep(items, some, anew=True)
            rows.update(some)
        return [rows[place] for place in places]

    def prepare(self, items: Items) -> int:
        """Keep the tokens of all items, in order, while they fit into memory; returns how many items are known then."""
        with self._lock:
            known = set(self._table(items).rows)
        new = [place for place in range(len(items)) if place not in known]
        for start in range(0, len(new), _ITEMS_AT_ONCE):
            if not self._keep(items, self._tokenised(items, new[start : start + _ITEMS_AT_ONCE]), anew=False):
                break
        with self._lock:
            return len(self._table(items).rows)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._tables.clear()

    def _table(self, items: Items) -> _Table:
        try:
            return self._tables.get(items) or self._tables.setdefault(items, _Table())
        except TypeError:
            # An object that allows no weak reference: its tokens are kept for no longer than a call.
            return _Table()

    def _tokenised(self, items: Items, places: list[int]) -> dict[int, TokenArray]:
        # The texts themselves are not remembered: their positions are.
        tokens = self._tokenizer.items(items.at(places), remember=False)
        return {place: row.astype(np.int32) for place, row in zip(places, tokens, strict=True)}

    def _keep(self, items: Items, rows: dict[int, TokenArray], *, anew: bool) -> bool:
        """Whether these fit into memory; if they do not, `anew` clears it first."""
        with self._lock:
            table = self._table(items)
            new = {place: row for place, row in rows.items() if place not in table.rows}
            if sum(other.n_tokens for other in self._tables.values()) + _size(new) <= self._most:
                table.add(new)
                return True
            if not anew:
                return False
            self._tables.clear()
            if _size(rows) <= self._most:
                self._table(items).add(rows)
            return True


def _size(rows: dict[int, TokenArray]) -> int:
    return sum(map(len, rows.values()))
