"""The [EMB] cross-encoder as a torch module: a pair's score is a dot product of its tags' vectors."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from adacur.scorers.cross_encoders.emb_head import EmbHead


def tag_scores(vectors: Any) -> Any:
    """mean(query start, query end) · item of vectors shaped (pairs, 3, hidden size), in float32: (pairs,)."""
    start, end, item = vectors.float().unbind(1)
    # No matrix product: autocast would run it in half precision, where large scores tie.
    return ((start + end) / 2 * item).sum(1)


class EmbCrossEncoder(torch.nn.Module):  # type: ignore[misc]
    """A transformers body that scores a pair by the vectors of its tags; of several equal tags the first counts.

    A pair must hold all three: `PairTokenizer` sees to that. `tag_ids` are those of query start, query end and item.
    """

    def __init__(self, body: Any, *, head: EmbHead, tag_ids: tuple[int, int, int]) -> None:
        super().__init__()
        self._takes_types = "token_type_ids" in inspect.signature(body.forward).parameters
        self.base_model = body
        self.head = head
        self.tag_ids = tag_ids

    @property
    def config(self) -> Any:
        return self.base_model.config

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> SequenceClassifierOutput:
        """Scores as `logits` of shape (pairs, 1), float32 whatever the body runs in."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._takes_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        states = self.base_model(**inputs).last_hidden_state
        places = torch.stack([(input_ids == tag).long().argmax(1) for tag in self.tag_ids], 1)
        vectors = states.gather(1, places[:, :, None].expand(-1, -1, states.shape[2]))
        return SequenceClassifierOutput(logits=tag_scores(vectors)[:, None])
