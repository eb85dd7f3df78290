"""Tokens of items by position, so that a search neither reads nor tokenises an item twice."""

from __future__ import annotations

from itertools import count
from weakref import WeakKeyDictionary

from adacur.arrays import IntArray
from adacur.protocols import Items
from adacur.remembered import Remembered
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenArray

# 10,000 articles cut to 160 tokens take a twentieth.
_MOST_BYTES = 256 << 20
_ITEMS_AT_ONCE = 1024


class ItemTables:
    """The tokens of the items that were asked for last, of every collection; safe to share between threads.

    A collection is known by its object, under which items must not change.
    """

    def __init__(self, tokenizer: PairTokenizer, *, most_bytes: int = _MOST_BYTES) -> None:
        self._tokenizer, self._most_bytes = tokenizer, most_bytes
        # Never used again, unlike the address of an object.
        self._numbers = count()
        self._collections: WeakKeyDictionary[Items, int] = WeakKeyDictionary()
        self.clear()

    def tokens(self, items: Items, positions: IntArray) -> list[TokenArray]:
        """The items at these positions, in that order; those that are not known are read and tokenised."""
        collection, places = self._number_of(items), positions.tolist()
        keys = {place: (collection, place) for place in places}
        rows = self._known.find(keys.values())
        new = [place for place, key in keys.items() if key not in rows]
        for start in range(0, len(new), _ITEMS_AT_ONCE):
            some = new[start : start + _ITEMS_AT_ONCE]
            # The texts themselves are not remembered: their positions are.
            tokens = self._tokenizer.items(items.at(some), remember=False)
            fresh = {keys[place]: row.astype("int32") for place, row in zip(some, tokens, strict=True)}
            self._known.keep(fresh)
            rows |= fresh
        return [rows[keys[place]] for place in places]

    def clear(self) -> None:
        """Forget all."""
        self._known = Remembered(most_bytes=self._most_bytes)

    def _number_of(self, items: Items) -> int:
        try:
            return self._collections.setdefault(items, next(self._numbers))
        except TypeError:
            # An object that allows no weak reference: its tokens serve one call.
            return next(self._numbers)
