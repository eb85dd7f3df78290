"""Cross-encoders to be trained, with loss and steps; imported only where one is trained, as this needs torch."""

from __future__ import annotations

import copy
import inspect
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
import transformers
from torch.utils.checkpoint import checkpoint

from adacur.arrays import FloatArray, IntArray
from adacur.errors import InputError
from adacur.extras.train.emb_cross_encoder import make_emb_cross_encoder, save_emb_cross_encoder
from adacur.extras.train.emb_head import EmbHead
from adacur.extras.train.emb_module import EmbCrossEncoder
from adacur.extras.train.written_whole import written_whole
from adacur.scorers.cross_encoders.checkpoints import (
    check_complete,
    has_chat_template,
    quiet,
    read_model,
    read_tokenizer,
)
from adacur.scorers.cross_encoders.pair_batches import PairBatches
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer, TokenPairs, TokenTexts
from adacur.scorers.cross_encoders.readout import Readout
from adacur.scorers.cross_encoders.token_limit import token_limit

# The place of a query, the positions of its items, and the targets of their scores.
PairExample = tuple[int, IntArray, FloatArray]
# Tokens of one forward pass, padding included; fewer leave a GPU waiting for its next kernel.
_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 32_768}
# Tokens whose activations are held until their gradients are known. Beyond these a GPU gains nothing, and this many of
# a small model take 5 GB on the CPU.
_TOKENS_IN_MEMORY = {"cpu": 8192, "cuda": 65_536}
# Of one token in one layer, per hidden unit: 26.3 GiB were seen for 90,000 tokens of 12 layers of 384 in bfloat16.
_BYTES_HELD = 80
_SHARE_OF_MEMORY = 0.25
_QUESTION = "Query: {query}\nDocument: {item}\nDoes the document answer the query? Answer Yes or No."
_ANSWERS = ("Yes", "No")


class RankingModel(torch.nn.Module):  # type: ignore[misc]
    """Learns from scores of one query's items: by cross-entropy over them, or by the squared distance to targets."""

    def __init__(
        self,
        base: Path,
        head: EmbHead | Literal["cls", "tokens"] | None,
        *,
        add_tags: bool = False,
        prompt: str | None = None,
        readout: str | None = None,
        max_tokens: int | None,
        max_item_tokens: int | None,
        squared: bool,
    ) -> None:
        super().__init__()
        if head == "tokens":
            self._tokenizer, self.cross_encoder = untrained_prompted(base, prompt=prompt, readout=readout)
        else:
            tags = head if isinstance(head, EmbHead) else None
            self._tokenizer, self.cross_encoder = untrained(base, tags, add_tags=add_tags)
        self._squared = squared
        self.tokens = PairTokenizer(
            self._tokenizer.backend_tokenizer,
            max_tokens=token_limit(
                max_tokens,
                config=self.cross_encoder.config.to_dict(),
                tokenizer_length=self._tokenizer.model_max_length,
                usual=512,
            ).tokens,
            max_item_tokens=max_item_tokens,
            prompt=getattr(self.cross_encoder, "prompt", None),
        )
        takes = inspect.signature(self.cross_encoder.forward).parameters
        self._takes_types = "token_type_ids" in self._tokenizer.model_input_names and "token_type_ids" in takes

    def forward(self, pairs: TokenPairs, targets: Any, share: float = 1.0) -> dict[str, Any]:
        """The loss times `share`; `targets` are of shape (queries, items), the pairs in the same order."""
        # One query alone may be too much: its activations are then computed again for their gradients.
        is_too_much = int(pairs.lengths.sum()) > self.tokens_in_memory
        scores = self._scores_of(pairs, recompute=is_too_much and torch.is_grad_enabled()).view(targets.shape)
        functional = torch.nn.functional
        loss = functional.mse_loss(scores, targets) if self._squared else functional.cross_entropy(scores, targets)
        return {"loss": loss * share}

    def step(self, texts: TokenTexts, examples: Sequence[PairExample]) -> dict[str, Any]:
        """The arguments of `forward` for several queries, each with the same number of items."""
        queries, positions, targets = zip(*examples, strict=True)
        of_pairs = np.repeat(queries, [len(of_query) for of_query in positions])
        return {
            "pairs": TokenPairs(texts, of_pairs, np.concatenate(positions)).with_own_texts(),
            "targets": torch.from_numpy(np.stack(targets).astype(np.float32)),
        }

    def parts(self, pairs: TokenPairs, targets: Any) -> Iterator[dict[str, Any]]:
        """Those arguments in parts that fit into memory, some of the queries each, with all their items.

        The gradients of the parts add up to those of the whole, since the loss is a mean over queries.
        """
        n_queries, n_items = targets.shape
        cuts, held = [0], 0
        for query, tokens in enumerate(pairs.lengths.reshape(n_queries, n_items).sum(axis=1).tolist()):
            if held and held + tokens > self.tokens_in_memory:
                cuts.append(query)
                held = 0
            held += tokens
        for start, end in itertools.pairwise([*cuts, n_queries]):
            own = slice(start * n_items, end * n_items)
            yield {
                "pairs": TokenPairs(pairs.texts, pairs.query_of[own], pairs.item_of[own]),
                "targets": targets[start:end],
                "share": (end - start) / n_queries,
            }

    @property
    def tokens_in_memory(self) -> int:
        """How many tokens may wait for their gradients, by the device's memory."""
        return _affordable_tokens(self.cross_encoder, self._device)

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
            if isinstance(module, PromptedModel):
                module.save(self._tokenizer, unfinished, max_tokens=self.tokens.max_tokens)
                return
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
        batches = PairBatches(torch, pairs, device=self._device, pad_id=self.tokens.pad_id)
        tokens = min(_TOKENS_AT_ONCE[self._device.type], self.tokens_in_memory)
        scores, start = [], 0
        while start < len(batches):
            end = batches.padded_end(start, tokens=tokens, evenly=False)
            inputs = batches.padded(start, end)
            scores.append(
                checkpoint(self._scores, **inputs, use_reentrant=False) if recompute else self._scores(**inputs)
            )
            start = end
        return torch.cat(scores)[torch.argsort(batches.order)]


