"""Texts as token ids: each tokenised once, padded anew for every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from adacur.core.arrays import IntArray

__all__ = ["TokenRows", "chunks_of_like_length"]

_TEXTS_PER_CALL = 4096


@dataclass(frozen=True, slots=True, eq=False)
class TokenRows:
    """The token ids of many texts, one behind the other: row i is ids[bounds[i] : bounds[i + 1]]."""

    ids: npt.NDArray[np.int32] = field(repr=False)
    bounds: IntArray = field(repr=False)
    pad_id: int

    @classmethod
    def of(cls, texts: Sequence[str], *, tokenizer: Any, max_tokens: int, prefix: str = "") -> TokenRows:
        """Tokenise by a transformers tokenizer, with its special tokens."""
        rows: list[Any] = []
        for start in range(0, len(texts), _TEXTS_PER_CALL):
            # Half a surrogate pair, as crawled JSON has them, cannot be encoded; it must not end a training.
            block = [
                (prefix + text).encode(errors="replace").decode() for text in texts[start : start + _TEXTS_PER_CALL]
            ]
            found = tokenizer(block, truncation=True, max_length=max_tokens, padding=False)["input_ids"]
            rows += [np.array(ids, np.int32) for ids in found]
        bounds = np.cumsum([0, *map(len, rows)]).astype(np.intp)
        return cls(np.concatenate(rows), bounds, tokenizer.pad_token_id or 0)

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def chunks(self, rows: IntArray, *, most_tokens: int) -> tuple[list[IntArray], IntArray]:
        """Every different row once, those of about equal length together; places[i] is where rows[i] stands.

        A chunk has at most so many tokens, padding included, or one row.
        """
        different, inverse = np.unique(rows, return_inverse=True)
        chunks = list(chunks_of_like_length(self._lengths(different), most_tokens=most_tokens))
        places = np.empty(len(different), np.intp)
        places[np.concatenate(chunks)] = np.arange(len(different))
        return [different[chunk] for chunk in chunks], places[inverse]

    def padded(self, rows: IntArray) -> dict[str, npt.NDArray[np.int64]]:
        """`input_ids` and `attention_mask` of these rows, as wide as the longest."""
        lengths = self._lengths(rows)
        mask = np.arange(lengths.max(initial=1)) < lengths[:, None]
        ids = np.full(mask.shape, self.pad_id, np.int64)
        ids[mask] = np.concatenate([self.ids[self.bounds[row] : self.bounds[row + 1]] for row in rows])
        return {"input_ids": ids, "attention_mask": mask.astype(np.int64)}

    def _lengths(self, rows: IntArray) -> IntArray:
        return self.bounds[rows + 1] - self.bounds[rows]


def chunks_of_like_length(lengths: IntArray, *, most_tokens: int) -> Iterator[IntArray]:
    """Places, the longest first; a chunk has at most so many tokens, padding included, or one place."""
    longest_first = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(lengths):
        size = max(1, most_tokens // max(1, int(lengths[longest_first[start]])))
        yield longest_first[start : start + size]
        start += size
