"""Pairs of texts as token ids: each text tokenised once, the query never cut."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from adacur.arrays import BoolArray, IntArray
from adacur.errors import InputError, TextTooLong
from adacur.records import Item, Pair, Query
from adacur.remembered import Remembered
from adacur.scorers.cross_encoders.emb_head import EmbHead
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt, PromptPieces

TokenArray = npt.NDArray[np.signedinteger[Any]]

LEAST_ITEM_TOKENS = 16
_TEXTS_PER_CALL = 1024
# Of the texts seen last, with their tokens.
_BYTES_KNOWN = 64 << 20
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
    return np.stack((tokens, np.full(len(tokens), token_type, np.int64)))


@dataclass(frozen=True, slots=True, eq=False)
class TagPlaces:
    """Where the tags of an [EMB] head stand: `queries` (queries, 2) counts in a pair, `items` in an item's tokens."""

    queries: IntArray
    items: IntArray


class ItemTokens(NamedTuple):
    """Items as a model takes them, cut to the items' limit; `tags` are the places of an [EMB] head's tag, else 0."""

    tokens: list[TokenArray]
    tags: IntArray


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
    tags: TagPlaces | None = None
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
        tags = self.tags and replace(self.tags, items=self.tags.items[start:end])
        return replace(self, items=self.items[start:end], tags=tags)

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
        if len(self.bridge):
            return _cut_before(tokens, space, self.bridge)
        return _cut(tokens, space, tag_at=0 if self.tags is None else int(self.tags.items[item]))


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

    def with_own_texts(self) -> TokenPairs:
        """The same pairs, of texts that hold no others."""
        queries, query_of = np.unique(self.query_of, return_inverse=True)
        items, item_of = np.unique(self.item_of, return_inverse=True)
        texts = self.texts
        own = TokenTexts(
            template=texts.template,
            heads=[texts.heads[at] for at in queries],
            space=texts.space[queries],
            items=[texts.items[at] for at in items],
            bridge=texts.bridge,
            item_first=texts.item_first,
            tags=texts.tags and TagPlaces(texts.tags.queries[queries], texts.tags.items[items]),
        )
        return TokenPairs(own, query_of, item_of)

    def inputs(self, at: int) -> dict[str, TokenArray]:
        """Model inputs for one pair."""
        ids, types = self.texts.pair(self.query_of[at], self.item_of[at])[:, None]
        return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}


