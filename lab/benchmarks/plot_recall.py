"""The chart of docs/rivals.md, from stored results only.

    python lab/benchmarks/plot_recall.py lab/benchmarks/results/rivals.json docs/recall.png [--k 10] [--first dense]

One panel per collection: the share of the scorer's top k that is found against scorer calls, with 95 % bootstrap
intervals over the queries. The results hold means, not the values per query that `adacur_lab.report.curves` draws from;
methods look as they do there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from adacur_lab.report.styles import styles

# Method of the results: whose look it has in reports, and its name in the chart.
LINES = {
    "default-500": ("gaussian", "adacur's default, 500 anchor queries"),
    "default-0": ("gaussian", "adacur's default, no anchor queries"),
    "axn": ("axn", "AXN"),
    "rerank": ("rerank", "re-ranking"),
    "adacur": ("adacur", "the paper's ADACUR, 500 anchor queries"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--k", choices=["1", "10", "100"], default="10")
    parser.add_argument("--first", default="bm25+dense", help="the first stage")
    asked = parser.parse_args()
    rows = [row for row in json.loads(asked.results.read_text())["rows"] if row.get("first") == asked.first]
    collections = list(dict.fromkeys(row["collection"] for row in rows))
    budgets = sorted({row["budget"] for row in rows})
    look = styles({label: family for family, label in LINES.values()})
    figure = Figure(figsize=(4.1 * len(collections), 3.9), layout="constrained")
    axes = figure.subplots(1, len(collections), sharey=True, squeeze=False)[0]
    for axis, collection in zip(axes, collections, strict=True):
        for method, (_, label) in LINES.items():
            own = [row for row in rows if (row["collection"], row["method"]) == (collection, method)]
            own.sort(key=lambda row: row["budget"])
            calls = [row["budget"] for row in own]
            mean, low, high = zip(*(row[asked.k] for row in own), strict=True)
            style = look[label]
            drawn = {"color": style.colour, "marker": style.marker, "dashes": style.dashes or (None, None)}
            filling = "white" if style.hollow else style.colour
            axis.plot(calls, mean, ms=5, markerfacecolor=filling, label=label, **drawn)
            axis.fill_between(calls, low, high, color=style.colour, alpha=0.1, lw=0)
        axis.set(title=collection, xscale="log", xlabel="scorer calls per query (B)")
        axis.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"Top-{asked.k}-Recall")
    queries = " / ".join(str(next(row["queries"] for row in rows if row["collection"] == one)) for one in collections)
    figure.suptitle(f"{asked.first} first, 5 rounds, {queries} test queries, 95 % intervals", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(asked.picture, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
