"""How fast a cross-encoder runs over a grid on a GPU: ours, sentence-transformers, and the arithmetic's own floor.

    python lab/benchmarks/gpu_scorers.py --model FOLDER --items items.jsonl --queries queries.jsonl […]

Every rival gets the same pairs, item texts cut to the same tokens beforehand. FLOPs are those of the matrix products
that were really computed (ours skips all but the first token in the last layer; padding is never counted); `nominal`
counts the whole model instead. Shares are of an 8192³ bf16 product, timed in a short burst and over some seconds.
Needs torch with CUDA, transformers and sentence-transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gpu_search import padded

from adacur.records import Item, Query
from adacur.scorers import TorchCrossEncoder
from adacur.scorers.cross_encoders import forwards
from adacur.scorers.cross_encoders.pair_tokens import PairTokenizer


def main() -> None:
    arguments = parsed()
    forwards._TOKENS_BEFORE_COMPILING = 0
    burst, sustained = matmul_rate(10), matmul_rate(round(3 * matmul_rate(10) / FLOPS_OF_PRODUCT))
    lines = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}",
        f"bf16 product 8192³: {burst / 1e12:.0f} TFLOP/s in a burst, {sustained / 1e12:.0f} over 3 s",
    ]
    for items_file, queries_file in zip(arguments.items, arguments.queries, strict=True):
        lines += domain(arguments, items_file, queries_file, burst=burst, sustained=sustained)
    lines += out_of_memory(arguments)
    print("\n".join(lines))


def domain(
    arguments: argparse.Namespace, items_file: Path, queries_file: Path, *, burst: float, sustained: float
) -> list[str]:
    scorer = TorchCrossEncoder(arguments.model, batch_tokens=arguments.batch_tokens)
    texts = [" ".join(filter(None, (record.get("title"), record["text"]))) for record in records(items_file)]
    rng = np.random.default_rng(0)
    best, name, kept, kept_batch = 0.0, "", None, 0
    chosen = rng.choice(len(texts), min(arguments.n_items, len(texts)), replace=False)
    items = [Item(str(at), cut(scorer._tokens, texts[at], arguments.max_item_tokens)) for at in chosen]
    asked = records(queries_file)
    chosen = rng.choice(len(asked), min(arguments.n_queries, len(asked)), replace=False)
    queries = [Query(str(at), asked[at]["text"]) for at in chosen]
    lines = ["", f"{items_file.name}: {len(queries)} queries × {len(items)} items"]

    started = time.perf_counter()
    scorer.score_grid(queries[:40], items)
    lines.append(f"  first call: {time.perf_counter() - started:.1f} s")
    seconds = timed(lambda: scorer.score_grid(queries, items), repeats=2)
    tokens, executed, nominal = work(scorer, arguments.model, queries, items)
    pairs = len(queries) * len(items)
    whole = pairs / seconds
    lines += [
        f"  ours, float16, whole grid: {pairs / seconds:,.0f} pairs/s at {tokens / pairs:.0f} tokens, "
        f"{seconds / tokens * 1e9:.0f} ns a token",
        f"    {executed / seconds / 1e12:.0f} TFLOP/s = {executed / seconds / burst:.1%} of the burst, "
        f"{executed / seconds / sustained:.1%} of the sustained product (nominal {nominal / seconds / burst:.1%}); "
        f"floor {executed / burst / tokens * 1e9:.0f} ns a token",
    ]
    part = queries[: len(queries) // 4]
    rate = len(part) * len(items) / through_transformers(arguments, part, items)
    lines.append(f"    padded batches through transformers: {rate:,.0f} pairs/s")

    some_queries, some_items = queries[:80], items[:500]
    for dtype, batch in (("float32", 32), ("float32", 512), ("bfloat16", 32), ("bfloat16", 512)):
        rival = sentence_transformer(arguments.model, dtype)
        few = [(query.text, item.text) for query in some_queries[:8] for item in some_items]
        rival.predict(few[:batch], batch_size=batch, show_progress_bar=False)
        seconds = timed(lambda few=few, rival=rival, batch=batch: predict(rival, few, batch))
        lines.append(f"  sentence-transformers {dtype}, batches of {batch}: {len(few) / seconds:,.0f} pairs/s")
        if len(few) / seconds > best:
            best, name, kept, kept_batch = len(few) / seconds, f"{dtype}/{batch}", rival, batch
    same = [(query.text, item.text) for query in some_queries for item in some_items]
    theirs = len(same) / timed(lambda: predict(kept, same, kept_batch))
    scorer.score_grid(some_queries, some_items)
    ours = len(same) / timed(lambda: scorer.score_grid(some_queries, some_items), repeats=3)
    lines.append(
        f"  same {len(same):,} pairs: ours {ours:,.0f}, sentence-transformers' best ({name}) {theirs:,.0f} pairs/s: "
        f"{ours / theirs:.1f} times; whole grid {whole / theirs:.1f} times"
    )
    lines += agreement(arguments, queries[:50], items[:500])
    return lines


def agreement(arguments: argparse.Namespace, queries: list[Query], items: list[Item]) -> list[str]:
    """Ours against a plain float32 forward of transformers."""
    model = whole_model(arguments.model).float()
    lines = []
    for dtype in ("float16", "bfloat16", "float32"):
        scorer = TorchCrossEncoder(arguments.model, batch_tokens=arguments.batch_tokens, dtype=dtype)
        pairs = scorer._tokens.texts(queries, items).grid()
        expected = np.empty(len(pairs), np.float32)
        with torch.inference_mode():
            for batch in np.array_split(np.argsort(-pairs.lengths), max(1, len(pairs) // 400)):
                names = ("input_ids", "attention_mask", "token_type_ids")
                arrays = zip(names, padded(pairs, batch, pad_id=0), strict=True)
                inputs = {name: torch.from_numpy(array).cuda() for name, array in arrays}
                expected[batch] = model(**inputs).logits[:, 0].cpu().numpy()
        difference = np.abs(scorer.score_grid(queries, items).ravel() - expected)
        lines.append(
            f"  against plain float32, {len(pairs):,} pairs, {dtype}: largest |Δ| {difference.max():.5f}, "
            f"mean {difference.mean():.5f}"
        )
    return lines


def out_of_memory(arguments: argparse.Namespace) -> list[str]:
    """Scores with a hundredth of the device's memory, against those with all of it."""
    texts = [record["text"] for record in records(arguments.items[0])[:2000]]
    items = [Item(str(at), text) for at, text in enumerate(texts)]
    queries = [Query(str(at), record["text"]) for at, record in enumerate(records(arguments.queries[0])[:10])]
    expected = TorchCrossEncoder(arguments.model).score_grid(queries, items)
    counted = _Counted()
    logging.getLogger("adacur").addHandler(counted)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    scorer = TorchCrossEncoder(arguments.model)
    began = scorer._batch_tokens
    scores = scorer.score_grid(queries, items)
    torch.cuda.set_per_process_memory_fraction(1.0)
    return [
        "",
        f"With 1 % of the memory: {counted.warnings} warnings, batches from {began:,} to {scorer._batch_tokens:,} "
        f"tokens, {np.isfinite(scores).sum():,} of {scores.size:,} scores, largest |Δ| "
        f"{np.abs(scores - expected).max():.5f}",
    ]


