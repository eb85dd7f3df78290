"""A batch of token sequences that begin alike: a prefix stands in it once, before what continues it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from adacur.arrays import IntArray
from adacur.errors import InputError


class Spans(NamedTuple):
    """What the queries of some texts see: all of a prefix, and the text's own keys up to themselves.

    Text i owns the rows `query_starts[i]` up to `query_starts[i + 1]` of the queries. They are its last tokens; its
    keys are the `counts[i]` rows from `starts[i]`, and the `prefix_counts[i]` rows from `prefix_starts[i]`. All are
    int32, on the host or on the device.
    """

    query_starts: Any
    starts: Any
    counts: Any
    prefix_starts: Any
    prefix_counts: Any
    longest_query: int
    longest: int
    longest_prefix: int


class TokenBatch(NamedTuple):
    """Prefixes one behind the other, then continuations, and what each sees; on the host or on the device.

    `read_rows` are the rows of the sequences' last tokens, and `read_spans` what these see.
    """

    ids: Any
    positions: Any
    n_positions: int
    spans: tuple[Spans, ...]
    read_rows: Any
    read_spans: Spans


def token_batch(
    prefixes: Sequence[ArrayLike], continuations: Sequence[ArrayLike], prefix_of: ArrayLike, continuation_of: ArrayLike
) -> TokenBatch:
    """The sequences prefixes[prefix_of[i]] + continuations[continuation_of[i]]; either part may be empty, not both."""
    used, prefix = np.unique(prefix_of, return_inverse=True)
    taken = np.asarray(continuation_of)
    arrays = [np.asarray(prefixes[at], np.int64) for at in used]
    arrays += [np.asarray(continuations[at], np.int64) for at in taken]
    lengths = np.array([len(array) for array in arrays])
    starts = np.cumsum(lengths) - lengths
    prefix_lengths, own = np.split(lengths, [len(used)])
    all_prefix_starts, own_starts = np.split(starts, [len(used)])
    before, prefix_starts = prefix_lengths[prefix], all_prefix_starts[prefix]
    if len(empty := np.flatnonzero(before + own == 0)):
        raise InputError(f"A sequence must have at least one token; sequence {empty[0]} has none.")
    offsets = np.concatenate((np.zeros(len(used), np.int64), before))
    has_own = own > 0
    # A sequence without a continuation of its own ends where its prefix ends.
    read_starts, read_counts = np.where(has_own, own_starts, prefix_starts), np.where(has_own, own, before)
    read_before = before * has_own
    nothing = np.zeros(len(used), np.int64)
    groups = (
        (all_prefix_starts, prefix_lengths, nothing, nothing),
        (own_starts, own, prefix_starts, before),
    )
    return TokenBatch(
        ids=np.concatenate(arrays),
        positions=np.arange(lengths.sum()) - np.repeat(starts - offsets, lengths),
        n_positions=int((before + own).max()),
        spans=tuple(_spans(*(part[group[1] > 0] for part in group)) for group in groups if group[1].any()),
        read_rows=read_starts + read_counts - 1,
        read_spans=Spans(
            np.arange(len(taken) + 1),
            read_starts,
            read_counts,
            prefix_starts,
            read_before,
            longest_query=1,
            longest=int(read_counts.max()),
            longest_prefix=int(read_before.max()),
        ),
    )


def _spans(starts: IntArray, counts: IntArray, prefix_starts: IntArray, prefix_counts: IntArray) -> Spans:
    """Texts that lie close together, with a query for each token."""
    longest = int(counts.max())
    query_starts = np.append(starts, starts[-1] + counts[-1])
    return Spans(
        query_starts, starts, counts, prefix_starts, prefix_counts,
        longest_query=longest, longest=longest, longest_prefix=int(prefix_counts.max()),
    )  # fmt: skip
