"""Cross-encoders on the CPU in one run: ours in int8 and float32 ONNX and in torch, against sentence-transformers.

    python -m lab.benchmarks.cpu_scorers [--rounds 5] [--agreement 500]

ms-marco-MiniLM-L-12-v2 on pseudo-queries and real articles. The float models hold the weights of the int8 file. Every
round times all sides on the same pairs in turn, and a ratio is the median of the rounds' ratios: what else the machine
does slows all sides of a round. sentence-transformers has all cores, and per round the better of batches of 8 and 32.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import kendalltau, spearmanr
from sentence_transformers import CrossEncoder
from transformers import AutoModelForSequenceClassification

from adacur.data import fetch, pseudo_queries, wikivital
from adacur.records import Pair
from adacur.scorers import OnnxCrossEncoder, TorchCrossEncoder
from adacur_lab.dequantise import dequantise

MODEL = "ms-marco-MiniLM-L-12-v2"
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
SHORT_CHARACTERS, LONG_CHARACTERS = 160, 1130


def export_float32(checkpoint: Path, target: Path) -> None:
    """Write the checkpoint as float32 ONNX, with its tokenizer."""

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForSequenceClassification.from_pretrained(
                checkpoint, dtype=torch.float32, attn_implementation="eager"
            ).eval()

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            logits: torch.Tensor = self.model(**dict(zip(INPUTS, inputs, strict=True))).logits
            return logits

    target.mkdir()
    sample = torch.ones((2, 7), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits(),
            (sample,) * len(INPUTS),
            str(target / "model.onnx"),
            input_names=list(INPUTS),
            output_names=["logits"],
            dynamic_axes={name: {0: "pairs", 1: "tokens"} for name in INPUTS} | {"logits": {0: "pairs"}},
            opset_version=17,
            # The newer exporter needs onnxscript.
            dynamo=False,
        )
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json"):
        shutil.copy(checkpoint / name, target)


def real_pairs(n: int, *, characters: int) -> list[Pair]:
    """Pseudo-queries with the openings of articles that have so many characters, cut at a word."""
    articles = wikivital()
    long_enough = [item for item in articles if len(item.text) >= characters]
    queries = pseudo_queries(articles, 16)
    chosen = [long_enough[at] for at in np.random.default_rng(0).permutation(len(long_enough))]
    return [
        (
            queries[at % len(queries)],
            type(item)(f"{item.id}-{at}", item.text[:characters].rsplit(" ", 1)[0]),
        )
        for at, item in zip(range(n), (chosen * (1 + n // len(chosen)))[:n], strict=True)
    ]


def seconds(score: Callable[[list[Pair]], Any], pairs: list[Pair]) -> float:
    started = time.perf_counter()
    score(pairs)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", type=int, default=128, help="short pairs per side and round")
    parser.add_argument("--long", type=int, default=32, help="long pairs per side and round")
    parser.add_argument("--agreement", type=int, default=500, help="pairs whose int8 and float32 ranks are compared")
    arguments = parser.parse_args()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint, exported = Path(scratch) / "torch", Path(scratch) / "onnx"
        dequantise(fetch(MODEL), checkpoint)
        export_float32(checkpoint, exported)
        int8, float32 = OnnxCrossEncoder(fetch(MODEL)), OnnxCrossEncoder(exported)
        ours = TorchCrossEncoder(checkpoint, device="cpu", dtype="float32")
        theirs = CrossEncoder(str(checkpoint), device="cpu", model_kwargs={"dtype": torch.float32})

        def their_scores(pairs: list[Pair], *, batch_size: int) -> np.ndarray:
            texts = [(query.text, item.text) for query, item in pairs]
            return np.asarray(
                theirs.predict(texts, batch_size=batch_size, activation_fn=torch.nn.Identity(), show_progress_bar=False)
            )

        sides: dict[str, Callable[[list[Pair]], Any]] = {
            "sentence-transformers float32, batches of 8": lambda pairs: their_scores(pairs, batch_size=8),
            "sentence-transformers float32, batches of 32": lambda pairs: their_scores(pairs, batch_size=32),
            "OnnxCrossEncoder int8": int8.score,
            "OnnxCrossEncoder float32": float32.score,
            "TorchCrossEncoder float32": ours.score,
        }
        print(f"{MODEL} on {torch.get_num_threads()} cores; {arguments.rounds} rounds, each with every side in turn")
        for word, n, characters in (
            ("short", arguments.short, SHORT_CHARACTERS),
            ("long", arguments.long, LONG_CHARACTERS),
        ):
            pairs = real_pairs(n, characters=characters)
            for score in sides.values():
                score(pairs)
            times: dict[str, list[float]] = {side: [] for side in sides}
            for _ in range(arguments.rounds):
                for side, score in sides.items():
                    times[side].append(seconds(score, pairs))
            best_of_theirs = [min(both) for both in zip(*list(times.values())[:2], strict=True)]
            print(f"\n{n} {word} pairs of {np.mean(int8._tokens.pairs(pairs).lengths):.0f} tokens")
            for side, spent in times.items():
                ratios = sorted(base / own for base, own in zip(best_of_theirs, spent, strict=True))
                print(
                    f"  {side:45s} {n / median(spent):6.1f} pairs/s, {median(ratios):.2f}× sentence-transformers' best "
                    f"({ratios[0]:.2f}-{ratios[-1]:.2f})"
                )

        pairs = real_pairs(arguments.agreement, characters=400)
        small, real = int8.score(pairs), float32.score(pairs)
        print(f"\nint8 against float32, {len(pairs)} pairs: Spearman {spearmanr(small, real).statistic:.4f}, ", end="")
        print(f"Kendall {kendalltau(small, real).statistic:.4f}, largest difference {np.abs(small - real).max():.2f}")
        best = [set(np.argsort(-scores, kind="stable")[:10].tolist()) for scores in (small, real)]
        print(f"  {len(best[0] & best[1])} of the ten best pairs are the same")
        some = pairs[:64]
        apart = np.abs(float32.score(some) - their_scores(some, batch_size=32)).max()
        print(f"float32 ONNX against sentence-transformers: largest difference {apart:.1e}")


if __name__ == "__main__":
    main()
