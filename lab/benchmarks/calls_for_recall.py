"""How many calls a question takes for the recall that re-ranking reaches: the README's picture, from stored results.

    python lab/benchmarks/calls_for_recall.py lab/benchmarks/results/rivals.json docs/calls.png [--calls 500]

For each collection, the recall of the scorer's top 10 that re-ranking reaches with so many calls, from both first
stages joined, and the calls with which others reach it: read off between the measured budgets, linear in the logarithm
of the calls. What anchor queries cost beforehand stands left of each bar.

Printed besides: the calls that re-ranking takes for the recall that ours has at 50, 100 and 200 calls, and the
geometric mean of how many times more these are. Re-ranking was measured up to some calls only: what takes more counts
as that many, and the means of such are marked ≥. Results hold means and no single queries, so these have no intervals.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

LINES = {
    "rerank": ("re-ranking", "#8a929c", 0),
    "default-0": ("adacur, no anchors", "#9cc7ee", 0),
    "default-50": ("adacur, 50 anchors", "#4e9be0", 50),
    "default-500": ("adacur, 500 anchors", "#0064b0", 500),
}
OURS = (50, 100, 200)


def calls_for(recall: float, measured: Sequence[tuple[int, float]]) -> float:
    """The calls at which a curve of (calls, recall) reaches a recall; its ends where that lies outside of them."""
    calls, recalls = zip(*sorted(measured), strict=True)
    return float(np.exp(np.interp(recall, np.maximum.accumulate(recalls), np.log(calls))))


def print_calls_of_reranking(curves: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    """What re-ranking takes for the recalls of ours; `curves` are (calls, recall), by collection and method."""
    for name, (label, _, _) in LINES.items():
        for calls in OURS if name != "rerank" else ():
            taken, is_beyond = [], False
            for of_collection in curves.values():
                target, most = dict(of_collection[name])[calls], max(of_collection["rerank"])
                taken.append(calls_for(target, of_collection["rerank"]))
                is_beyond |= target > most[1]
            times = float(np.exp(np.mean(np.log(np.array(taken) / calls))))
            shown = "  ".join(f"{collection} {own:.0f}" for collection, own in zip(curves, taken, strict=True))
            print(f"{label}, {calls} calls: re-ranking takes {shown}; {'≥ ' * is_beyond}{times:.2f} times as many")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--calls", type=int, default=500, help="of re-ranking")
    asked = parser.parse_args()
    stored = [row for row in json.loads(asked.results.read_text())["rows"] if row.get("first") == "bm25+dense"]
    collections = list(dict.fromkeys(row["collection"] for row in stored))
    found = {
        collection: {
            name: [
                (row["budget"], row["10"][0])
                for row in stored
                if (row["collection"], row["method"]) == (collection, name)
            ]
            for name in LINES
        }
        for collection in collections
    }
    figure = Figure(figsize=(10.5, 2.9), layout="constrained")
    for axes, collection in zip(figure.subplots(1, len(collections), sharex=True), collections, strict=True):
        curves = found[collection]
        target = dict(curves["rerank"])[asked.calls]
        n_items = next(row["items"] for row in stored if row["collection"] == collection)
        for place, (name, (label, colour, anchors)) in enumerate(LINES.items()):
            calls = calls_for(target, curves[name])
            times = "" if name == "rerank" else f"  {asked.calls / calls:.1f}× fewer"
            axes.barh(place, calls, color=colour)
            axes.text(calls, place, f" {calls:.0f}{times}", va="center", fontsize=9)
            paid = f"\n+ {anchors * n_items / 1e6:.2g} million once" if anchors else ""
            print(f"{collection:10} {label:20} {calls:6.0f} calls for {target:.3f}{times}")
            left = f"{label}{paid}" if axes is figure.axes[0] else paid.strip()
            axes.text(-8, place, left, ha="right", va="center", fontsize=8)
        axes.set(title=f"{collection}: recall {target:.3f}", xlabel="scorer calls a question")
        axes.set(yticks=[], ylim=(len(LINES) - 0.4, -0.6), xlim=(0, asked.calls * 1.15))
        axes.spines[["top", "right", "left"]].set_visible(False)
    print_calls_of_reranking(found)
    figure.savefig(asked.picture, dpi=150)


if __name__ == "__main__":
    main()
