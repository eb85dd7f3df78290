"""Cross-encoders to be trained, with loss and steps; imported only where one is trained, as this needs torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch.utils.checkpoint import checkpoint

from adacur.arrays import FloatArray, IntArray
from adacur.extras.train.emb_cross_encoder import EmbHead, make_emb_cross_encoder, save_emb_cross_encoder
from adacur.extras.train.emb_module import EmbCrossEncoder
from adacur.extras.train.run_folder import written_whole
from adacur.scorers.cross_encoders.checkpoints import (
    check_complete,
    quiet,
    read_model,
    read_tokenizer,
    token_limit,
)
from adacur.scorers.cross_encoders.forwards import PaddedBatches
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs, TokenTexts

# The place of a query, and the positions of its items, the relevant one first.
PairExample = tuple[int, IntArray]
# Tokens of one forward pass, padding included; fewer leave a GPU waiting for its next kernel.
_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 32_768}
# Tokens of a step whose activations are held until their gradients are known; of a larger step they are computed again.
_TOKENS_IN_MEMORY = {"cpu": 8192, "cuda": 65_536}


class RankingModel(torch.nn.Module):  # type: ignore[misc]
    """Learns from scores of one query's items by cross-entropy over them."""

    def __init__(
        self,
        base: Path,
        head: EmbHead | None,
        *,
        max_tokens: int | None,
        max_item_tokens: int | None,
    ) -> None:
        super().__init__()
        self._tokenizer, self.cross_encoder = untrained(base, head)
        self.tokens = PairTokenizer(
            self._tokenizer.backend_tokenizer,
            max_tokens=token_limit(
                max_tokens,
                config=self.cross_encoder.config.to_dict(),
                tokenizer_length=self._tokenizer.model_max_length,
                usual=512,
            ).tokens,
            max_item_tokens=max_item_tokens,
        )
        takes = inspect.signature(self.cross_encoder.forward).parameters
        self._takes_types = "token_type_ids" in self._tokenizer.model_input_names and "token_type_ids" in takes

    def forward(self, pairs: TokenPairs, n_queries: int) -> dict[str, Any]:
        """The loss; every query has the same number of pairs, its relevant item first."""
        is_too_much = int(pairs.lengths.sum()) > _TOKENS_IN_MEMORY[self._device.type]
        scores = self._scores_of(pairs, recompute=is_too_much).view(n_queries, -1)
        targets = torch.zeros(n_queries, dtype=torch.long, device=scores.device)
        return {"loss": torch.nn.functional.cross_entropy(scores, targets)}

    def step(self, texts: TokenTexts, examples: Sequence[PairExample]) -> dict[str, Any]:
        """The arguments of `forward` for several queries, each with the same number of items."""
        queries, positions = zip(*examples, strict=True)
        of_pairs = np.repeat(queries, [len(of_query) for of_query in positions])
        queries_used, query_of = np.unique(of_pairs, return_inverse=True)
        items_used, item_of = np.unique(np.concatenate(positions), return_inverse=True)
        # Only these are sent to the device.
        heads, items = [texts.heads[at] for at in queries_used], [texts.items[at] for at in items_used]
        own = replace(texts, heads=heads, space=texts.space[queries_used], items=items)
        return {"pairs": TokenPairs(own, query_of, item_of), "n_queries": len(examples)}

    def scores_of(self, pairs: TokenPairs) -> FloatArray:
        """Scores of all pairs, without gradients."""
        with torch.no_grad():
            scores: FloatArray = self._scores_of(pairs, recompute=False).cpu().numpy()
        return scores

    def save(self, folder: Path) -> None:
        """Write the cross-encoder and its tokenizer, whole or not at all; the model stays where it is."""
        module = copy.deepcopy(self.cross_encoder).cpu()
        if isinstance(module, EmbCrossEncoder):
            save_emb_cross_encoder(module, self._tokenizer, folder)
            return
        with written_whole(folder) as unfinished, quiet(transformers):
            module.save_pretrained(unfinished)
            self._tokenizer.save_pretrained(unfinished)

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return untied(super().state_dict(*args, **kwargs))

    @property
    def _device(self) -> Any:
        return next(self.parameters()).device

    def _scores(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._takes_types:
            inputs["token_type_ids"] = token_type_ids
        return self.cross_encoder(**inputs).logits[:, 0].float()

    def _scores_of(self, pairs: TokenPairs, *, recompute: bool) -> Any:
        """Scores in the order of the pairs, computed in batches of like length."""
        batches = PaddedBatches(torch, pairs, device=self._device, pad_id=self.tokens.pad_id)
        scores, start = [], 0
        while start < len(batches):
            end = batches.end(start, tokens=_TOKENS_AT_ONCE[self._device.type], evenly=False)
            inputs = batches.inputs(start, end)
            scores.append(
                checkpoint(self._scores, **inputs, use_reentrant=False) if recompute else self._scores(**inputs)
            )
            start = end
        return torch.cat(scores)[torch.argsort(batches.order)]


def untrained(folder: Path, head: EmbHead | None) -> tuple[Any, Any]:
    """Tokenizer and module of a base, with a linear layer on the CLS token where no [EMB] head is given."""
    if head is not None:
        return make_emb_cross_encoder(folder, head=head)
    tokenizer = read_tokenizer(folder)
    module, missing = read_model(
        folder, "AutoModelForSequenceClassification", num_labels=1, ignore_mismatched_sizes=True
    )
    body = f"{module.base_model_prefix}."
    # A head may be new, and a pooler is part of it.
    in_body = (name for name in missing if name.startswith(body) and not name.startswith(f"{body}pooler."))
    check_complete(in_body, folder)
    # It learns plain pairs, and a model that comes with a template is not scored by them.
    tokenizer.chat_template = None
    return tokenizer, module.float()


def untied(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict in which tied weights, such as T5's embeddings, are copies: safetensors refuses shared memory."""
    seen: set[int] = set()
    for name, tensor in state.items():
        if tensor.data_ptr() in seen:
            state[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    return state
