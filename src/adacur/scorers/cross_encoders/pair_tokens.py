"""Pairs of texts as token ids: each text tokenised once, the query never cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from adacur.arrays import BoolArray, IntArray
from adacur.budget import at_least
from adacur.errors import InputError, TextTooLong
from adacur.protocols import Items
from adacur.records import Item, Pair, Query
from adacur.remembered import Remembered
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.prompt_pieces import PromptPieces

TokenArray = npt.NDArray[np.signedinteger[Any]]

LEAST_ITEM_TOKENS = 16
_TEXTS_PER_CALL = 1024
# Of the texts and positions seen last, with their tokens: 10,000 articles cut to 160 tokens take a twentieth.
_BYTES_KNOWN = 256 << 20
_NO_TOKENS: TokenArray = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PairTemplate:
    """How a model expects a pair: prefix, query, middle, item, suffix; rows of (2, tokens) are ids and token types."""

    prefix: TokenArray
    middle: TokenArray
    suffix: TokenArray
    query_type: int
    item_type: int

    @classmethod
    def of(cls, tokenizer: Any) -> PairTemplate:
        """The template of a `tokenizers.Tokenizer` without padding, read off one small pair."""
        encoding = tokenizer.encode("a", "b")
        rows = np.array([encoding.ids, encoding.type_ids], np.int64)
        query, item = ([at for at, side in enumerate(encoding.sequence_ids) if side == part] for part in (0, 1))
        if not query or not item or query[-1] > item[0]:
            raise InputError(
                "A cross-encoder's tokenizer joins a pair as query, then item; this one made "
                f"{encoding.tokens} of ('a', 'b')."
            )
        return cls(
            prefix=rows[:, : query[0]],
            middle=rows[:, query[-1] + 1 : item[0]],
            suffix=rows[:, item[-1] + 1 :],
            query_type=int(rows[1, query[0]]),
            item_type=int(rows[1, item[0]]),
        )

    @classmethod
    def of_pieces(cls, pieces: PromptPieces) -> PairTemplate:
        """The template of a prompt, whose other parts are in the pieces of queries and items."""
        nothing = np.empty((2, 0), np.int64)
        return cls(nothing, nothing, _typed(pieces.tail, 0), query_type=0, item_type=0)

    @property
    def n_special(self) -> int:
        return sum(len(part[0]) for part in (self.prefix, self.middle, self.suffix))

    def head(self, query: TokenArray) -> TokenArray:
        """Ids and types of everything before the item."""
        return np.concatenate((self.prefix, _typed(query, self.query_type), self.middle), axis=1)

    def item(self, tokens: TokenArray) -> TokenArray:
        """Ids and types of an item."""
        return _typed(tokens, self.item_type)


def _typed(tokens: TokenArray, token_type: int) -> TokenArray:
    # Several times as fast as np.stack, and every pair of a padded batch passes here.
    rows = np.empty((2, len(tokens)), np.int64)
    rows[0], rows[1] = tokens, token_type
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class TokenTexts:
    """Tokenised queries and items, one entry per record; `space[i]` tokens of an item fit beside query i.

    In a prompt these are the pieces of queries and items, and a cut item ends with the tokens of `bridge`; where it is
    `item_first`, items stand before queries.
    """

    template: PairTemplate
    heads: list[TokenArray]
    space: IntArray
    items: list[TokenArray]
    bridge: TokenArray = field(default_factory=lambda: _NO_TOKENS)
    item_first: bool = False

    @property
    def head_lengths(self) -> IntArray:
        return np.array([head.shape[1] for head in self.heads], np.intp)

    @property
    def item_lengths(self) -> IntArray:
        return np.array([len(item) for item in self.items], np.intp)

    def with_items(self, start: int, end: int) -> TokenTexts:
        """The same queries with these items alone."""
        return replace(self, items=self.items[start:end])

    def grid(self) -> TokenPairs:
        """Every query with every item, query by query."""
        n_queries, n_items = len(self.heads), len(self.items)
        return TokenPairs(self, np.repeat(np.arange(n_queries), n_items), np.tile(np.arange(n_items), n_queries))

    def pair(self, query: int, item: int) -> TokenArray:
        """Ids and types of one pair."""
        cut = self.template.item(self.item_beside(query, item))
        parts = (cut, self.heads[query]) if self.item_first else (self.heads[query], cut)
        return np.concatenate((*parts, self.template.suffix), axis=1)

    def item_beside(self, query: int, item: int) -> TokenArray:
        """Ids of an item, cut to the space that the query leaves."""
        tokens, space = self.items[item], int(self.space[query])
        if len(tokens) <= space:
            return tokens
        return _cut_before(tokens, space, self.bridge)


@dataclass(frozen=True, slots=True, eq=False)
class TokenPairs:
    """Tokenised pairs: pair i joins query `query_of[i]` with item `item_of[i]` of `texts`."""

    texts: TokenTexts
    query_of: IntArray
    item_of: IntArray

    def __len__(self) -> int:
        return len(self.query_of)

    @property
    def lengths(self) -> IntArray:
        """Tokens per pair, special ones included."""
        of_items = np.minimum(self.texts.item_lengths[self.item_of], self.texts.space[self.query_of])
        return self.texts.head_lengths[self.query_of] + of_items + len(self.texts.template.suffix[0])

    def inputs(self, at: int) -> dict[str, TokenArray]:
        """Model inputs for one pair."""
        ids, types = self.texts.pair(self.query_of[at], self.item_of[at])[:, None]
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}


class PairTokenizer:
    """Turns queries and items into ids that fit a model; safe to share between threads.

    With a `prompt`, pairs are written into it, and the tokens are those of its whole text; by default they are joined
    as the tokenizer joins a pair.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int,
        max_item_tokens: int | None = None,
        prompt: PairPrompt | None = None,
        most_bytes: int = _BYTES_KNOWN,
    ) -> None:
        # A copy: truncation or padding set elsewhere in mid-call is what 'Already borrowed' complains of.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._lock = threading.Lock()
        # A search asks for the same items again and again, by text or by position.
        self._known = Remembered(most_bytes=most_bytes)
        # Never used again, unlike the address of an object.
        self._numbers = count()
        self._collections: WeakKeyDictionary[Items, int] = WeakKeyDictionary()
        self.prompt = prompt
        self._pieces = None if prompt is None else PromptPieces.of(prompt, self._tokenizer)
        self.template = (
            PairTemplate.of(self._tokenizer) if self._pieces is None else PairTemplate.of_pieces(self._pieces)
        )
        self.max_tokens = max_tokens
        self.max_item_tokens = max_item_tokens
        self.pad_id: int = (tokenizer.padding or {}).get("pad_id", 0)
        # What an item's piece has besides the item.
        self._around_items = len(self._tokens([""], "item")[0]) if self._pieces else 0
        around_queries = len(self._tokens([""], "query")[0]) if self._pieces else 0
        least = LEAST_ITEM_TOKENS + self.template.n_special + self._around_items + around_queries + 1
        if max_tokens < least:
            raise InputError(f"max_tokens must be at least {least} to hold a query and an item; got {max_tokens}.")
        at_least(1, max_item_tokens=max_item_tokens)

    def pairs(self, pairs: Sequence[Pair]) -> TokenPairs:
        """These pairs."""
        queries, query_of = _distinct([query for query, _ in pairs])
        items, item_of = _distinct([item for _, item in pairs])
        return TokenPairs(self.texts(queries, items), query_of, item_of)

    def texts(self, queries: Sequence[Query], items: Sequence[Item]) -> TokenTexts:
        """Each distinct text tokenised once."""
        return self.texts_of(queries, self.items(items))

    def items(self, items: Sequence[Item], *, remember: bool = True) -> list[TokenArray]:
        """Items alone, which are the same beside every query; `remember` their texts for later calls."""
        tokens = self._tokens([item.text for item in items], "item", remember=remember)
        if self.max_item_tokens is not None:
            most, bridge = self.max_item_tokens + self._around_items, self._bridge
            tokens = [_cut_before(row, most, bridge) if len(row) > most else row for row in tokens]
        return tokens

    def items_at(self, items: Items, positions: IntArray) -> list[TokenArray]:
        """The items at these positions, in that order; those that are not remembered are read and tokenised.

        A collection is known by its object, under which items must not change.
        """
        try:
            collection = self._collections.setdefault(items, next(self._numbers))
        except TypeError:
            # An object that allows no weak reference: its tokens serve one call.
            collection = next(self._numbers)
        places = positions.tolist()
        keys = {place: (collection, place) for place in places}
        rows = self._known.find(keys.values())
        new = [place for place, key in keys.items() if key not in rows]
        for start in range(0, len(new), _TEXTS_PER_CALL):
            some = new[start : start + _TEXTS_PER_CALL]
            # The texts themselves are not remembered: their positions are.
            tokens = self.items(items.at(some), remember=False)
            fresh = {keys[place]: row.astype("int32") for place, row in zip(some, tokens, strict=True)}
            self._known.keep(fresh)
            rows |= fresh
        return [rows[keys[place]] for place in places]

    def forget(self) -> None:
        """Free what is remembered."""
        self._known.clear()

    def texts_of(self, queries: Sequence[Query], items: list[TokenArray]) -> TokenTexts:
        """These queries, and items that are tokenised already."""
        tokens = self._tokens([query.text for query in queries], "query")
        space = [self._space_beside(query, row) for query, row in zip(queries, tokens, strict=True)]
        return TokenTexts(
            template=self.template,
            heads=[self.template.head(row) for row in tokens],
            space=np.array(space, np.intp),
            items=items,
            bridge=self._bridge,
            item_first=self.prompt is not None and self.prompt.item_first,
        )

    @property
    def _bridge(self) -> TokenArray:
        return _NO_TOKENS if self._pieces is None else np.asarray(self._pieces.bridge)

    def lengths(self, pairs: Sequence[Pair]) -> IntArray:
        """Tokens per pair as the model takes it, special ones included."""
        return self.pairs(pairs).lengths

    def cut(self, query: Query, items: Sequence[Item]) -> BoolArray:
        """Which items lose tokens beside this query, to their own limit or to the model's."""
        tokens = self._tokens([item.text for item in items], "item", remember=False)
        (space,) = self.texts_of([query], []).space.tolist()
        limit = space if self.max_item_tokens is None else self.max_item_tokens + self._around_items
        return np.array([len(row) > min(space, limit) for row in tokens], np.bool_)

    def _space_beside(self, query: Query, tokens: TokenArray) -> int:
        space = self.max_tokens - self.template.n_special - len(tokens)
        least = LEAST_ITEM_TOKENS + self._around_items
        if space < least:
            prompt = "" if self.prompt is None else " with the prompt around it"
            raise TextTooLong(
                f"A query must leave {LEAST_ITEM_TOKENS} of the model's {self.max_tokens} tokens for an item, so it "
                f"may have {self.max_tokens - self.template.n_special - least}{prompt}; query {query.id!r} has "
                f"{len(tokens)}. Shorten the query, or raise max_tokens if the model allows it."
            )
        return space

    def _tokens(self, texts: Sequence[str], side: str = "", *, remember: bool = True) -> list[TokenArray]:
        """The tokens of texts; in a prompt, of their pieces on this `side`, "query" or "item"."""
        if self._pieces is not None:
            piece = self._pieces.of_query if side == "query" else self._pieces.of_item
            texts = [piece(text) for text in texts]
        distinct = dict.fromkeys(texts)
        tokens = self._known.find(distinct)
        new = [text for text in distinct if text not in tokens]
        for start in range(0, len(new), _TEXTS_PER_CALL):
            some = new[start : start + _TEXTS_PER_CALL]
            # Half a surrogate pair, as crawled JSON has them, cannot be encoded; it must not end a long build.
            clean = [text.encode(errors="replace").decode() for text in some]
            with self._lock:
                encodings = self._tokenizer.encode_batch_fast(clean, add_special_tokens=False)
            tokens.update(zip(some, (np.array(encoding.ids, np.int64) for encoding in encodings), strict=True))
        if remember:
            self._known.keep({text: tokens[text] for text in new})
        return [tokens[text] for text in texts]


def _cut_before(tokens: TokenArray, length: int, bridge: TokenArray) -> TokenArray:
    """An item's first tokens and, of what stands behind it, all."""
    return np.concatenate((tokens[: length - len(bridge)], bridge))


def _distinct(records: Sequence[Any]) -> tuple[list[Any], IntArray]:
    numbers: dict[str, int] = {}
    distinct: list[Any] = []
    of = np.empty(len(records), np.intp)
    for position, record in enumerate(records):
        number = numbers.setdefault(record.text, len(numbers))
        if number == len(distinct):
            distinct.append(record)
        of[position] = number
    return distinct, of
