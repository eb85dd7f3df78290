"""`effort="auto"` against the whole budget: calls, recall of the scorer's top 10, and judged quality; by replay.

    python lab/benchmarks/effort.py --shared DIR [--domains …] [--budgets 200] [--anchors 200] --json OUT

DIR holds data/ and scores/ (see score_folders.py). Searches start from BM25 and the dual encoder together. The rule is
learned from replayed anchor queries alone, as `adacur tune` learns it with the default settings; test queries (200 a
domain) are for the report.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from chosen_start import index_of, with_texts
from recall_at_budget import numbers, read_judgements
from relevance import QRELS
from score_folders import read_score_folder

from adacur import Hits
from adacur.replay import bootstrap_interval, judged_quality
from adacur.replay.chosen_settings import courses_of, learned_effort, replays
from adacur.replay.searches import Way
from adacur.search.tuned import Tuning, default_settings

K = 10


def recalls(hits: list[Hits], exact: np.ndarray) -> np.ndarray:
    pairs = zip(hits, exact, strict=True)
    return np.array([np.count_nonzero(own.scores >= np.partition(row, -K)[-K]) / K for own, row in pairs])


def measure(shared: Path, domain: str, *, budget: int, n_anchors: int) -> dict[str, Any]:
    data = shared / "data" / domain
    folder = with_texts(read_score_folder(shared / "scores" / domain, n_anchors=500, n_queries=200), data)
    qrels = read_judgements(",".join(str(data / name) for name in QRELS[domain].split(",")))
    index = index_of(folder)
    settings, first = default_settings(K), index.snapshot.default_first
    searches, way = replays(index, k=K, queries=n_anchors), Way(settings, first, budget)
    courses = courses_of(searches.scored(way, to_the_end=True), k=K, budget=budget, least=searches.least(K))
    rule = learned_effort(courses, whole=searches.recalls(way))
    tuning = Tuning(k=K, budget=budget, settings=settings, first=first, n_queries=n_anchors, effort=rule)
    index.snapshot.tunings = (tuning,)
    whole = index.search(folder.test, K, budget=budget)
    auto = index.search(folder.test, K, budget=budget, effort="auto")
    assert rule is not None
    point = rule.point("auto")
    calls = np.array([own.trace.calls for own in auto])
    lost = recalls(auto, folder.test_scores) - recalls(whole, folder.test_scores)
    judged = [judged_quality(hits, qrels, measures=["nDCG@10"])["nDCG@10"] for hits in (whole, auto)]
    there = ~np.isnan(judged[0])
    gained = (judged[1] - judged[0])[there]
    row = {
        "domain": domain,
        "budget": budget,
        "replayed": n_anchors,
        "expected_calls": point.calls,
        "expected_change": point.recall - rule.whole,
        "calls": float(calls.mean()),
        "saved": 1 - float(calls.mean()) / budget,
        "least_calls": int(calls.min()),
        "recall_whole": float(recalls(whole, folder.test_scores).mean()),
        "recall_auto": float(recalls(auto, folder.test_scores).mean()),
        "recall_change": [float(lost.mean()), *bootstrap_interval(lost)],
        "ndcg_whole": float(judged[0][there].mean()),
        "ndcg_auto": float(judged[1][there].mean()),
        "ndcg_change": [float(gained.mean()), *bootstrap_interval(gained)],
        "curve": [[one.calls, one.recall] for one in rule.curve],
    }
    print(json.dumps({name: value for name, value in row.items() if name != "curve"}), flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--domains", default="scifact,wikivital,mondo")
    parser.add_argument("--budgets", type=numbers, default=[200])
    parser.add_argument("--anchors", type=int, default=200)
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    rows = []
    for domain in arguments.domains.split(","):
        for budget in arguments.budgets:
            rows.append(measure(arguments.shared, domain, budget=budget, n_anchors=arguments.anchors))
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
