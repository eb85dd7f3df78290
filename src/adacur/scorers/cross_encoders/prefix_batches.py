"""Batches of token sequences that begin alike: a prefix stands in a batch once, before what continues it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from adacur.core.arrays import IntArray
from adacur.core.errors import InputError


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
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


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Prefixes one behind the other, then continuations, and what each sees; on the host or on the device.

    `read_rows` are the rows of the sequences' last tokens, and `read_spans` what these see.
    """

    ids: Any
    positions: Any
    n_positions: int
    spans: tuple[Spans, ...]
    read_rows: Any
    read_spans: Spans


class PrefixBatches:
    """Sequences prefixes[prefix_of[i]] + continuations[continuation_of[i]], in an order in which few prefixes repeat.

    Longer prefixes come first, and behind each its longer continuations: a batch is a range of that `order`.
    """

    def __init__(
        self,
        prefixes: Sequence[ArrayLike],
        continuations: Sequence[ArrayLike],
        prefix_of: ArrayLike,
        continuation_of: ArrayLike | None = None,
        *,
        vocabulary: int,
    ) -> None:
        n = len(continuations)
        self._prefix_of = _places(prefix_of, "prefix_of", len(prefixes))
        taken = np.arange(n) if continuation_of is None else continuation_of
        self._continuation_of = _places(taken, "continuation_of", n)
        if len(self._prefix_of) != len(self._continuation_of):
            raise InputError(
                "prefix_of must have one entry per sequence; got "
                f"{len(self._prefix_of)} entries for {len(self._continuation_of)} sequences."
            )
        prefix_ids, self._prefix_starts, self._prefix_lengths = _flat(prefixes)
        ids, starts, self._lengths = _flat(continuations)
        self._starts = starts + len(prefix_ids)
        self._ids = np.concatenate((prefix_ids, ids))
        if len(self._ids) and not 0 <= self._ids.min() <= self._ids.max() < vocabulary:
            raise InputError(
                f"Token ids must lie between 0 and {vocabulary - 1}; got {self._ids.min()} to {self._ids.max()}."
            )
        before, own = self._prefix_lengths[self._prefix_of], self._lengths[self._continuation_of]
        empty = np.flatnonzero(before + own == 0)
        if len(empty):
            raise InputError(f"A sequence must have at least one token; sequence {empty[0]} has none.")
        self.order = np.lexsort((-own, self._prefix_of, -before))
        before, own, shared = before[self.order], own[self.order], self._prefix_of[self.order]
        self._is_first = np.ones(len(shared), bool)
        self._is_first[1:] = shared[1:] != shared[:-1]
        self._before, self._all = before, before + own
        self._ends = np.cumsum(own + before * self._is_first)

    def __len__(self) -> int:
        return len(self.order)

    def tokens(self, start: int, end: int) -> int:
        """How many tokens run in this batch."""
        again = 0 if self._is_first[start] else int(self._before[start])
        return int(self._ends[end - 1]) - (int(self._ends[start - 1]) if start else 0) + again

    def batch_end(self, start: int, *, tokens: int, padded: bool) -> int:
        """Where a batch of at most `tokens` tokens ends that begins here, `padded` ones counted or not."""
        again = 0 if self._is_first[start] else int(self._before[start])
        limit = tokens - again + (int(self._ends[start - 1]) if start else 0)
        end = max(start + 1, int(np.searchsorted(self._ends, limit, side="right")))
        if padded:
            end = min(end, start + max(1, tokens // int(self._all[start:end].max())))
        return end

    def batch(self, start: int, end: int) -> TokenBatch:
        """These sequences' tokens, on the host."""
        sequences = self.order[start:end]
        shared, taken = self._prefix_of[sequences], self._continuation_of[sequences]
        is_new = np.ones(len(shared), bool)
        is_new[1:] = shared[1:] != shared[:-1]
        prefixes, prefix = shared[is_new], np.cumsum(is_new) - 1
        prefix_lengths, own = self._prefix_lengths[prefixes], self._lengths[taken]
        lengths = np.concatenate((prefix_lengths, own))
        ends = np.cumsum(lengths)
        starts = ends - lengths
        n_prefixes, rows = len(prefixes), np.arange(ends[-1])
        sources = np.concatenate((self._prefix_starts[prefixes], self._starts[taken]))
        before = prefix_lengths[prefix]
        offsets = np.concatenate((np.zeros(n_prefixes, np.int64), before))
        prefix_starts, own_starts = starts[:n_prefixes][prefix], starts[n_prefixes:]

        has_own = own > 0
        # A sequence without a continuation of its own ends where its prefix ends.
        read_starts = np.where(has_own, own_starts, prefix_starts)
        read_counts = np.where(has_own, own, before)
        nothing = np.zeros(n_prefixes, np.int64)
        groups = (
            (starts[:n_prefixes], prefix_lengths, nothing, nothing),
            (own_starts, own, prefix_starts, before),
        )
        return TokenBatch(
            ids=self._ids[rows - np.repeat(starts - sources, lengths)],
            positions=rows - np.repeat(starts - offsets, lengths),
            n_positions=int((before + own).max()),
            spans=tuple(_spans(*(part[group[1] > 0] for part in group)) for group in groups if group[1].any()),
            read_rows=read_starts + read_counts - 1,
            read_spans=Spans(
                np.arange(len(sequences) + 1),
                read_starts,
                read_counts,
                prefix_starts,
                before * has_own,
                longest_query=1,
                longest=int(read_counts.max()),
                longest_prefix=int((before * has_own).max()),
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


def _places(given: ArrayLike, name: str, n: int) -> IntArray:
    places = np.asarray(given, np.int64)
    if places.ndim != 1 or (len(places) and not 0 <= places.min() <= places.max() < n):
        seen = f"{places.min()} to {places.max()}" if places.size else "none"
        raise InputError(f"{name} must be a list of places from 0 to {n - 1}; got shape {places.shape}, {seen}.")
    return places


def _flat(texts: Sequence[ArrayLike]) -> tuple[IntArray, IntArray, IntArray]:
    """Token ids of all texts in one row, where each begins, and how many it has."""
    arrays = [np.asarray(text, np.int64).ravel() for text in texts]
    lengths = np.array([len(array) for array in arrays], np.int64)
    return np.concatenate([*arrays, np.empty(0, np.int64)]), np.cumsum(lengths) - lengths, lengths
