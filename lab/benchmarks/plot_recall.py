"""The README's chart, from stored results only.

    python lab/benchmarks/plot_recall.py lab/benchmarks/results/recall_at_budget.json docs/recall.png [--k 10]

One panel per domain: Top-k-Recall against scorer calls, with 95 % bootstrap intervals over the queries. The results
hold means, not the values per query that `adacur_lab.report.curves` draws from; methods look as they do there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from adacur_lab.report.styles import styles

LABELS = {
    "gaussian": "adacur's default (Gaussian), dense first",
    "axn": "AXN, dense first, no anchors",
    "rerank": "re-rank dense's best",
    "adacur": "the paper's ADACUR, dense first",
    "anncur": "the paper's ANNCUR, random anchor items",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--anchors", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    asked = {name: getattr(arguments, name) for name in ("k", "anchors", "rounds")}
    rows = [row for row in json.loads(arguments.results.read_text()) if asked.items() <= row.items()]
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    budgets = sorted({row["budget"] for row in rows})
    look = styles({method: method for method in LABELS})
    figure = Figure(figsize=(4.1 * len(domains), 3.9), layout="constrained")
    axes = figure.subplots(1, len(domains), sharey=True, squeeze=False)[0]
    for axis, domain in zip(axes, domains, strict=True):
        for method, label in LABELS.items():
            own = [row for row in rows if row["domain"] == domain and row["method"] == method]
            x, mean, low, high = ([row[name] for row in own] for name in ("budget", "recall", "low", "high"))
            axis.plot(x, mean, marker=look[method].marker, ms=5, color=look[method].colour, label=label)
            axis.fill_between(x, low, high, color=look[method].colour, alpha=0.1, lw=0)
        axis.set(title=domain, xscale="log", xlabel="scorer calls per query (B)", ylim=(0, 1.02))
        axis.set_xticks(budgets, [str(budget) for budget in budgets], minor=False)
        axis.minorticks_off()
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel(f"Top-{arguments.k}-Recall")
    queries = sorted({row["queries"] for row in rows})
    figure.suptitle(
        f"{arguments.anchors} anchor queries, {arguments.rounds} rounds, "
        f"{' or '.join(map(str, queries))} test queries, 95 % intervals",
        fontsize=10,
    )
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(arguments.picture, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
