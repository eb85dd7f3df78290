"""Language models as scorers: which tokens pairs share, batches of prompts, and the forward pass by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from adacur.core.arrays import IntArray
from adacur.scorers.cross_encoders.pair_tokens import TokenArray, TokenPairs


class LastHidden(Protocol):
    """The body of a language model: prompts to the vectors of their last tokens, (prompts, hidden size)."""

    def last_hidden(self, prompts: Sequence[TokenArray]) -> Any:
        """The vector of each prompt's last token."""
        ...

    def last_hidden_shared(
        self, prefixes: Sequence[TokenArray], continuations: Sequence[TokenArray], prefix_of: IntArray
    ) -> Any:
        """The same where prompt i is prefixes[prefix_of[i]], then continuations[i], which is not empty."""
        ...


class TransformersDecoder:
    """Any decoder of transformers as it is, over batches padded on the right: causal attention never looks there."""

    def __init__(self, model: Any, *, device: Any, dtype: Any) -> None:
        import torch

        self._torch, self._model, self._device, self._dtype = torch, model, device, dtype

    def last_hidden(self, prompts: Sequence[TokenArray]) -> Any:
        """The vector of each prompt's last token."""
        torch = self._torch
        lengths = np.array([len(prompt) for prompt in prompts])
        order = np.argsort(-lengths, kind="stable")
        hidden = torch.empty(len(prompts), self._model.config.hidden_size, dtype=self._dtype, device=self._device)
        start = 0
        while start < len(order):
            longest = lengths[order[start]]
            # Prompts of like length together: less than a tenth is padding, but for the few of a small batch.
            end = max(start + 8, start + int(np.count_nonzero(lengths[order[start:]] * 10 >= longest * 9)))
            rows = order[start:end]
            ids = np.zeros((len(rows), longest), np.int64)
            for row, at in enumerate(rows):
                ids[row, : lengths[at]] = prompts[at]
            is_token = np.arange(longest) < lengths[rows, None]
            inputs = torch.from_numpy(ids).to(self._device)
            mask = torch.from_numpy(is_token.astype(np.int64)).to(self._device)
            out = self._model(input_ids=inputs, attention_mask=mask, use_cache=False).last_hidden_state
            last = torch.from_numpy(lengths[rows] - 1).to(self._device)
            hidden[torch.from_numpy(rows).to(self._device)] = out[torch.arange(len(rows), device=self._device), last]
            start = end
        return hidden

    def last_hidden_shared(
        self, prefixes: Sequence[TokenArray], continuations: Sequence[TokenArray], prefix_of: IntArray
    ) -> Any:
        """The same of prompts in two parts; here nothing is saved by that."""
        return self.last_hidden(
            [np.concatenate((prefixes[of], rest)) for of, rest in zip(prefix_of, continuations, strict=True)]
        )


def decoder_body(model: Any, *, device: Any, dtype: Any) -> LastHidden:
    """The fastest forward pass that can run this body of a transformers model."""
    try:
        from adacur.scorers.cross_encoders.decoder_forward import PackedDecoder
    except ImportError:
        pass
    else:
        if PackedDecoder.fits(model.config):
            packed: LastHidden = PackedDecoder(model, device=device, dtype=dtype)
            return packed
    return TransformersDecoder(model, device=device, dtype=dtype)


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
        first, which = (cut_to, pairs.item_of) if texts.item_first else (of_queries, pairs.query_of)
        rest = cut_to + of_queries + len(texts.template.suffix[0]) - first
        keys, groups = np.unique(np.stack((first, which), axis=1), axis=0, return_inverse=True)
        groups = groups.reshape(-1)
        common = min(self._common(groups), int(first.min()))
        n_pairs, in_pieces = len(pairs), int(keys[:, 0].sum())
        self._cut: int | None = None
        if common and common + int(first.sum()) - n_pairs * common < in_pieces:
            self._cut, groups, in_groups = common, np.zeros(n_pairs, np.intp), np.array([common])
            rest = rest + first - common
        else:
            in_groups = keys[:, 0]
        # Pairs of one group together, and long ones beside long ones.
        order = np.lexsort((-rest, groups))
        self.order = torch.from_numpy(order).to(device)
        self._order, self._groups, self._rest = order, groups[order], rest[order]
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

    def tokens(self, start: int, end: int) -> int:
        """How many tokens these prompts have, each for itself."""
        return int(self._rest[start:end].sum() + self._prefixes[self._groups[start:end]].sum())

    def hidden(self, body: LastHidden, start: int, end: int) -> Any:
        """The last vectors of these prompts."""
        prompts = [self._prompt(at) for at in self._order[start:end]]
        groups, prefix_of = np.unique(self._groups[start:end], return_inverse=True)
        if len(groups) == len(prompts) or not self._rest[start:end].all():
            return body.last_hidden(prompts)
        firsts = np.unique(prefix_of, return_index=True)[1]
        lengths = self._prefixes[groups]
        prefixes = [prompts[at][:length] for at, length in zip(firsts, lengths, strict=True)]
        continuations = [prompt[lengths[of] :] for prompt, of in zip(prompts, prefix_of, strict=True)]
        return body.last_hidden_shared(prefixes, continuations, prefix_of)

    def _prompt(self, pair: int) -> TokenArray:
        row: TokenArray = self._pairs.texts.pair(int(self._pairs.query_of[pair]), int(self._pairs.item_of[pair]))[0]
        return row

    def _common(self, groups: IntArray) -> int:
        """How many tokens all prompts begin with."""
        of_groups = np.unique(groups, return_index=True)[1]
        one = self._prompt(int(of_groups[0]))
        length = len(one)
        for pair in of_groups[1:]:
            other = self._prompt(int(pair))[:length]
            differs = np.flatnonzero(one[: len(other)] != other)
            length = int(differs[0]) if len(differs) else len(other)
        return length
