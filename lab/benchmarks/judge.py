"""A real language model as a judge over HTTP, with faults, beside the same model run here.

    python lab/benchmarks/judge.py SMOLLM2_FOLDER [--queries 10] [--items 50] [--share 0.1]

The folder is a checkpoint of SmolLM2-135M-Instruct for transformers. A server on loopback speaks chat completions with
logprobs; a share of the requests is broken off, cut short or answered 429, 500, 503 or half of a JSON text. Queries
and items are of the wikivital index that ships with adacur, items cut to 100 characters. Local scores are computed from
all logits of the model, over every token that spells the answer; the judge knows the 20 likeliest tokens only.
"""

from __future__ import annotations

import argparse
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import adacur
from adacur import Item

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.judge_servers import MODEL, JudgeServer, LocalModel
from tests.rerank_servers import Trouble

_TOP = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--queries", type=int, default=10)
    parser.add_argument("--items", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.1)
    chosen = parser.parse_args()

    model = AutoModelForCausalLM.from_pretrained(chosen.folder, dtype=torch.float32)
    local = LocalModel(model, AutoTokenizer.from_pretrained(chosen.folder))
    pairs = _pairs(chosen.queries, chosen.items)
    trouble = Trouble(share=chosen.share, delay=None)
    with JudgeServer(local, reply=trouble) as server:
        options = {"kind": "judge", "model": MODEL, "attempts": 10, "timeout": 300, "backoff": 0.02}
        judge = adacur.scorer(f"{server.root}/v1", **options)
        started = time.perf_counter()
        scores = judge.score(pairs)
        seconds = time.perf_counter() - started
        requests = len(server.posts)
    tokens = [local.tokenizer.decode([token]).strip().casefold() for token in range(len(local.tokenizer))]
    spells = [np.flatnonzero([text == answer for text in tokens]) for answer in ("yes", "no")]
    by_rule, whole, shares, unlisted = [], [], [], 0
    for pair in pairs:
        logits = local.logits(judge.render(*pair))
        logprobs = logits - np.logaddexp.reduce(logits)
        listed = np.argsort(-logprobs)[:_TOP]
        known = [np.intersect1d(ids, listed) for ids in spells]
        unlisted += any(not len(ids) for ids in known)
        least = logprobs[listed].min()
        yes, no = (np.logaddexp.reduce(logprobs[ids]) if len(ids) else least for ids in known)
        by_rule.append(yes - no)
        yes, no = (np.logaddexp.reduce(logprobs[ids]) for ids in spells)
        whole.append(yes - no)
        shares.append(np.exp(np.logaddexp(yes, no)))
    print(f"{len(pairs)} pairs, {requests} requests, {seconds:.0f} s; faults: {dict(trouble.seen)}")
    print(f"scores from {scores.min():.2f} to {scores.max():.2f}, standard deviation {scores.std():.2f}")
    print(f"largest difference from the same {_TOP} tokens here: {np.abs(scores - by_rule).max():.2g}")
    print(f"largest difference from the whole vocabulary here: {np.abs(scores - whole).max():.2g}")
    print(f"pairs with an answer that is not listed: {unlisted}; mean share of Yes and No: {np.mean(shares):.3f}")


def _pairs(n_queries: int, n_items: int) -> list[tuple[adacur.Query, Item]]:
    with adacur.load("wikivital") as index:
        queries = list(index.anchor_queries)[:n_queries]
        step = len(index) // n_items
        items = [Item(item.id, item.text[:100]) for item in index.items.at(range(0, step * n_items, step))]
    return list(product(queries, items))


if __name__ == "__main__":
    main()