def _affordable_tokens(module: Any, device: Any) -> int:
    """Tokens whose activations take a quarter of the device's memory, and no more than are of use."""
    most = _TOKENS_IN_MEMORY[device.type]
    if device.type != "cuda":
        return most
    config = module.config
    size = getattr(config, "num_hidden_layers", 12) * getattr(config, "hidden_size", 768) * _BYTES_HELD
    return max(1, min(most, int(_SHARE_OF_MEMORY * torch.cuda.get_device_properties(device).total_memory) // size))


def untrained(folder: Path, head: EmbHead | None, *, add_tags: bool) -> tuple[Any, Any]:
    """Tokenizer and module of a base, with a linear layer on the CLS token where no [EMB] head is given."""
    if head is not None:
        return make_emb_cross_encoder(folder, head=head, add_tags=add_tags)
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


class PromptedModel(torch.nn.Module):  # type: ignore[misc]
    """A causal model whose one logit is read off the last token of a prompt, with gradients."""

    def __init__(self, causal: Any, prompt: PairPrompt, readout: Readout, rows: list[int]) -> None:
        super().__init__()
        self.causal, self.prompt, self.rows = causal, prompt, rows
        self._weights, self.config = readout.weights, causal.config

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        body = self.causal.base_model
        hidden = body(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(hidden), device=hidden.device), attention_mask.sum(1) - 1]
        # A difference of two logits in half precision has few digits left.
        with torch.autocast(last.device.type, enabled=False):
            weights = torch.tensor(self._weights, device=last.device)
            row = weights @ self.causal.get_output_embeddings().weight[self.rows].float()
            return SimpleNamespace(logits=(last.float() @ row)[:, None])

    def save(self, tokenizer: Any, folder: Path, *, max_tokens: int) -> None:
        """Write what `adacur.scorer` and sentence-transformers open: the prompt as a template, and the tokens read."""
        self.causal.save_pretrained(folder)
        tokenizer.chat_template = self.prompt.chat_template()
        tokenizer.model_max_length = max_tokens
        tokenizer.save_pretrained(folder)
        output = {"method": "forward", "method_output_name": "logits"}
        package = "sentence_transformers"
        written = {
            "modules.json": [
                {"idx": 0, "name": "0", "path": "", "type": f"{package}.base.modules.transformer.Transformer"},
                {
                    "idx": 1,
                    "name": "1",
                    "path": "1_LogitScore",
                    "type": f"{package}.cross_encoder.modules.logit_score.LogitScore",
                },
            ],
            "sentence_bert_config.json": {
                "transformer_task": "text-generation",
                "modality_config": {"text": output, "message": {**output, "format": "flat"}},
                "module_output_name": "causal_logits",
            },
            "config_sentence_transformers.json": {
                "model_type": "CrossEncoder",
                "prompts": {},
                "default_prompt_name": None,
            },
            "1_LogitScore/config.json": {
                "true_token_id": self.rows[0],
                "false_token_id": self.rows[1] if len(self.rows) > 1 else None,
            },
        }
        for name, content in written.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def untrained_prompted(folder: Path, *, prompt: str | None, readout: str | None) -> tuple[Any, PromptedModel]:
    """Tokenizer and module of a causal base; without a prompt, a question in the words of its chat template."""
    tokenizer = read_tokenizer(folder)
    causal, missing = read_model(folder, "AutoModelForCausalLM")
    check_complete(missing, folder)
    if prompt is None and has_chat_template(folder):
        made = PairPrompt.of_chat(tokenizer, [{"role": "user", "content": _QUESTION}])
    else:
        made = PairPrompt.of_format(f"{_QUESTION} " if prompt is None else prompt)
    read = Readout.of(readout or _ANSWERS)
    if made.item_first or read.kind not in ("odds", "token"):
        raise InputError(
            "A language model is trained with a prompt that has the query first, and the odds of two tokens or the "
            f"logit of one; got the prompt {made.text!r} and the readout {read}."
        )
    if getattr(causal.config.get_text_config(), "final_logit_softcapping", None) is not None:
        raise InputError(f"The model in {folder} caps its logits, which is not trained here. Take another base.")
    rows = read.rows(tokenizer.backend_tokenizer, n_rows=causal.get_output_embeddings().weight.shape[0])
    return tokenizer, PromptedModel(causal.float(), made, read, rows)
