"""A cross-encoder with its loss and its steps; imported only where one is trained, as it needs torch."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from adacur.core.arrays import FloatArray, IntArray
from adacur.core.errors import InputError
from adacur.scorers.cross_encoders.checkpoints import check_is_fast, quiet, written_whole
from adacur.scorers.cross_encoders.emb_cross_encoder import EmbHead, make_emb_cross_encoder, save_emb_cross_encoder
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs, TokenTexts, chosen_max_tokens

# The place of a query, the positions of its items, and the targets of their scores.
PairExample = tuple[int, IntArray, FloatArray]
_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 131_072}


class RankingModel(torch.nn.Module):  # type: ignore[misc]
    """Learns from scores of one query's items: by cross-entropy over them, or by the squared distance to targets."""

    def __init__(
        self,
        base: Path,
        head: EmbHead | None,
        *,
        add_tags: bool,
        max_tokens: int | None,
        max_item_tokens: int | None,
        squared: bool,
    ) -> None:
        super().__init__()
        self._tokenizer, self.cross_encoder = untrained(base, head, add_tags=add_tags)
        self._head, self._squared = head, squared
        self.tokens = PairTokenizer(
            self._tokenizer.backend_tokenizer,
            max_tokens=chosen_max_tokens(
                max_tokens,
                config=self.cross_encoder.config.to_dict(),
                tokenizer_config={"model_max_length": self._tokenizer.model_max_length},
            ),
            max_item_tokens=max_item_tokens,
            head=head,
        )
        takes = inspect.signature(self.cross_encoder.forward).parameters
        self._takes_types = "token_type_ids" in self._tokenizer.model_input_names and "token_type_ids" in takes

    def forward(self, chunks: list[dict[str, Any]], places: Any, targets: Any) -> dict[str, Any]:
        """The loss; `targets` are of shape (queries, items), `places` say where their pairs stand in the chunks."""
        scores = torch.cat([self._scores(**chunk) for chunk in chunks])[places].view(targets.shape)
        functional = torch.nn.functional
        loss = functional.mse_loss(scores, targets) if self._squared else functional.cross_entropy(scores, targets)
        return {"loss": loss}

    def step(self, texts: TokenTexts, examples: Sequence[PairExample]) -> dict[str, Any]:
        """The arguments of `forward` for several queries, each with the same number of items."""
        queries, positions, targets = zip(*examples, strict=True)
        pairs = TokenPairs(
            texts, np.repeat(queries, [len(of_query) for of_query in positions]), np.concatenate(positions)
        )
        chunks = list(self._chunks(pairs))
        places = np.empty(len(pairs), np.intp)
        places[np.concatenate(chunks)] = np.arange(len(pairs))
        return {
            "chunks": [self._padded(pairs, chunk) for chunk in chunks],
            "places": torch.from_numpy(places),
            "targets": torch.from_numpy(np.stack(targets).astype(np.float32)),
        }

    def scores_of(self, pairs: TokenPairs) -> FloatArray:
        """Scores of all pairs, without gradients."""
        scores = np.empty(len(pairs), np.float32)
        for chunk in self._chunks(pairs):
            inputs = {name: tensor.to(self._device) for name, tensor in self._padded(pairs, chunk).items()}
            with torch.no_grad():
                scores[chunk] = self._scores(**inputs).cpu().numpy()
        return scores

    def save(self, folder: Path) -> None:
        """Write the cross-encoder and its tokenizer, whole or not at all; the model stays where it is."""
        module = copy.deepcopy(self.cross_encoder).cpu()
        if self._head is not None:
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

    def _chunks(self, pairs: TokenPairs) -> Iterator[IntArray]:
        """Places of pairs of like length, the longest first; as many as fit the memory, padding included."""
        lengths, most_tokens = pairs.lengths, _TOKENS_AT_ONCE[self._device.type]
        longest_first = np.argsort(-lengths, kind="stable")
        start = 0
        while start < len(lengths):
            size = max(1, most_tokens // max(1, int(lengths[longest_first[start]])))
            yield longest_first[start : start + size]
            start += size

    def _padded(self, pairs: TokenPairs, chunk: IntArray) -> dict[str, Any]:
        arrays = pairs.padded(chunk, pad_id=self.tokens.pad_id)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}


def untrained(folder: Path, head: EmbHead | None, *, add_tags: bool) -> tuple[Any, Any]:
    """Tokenizer and module of a base, with a linear layer on the CLS token where no [EMB] head is given."""
    if head is not None:
        return make_emb_cross_encoder(folder, head=head, add_tags=add_tags)
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            module, loading = transformers.AutoModelForSequenceClassification.from_pretrained(
                folder, num_labels=1, ignore_mismatched_sizes=True, output_loading_info=True
            )
    except Exception as error:
        raise InputError(f"{folder} cannot be read as a transformers encoder: {error}") from error
    # A head may be new, and a pooler is part of it.
    body = f"{module.base_model_prefix}."
    if missing := sorted(
        name for name in loading["missing_keys"] if name.startswith(body) and not name.startswith(f"{body}pooler.")
    ):
        raise InputError(f"The checkpoint in {folder} lacks the weights {missing}, which would be random.")
    check_is_fast(tokenizer, folder)
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
