"""Examples for cross-encoders: a query with a relevant item and hard negatives, as token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.extras import require
from adacur.core.protocols import Items
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs, TokenTexts
from adacur.training.candidates import shown
from adacur.training.judged_queries import JudgedQueries

__all__ = ["PairExamples"]


@dataclass(frozen=True, slots=True, eq=False)
class _Example:
    query: int
    positions: IntArray
    targets: FloatArray


class PairExamples:
    """Per query a relevant item, first, and `negatives` others; both are drawn anew for every epoch.

    Targets are 1 for the relevant item and 0 for the others, or the teachers' scores: `taught[i]` those of the relevant
    items of query i and then of its `pools[i]`.
    """

    def __init__(
        self,
        judged: JudgedQueries,
        pools: Sequence[IntArray],
        texts: TokenTexts,
        *,
        items: Items,
        negatives: int,
        seed: int,
        pad_id: int,
        most_chunks: int,
        taught: Sequence[FloatArray] | None = None,
    ) -> None:
        self._judged, self._pools, self._texts, self._items = judged, pools, texts, items
        self._negatives, self._seed, self._pad_id, self._most_chunks = negatives, seed, pad_id, most_chunks
        self._taught = taught
        self._epoch = 0
        self._head_lengths, self._item_lengths = texts.head_lengths, texts.item_lengths

    def __len__(self) -> int:
        return len(self._judged)

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __getitem__(self, place: int) -> _Example:
        query, relevant, pool = self._judged.queries[place], self._judged.relevant[place], self._pools[place]
        positions = shown(
            relevant,
            pool,
            negatives=self._negatives,
            items=self._items,
            seed=self._seed,
            epoch=self._epoch,
            query=query,
        )
        if self._taught is None:
            targets = np.zeros(len(positions), np.float32)
            targets[0] = 1
        else:
            place_of = {int(position): at for at, position in enumerate((*relevant, *pool))}
            targets = self._taught[place][[place_of[int(position)] for position in positions]].astype(np.float32)
        return _Example(place, positions, targets)

    def collate(self, examples: list[_Example]) -> dict[str, Any]:
        """Pairs of like length in chunks; `places[i]` is where pair i of the step stands in them."""
        torch = require("torch", extra="training")
        query_of = np.repeat([example.query for example in examples], [len(example.positions) for example in examples])
        pairs = TokenPairs(self._texts, query_of, np.concatenate([example.positions for example in examples]))
        kept = np.minimum(self._item_lengths[pairs.item_of], self._texts.rooms[query_of])
        lengths = self._head_lengths[query_of] + kept
        longest_first = np.argsort(-lengths, kind="stable")
        places = np.empty_like(longest_first)
        places[longest_first] = np.arange(len(places))
        chunks = [
            {name: torch.from_numpy(array) for name, array in pairs.padded(chunk, pad_id=self._pad_id).items()}
            for chunk in _alike(longest_first, lengths, most_chunks=self._most_chunks)
        ]
        targets = torch.from_numpy(np.stack([example.targets for example in examples]))
        return {"chunks": chunks, "places": torch.from_numpy(places), "targets": targets}


def _alike(longest_first: IntArray, lengths: IntArray, *, most_chunks: int) -> Iterator[IntArray]:
    """A chunk ends where more than a fifth of it would be padding, and no sooner than leaves `most_chunks` of them."""
    least = -(-len(longest_first) // most_chunks)
    start = 0
    while start < len(longest_first):
        rest = lengths[longest_first[start:]]
        size = max(least, int(np.count_nonzero(5 * rest >= 4 * rest[0])))
        yield longest_first[start : start + size]
        start += size
