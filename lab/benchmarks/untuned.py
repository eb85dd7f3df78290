"""The default where nothing was tuned: small cells, and constants chosen with one collection left out.

    python lab/benchmarks/untuned.py small --scores DIR --scores DIR …          # few items, anchor queries and calls
    python lab/benchmarks/untuned.py left-out --scores DIR --scores DIR …       # are the constants those of the others?

Folders hold exact scores (see score_folders.py). "small" cuts each collection to 150, 500 and 1,500 items and searches
with 5 to 50 anchor queries and 10 to 50 calls, dense first: top-10-recall above re-ranking's at equal calls, the cells
significantly below (95 % interval, query by query), and the means by anchor queries and calls. "left-out" moves one
constant of the default at a time; for each collection it takes what is best on held-out anchor queries of the others,
and reports the mean of 1 − recall on its test queries beside the default's.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

import adacur.model.constants as constants
import adacur.model.features as features
import adacur.model.gaussian_model as model
import adacur.model.rank_slopes as slopes
import adacur.model.scale as scale
from adacur.replay import top_k_recall

N_ITEMS = (150, 500, 1500)
N_ANCHORS = (5, 12, 25, 50)
CALLS = (10, 15, 30, 50)
BUDGETS = (50, 100, 200, 500)
KS = (1, 10, 100)
# name: the modules that hold it, the constant, and factors to try
CONSTANTS: dict[str, tuple[tuple[Any, ...], str, tuple[float, ...]]] = {
    "noise of regressions": ((features, slopes), "NOISE", (0.5, 2.0)),
    "query scale": ((constants, features, model), "QUERY_SCALE", (0.5, 2.0)),
    "slope": ((slopes,), "SLOPE", (0.5, 2.0)),
    "deviation of slopes": ((slopes,), "SLOPE_DEVIATION", (0.5, 2.0)),
    "deviation of first scores": ((scale,), "FIRST_DEVIATION", (0.5, 2.0)),
    "queries assumed": ((constants, slopes), "ASSUMED_QUERIES", (1 / 3, 3.0)),
}


def cut(folder: ScoreFolder, n_items: int, n_anchors: int, *, seed: int = 1) -> ScoreFolder:
    """A collection with some of its items and anchor queries, drawn at random."""
    draws = np.random.default_rng(seed)
    items = np.sort(draws.permutation(len(folder.items))[:n_items])
    anchors = np.sort(draws.permutation(len(folder.anchors))[:n_anchors])
    return replace(
        folder,
        items=[folder.items[at] for at in items],
        anchors=[folder.anchors[at] for at in anchors],
        anchor_scores=folder.anchor_scores[np.ix_(anchors, items)],
        test_scores=folder.test_scores[:, items],
        dense_scores=folder.dense_scores[:, items],
        item_embeddings=folder.item_embeddings[items],
        anchor_embeddings=folder.anchor_embeddings[anchors],
    )


def small(folders: Sequence[ScoreFolder]) -> None:
    """Every small cell beside re-ranking."""
    gains: dict[tuple[str, int, int, int], np.ndarray] = {}
    for folder, n_items, n_anchors in itertools.product(folders, N_ITEMS, N_ANCHORS):
        few = cut(folder, n_items, n_anchors)
        for calls in CALLS:
            ours, theirs = (
                top_k_recall(few.index.search(few.test, 10, budget=calls, method=method), few.test_scores, k=10)
                for method in ("gaussian", "rerank")
            )
            gains[folder.domain, n_items, n_anchors, calls] = ours - theirs

    def mean(**fixed: Any) -> float:
        names = ("domain", "items", "anchors", "calls")
        chosen = [
            values.mean()
            for cell, values in gains.items()
            if all(dict(zip(names, cell, strict=True))[name] == value for name, value in fixed.items())
        ]
        return float(np.mean(chosen))

    n_queries = len(folders[0].test)
    print(f"top-10-recall above re-ranking's; {len(gains)} cells of {n_queries} queries, dense first")
    print("| anchors | " + " | ".join(f"{calls} calls" for calls in CALLS) + " | all |")
    print("|" + "---|" * (len(CALLS) + 2))
    for n_anchors in N_ANCHORS:
        own = [mean(anchors=n_anchors, calls=calls) for calls in CALLS] + [mean(anchors=n_anchors)]
        print(f"| {n_anchors} | " + " | ".join(f"{value:+.3f}" for value in own) + " |")
    print(
        "| all | " + " | ".join(f"{value:+.3f}" for value in [*(mean(calls=calls) for calls in CALLS), mean()]) + " |"
    )
    for n_items in N_ITEMS:
        print(f"{n_items:5} items: {mean(items=n_items):+.3f}")
    for folder in folders:
        print(f"{folder.domain:>10}: {mean(domain=folder.domain):+.3f}")
    errors = {cell: values.std(ddof=1) / len(values) ** 0.5 for cell, values in gains.items()}
    below = [cell for cell, values in gains.items() if values.mean() + 1.96 * errors[cell] < 0]
    print(f"significantly below re-ranking in {len(below)} cells, where chance gives some {0.025 * len(gains):.0f}:")
    for cell in sorted(below, key=lambda one: gains[one].mean()):
        domain, n_items, n_anchors, calls = cell
        what = f"{domain}, {n_items} items, {n_anchors} anchor queries, {calls} calls"
        print(f"  {gains[cell].mean():+.3f} ± {1.96 * errors[cell]:.3f}  {what}")


def missed(folder: ScoreFolder) -> float:
    """The mean of 1 − recall over budgets and k."""
    index = replace(folder).index
    return float(
        np.mean(
            [
                1 - top_k_recall(index.search(folder.test, min(k, calls), budget=calls), folder.test_scores, k=k).mean()
                for calls, k in itertools.product(BUDGETS, KS)
            ]
        )
    )


@contextmanager
def moved(name: str | None, factor: float) -> Iterator[None]:
    """One constant times a factor."""
    if name is None:
        yield
        return
    modules, constant, _ = CONSTANTS[name]
    before = getattr(modules[0], constant)
    for module in modules:
        setattr(module, constant, before * factor)
    try:
        yield
    finally:
        for module in modules:
            setattr(module, constant, before)


def left_out(places: Sequence[str], constants: Sequence[str], *, n_anchors: int, n_queries: int) -> None:
    """What the other collections would have chosen, on the test queries of each."""
    choices: list[tuple[str | None, float]] = [(None, 1.0)]
    choices += [(name, factor) for name in constants for factor in CONSTANTS[name][2]]
    held_out = [read_score_folder(place, n_anchors=n_anchors, n_queries=n_queries, held_out=True) for place in places]
    table = np.empty((len(choices), len(places)))
    for row, (name, factor) in enumerate(choices):
        with moved(name, factor):
            table[row] = [missed(folder) for folder in held_out]
        shown = "  ".join(f"{folder.domain} {value:.4f}" for folder, value in zip(held_out, table[row], strict=True))
        what = "the default" if name is None else f"{name} × {factor:.3g}"
        print(f"  {what:40} {shown}  mean {table[row].mean():.4f}", flush=True)
    print(f"\nmean of 1 − recall, {n_anchors} anchor queries, {n_queries} test queries, dense first")
    print("| left out | the others choose | with that | the default |")
    print("|---|---|---|---|")
    ours = []
    for column, place in enumerate(places):
        best = int(np.argmin(np.delete(table, column, axis=1).mean(axis=1)))
        name, factor = choices[best]
        folder = read_score_folder(place, n_anchors=n_anchors, n_queries=n_queries)
        default = missed(folder)
        with moved(name, factor):
            chosen = missed(folder)
        ours.append((chosen, default))
        what = "the default" if name is None else f"{name} × {factor:.3g}"
        print(f"| {folder.domain} | {what} | {chosen:.4f} | {default:.4f} |", flush=True)
    chosen, default = np.mean(ours, axis=0)
    print(f"| mean | | {chosen:.4f} | {default:.4f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("small", "left-out"):
        command = commands.add_parser(name)
        command.add_argument("--scores", action="append", required=True, help="a folder of exact scores; repeat it")
        command.add_argument("--queries", type=int, default=100, help="the first N test queries")
    commands.choices["left-out"].add_argument("--anchors", type=int, default=500, help="the first N anchor queries")
    commands.choices["small"].add_argument("--held-out", action="store_true", help="anchor queries, not test queries")
    commands.choices["left-out"].add_argument(
        "--constants", default=",".join(CONSTANTS), help=f"which to move, of: {', '.join(CONSTANTS)}"
    )
    asked = parser.parse_args()
    if asked.command == "left-out":
        names = asked.constants.split(",")
        if unknown := [name for name in names if name not in CONSTANTS]:
            parser.error(f"unknown constants: {', '.join(unknown)}. Known: {', '.join(CONSTANTS)}")
        left_out(asked.scores, names, n_anchors=asked.anchors, n_queries=asked.queries)
        return
    small(
        [
            read_score_folder(place, n_anchors=400, n_queries=asked.queries, held_out=asked.held_out)
            for place in asked.scores
        ]
    )


if __name__ == "__main__":
    main()
