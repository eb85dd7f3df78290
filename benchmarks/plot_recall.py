"""The README's chart, from stored results only.

    python benchmarks/plot_recall.py benchmarks/results/recall.json docs/recall.png [--k 10]

One panel per domain: Top-k-Recall against scorer calls, with 95 % bootstrap intervals over the queries.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

STYLE = {
    "gaussian": ("adacur's default (Gaussian), dense first", "#d1495b", "o"),
    "adacur": ("ADACUR, dense first batch", "#8d6a9f", "P"),
    "adacur_random": ("ADACUR, random first batch", "#edae49", "v"),
    "anncur_dense": ("ANNCUR, dense anchors", "#66a182", "s"),
    "anncur": ("ANNCUR, random anchors", "#9aa5b1", "D"),
    "rerank": ("re-rank dense's best", "#2e4057", "^"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--k", type=int, default=10)
    arguments = parser.parse_args()
    rows = [row for row in json.loads(arguments.results.read_text()) if row["k"] == arguments.k]
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    figure, axes = plt.subplots(1, len(domains), figsize=(4.1 * len(domains), 3.9), sharey=True, layout="constrained")
    for axis, domain in zip(axes, domains, strict=True):
        for method, (label, colour, marker) in STYLE.items():
            own = [row for row in rows if row["domain"] == domain and row["method"] == method]
            budgets = [row["budget"] for row in own]
            axis.plot(budgets, [row["recall"] for row in own], marker=marker, ms=5, color=colour, label=label)
            axis.fill_between(
                budgets, [r["low"] for r in own], [r["high"] for r in own], color=colour, alpha=0.13, lw=0
            )
        axis.set(title=domain, xscale="log", xlabel="scorer calls per query (B)", ylim=(0, 1))
        axis.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"Top-{arguments.k}-Recall")
    about = rows[0]
    figure.suptitle(
        f"{about['anchors']} anchor queries, {about['rounds']} rounds, {about['queries']} test queries, 95 % intervals",
        fontsize=10,
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(arguments.picture, dpi=150)


if __name__ == "__main__":
    main()
