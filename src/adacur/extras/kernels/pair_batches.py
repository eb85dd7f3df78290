"""Batches of pairs whose token ids are joined on the device, from texts that were sent there once."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs


@dataclass(frozen=True, slots=True, eq=False)
class PackedTokens:
    """Texts one behind the other; text i owns rows `starts[i]` up to `starts[i + 1]`; filler may follow the last.

    `read_rows`, (texts, rows per text), are the rows whose vectors a head reads.
    """

    ids: Any
    types: Any
    positions: Any
    starts: Any
    longest: int
    read_rows: Any


class PairBatches:
    """Pairs in order of their length, longest first; a batch is a range of that order.

    The host decides only where a batch ends; it never waits for the device.
    """

    def __init__(self, torch: Any, pairs: TokenPairs, *, device: Any) -> None:
        self._torch, self._device = torch, device
        lengths = pairs.lengths
        # Short integers are sorted by radix, many times faster than long ones.
        short = lengths.astype(np.int16) if lengths.max() < 2**15 else lengths
        order = np.argsort(-short, kind="stable")
        self._lengths = lengths[order]
        self._ends = np.cumsum(self._lengths)
        self.order = self._sent(order, torch.int64)
        self._query_of = self._sent(pairs.query_of[order], torch.int64)
        self._item_of = self._sent(pairs.item_of[order], torch.int64)

        texts, template = pairs.texts, pairs.texts.template
        # One long row: every head, every item, what cut items end with, and the suffix.
        items = np.concatenate([*texts.items, texts.bridge])
        ids, types = np.concatenate((*texts.heads, template.item(items), template.suffix), axis=1)
        self._ids, self._types = self._sent(ids, torch.int64), self._sent(types, torch.int64)
        n_heads = len(texts.heads)
        starts = list(accumulate((*texts.head_lengths, *texts.item_lengths), initial=0))
        self._head_starts = self._sent(np.array(starts[:n_heads]), torch.int64)
        self._item_starts = self._sent(np.array(starts[n_heads:-1]), torch.int64)
        self._bridge_start, self._bridge_length = starts[-1], len(texts.bridge)
        self._suffix_start = starts[-1] + len(texts.bridge)
        self._head_lengths = self._sent(texts.head_lengths, torch.int64)
        self._item_lengths = self._sent(texts.item_lengths, torch.int64)
        self._space = self._sent(texts.space, torch.int64)
        self._suffix_length = template.suffix.shape[1]

    def __len__(self) -> int:
        return len(self._lengths)

    def tokens(self, start: int, end: int) -> int:
        """How many tokens these pairs have."""
        return int(self._ends[end - 1] - (self._ends[start - 1] if start else 0))

    def packed_end(self, start: int, *, tokens: int) -> int:
        """Where a batch of at most `tokens` tokens ends that begins here; it holds one pair at least."""
        before = self._ends[start - 1] if start else 0
        return max(start + 1, int(np.searchsorted(self._ends, before + tokens, side="right")))

    def packed(self, start: int, end: int) -> PackedTokens:
        """These pairs one after another; a head reads the first tokens."""
        torch = self._torch
        query, item, head_length, item_length = self._parts(start, end)
        n_tokens = self.tokens(start, end)
        lengths = head_length + item_length + self._suffix_length
        ends = torch.cumsum(lengths, 0)
        starts = ends - lengths
        pair = torch.repeat_interleave(lengths, output_size=n_tokens)
        place_in_pair = torch.arange(n_tokens, device=self._device) - starts[pair]
        place = self._place(place_in_pair, query[pair], item[pair], head_length[pair], item_length[pair])
        return PackedTokens(
            ids=self._ids[place],
            types=self._types[place],
            positions=place_in_pair,
            starts=torch.nn.functional.pad(ends, (1, 0)).to(torch.int32),
            longest=int(self._lengths[start]),
            read_rows=starts[:, None],
        )

    def _parts(self, start: int, end: int) -> tuple[Any, Any, Any, Any]:
        query, item = self._query_of[start:end], self._item_of[start:end]
        item_length = self._torch.minimum(self._item_lengths[item], self._space[query])
        return query, item, self._head_lengths[query], item_length

    def _place(self, position: Any, query: Any, item: Any, head_length: Any, item_length: Any) -> Any:
        """Where in the long row the token at `position` of a pair stands."""
        where = self._torch.where
        in_tail = position - head_length
        in_item = self._item_starts[item] + in_tail
        if self._bridge_length:
            in_bridge = in_tail - item_length + self._bridge_length
            is_cut = item_length < self._item_lengths[item]
            in_item = where(is_cut & (in_bridge >= 0), self._bridge_start + in_bridge, in_item)
        in_item = where(in_tail < item_length, in_item, self._suffix_start + in_tail - item_length)
        return where(in_tail < 0, self._head_starts[query] + position, in_item)

    def _sent(self, array: IntArray, dtype: Any) -> Any:
        # Half the bytes on the way; from pinned memory the host need not wait for what the device does before.
        numbers = self._torch.from_numpy(np.ascontiguousarray(array, np.int32))
        if self._device.type == "cuda":
            numbers = numbers.pin_memory()
        return numbers.to(self._device, non_blocking=True).to(dtype)
