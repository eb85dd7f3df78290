"""Batches of pairs padded on the right, as any model of transformers takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from adacur.scorers.cross_encoders.pair_tokens import TokenPairs


class PaddedBatches:
    """Pairs in order of their length, longest first; a batch is a range of that order."""

    def __init__(self, torch: Any, pairs: TokenPairs, *, device: Any, pad_id: int) -> None:
        self._torch, self._pairs, self._device, self._pad_id = torch, pairs, device, pad_id
        self._order = np.argsort(-pairs.lengths, kind="stable")
        self._lengths = pairs.lengths[self._order]
        self.order = self._sent(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def end(self, start: int, *, tokens: int, evenly: bool = True) -> int:
        """Where a batch of at most `tokens` tokens ends that begins here, padding included; it has one pair at least.

        Padding is `evenly` kept below a tenth of a pair unless the batch is small.
        """
        longest = int(self._lengths[start])
        end = min(len(self), start + max(1, tokens // longest))
        if not evenly:
            return end
        enough = start + max(1, tokens // (8 * longest))
        return min(end, enough + int(np.count_nonzero(self._lengths[enough:end] * 10 >= longest * 9)))

    def inputs(self, start: int, end: int) -> dict[str, Any]:
        """These pairs as arguments of a model's forward."""
        pairs, lengths = self._pairs, self._lengths[start:end].tolist()
        rows = np.zeros((3, end - start, lengths[0]), np.int64)
        ids, mask, types = rows
        ids[:] = self._pad_id
        for row, (at, length) in enumerate(zip(self._order[start:end].tolist(), lengths, strict=True)):
            ids[row, :length], types[row, :length] = pairs.texts.pair(pairs.query_of[at], pairs.item_of[at])
            mask[row, :length] = 1
        arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        return {name: self._sent(array) for name, array in arrays.items()}

    def _sent(self, array: Any) -> Any:
        return self._torch.from_numpy(array).to(self._device)
