"""An int8 model one pair at a time against batches: how fast, and how far a pair's score moves with its neighbours.

    python benchmarks/onnx_batching.py [--pairs 192]

Real articles and pseudo-queries, ms-marco-MiniLM-L-12-v2 with dynamic quantisation, all sides in one run.
"""

from __future__ import annotations

import argparse
import os
import time

import numpy as np
import onnxruntime

import adacur
from adacur.data import fetch, pseudo_queries, wikivital


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=192)
    arguments = parser.parse_args()
    every = wikivital()
    items = every[:: len(every) // arguments.pairs][: arguments.pairs]
    queries = pseudo_queries(every, 8)
    pairs = [(queries[number % len(queries)], item) for number, item in enumerate(items)]
    scorer = adacur.scorer("ms-marco-MiniLM-L-12-v2", max_item_tokens=192)
    tokens = scorer._tokens.pairs(pairs)
    scorer.score(pairs[:8])
    started = time.perf_counter()
    alone = scorer.score(pairs)
    base = len(pairs) / (time.perf_counter() - started)
    print(f"{len(pairs)} pairs of {np.mean(tokens.lengths):.0f} tokens on {os.cpu_count()} cores")
    print(f"  one pair per run (what OnnxCrossEncoder does): {base:6.1f} pairs/s")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        str(fetch("ms-marco-MiniLM-L-12-v2") / "model.onnx"),
        options,
        providers=["CPUExecutionProvider"],
        # As OnnxCrossEncoder does: another graph would move scores too.
        disabled_optimizers=["SkipLayerNormFusion"],
    )
    names = {argument.name for argument in session.get_inputs()}
    order = np.argsort(tokens.lengths, kind="stable")
    for size in (8, 32):
        scores = np.empty(len(pairs), dtype=np.float32)
        started = time.perf_counter()
        for start in range(0, len(pairs), size):
            batch = order[start : start + size]
            inputs = {name: array for name, array in tokens.padded(batch, pad_id=0).items() if name in names}
            scores[batch] = session.run(None, inputs)[0][:, 0]
        pace = len(pairs) / (time.perf_counter() - started)
        moved = np.abs(scores - alone).max()
        print(f"  batches of {size:<2} (sorted by length): {pace:20.1f} pairs/s; scores moved by up to {moved:.2f}")
        print(f"    one pair per run is {base / pace:.2f}× as fast")


if __name__ == "__main__":
    main()
