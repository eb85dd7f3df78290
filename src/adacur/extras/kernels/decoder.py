"""Language models as scorers: which tokens pairs share, and batches of prompts."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.arrays import IntArray
from adacur.extras.kernels.decoder_forward import PackedDecoder
from adacur.scorers.cross_encoders.pair_tokens import TokenArray, TokenPairs


class PromptBatches:
    """Prompts of pairs, those with the same beginning one after another; a batch is a range of that order.

    What pairs share is the piece that stands first: the query's, or the item's where the prompt has it first (cut to
    the same length). Where that is hardly ever shared, it is the beginning of all prompts.
    """

    def __init__(self, torch: Any, pairs: TokenPairs, *, device: Any) -> None:
        self._pairs = pairs
        texts = pairs.texts
        cut_to = np.minimum(texts.item_lengths[pairs.item_of], texts.space[pairs.query_of])
        of_queries = texts.head_lengths[pairs.query_of]
        first = cut_to if texts.item_first else of_queries
        rest = cut_to + of_queries + len(texts.template.suffix[0]) - first
        # An item that is cut to two lengths is two pieces.
        cut_items = pairs.item_of * (int(cut_to.max()) + 1) + cut_to
        firsts, seconds = (cut_items, pairs.query_of) if texts.item_first else (pairs.query_of, cut_items)
        _, of_groups, groups = np.unique(firsts, return_index=True, return_inverse=True)
        common = min(self._common(of_groups), int(first.min()))
        n_pairs, in_groups = len(pairs), first[of_groups]
        if common and common + int(first.sum()) - n_pairs * common < int(in_groups.sum()):
            groups, in_groups, seconds = np.zeros(n_pairs, np.intp), np.array([common]), np.arange(n_pairs)
            rest = rest + first - common
        # Pairs of one group together, and long ones beside long ones.
        order = np.lexsort((-rest, groups))
        self.order = torch.from_numpy(order).to(device)
        self._order, self._groups, self._seconds, self._rest = order, groups[order], seconds[order], rest[order]
        self._ends = np.cumsum(self._rest)
        self._prefix_ends = np.cumsum(in_groups)
        self._prefixes = in_groups

    def __len__(self) -> int:
        return len(self._order)

    def end(self, start: int, *, tokens: int) -> int:
        """Where a batch of at most `tokens` tokens ends that begins here; what it shares counts once."""
        before = (self._ends[start - 1] if start else 0) + self._prefix_ends[self._groups[start]]
        before -= self._prefixes[self._groups[start]]
        used = self._ends[start:] + self._prefix_ends[self._groups[start:]] - before
        return start + max(1, int(np.searchsorted(used, tokens, side="right")))

    def hidden(self, body: PackedDecoder, start: int, end: int) -> Any:
        """The last vectors of these prompts."""
        rows = self._order[start:end]
        groups, at, prefix_of = np.unique(self._groups[start:end], return_index=True, return_inverse=True)
        if len(groups) == len(rows) or not self._rest[start:end].all():
            return body.last_hidden([self._prompt(row) for row in rows])
        lengths = self._prefixes[groups]
        prefixes = [self._prompt(rows[one])[:length] for one, length in zip(at, lengths, strict=True)]
        _, at, continuation_of = np.unique(self._seconds[start:end], return_index=True, return_inverse=True)
        continuations = [self._prompt(rows[one])[lengths[prefix_of[one]] :] for one in at]
        return body.last_hidden_shared(prefixes, continuations, prefix_of, continuation_of=continuation_of)

    def _prompt(self, pair: int) -> TokenArray:
        row: TokenArray = self._pairs.texts.pair(int(self._pairs.query_of[pair]), int(self._pairs.item_of[pair]))[0]
        return row

    def _common(self, of_groups: IntArray) -> int:
        """How many tokens all prompts begin with, by one pair of each group."""
        one = self._prompt(int(of_groups[0]))
        length = len(one)
        for pair in of_groups[1:]:
            other = self._prompt(int(pair))[:length]
            differs = np.flatnonzero(one[: len(other)] != other)
            length = int(differs[0]) if len(differs) else len(other)
        return length
