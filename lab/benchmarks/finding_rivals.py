"""What others do to find all items above a line for one query: BARGAIN by its own code, and an importance sample.

    pip install bargain==0.1.3      # in an environment of its own: it brings openai, pandas and more
    python lab/benchmarks/finding_rivals.py --scores DIR [--queries 40] [--target 0.9] [--json FILE]

Only numpy and BARGAIN are imported. The proxy of both is the dense score of a query and an item, the oracle says
whether the item lies above the line; both promise the recall for each query, with a chance of .9. Lines are those of
finding.py.

- BARGAIN_R with 400 labels, as DocETL calls it: uniform samples, then all items above a threshold;
- an importance sample as LOTUS draws it (SUPG): a tenth of the items with chances in proportion to the root of the
  proxy, mixed with a tenth of uniform ones; then all items above a threshold, with its normal bounds.

Neither scores what it returns. `calls` counts the labels and all returned items, as all hits of `find` are scored.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SELECTIVITIES = (0.0005, 0.001, 0.003, 0.01, 0.03, 0.1)
LABELS, SAMPLED, IMPORTANCE, DOUBT = 400, 0.1, 0.9, 0.1


def bargain(proxy: np.ndarray, truth: np.ndarray, target: float, seed: int) -> tuple[set[int], set[int]]:
    """The items that BARGAIN returns, and those that it has labelled."""
    from BARGAIN import BARGAIN_R, Oracle, Proxy

    class Dense(Proxy):
        def reset(self) -> None:
            self.preds_dict = {at: (1, float(score)) for at, score in enumerate(proxy)}

    class Truth(Oracle):
        def oracle_func(self, input: str, proxy_output: Any) -> tuple[bool, Any]:  # noqa: A002
            return True, bool(truth[int(input)])

    oracle = Truth(verbose=False)
    run = BARGAIN_R(Dense(verbose=False), oracle, delta=DOUBT, target=target, budget=LABELS, seed=seed)
    found = run.process([str(at) for at in range(len(proxy))])
    return set(map(int, found)), set(map(int, oracle.preds_dict))


def importance(proxy: np.ndarray, truth: np.ndarray, target: float, seed: int) -> tuple[set[int], set[int]]:
    """The items above the threshold that a sample chooses, and the sample."""
    random, n = np.random.default_rng(seed), len(proxy)
    weights = np.sqrt(proxy)
    weights = IMPORTANCE * weights / weights.sum() + (1 - IMPORTANCE) / n
    drawn = random.choice(n, size=max(1, int(SAMPLED * n)), p=weights)
    order = drawn[np.argsort(-proxy[drawn], kind="stable")]
    positive = truth[order] / (weights[order] * n)
    if not positive.any():
        return set(range(n)), set(drawn.tolist())

    def bound(values: np.ndarray, sign: int) -> float:
        reach = values.std() / math.sqrt(len(values)) * math.sqrt(2 * math.log(2 / DOUBT))
        return float(values.mean() + sign * reach)

    def threshold_at(recall: float) -> int:
        reached = np.cumsum(positive) / positive.sum()
        return int(np.argmax(reached >= min(recall, 1.0) - 1e-12))

    at = threshold_at(target)
    inside = np.where(np.arange(len(order)) <= at, positive, 0.0)
    above, below = bound(inside, 1), max(0.0, bound(positive - inside, -1))
    at = threshold_at(above / (above + below)) if above + below > 0 else len(order) - 1
    return set(np.flatnonzero(proxy >= proxy[order[at]]).tolist()), set(drawn.tolist())


RIVALS: dict[str, Callable[..., tuple[set[int], set[int]]]] = {"bargain": bargain, "importance": importance}


def measured(folder: Path, *, n_queries: int, target: float) -> list[dict[str, Any]]:
    """A row for each line and rival."""
    meta = json.loads((folder / "meta.json").read_text())
    scale, offset = 2048.0, 16.0
    assert meta["decode"] == "logit = value / 2048 - 16", meta["decode"]
    file = np.load(folder / "scores.npz")
    scores = file[file.files[0]]
    n_anchors = int(meta["n_anchor_queries"])
    lines = np.quantile(scores[:n_anchors] / np.float32(scale) - np.float32(offset), [1 - one for one in SELECTIVITIES])
    test = slice(n_anchors, n_anchors + n_queries)
    exact = scores[test].astype(np.float64) / scale - offset
    dense = np.load(folder / "dense_queries.npy")[test].astype(np.float32) @ np.load(
        folder / "dense_items.npy"
    ).T.astype(np.float32)
    rows = []
    for share, line in zip(SELECTIVITIES, lines.tolist(), strict=True):
        for name, run in RIVALS.items():
            calls, recalls, everything = [], [], 0
            for at, (own, proxy) in enumerate(zip(exact, dense, strict=True)):
                truth = own >= line
                if not truth.any():
                    continue
                chances = (proxy - proxy.min()) / (proxy.max() - proxy.min())
                found, labelled = run(chances, truth, target, seed=at)
                calls.append(len(found | labelled))
                everything += calls[-1] > 0.99 * len(proxy)
                got = found | {one for one in labelled if truth[one]}
                recalls.append(sum(bool(truth[one]) for one in got) / truth.sum())
            row = {"collection": folder.name, "selectivity": share, "target": target, "rival": name}
            row |= {"queries": len(calls), "items": scores.shape[1], "calls": float(np.mean(calls))}
            row |= {"recall": float(np.mean(recalls)), "below": float(np.mean(np.array(recalls) < target - 1e-9))}
            rows.append(row | {"everything": everything / len(calls)})
            print(
                f"{folder.name:10} {share:7.2%} {name:10} {row['calls']:7,.0f} calls  recall {row['recall']:.3f}  "
                f"queries below {row['below']:.2f}  all returned {rows[-1]['everything']:.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, action="append", required=True)
    parser.add_argument("--queries", type=int, default=40)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = [row for one in given.scores for row in measured(one, n_queries=given.queries, target=given.target)]
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
