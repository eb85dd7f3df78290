"""The default's recall by anchor queries, rounds and first stage, by replay of exact scores.

    python lab/benchmarks/anchors_and_rounds.py --anchors 0,20,50,500 --rounds 5,10 --out build/now.npz
    python lab/benchmarks/anchors_and_rounds.py --held-out 100 --budgets 50,100,200 --anchors 0 --out build/dev.npz
    python lab/benchmarks/anchors_and_rounds.py --compare build/before.npz build/now.npz [--json OUT]

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), and texts. OUT holds
the recall of every query in every cell (collection, first stage, anchors, rounds, budget, k), so that two versions of
the code can be compared query by query; cells that it has are kept unless they are measured again. --held-out N
searches the last N anchor queries in place of the test queries: to choose by. --scores-as changes what the scorer
answers: "sigmoid" of each logit, or "yes-no" (1 above the threshold that one in a hundred items passes, else 0); recall
is then of whatever the scorer likes best, and ties count as found.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rivals import SHARED

from adacur.data import read_items, read_queries
from adacur.replay import top_k_recall
from adacur.search import Gaussian
from adacur_lab.experiments import Testbed
from adacur_lab.rivals import Contest

KS = (1, 10, 100)
NAMES = ("scifact", "wikivital", "mondo")
DRAWS = 2000


def opened(scores: Path, data: Path, *, held_out: int, n_queries: int | None, scores_as: str) -> Contest:
    bed = Testbed.from_score_folder(
        scores,
        items=read_items(data / "corpus.jsonl.gz"),
        queries=read_queries(data / "queries.jsonl.gz"),
        n_queries=n_queries or held_out or None,
        held_out=held_out,
    )
    if scores_as != "logits":
        cut = float(np.quantile(bed.anchor_scores, 0.99))
        kinds = {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "yes-no": lambda x: (x > cut).astype(x.dtype)}
        change = kinds[scores_as]
        bed = replace(bed, anchor_scores=change(bed.anchor_scores), exact_scores=change(bed.exact_scores))
    return Contest(bed, Path("build"))


def recalls(contest: Contest, first: str, n_anchors: int, rounds: int, budget: int) -> dict[int, np.ndarray]:
    """Per k, the recall of each query; settings differ above k = 30, so that two searches serve all k."""
    index = contest.index(n_anchors)
    # For statistics, all queries may be predicted in one product.
    index.snapshot._cache["gaussian_model"] = index.snapshot.gaussian_model().in_one_product()
    queries, exact = list(contest.testbed.test_queries), contest.testbed.exact_scores
    found = {}
    for k in {min(10, budget), min(100, budget)}:
        found[k] = index.search(queries, k, budget=budget, method=Gaussian(rounds=min(rounds, budget)), first=first)
    return {k: top_k_recall(found[min(10 if k <= 10 else 100, budget)], exact, k=k) for k in KS}


def measure(given: argparse.Namespace) -> None:
    out: dict[str, np.ndarray] = dict(np.load(given.out)) if given.out.exists() else {}
    for name in given.collections:
        contest = opened(
            given.scores / name,
            given.data / name,
            held_out=given.held_out,
            n_queries=given.queries,
            scores_as=given.scores_as,
        )
        for first in given.first:
            for n_anchors in given.anchors:
                for rounds in given.rounds:
                    started = time.perf_counter()
                    for budget in given.budgets:
                        for k, values in recalls(contest, first, n_anchors, rounds, budget).items():
                            out["|".join(map(str, (name, first, n_anchors, rounds, budget, k)))] = values
                    cells = [key for key in out if key.startswith(f"{name}|{first}|{n_anchors}|{rounds}|")]
                    missed = 1 - np.mean([out[key].mean() for key in cells])
                    seconds = time.perf_counter() - started
                    print(f"{name:10} {first:10} {n_anchors:4} {rounds:3} {missed:.4f} ({seconds:.0f} s)", flush=True)
        given.out.parent.mkdir(parents=True, exist_ok=True)
        np.savez(given.out, **out)
    for key, (missed, _) in table(out).items():
        print(key, f"{missed:.4f}")


def table(cells: dict[str, np.ndarray], other: dict[str, np.ndarray] | None = None) -> dict[str, tuple[float, Any]]:
    """Per first stage, anchors and rounds: the mean of 1 − recall, and the gain over another run with its interval."""
    groups: dict[str, list[str]] = {}
    for key in cells:
        _, first, n_anchors, rounds, _, _ = key.split("|")
        if other is None or key in other:
            groups.setdefault(f"{first}|{n_anchors}|{rounds}", []).append(key)
    made = {}
    for group, keys in sorted(groups.items()):
        missed, gain = 1 - float(np.mean([cells[key].mean() for key in keys])), None
        if other is not None:
            names = {key.split("|")[0] for key in keys}
            # Queries are drawn; the cells of a query belong together.
            per_query = [
                np.mean([cells[key] - other[key] for key in keys if key.startswith(f"{name}|")], axis=0)
                for name in names
            ]
            error = sum(own.var(ddof=1) / len(own) for own in per_query) ** 0.5 / len(per_query)
            gain = (float(np.mean([own.mean() for own in per_query])), 1.96 * float(error))
        made[group] = missed, gain
    return made


def compare(before: Path, now: Path, out: Path | None) -> None:
    """Each group of cells, then the cells that lost by more than their interval."""
    old, new = dict(np.load(before)), dict(np.load(now))
    rows, worse = [], []
    for group, (missed, gain) in table(new, old).items():
        first, n_anchors, rounds = group.split("|")
        was = missed + gain[0]
        rows.append(
            {"first": first, "anchors": int(n_anchors), "rounds": int(rounds)}
            | {"before": round(was, 4), "now": round(missed, 4), "gain": [round(one, 4) for one in gain]}
        )
        print(f"{first:10} {n_anchors:>4} {rounds:>3} {was:.4f} -> {missed:.4f}  {gain[0]:+.4f} ± {gain[1]:.4f}")
    for key in new.keys() & old.keys():
        apart = new[key] - old[key]
        if apart.mean() + 1.96 * apart.std(ddof=1) / len(apart) ** 0.5 < 0:
            worse.append((float(apart.mean()), key))
    print(f"{len(worse)} of {len(new.keys() & old.keys())} cells lost by more than their interval")
    for mean, key in sorted(worse)[:12]:
        print(f"  {mean:+.3f} {key}")
    if out is not None:
        out.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)

    def words(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--collections", type=words, default=list(NAMES))
    parser.add_argument("--anchors", type=numbers, default=[0, 20, 50, 500])
    parser.add_argument("--rounds", type=numbers, default=[5])
    parser.add_argument("--first", type=words, default=["bm25+dense"])
    parser.add_argument("--budgets", type=numbers, default=[50, 100, 200, 500])
    parser.add_argument("--queries", type=int, help="the first N test queries instead of all")
    parser.add_argument("--held-out", type=int, default=0, help="the last N anchor queries instead of test queries")
    parser.add_argument("--scores-as", choices=("logits", "sigmoid", "yes-no"), default="logits")
    parser.add_argument("--out", type=Path, help="recalls of every query (npz)")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "NOW"))
    parser.add_argument("--json", type=Path, help="the comparison's table")
    given = parser.parse_args()
    if given.compare:
        compare(*given.compare, given.json)
    elif given.out is None:
        parser.error("give --out, or --compare")
    else:
        measure(given)


if __name__ == "__main__":
    main()
