"""Every rival at equal scorer calls a question, by replay of exact scores.

    python lab/benchmarks/rivals.py --scores DIR --data DIR [--methods default-0,default-50,default-500] --json OUT

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), texts and judgements.
All test queries, 5 rounds, dense and BM25 first. Rows of other methods that OUT holds stay as they are, so that one
method can be measured again alone; --missing goes on where a run was interrupted. Differences to re-ranking and AXN
are paired, query by query; intervals are 95 % bootstrap intervals over the queries. `lab/benchmarks/rivals_table.py`
prints the tables.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adacur.data import read_items, read_qrels, read_queries
from adacur.replay import bootstrap_interval, judged_quality, top_k_recall
from adacur.results import Hits
from adacur_lab.experiments import Testbed
from adacur_lab.rivals import METHODS, Contest
from adacur_lab.rivals.contest import FIRST, ROUNDS

KS = (1, 10, 100)
BUDGETS = (50, 100, 200, 500)
BASELINES = ("rerank", "axn")
PACKAGES = ("pyterrier-adaptive", "qdrant-edge-py", "qdrant-relevance-feedback")
SHARED = Path(__file__).resolve().parents[2].parent / "shared"

Values = dict[str, np.ndarray]
Key = tuple[Any, ...]  # collection, method, first stage, budget


def open_contest(scores: Path, data: Path, *, cache: Path, n_queries: int | None = None) -> Contest:
    """One collection with its texts and judgements."""
    qrels: dict[str, dict[str, int]] = {}
    for file in sorted(data.glob("qrels*.tsv")):
        for query, items in read_qrels(file).items():
            qrels.setdefault(query, {}).update(items)
    testbed = Testbed.from_score_folder(
        scores,
        items=read_items(data / "corpus.jsonl.gz"),
        queries=read_queries(data / "queries.jsonl.gz"),
        qrels=qrels,
        n_queries=n_queries,
    )
    return Contest(testbed, cache)


def values_of(contest: Contest, method: str, first: str, budget: int) -> Values:
    """Per query: recall of the scorer's top k, as "1", "10" and "100", and nDCG@10, NaN where nobody judged."""
    contestant, bed = METHODS[method], contest.testbed
    depths = [min(k, budget) for k in KS]
    shared = None if contestant.per_k else contestant.search(contest, first, budget, max(depths))
    hits = {
        k: shared if shared is not None else contestant.search(contest, first, budget, depth)
        for k, depth in zip(KS, depths, strict=True)
    }
    values = {str(k): top_k_recall(found, bed.exact_scores, k=k) for k, found in hits.items()}
    return values | {"ndcg": judged(hits[10], contest)}


def judged(hits: list[Hits], contest: Contest) -> np.ndarray:
    assert contest.testbed.qrels is not None
    return np.asarray(judged_quality(hits, contest.testbed.qrels)["nDCG@10"])


def mean(values: np.ndarray) -> list[float]:
    """The mean and its interval."""
    return [round(float(number), 4) for number in (np.nanmean(values), *bootstrap_interval(values))]


def row_of(values: Values, baselines: dict[str, Values]) -> dict[str, Any]:
    return {name: mean(found) for name, found in values.items()} | {
        "over": {
            baseline: {name: mean(found - other[name]) for name, found in values.items()}
            for baseline, other in baselines.items()
        }
    }


def exact_row(contest: Contest) -> dict[str, Any]:
    """The truth: what the judges think of the scorer's own top 10 of all items."""
    bed = contest.testbed
    best = np.argsort(-bed.exact_scores, axis=1, kind="stable")[:, :10]
    hits = [
        Hits(query, tuple(contest.ids[position] for position in row), exact[row])
        for query, row, exact in zip(bed.test_queries, best, bed.exact_scores, strict=True)
    ]
    return {"ndcg": mean(judged(hits, contest))}


