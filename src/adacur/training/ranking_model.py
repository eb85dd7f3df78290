"""A cross-encoder together with its loss; imported only where something is trained."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch

from adacur.core.arrays import FloatArray
from adacur.scorers.cross_encoders.pair_tokens import TokenPairs
from adacur.training.token_rows import chunks_of_like_length

__all__ = ["RankingModel"]

_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 131_072}


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
        for positions in chunks_of_like_length(pairs.lengths, most_tokens=_TOKENS_AT_ONCE[device.type]):
            inputs = {
                name: torch.from_numpy(array).to(device)
                for name, array in pairs.padded(positions, pad_id=pad_id).items()
            }
            with torch.no_grad():
                scores[positions] = self.scores(**inputs).cpu().numpy()
        return scores
