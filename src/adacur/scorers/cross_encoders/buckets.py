"""Pairs in a few fixed shapes, so that one recorded forward pass serves many calls.

They are joined on the host: up to 512 pairs take some tenths of a millisecond there and one copy, about as long as the
dozen kernels that would join them on the device, and no graph depends on where a growing table of tokens lies.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import IntArray
from adacur.scorers.cross_encoders.packed_encoder import PackedTokens
from adacur.scorers.cross_encoders.pair_tokens import PairTemplate, TokenArray, TokenPairs, TokenTexts

# Texts without tokens cost next to nothing, so there are few of these.
_PAIRS = (1, 8, 32, 128, 512)
# The attention kernel's blocks, and a step where it saves rows.
_LONGEST = (64, 128, 192, 256, 384, 512)
_LEAST_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Bucket:
    """Room for `pairs` pairs of `tokens` tokens together, none with more than `longest`.

    What a call needs to say is one row of int32, `size` long: ids, where each pair starts, where its item starts, and
    the `reads` rows per pair that a head reads.
    """

    pairs: int
    tokens: int
    longest: int
    reads: int

    @classmethod
    def of(cls, lengths: IntArray, *, reads: int) -> Bucket | None:
        """The smallest bucket for pairs of these lengths; None where there are too many."""
        if not 0 < len(lengths) <= _PAIRS[-1]:
            return None
        n_tokens, longest = int(lengths.sum()), int(lengths.max())
        # Four sizes per power of two: a tenth of filler in the mean.
        step = max(_LEAST_TOKENS, 1 << max(0, (n_tokens - 1).bit_length() - 3))
        return cls(
            pairs=_PAIRS[bisect_left(_PAIRS, len(lengths))],
            tokens=-(-n_tokens // step) * step,
            longest=-(-longest // 512) * 512 if longest > 512 else _LONGEST[bisect_left(_LONGEST, longest)],
            reads=reads,
        )

    @property
    def size(self) -> int:
        return self.tokens + (self.pairs + 1) + self.pairs + self.pairs * self.reads

    def holds(self, other: Bucket) -> bool:
        """Whether all that fits into the other fits here."""
        return (
            self.pairs >= other.pairs
            and self.tokens >= other.tokens
            and self.longest >= other.longest
            and self.reads == other.reads
        )

    def parts(self, numbers: Any) -> tuple[Any, Any, Any, Any]:
        """Views of a row, in an array or a tensor: ids, starts, item starts, and rows to read, (pairs, reads)."""
        starts = self.tokens
        item_starts = starts + self.pairs + 1
        read_rows = item_starts + self.pairs
        return (
            numbers[:starts],
            numbers[starts:item_starts],
            numbers[item_starts:read_rows],
            numbers[read_rows : self.size].reshape(self.pairs, self.reads),
        )


def two_types(template: PairTemplate) -> tuple[int, int] | None:
    """The token types up to the item and from there on; None where they change elsewhere too."""
    head = {template.query_type, *template.prefix[1].tolist(), *template.middle[1].tolist()}
    tail = {template.item_type, *template.suffix[1].tolist()}
    return (head.pop(), tail.pop()) if len(head) == len(tail) == 1 else None


def reads_of(texts: TokenTexts) -> int:
    """How many rows per pair a head reads: the tags, or the first token."""
    return 1 if texts.tags is None else 3


def fill(numbers: npt.NDArray[np.int32], pairs: TokenPairs, bucket: Bucket, *, lengths: IntArray, pad_id: int) -> None:
    """Write these pairs, of these lengths, into a row; places behind them hold pairs without tokens."""
    texts, n = pairs.texts, len(pairs)
    heads, suffix, spaces = [head[0] for head in texts.heads], texts.template.suffix[0], texts.space.tolist()
    parts: list[TokenArray] = []
    for query, item in zip(pairs.query_of.tolist(), pairs.item_of.tolist(), strict=True):
        tokens = texts.items[item]
        if len(tokens) > spaces[query]:
            tokens = texts.item_beside(query, item)
        parts += (heads[query], tokens, suffix)
    ends = np.cumsum(lengths)
    n_tokens, firsts = int(ends[-1]), ends - lengths
    head_lengths = texts.head_lengths[pairs.query_of]
    ids, starts, item_starts, read_rows = bucket.parts(numbers)
    into: npt.NDArray[np.int32] = ids[:n_tokens]
    np.concatenate(parts, out=into, casting="same_kind")
    ids[n_tokens:] = pad_id
    starts[0] = 0
    starts[1 : n + 1] = ends
    starts[n + 1 :] = n_tokens
    item_starts[:n] = firsts + head_lengths
    item_starts[n:] = n_tokens
    read_rows[:n] = firsts[:, None]
    # A pair without tokens has no row of its own; what is read of it is thrown away.
    read_rows[n:] = 0
    if texts.tags is not None:
        item_lengths = lengths - head_lengths - len(suffix)
        read_rows[:n, :2] += texts.tags.queries[pairs.query_of].astype(np.int32)
        read_rows[:n, 2] += (head_lengths + np.minimum(texts.tags.items[pairs.item_of], item_lengths - 1)).astype(
            np.int32
        )


def packed(torch: Any, numbers: Any, bucket: Bucket, *, types: tuple[int, int]) -> PackedTokens:
    """What an encoder takes, of a row on its device; never waits for the device."""
    ids, starts, item_starts, read_rows = bucket.parts(numbers)
    rows = torch.arange(bucket.tokens, dtype=starts.dtype, device=starts.device)
    text = torch.searchsorted(starts[1:], rows, right=True).clamp(max=bucket.pairs - 1)
    return PackedTokens(
        ids=ids.long(),
        types=types[0] + (types[1] - types[0]) * (rows >= item_starts[text]).long(),
        # Filler has no place in a text, and must not point beyond the last.
        positions=(rows - starts[text]).masked_fill(rows >= starts[-1], 0).long(),
        starts=starts,
        longest=bucket.longest,
        read_rows=read_rows.long(),
    )