def measure(
    contest: Contest, methods: list[str], firsts: list[str], budgets: list[int], *, known: Collection[Key] = ()
) -> Iterator[list[dict[str, Any]]]:
    """The rows of one first stage and budget after the other, but for those of known cells."""
    bed = contest.testbed
    assert bed.qrels is not None
    about = {
        "collection": bed.name,
        "items": len(bed.items),
        "queries": len(bed.test_queries),
        "judged": sum(query.id in bed.qrels for query in bed.test_queries),
    }
    yield [about | {"method": "exact"} | exact_row(contest)]
    for first in firsts:
        for budget in budgets:
            new = [method for method in methods if (bed.name, method, first, budget) not in known]
            if not new:
                continue
            rows = []
            baselines = {name: values_of(contest, name, first, budget) for name in BASELINES}
            for method in new:
                started = time.perf_counter()
                values = baselines[method] if method in baselines else values_of(contest, method, first, budget)
                others = {name: other for name, other in baselines.items() if name != method}
                rows.append(about | {"first": first, "budget": budget, "method": method} | row_of(values, others))
                shown = "  ".join(f"{name} {rows[-1][name][0]:.3f}" for name in values)
                seconds = time.perf_counter() - started
                print(f"{bed.name:10} {first:6} B={budget:<4} {method:12} {shown}  ({seconds:.0f} s)", flush=True)
            yield rows


def key(row: dict[str, Any]) -> Key:
    return row["collection"], row["method"], row.get("first"), row.get("budget")


def read(file: Path) -> dict[str, Any]:
    """What was stored before."""
    return json.loads(file.read_text()) if file.exists() else {"chosen": {}, "packages": {}, "rows": []}


def save(file: Path, rows: list[dict[str, Any]], chosen: dict[str, Any]) -> None:
    """Put these rows in the place of those of the same cells; one row is one line."""
    stored = read(file)
    merged = {key(row): row for row in [*stored["rows"], *rows]}
    for collection, own in chosen.items():
        stored["chosen"].setdefault(collection, {}).update(own)
    stored["packages"] |= {name: version for name in PACKAGES if (version := installed(name))}
    lines = ",\n".join("  " + json.dumps(row) for row in merged.values())
    about = json.dumps({"rounds": ROUNDS, "chosen": stored["chosen"], "packages": stored["packages"]}, indent=1)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(about.removesuffix("\n}") + ',\n "rows": [\n' + lines + "\n ]\n}\n")


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def words(text: str) -> list[str]:
    return text.split(",")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores", help="a folder of folders of exact scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="a folder of collections of the same names")
    parser.add_argument("--collections", type=words, default=["scifact", "wikivital", "mondo"])
    parser.add_argument("--methods", type=words, default=list(METHODS), help=f"of: {', '.join(METHODS)}")
    parser.add_argument("--first", type=words, default=list(FIRST), help=f"of: {', '.join(FIRST)}")
    parser.add_argument("--budgets", type=words, default=[str(budget) for budget in BUDGETS])
    parser.add_argument("--queries", type=int, help="the first N test queries instead of all")
    parser.add_argument("--cache", type=Path, default=Path("build/rivals"), help="where neighbour graphs are kept")
    parser.add_argument("--json", type=Path, required=True, help="the file of results")
    parser.add_argument("--missing", action="store_true", help="measure only what the file of results lacks")
    given = parser.parse_args()
    if unknown := [name for name in given.methods if name not in METHODS]:
        parser.error(f"unknown methods: {', '.join(unknown)}. Known: {', '.join(METHODS)}")
    if unknown := [name for name in given.first if name not in FIRST]:
        parser.error(f"unknown first stages: {', '.join(unknown)}. Known: {', '.join(FIRST)}")
    missing = [
        path / name for name in given.collections for path in (given.scores, given.data) if not (path / name).is_dir()
    ]
    if missing:
        print(f"Rivals are skipped: there is no folder {missing[0]}. Give --scores and --data.", file=sys.stderr)
        return
    lacking = [name for name in PACKAGES if not installed(name)]
    if lacking and {"gar", "greedy", "qdrant"} & set(given.methods):
        parser.error(f"{', '.join(lacking)} must be installed for gar, greedy and qdrant: pip install -e 'lab[rivals]'")
    given.cache.mkdir(parents=True, exist_ok=True)
    for name in given.collections:
        contest = open_contest(given.scores / name, given.data / name, cache=given.cache, n_queries=given.queries)
        # What is measured is kept at once: a whole run takes an hour or more.
        known = {key(row) for row in read(given.json)["rows"]} if given.missing else ()
        budgets = [int(budget) for budget in given.budgets]
        for rows in measure(contest, given.methods, given.first, budgets, known=known):
            save(given.json, rows, {contest.testbed.name: contest.chosen})


if __name__ == "__main__":
    main()
