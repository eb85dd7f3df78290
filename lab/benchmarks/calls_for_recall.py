"""How many calls re-ranking needs for the recall that adacur has at 100: the README's picture.

    python lab/benchmarks/calls_for_recall.py lab/benchmarks/results/calls_for_recall.json docs/calls.png [--measure]

With --measure, replays exact scores as rivals.py does and writes the results: all test queries, both first stages
joined, 5 rounds, the scorer's top 10. Both sides then answer the same queries, and re-ranking's recall is known at each
depth of its list, so that nothing is read off between budgets. Intervals are 95 % bootstrap intervals over the queries,
drawn anew in each collection; a geometric mean is of the collections' ratios in the same draw.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rivals import SHARED, open_contest

from adacur.arrays import FloatArray
from adacur.replay import bootstrap_interval, top_k_recall
from adacur.replay.measures import kth_best
from adacur_lab.rivals import METHODS, Contest

COLLECTIONS = ("scifact", "wikivital", "mondo")
ANCHORS = (0, 50, 500)
FIRST, CALLS, K = "bm25+dense", 100, 10
# Up to 1,000 calls, re-ranking's list is the beginning of one list; a longer one joins longer lists of each stage.
LISTS = ((0, 1000), (1000, 2000))
DRAWS = 2000
MEAN = "geometric mean"

OURS, THEIRS = "#0064b0", "#c3c9d1"


def recall_by_depth(contest: Contest) -> FloatArray:
    """Per query and depth from 1, the share of the scorer's top 10 among the first so many of the list."""
    bed = contest.testbed
    least, stage = kth_best(bed.exact_scores, K)[:, None], contest.index(0).first_stage(FIRST)
    parts = []
    for start, depth in LISTS:
        listed = np.stack([positions for positions, _ in stage.search(list(bed.test_queries), depth)])
        found = np.cumsum(np.take_along_axis(bed.exact_scores, listed, axis=1) >= least, axis=1)
        parts.append(np.minimum(found, K)[:, start:] / K)
    return np.asarray(np.maximum.accumulate(np.concatenate(parts, axis=1), axis=1))


def calls_for(recalls: FloatArray, curves: FloatArray) -> FloatArray:
    """Per draw, the least depth whose recall (draws × depths) is at least ours."""
    reached = curves >= recalls[:, None] - 1e-9
    return np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, curves.shape[1]).astype(np.float64)


def interval(value: float, drawn: FloatArray, digits: int) -> list[float]:
    return [round(float(number), digits) for number in (value, *np.quantile(drawn, [0.025, 0.975]))]


def measure(scores: Path, data: Path) -> list[dict[str, Any]]:
    rows, values, drawn = [], {}, {}
    for number, name in enumerate(COLLECTIONS):
        contest = open_contest(scores / name, data / name, cache=Path("build"))
        n = len(contest.testbed.test_queries)
        curve = recall_by_depth(contest)
        draws = np.random.default_rng(number).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n
        for anchors in ANCHORS:
            hits = METHODS[f"default-{anchors}"].search(contest, FIRST, CALLS, K)
            own = top_k_recall(hits, contest.testbed.exact_scores, k=K)
            needed = float(calls_for(own.mean(keepdims=True), curve.mean(axis=0, keepdims=True))[0])
            values[name, anchors], drawn[name, anchors] = needed, calls_for(draws @ own, draws @ curve)
            rows.append(
                {"collection": name, "items": len(contest.ids), "queries": n, "anchors": anchors, "calls": CALLS}
                | {"recall": [round(one, 4) for one in (float(own.mean()), *bootstrap_interval(own))]}
                | {"reranking at as many": round(float(curve[:, CALLS - 1].mean()), 4)}
                | {"reranking needs": interval(needed, drawn[name, anchors], 0)}
            )
            print(json.dumps(rows[-1]), flush=True)
    for anchors in ANCHORS:
        times = np.mean([np.log(values[name, anchors] / CALLS) for name in COLLECTIONS])
        of_draws = np.mean([np.log(drawn[name, anchors] / CALLS) for name in COLLECTIONS], axis=0)
        rows.append({"collection": MEAN, "anchors": anchors, "times": interval(np.exp(times), np.exp(of_draws), 2)})
        print(json.dumps(rows[-1]))
    return rows


def draw(rows: list[dict[str, Any]]) -> Figure:
    """One panel for each number of anchor queries: a bar of calls for each collection, and the mean."""
    figure = Figure(figsize=(11.5, 4.4), layout="constrained", facecolor="white")
    means = {row["anchors"]: row["times"] for row in rows if row["collection"] == MEAN}
    low, high = min(means[one][0] for one in ANCHORS), max(means[one][0] for one in ANCHORS)
    figure.suptitle(
        f"What adacur finds with {CALLS} scorer calls, re-ranking finds with {low:.1f} to {high:.1f} times as many",
        fontsize=16,
        fontweight="bold",
    )
    largest = max(row["reranking needs"][2] for row in rows if row["collection"] != MEAN)
    for axes, anchors in zip(figure.subplots(1, len(ANCHORS), sharex=True, sharey=True), ANCHORS, strict=True):
        own = [row for row in rows if row["anchors"] == anchors and row["collection"] != MEAN]
        for place, row in enumerate(own):
            needed, least, most = row["reranking needs"]
            theirs = axes.barh(place, needed, color=THEIRS, height=0.4)
            ours = axes.barh(place, CALLS, color=OURS, height=0.4)
            axes.plot([least, most], [place, place], color="#4a5058", lw=1.6)
            share = f"{row['recall'][0]:.3f}".removeprefix("0")
            said = f"recall {share}: {needed:.0f} calls [{least:.0f}, {most:.0f}]"
            axes.text(6, place - 0.25, said, va="bottom", fontsize=12.5)
        mean, least, most = means[anchors]
        paid = f"after {anchors} calls an item, once" if anchors else "nothing paid beforehand"
        axes.set_title(f"{anchors or 'no'} anchor queries\n{paid}", fontsize=13)
        axes.set_xlabel(f"geometric mean {mean:.2f}× [{least:.2f}, {most:.2f}]", fontsize=12.5)
        axes.set(ylim=(len(own) - 0.7, -0.65), xlim=(0, largest * 1.03))
        axes.set_xticks(range(0, int(largest) + 1, 250))
        axes.set_yticks(range(len(own)), [f"{row['collection']}\n{row['items']:,} items" for row in own], fontsize=12)
        axes.tick_params(axis="x", labelsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right"]].set_visible(False)
    names = [f"adacur, {CALLS} calls", "re-ranking: calls for the same recall of the scorer's top 10 [95 % interval]"]
    figure.legend([ours, theirs], names, loc="outside lower center", ncols=2, frameon=False, fontsize=12)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--measure", action="store_true", help="replay, and write the results, before drawing")
    parser.add_argument("--scores", type=Path, default=SHARED / "scores", help="a folder of folders of exact scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="a folder of collections of the same names")
    asked = parser.parse_args()
    if asked.measure:
        rows = measure(asked.scores, asked.data)
        asked.results.write_text("[\n" + ",\n".join("  " + json.dumps(row) for row in rows) + "\n]\n")
    draw(json.loads(asked.results.read_text())).savefig(asked.picture, dpi=150)


if __name__ == "__main__":
    main()
