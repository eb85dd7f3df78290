"""The [EMB] cross-encoder as a torch module: a pair's score is a dot product of its tags' vectors."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers.modeling_outputs import SequenceClassifierOutput

from adacur.extras.train.emb_cross_encoder import EmbHead


def tag_scores(vectors: Any) -> Any:
    """mean(query start, query end) · item of vectors shaped (pairs, 3, hidden size), in float32: (pairs,)."""
    start, end, item = vectors.float().unbind(1)
    # No matrix product: autocast would run it in half precision, where large scores tie.
    return ((start + end) / 2 * item).sum(1)


def tag_places(input_ids: Any, tag_ids: tuple[int, int, int]) -> Any:
    """The places of each text's tags, (texts, 3): those within query and item count before those around them."""
    starts, ends, items = (input_ids == tag for tag in tag_ids)
    in_query = ends.long().cumsum(1) == 0
    # Where a count of tags is reached first, the last of them stands.
    last_start, last_item = ((starts & in_query).long().cumsum(1), items.long().cumsum(1))
    return torch.stack((last_start.argmax(1), ends.long().argmax(1), last_item.argmax(1)), 1)


def packed_tag_rows(ids: Any, text_of: Any, n_texts: int, tag_ids: tuple[int, int, int]) -> Any:
    """The same where texts lie one behind the other: rows, (texts, 3); row i belongs to text `text_of[i]`."""
    start, end, item = tag_ids
    rows = torch.arange(len(ids), device=ids.device)

    def place(is_there: Any, which: str, otherwise: int) -> Any:
        places = torch.full((n_texts,), otherwise, device=ids.device)
        return places.scatter_reduce(0, text_of, torch.where(is_there, rows, otherwise), which)

    ends = place(ids == end, "amin", len(ids) - 1)
    starts = place((ids == start) & (rows < ends[text_of]), "amax", 0)
    return torch.stack((starts, ends, place(ids == item, "amax", 0)), 1)


class EmbCrossEncoder(torch.nn.Module):  # type: ignore[misc]
    """A transformers body that scores a pair by the vectors of its tags, which the tokenizer puts around its texts.

    `tag_ids` are those of query start, query end and item.
    """

    head_scores = staticmethod(tag_scores)

    def __init__(self, body: Any, *, head: EmbHead, tag_ids: tuple[int, int, int]) -> None:
        super().__init__()
        self._takes_types = "token_type_ids" in inspect.signature(body.forward).parameters
        self.base_model = body
        self.base_model.config.num_labels = 1
        self.head = head
        self.tag_ids = tag_ids

    @property
    def config(self) -> Any:
        return self.base_model.config

    def packed_reads(self, tokens: Any) -> Any:
        """The rows that the head reads of packed texts, (texts, 3)."""
        rows = torch.arange(len(tokens.ids), dtype=tokens.starts.dtype, device=tokens.ids.device)
        n_texts = len(tokens.starts) - 1
        text_of = torch.searchsorted(tokens.starts[1:], rows, right=True).clamp(max=n_texts - 1)
        return packed_tag_rows(tokens.ids, text_of, n_texts, self.tag_ids)

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> SequenceClassifierOutput:
        """Scores as `logits` of shape (pairs, 1), float32 whatever the body runs in."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._takes_types and token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        states = self.base_model(**inputs).last_hidden_state
        vectors = states.gather(1, tag_places(input_ids, self.tag_ids)[:, :, None].expand(-1, -1, states.shape[2]))
        return SequenceClassifierOutput(logits=tag_scores(vectors)[:, None])
