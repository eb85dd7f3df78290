"""Scores of language models and modular rerankers against sentence-transformers: the largest difference of 200 pairs.

    python -m lab.benchmarks.llm_scorers [SMOLLM2]

Tiny random models have the shapes for which there are no weights to be had here: a Qwen3 with a chat template, causal
and with one label, and a ModernBERT with pooling and dense layers. SMOLLM2 is the folder of SmolLM2-135M-Instruct as a
transformers checkpoint; without it that line is left out. Pairs are questions and articles of wikivital.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
import transformers

import adacur
from adacur import Item, Query
from adacur.data import wikivital
from adacur.scorers import PairPrompt
from tests.unit.scorers.cross_encoders.tiny_models import ITEMS, QUERIES, tiny_decoder, tiny_ettin

N_QUERIES, N_ITEMS = 10, 20
QUESTIONS = (
    "who discovered penicillin", "what is the capital of France?", "how do vaccines work", "largest planet ",
    "when did the Roman Empire fall?", "what causes tides", "who wrote Hamlet", "how is steel made",
    "what is a black hole", "why is the sky blue?",
)  # fmt: skip
PROMPT = [
    {
        "role": "user",
        "content": "Query: {query}\nDocument: {item}\nDoes the document answer the query? Answer Yes or No.",
    }
]


def of_library(folder: Path, pairs: list[tuple[Query, Item]]) -> np.ndarray:
    """The logits of sentence-transformers, in float32."""
    model = sentence_transformers.CrossEncoder(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    texts = [(query.text, item.text) for query, item in pairs]
    return model.predict(texts, activation_fn=torch.nn.Identity(), show_progress_bar=False, batch_size=16)


def as_plain_pairs(folder: Path, pairs: list[tuple[Query, Item]]) -> np.ndarray:
    """What a one-label decoder gives for plain pairs, as it was opened once: its template left out."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = []
    with torch.no_grad():
        for query, item in pairs:
            inputs = tokenizer(query.text, item.text, return_tensors="pt", truncation="only_second", max_length=64)
            scores.append(float(model(**inputs).logits[0, 0]))
    return np.array(scores)


def chat_template_of(prompt: PairPrompt) -> str:
    """A chat template that makes this prompt of messages with the roles "query" and "document"."""
    texts = {
        name: f'messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first'
        + (" | trim" if name in prompt.trims else "")
        for name, role in (("query", "query"), ("item", "document"))
    }
    first, second = ("item", "query") if prompt.item_first else ("query", "item")
    # JSON's escapes are those of Jinja's strings; a template without them would lose its last line end.
    parts = (prompt.prefix, texts[first], prompt.middle, texts[second], prompt.suffix)
    written = [part if at % 2 else json.dumps(part, ensure_ascii=False) for at, part in enumerate(parts)]
    return "".join(f"{{{{ {part} }}}}" for part in written)


def with_readout(source: Path, folder: Path) -> Path:
    """SmolLM2 as a reranker of sentence-transformers: a template for pairs, and the odds of Yes and No."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    prompt = PairPrompt.of_chat(tokenizer, PROMPT)
    body = sentence_transformers.base.modules.Transformer(str(source), transformer_task="text-generation")
    body.processor.chat_template = chat_template_of(prompt)
    yes, no = (tokenizer.encode(answer, add_special_tokens=False)[0] for answer in ("Yes", "No"))
    score = sentence_transformers.cross_encoder.modules.LogitScore(true_token_id=yes, false_token_id=no)
    sentence_transformers.CrossEncoder(modules=[body, score], device="cpu").save_pretrained(str(folder))
    return folder


def line(name: str, ours: np.ndarray, theirs: np.ndarray, **more: Any) -> None:
    """One row of the table."""
    rest = "".join(f"  {what} {value}" for what, value in more.items())
    print(f"{name:44} {len(ours):5} {np.abs(ours - theirs).max():12.2e} {np.ptp(theirs):9.2f}{rest}", flush=True)


def main() -> None:
    """Print the table."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    # Of the words that the tiny models know.
    words = [word for item in ITEMS for word in item.text.split()]
    rng = np.random.default_rng(0)
    # Nothing is cut: sentence-transformers, which restores a template's end over what is cut, finds that end with
    # digits, which these vocabularies have not got.
    pairs = [
        (QUERIES[n % len(QUERIES)], Item(str(n), " ".join(rng.choice(words, size=1 + n % 36)))) for n in range(200)
    ]
    print(f"{'model':44} pairs  largest |Δ|    spread")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        shapes = {
            "Qwen3, causal, chat template (yes − no)": tiny_decoder(place / "causal", kind="causal"),
            "Qwen3, one label, chat template": tiny_decoder(place / "label"),
            "ModernBERT, pooling, dense, norm, dense": tiny_ettin(place / "ettin"),
        }
        for name, folder in shapes.items():
            theirs = of_library(folder, pairs)
            with adacur.scorer(folder, device="cpu") as scorer:
                line(name, scorer.score(pairs), theirs, opened_as=type(scorer).__name__)
            if name.startswith("Qwen3, one label"):
                line("  the same as plain pairs, as it once was", as_plain_pairs(folder, pairs), theirs)
        if len(sys.argv) > 1:
            folder = with_readout(Path(sys.argv[1]), place / "smollm2")
            texts = [Item(item.id, " ".join(item.text.split()[:20])) for item in wikivital()[: N_ITEMS * 7 : 7]]
            real = [(Query(str(n), question), item) for n, question in enumerate(QUESTIONS) for item in texts]
            started = time.perf_counter()
            theirs = of_library(folder, real)
            of_theirs, started = time.perf_counter() - started, time.perf_counter()
            with adacur.scorer(folder, device="cpu") as scorer:
                line("SmolLM2-135M-Instruct, Yes − No", scorer.score(real), theirs)
                ours = time.perf_counter() - started
                print(f"  with loading: sentence-transformers {of_theirs:.0f} s, ours {ours:.0f} s")
                question = "who discovered penicillin", "Alexander Fleming found penicillin in 1928."
                print(scorer.prompt.render(*question), scorer.readout)


if __name__ == "__main__":
    main()
