"""A cross-encoder with its loss and its examples; imported only where one is trained, as it needs torch."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.protocols import Items
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs, TokenTexts
from adacur.training.judged_queries import JudgedQueries, drawn_items

__all__ = ["TOKENS_AT_ONCE", "PairExamples", "RankingModel", "untied"]

TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 131_072}


class RankingModel(torch.nn.Module):  # type: ignore[misc]
    """Learns from scores of one query's items: by cross-entropy over them, or by the squared distance to targets."""

    def __init__(self, cross_encoder: Any, *, squared: bool, takes_types: bool) -> None:
        super().__init__()
        self.cross_encoder = cross_encoder
        self._squared = squared
        self._takes_types = takes_types and "token_type_ids" in inspect.signature(cross_encoder.forward).parameters

    def forward(self, chunks: list[dict[str, Any]], places: Any, targets: Any) -> dict[str, Any]:
        """The loss; `targets` are of shape (queries, items), `places` say where their pairs stand in the chunks."""
        scores = torch.cat([self.scores(**chunk) for chunk in chunks])[places].view(targets.shape)
        functional = torch.nn.functional
        loss = functional.mse_loss(scores, targets) if self._squared else functional.cross_entropy(scores, targets)
        return {"loss": loss}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return untied(super().state_dict(*args, **kwargs))

    def scores(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """One float32 score per pair."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._takes_types:
            inputs["token_type_ids"] = token_type_ids
        return self.cross_encoder(**inputs).logits[:, 0].float()

    def scores_of(self, pairs: TokenPairs, *, pad_id: int) -> FloatArray:
        """Scores of all pairs, without gradients."""
        device = next(self.parameters()).device
        scores = np.empty(len(pairs), np.float32)
        for positions in chunks_of_like_length(pairs.lengths, most_tokens=TOKENS_AT_ONCE[device.type]):
            inputs = {
                name: torch.from_numpy(array).to(device)
                for name, array in pairs.padded(positions, pad_id=pad_id).items()
            }
            with torch.no_grad():
                scores[positions] = self.scores(**inputs).cpu().numpy()
        return scores


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
        most_tokens: int,
        taught: Sequence[FloatArray] | None = None,
    ) -> None:
        self._judged, self._pools, self._texts, self._items = judged, pools, texts, items
        self._negatives, self._seed, self._pad_id, self._most_tokens = negatives, seed, pad_id, most_tokens
        self._taught = taught
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._judged)

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __getitem__(self, place: int) -> _Example:
        query, relevant, pool = self._judged.queries[place], self._judged.relevant[place], self._pools[place]
        positions = drawn_items(
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
        query_of = np.repeat([example.query for example in examples], [len(example.positions) for example in examples])
        pairs = TokenPairs(self._texts, query_of, np.concatenate([example.positions for example in examples]))
        chunks = list(chunks_of_like_length(pairs.lengths, most_tokens=self._most_tokens))
        places = np.empty(len(pairs), np.intp)
        places[np.concatenate(chunks)] = np.arange(len(pairs))
        return {
            "chunks": [
                {name: torch.from_numpy(array) for name, array in pairs.padded(chunk, pad_id=self._pad_id).items()}
                for chunk in chunks
            ],
            "places": torch.from_numpy(places),
            "targets": torch.from_numpy(np.stack([example.targets for example in examples])),
        }


def chunks_of_like_length(lengths: IntArray, *, most_tokens: int) -> Iterator[IntArray]:
    """Places, the longest first; a chunk has at most `most_tokens`, padding included, or one place."""
    longest_first = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(lengths):
        size = max(1, most_tokens // max(1, int(lengths[longest_first[start]])))
        yield longest_first[start : start + size]
        start += size


def untied(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict in which tied weights, such as T5's embeddings, are copies: safetensors refuses shared memory."""
    seen: set[int] = set()
    for name, tensor in state.items():
        if tensor.data_ptr() in seen:
            state[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    return state
