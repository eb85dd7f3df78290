"""Tokens of items by position, so that a search neither reads nor tokenises an item twice."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

import numpy as np

from adacur.arrays import IntArray
from adacur.protocols import Items
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenArray

# Some 130 MB. 10,000 articles cut to 160 tokens have a million; what does not fit at once begins anew now and then.
_MOST_TOKENS = 32_000_000
_ITEMS_AT_ONCE = 1024


class ItemTables:
    """The tokens of the items of each collection, kept while the collection lives; safe to share between threads.

    All collections together keep at most `most_tokens` tokens; where more are needed, all begin anew. A collection is
    known by its object, under which items must not change.
    """

    def __init__(self, tokenizer: PairTokenizer, *, most_tokens: int = _MOST_TOKENS) -> None:
        self._tokenizer, self._most = tokenizer, most_tokens
        self._lock = threading.Lock()
        self._tables: WeakKeyDictionary[Items, dict[int, TokenArray]] = WeakKeyDictionary()
        self.n_tokens = 0

    def tokens(self, items: Items, positions: IntArray) -> list[TokenArray]:
        """The items at these positions, in that order; those that are not known yet are read and tokenised."""
        places = positions.tolist()
        with self._lock:
            table = self._table(items)
            # A copy of what this call needs: another thread may begin anew meanwhile.
            rows = {place: table[place] for place in places if place in table}
        new = [place for place in dict.fromkeys(places) if place not in rows]
        for start in range(0, len(new), _ITEMS_AT_ONCE):
            some = new[start : start + _ITEMS_AT_ONCE]
            # The texts themselves are not remembered: their positions are.
            tokens = self._tokenizer.items(items.at(some), remember=False)
            fresh = {place: row.astype(np.int32) for place, row in zip(some, tokens, strict=True)}
            self._keep(items, fresh)
            rows |= fresh
        return [rows[place] for place in places]

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._tables.clear()
            self.n_tokens = 0

    def _keep(self, items: Items, fresh: dict[int, TokenArray]) -> None:
        size = sum(map(len, fresh.values()))
        with self._lock:
            if self.n_tokens + size > self._most:
                self._tables.clear()
                self.n_tokens = 0
            if size <= self._most:
                self._table(items).update(fresh)
                # Those of a collection that lives no more, and of two threads at once, count on: less is kept then.
                self.n_tokens += size

    def _table(self, items: Items) -> dict[int, TokenArray]:
        try:
            return self._tables.setdefault(items, {})
        except TypeError:
            # An object that allows no weak reference: its tokens are kept for no longer than a call.
            return {}
