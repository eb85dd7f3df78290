"""A causal language model to be trained as a reranker: a prompt, and the odds of two tokens; needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from adacur.core.errors import InputError
from adacur.scorers.cross_encoders.checkpoints import check_complete, has_chat_template, read_model, read_tokenizer
from adacur.scorers.cross_encoders.pair_prompt import PairPrompt
from adacur.scorers.cross_encoders.readout import Readout

_QUESTION = "Query: {query}\nDocument: {item}\nDoes the document answer the query? Answer Yes or No."
_ANSWERS = ("Yes", "No")


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
