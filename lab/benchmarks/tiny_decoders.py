"""Tiny decoders for llm_grid.py: a world to try it in, and a check of our forward pass against transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adacur.extras.kernels.decoder_forward import PackedDecoder


def plain_hidden(body: Any, sequences: list[Any], *, batch: int = 32) -> Any:
    """transformers' own last hidden states, padded on the right."""
    device = body.embed_tokens.weight.device
    order = np.argsort([-len(ids) for ids in sequences])
    answers = torch.empty(len(sequences), body.config.hidden_size, device=device, dtype=body.dtype)
    with torch.inference_mode():
        for start in range(0, len(order), batch):
            some = order[start : start + batch]
            ids = torch.zeros(len(some), len(sequences[some[0]]), dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for row, at in enumerate(some):
                ids[row, : len(sequences[at])] = torch.from_numpy(np.asarray(sequences[at]))
                mask[row, : len(sequences[at])] = 1
            states = body(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).last_hidden_state
            last = mask.sum(1).to(device) - 1
            answers[torch.from_numpy(some).to(device)] = states[torch.arange(len(some), device=device), last]
    return answers


def check(device: torch.device) -> None:
    """Tiny models, every dtype, with and without shared prefixes, against transformers in float32 on this device."""
    import transformers

    rng, wrong = np.random.default_rng(0), []
    for family, options in (
        ("Llama", {"num_key_value_heads": 3}),
        ("Llama", {"num_key_value_heads": 9, "attention_bias": True, "mlp_bias": True}),
        ("Qwen2", {"num_key_value_heads": 3}),
        ("Qwen3", {"num_key_value_heads": 3, "head_dim": 128}),
        ("Llama", {"num_key_value_heads": 9, "head_dim": 24}),
    ):
        torch.manual_seed(0)
        shape = {"vocab_size": 199, "hidden_size": 288, "intermediate_size": 256, "num_hidden_layers": 3}
        config = getattr(transformers, f"{family}Config")(**shape, num_attention_heads=9, **options)
        model = getattr(transformers, f"{family}Model")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += torch.randn_like(parameter) * 0.05
        heads, tails = (
            [rng.integers(0, 199, n) for n in sizes] for sizes in ((64, 0, 7, 300), (4, 1, 20, 0, 130, 9, 64))
        )
        # Enough tokens that the SwiGLU kernel runs too.
        n = 400 if device.type == "cuda" else 40
        prefix_of, continuation_of = rng.integers(0, 4, n), rng.integers(0, 7, n)
        keep = [len(heads[a]) + len(tails[b]) > 0 for a, b in zip(prefix_of, continuation_of, strict=True)]
        prefix_of, continuation_of = prefix_of[keep], continuation_of[keep]
        whole = [
            np.concatenate((heads[a], tails[b])).astype(int) for a, b in zip(prefix_of, continuation_of, strict=True)
        ]
        model = model.to(device)
        expected = plain_hidden(model, whole)
        for dtype, allowed in (("float32", 2e-3), ("float16", 0.05), ("bfloat16", 0.4)):
            if device.type == "cpu" and dtype == "float16":
                continue
            decoder = PackedDecoder(model, device=device, dtype=dtype)
            off = {
                "plain": decoder.last_hidden(whole) - expected,
                "shared": decoder.last_hidden_shared(heads, tails, prefix_of, continuation_of=continuation_of)
                - expected,
            }
            line = ", ".join(f"{name} {float(delta.abs().max()):.5f}" for name, delta in off.items())
            print(f"check {family} {options} {dtype}, kernels {decoder._kernels is not None}: largest |Δ| {line}")
            if any(not delta.abs().max() <= allowed for delta in off.values()):
                wrong.append(f"{family} {options} {dtype}: {line}")
    if wrong:
        raise AssertionError("\n".join(wrong))


def smoke_world(folder: Path) -> tuple[Path, Path, Path]:
    """A tiny random Llama with a byte-level tokenizer, and a few texts."""
    import tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(50)]
    texts = [" ".join(rng.choice(words, rng.integers(3, 40))) for _ in range(60)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    special = ["<|end|>", "<|im_start|>", "<|im_end|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=500, special_tokens=special, show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator([*texts, *["yes", "no"] * 99], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|end|>", eos_token="<|end|>").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=96, intermediate_size=128, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512, pad_token_id=0, eos_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name, some in (("items", texts), ("queries", [text[:40] for text in texts[:20]])):
        lines = [json.dumps({"_id": str(at), "text": text}) for at, text in enumerate(some)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder, folder / "items.jsonl", folder / "queries.jsonl"