class PairTokenizer:
    """Turns queries and items into ids that fit a model; safe to share between threads.

    For an [EMB] `head`, a query stands between its tags and an item behind its tag, unless the text holds them already
    ("left [unused0] mention [unused1] right", "title [unused2] text"). The limits count them. An item's tag is never
    cut away: behind a title longer than its space it takes the last place.

    With a `prompt`, pairs are written into it, and the tokens are those of its whole text; by default they are joined
    as the tokenizer joins a pair.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        max_tokens: int,
        max_item_tokens: int | None = None,
        head: EmbHead | None = None,
        prompt: PairPrompt | None = None,
    ) -> None:
        # A copy: truncation or padding set elsewhere in mid-call is what 'Already borrowed' complains of.
        self._tokenizer = type(tokenizer).from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._lock = threading.Lock()
        # A search asks for the same items again and again.
        self._known = Remembered(most_bytes=_BYTES_KNOWN)
        self.prompt = prompt
        self._pieces = None if prompt is None else PromptPieces.of(prompt, self._tokenizer)
        self.template = (
            PairTemplate.of(self._tokenizer) if self._pieces is None else PairTemplate.of_pieces(self._pieces)
        )
        self.max_tokens = max_tokens
        self.max_item_tokens = max_item_tokens
        self.pad_id: int = (tokenizer.padding or {}).get("pad_id", 0)
        self.head = head
        self._tags = None if head is None else _tag_ids(self._tokenizer, head)
        # What an item's piece has besides the item.
        self._around_items = len(self._tokens([""], "item")[0]) if self._pieces else 0
        around_queries = len(self._tokens([""], "query")[0]) if self._pieces else 0
        least = LEAST_ITEM_TOKENS + self.template.n_special + self._around_items + around_queries
        least += 1 if head is None else 3
        if max_tokens < least:
            raise InputError(f"max_tokens must be at least {least} to hold a query and an item; got {max_tokens}.")
        least_item = 1 if head is None else 2
        if max_item_tokens is not None and max_item_tokens < least_item:
            raise InputError(
                f"max_item_tokens must be at least {least_item}, or None for no limit; got {max_item_tokens}."
            )

    def pairs(self, pairs: Sequence[Pair]) -> TokenPairs:
        """These pairs."""
        queries, query_of = _distinct([query for query, _ in pairs])
        items, item_of = _distinct([item for _, item in pairs])
        return TokenPairs(self.texts(queries, items), query_of, item_of)

    def texts(self, queries: Sequence[Query], items: Sequence[Item]) -> TokenTexts:
        """Each distinct text tokenised once."""
        return self.texts_of(queries, self.items(items))

    def items(self, items: Sequence[Item], *, remember: bool = True) -> ItemTokens:
        """Items alone, which are the same beside every query; `remember` their texts for later calls."""
        tokens = self._tokens([item.text for item in items], "item", remember=remember)
        if self._tags is None:
            if self.max_item_tokens is not None:
                most, bridge = self.max_item_tokens + self._around_items, self._bridge
                tokens = [_cut_before(row, most, bridge) if len(row) > most else row for row in tokens]
            return ItemTokens(tokens, np.zeros(len(tokens), np.intp))
        return ItemTokens(*_items_with_tag(tokens, self._tags[2], most=self.max_item_tokens))

    def texts_of(self, queries: Sequence[Query], items: ItemTokens) -> TokenTexts:
        """These queries, and items that are tokenised already."""
        tokens = self._tokens([query.text for query in queries], "query")
        tags = None
        if self._tags is not None:
            tokens, places = _queries_with_tags(queries, tokens, self._tags)
            tags = TagPlaces(self.template.prefix.shape[1] + places, items.tags)
        space = [self._space_beside(query, row) for query, row in zip(queries, tokens, strict=True)]
        return TokenTexts(
            template=self.template,
            heads=[self.template.head(row) for row in tokens],
            space=np.array(space, np.intp),
            items=items.tokens,
            tags=tags,
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
        (space,) = self.texts_of([query], ItemTokens([], np.zeros(0, np.intp))).space.tolist()
        limit = space if self.max_item_tokens is None else self.max_item_tokens + self._around_items
        most = min(space, limit) - (self._tags is not None)
        return np.array([len(row) > most for row in tokens], np.bool_)

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


def _tag_ids(tokenizer: Any, head: EmbHead) -> tuple[int, int, int]:
    """Ids of the tags; the tokenizer, a copy, makes one token of each from here on."""
    ids = [tokenizer.token_to_id(tag) for tag in head.tags]
    if None in ids:
        missing = [tag for tag, id_ in zip(head.tags, ids, strict=True) if id_ is None]
        raise InputError(f"An [EMB] head needs its tags in the tokenizer's vocabulary; it lacks {', '.join(missing)}.")
    tokenizer.add_special_tokens(list(head.tags))
    start, end, item = ids
    return start, end, item


def _queries_with_tags(
    queries: Sequence[Query], tokens: Sequence[TokenArray], tags: tuple[int, int, int]
) -> tuple[list[TokenArray], IntArray]:
    """Tokens with the tags, and where they stand, (queries, 2)."""
    start, end, item = tags
    tagged: list[TokenArray] = []
    places = np.empty((len(queries), 2), np.intp)
    for number, (query, row) in enumerate(zip(queries, tokens, strict=True)):
        if not np.isin(row, tags).any():
            tagged.append(np.concatenate(([start], row, [end])))
            places[number] = 0, len(row) + 1
            continue
        starts, ends = np.flatnonzero(row == start), np.flatnonzero(row == end)
        if not len(starts) or not len(ends) or starts[0] > ends[0] or item in row:
            raise InputError(
                "A query holds both of its tags, start before end, or neither, and never the tag of items; query "
                f"{query.id!r} is {query.text!r}. Put the tags around the words that are meant, or remove them."
            )
        tagged.append(row)
        places[number] = starts[0], ends[0]
    return tagged, places


def _items_with_tag(tokens: Sequence[TokenArray], tag: int, *, most: int | None) -> tuple[list[TokenArray], IntArray]:
    """At most `most` tokens with the tag, and where it stands; of several the first counts."""
    tagged: list[TokenArray] = []
    places = np.zeros(len(tokens), np.intp)
    for number, row in enumerate(tokens):
        at = np.flatnonzero(row == tag)
        if not len(at):
            tagged.append(np.concatenate(([tag], row))[:most])
            continue
        length = len(row) if most is None else most
        tagged.append(_cut(row, length, tag_at=int(at[0])))
        places[number] = min(int(at[0]), length - 1)
    return tagged, places


def _cut(tokens: TokenArray, length: int, *, tag_at: int) -> TokenArray:
    """An item's first tokens; the one at `tag_at` takes the last place rather than fall off."""
    first = tokens[:length]
    return first if tag_at < length else np.append(first[:-1], tokens[tag_at])


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
