"""An int8 model one pair at a time against batches: how fast, and how far a pair's score moves with its neighbours.

    python lab/benchmarks/onnx_batching.py [--pairs 192]

Real articles and pseudo-queries, ms-marco-MiniLM-L-12-v2 with dynamic quantisation, all sides in one run: batches of
the graph as it is, and short pairs in runs of a second graph that quantises each pair for itself.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

import numpy as np
import onnxruntime

import adacur
from adacur import Item
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
    short_pairs(every)


def short_pairs(items: list[Item]) -> None:
    """Pairs of a few tokens through the scorer, alone and together, in turns."""
    queries = pseudo_queries(items, 40, seed=3, kinds="titles")
    rng = np.random.default_rng(0)
    print("short pairs, median of the ratios of six turns")
    print("| tokens | pairs a call | alone, pairs/s | together | times | scores that differ |")
    print("|---|---|---|---|---|---|")
    for max_item_tokens in (4, 8, 16, 24):
        apart, together = (adacur.scorer("ms-marco-MiniLM-L-12-v2", max_item_tokens=max_item_tokens) for _ in range(2))
        # As if its second graph were still being made.
        apart._maker = threading.Thread()
        while together._maker is None:
            together.score([(query, item) for item in items[:8] for query in queries])
        together._maker.join()
        if together._together is None:
            raise SystemExit("short pairs cannot share runs on this machine")
        for n_pairs in (20, 50, 128, 512):
            paces, n_different = [], 0
            for _ in range(6):
                pairs = [(queries[rng.integers(len(queries))], items[rng.integers(len(items))]) for _ in range(n_pairs)]
                started = time.perf_counter()
                alone = apart.score(pairs)
                between = time.perf_counter()
                n_different += int(np.count_nonzero(together.score(pairs) != alone))
                paces.append((n_pairs / (between - started), n_pairs / (time.perf_counter() - between)))
            mean = np.mean(together._tokens.pairs(pairs).lengths)
            ratio = np.median([fast / slow for slow, fast in paces])
            slow, fast = np.median(paces, axis=0)
            print(
                f"| {mean:.0f} | {n_pairs} | {slow:.0f} | {fast:.0f} | {ratio:.2f} | {n_different} of {6 * n_pairs} |"
            )


if __name__ == "__main__":
    main()