class _Counted(logging.Handler):
    warnings = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.warnings += record.levelno >= logging.WARNING


FLOPS_OF_PRODUCT = 2 * 8192**3


def matmul_rate(repeats: int) -> float:
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        left @ right
    torch.cuda.synchronize()
    return FLOPS_OF_PRODUCT * repeats / (time.perf_counter() - started)


def timed(run: Callable[[], Any], *, repeats: int = 1) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def through_transformers(arguments: argparse.Namespace, queries: list[Query], items: list[Item]) -> float:
    scorer = TorchCrossEncoder(arguments.model, batch_tokens=arguments.batch_tokens)
    model = whole_model(arguments.model)
    parts = forwards.ModelParts(model, scorer._forward.batches, lambda logits: logits[:, 0], takes_types=True)
    scorer._forward = forwards.PaddedForward(parts)
    scorer.score_grid(queries[:8], items)
    return timed(lambda: scorer.score_grid(queries, items))


def work(scorer: TorchCrossEncoder, model: Path, queries: list[Query], items: list[Item]) -> tuple[float, float, float]:
    """Tokens, FLOPs of the products computed, and FLOPs if every token went through the last layer."""
    config = json.loads((model / "config.json").read_text())
    hidden, wide, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    texts = scorer._tokens.texts(queries, items)
    kept = np.minimum(texts.item_lengths[None, :], texts.space[:, None])
    length = (texts.head_lengths[:, None] + kept + len(texts.template.suffix)).astype(np.float64)
    full = length * (8 * hidden**2 + 4 * hidden * wide) + 4 * length**2 * hidden
    last = length * 4 * hidden**2 + 4 * hidden**2 + 4 * hidden * wide + 4 * length * hidden
    return float(length.sum()), float(((layers - 1) * full + last).sum()), float((layers * full).sum())


def whole_model(folder: Path) -> Any:
    from transformers import AutoModelForSequenceClassification

    return AutoModelForSequenceClassification.from_pretrained(folder).half().cuda().eval()


def sentence_transformer(folder: Path, dtype: str) -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(folder), device="cuda", max_length=512, model_kwargs={"dtype": getattr(torch, dtype)})


def predict(rival: Any, pairs: list[tuple[str, str]], batch: int) -> Any:
    return rival.predict(pairs, batch_size=batch, activation_fn=torch.nn.Identity(), show_progress_bar=False)


def cut(tokens: PairTokenizer, text: str, limit: int) -> str:
    encoding = tokens._tokenizer.encode(text, add_special_tokens=False)
    return text if len(encoding.ids) <= limit else text[: encoding.offsets[limit - 1][1]]


def records(file: Path) -> list[dict[str, Any]]:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in content.decode().split("\n") if line]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=Path, action="append", required=True)
    parser.add_argument("--queries", type=Path, action="append", required=True)
    parser.add_argument("--n-items", type=int, default=1500)
    parser.add_argument("--n-queries", type=int, default=400)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--batch-tokens", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    main()
