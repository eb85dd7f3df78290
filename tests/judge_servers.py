"""Language models behind an OpenAI-compatible endpoint on loopback: real HTTP, a real model."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from tests.rerank_servers import Asked, LoopbackServer, Reply

__all__ = ["JudgeServer", "LocalModel", "tiny_judge"]

MODEL = "fake/judge"


class LocalModel:
    """A causal language model of transformers with its tokenizer, run here."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model.eval(), tokenizer
        self._turn = threading.Lock()

    def logits(self, prompt: str) -> np.ndarray:
        """The logits of the first token of the answer, in float64."""
        torch = pytest.importorskip("torch")
        messages = [{"role": "user", "content": prompt}]
        prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        tokens = self.tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
        with self._turn, torch.inference_mode():
            return self.model(tokens, logits_to_keep=1).logits[0, -1].double().numpy()

    def likeliest(self, prompt: str, n: int) -> list[tuple[str, float]]:
        logits = self.logits(prompt)
        logprobs = logits - np.logaddexp.reduce(logits)
        best = np.argsort(-logprobs, kind="stable")[:n]
        return [(self.tokenizer.decode([token]), float(logprobs[token])) for token in best]


class JudgeServer(LoopbackServer):
    """POST /v1/chat/completions, one token at a time, with logprobs."""

    def __init__(self, local: LocalModel | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.local = local

    def answer(self, asked: Asked) -> Reply:
        if asked.path != "/v1/chat/completions" or self.local is None:
            return Reply(404, {"error": {"message": "Not Found"}})
        body = asked.body
        if body.get("model", MODEL) != MODEL:
            return Reply(404, {"error": {"message": "There is no such model."}})
        if (body["max_tokens"], body["temperature"]) != (1, 0):
            return Reply(400, {"error": {"message": "This server decodes one token, greedily."}})
        choice = self._chat_choice(body)
        return Reply(body={"id": "cmpl-1", "object": "chat.completion", "model": MODEL, "choices": [choice]})

    def _chat_choice(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.local is not None
        (message,) = body["messages"]
        tokens = self.local.likeliest(message["content"], body["top_logprobs"])
        top = [{"token": token, "logprob": logprob, "bytes": list(token.encode())} for token, logprob in tokens]
        return {
            "index": 0,
            "message": {"role": "assistant", "content": tokens[0][0], "refusal": None},
            "logprobs": {"content": [{**top[0], "top_logprobs": top}]} if body["logprobs"] else None,
            "finish_reason": "length",
        }


TEXT = """Judge whether the document is relevant to query Query Document Is Answer with one word or How it of from not
at all perfectly : . , ? item number red green blue river mountain ship bird island user assistant"""
NUMBERS = [str(number) for number in range(60)]


def tiny_judge() -> LocalModel:
    """A Llama of two layers with random weights, whose words are whole tokens: its opinions are its own."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: at for at, word in enumerate(dict.fromkeys(["[UNK]", "Yes", "No", *NUMBERS, *TEXT.split()]))}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }}\n{% endfor %}assistant :"
    )
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    return LocalModel(transformers.LlamaForCausalLM(config), tokenizer)
