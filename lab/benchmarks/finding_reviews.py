"""Screening for a systematic review: one question, a person's yes or no for each record, and no anchor queries.

    python lab/benchmarks/finding_reviews.py --reviews DIR --encoder FOLDER [--json FILE]

Of each review, the calls until 95 % of the included records are found: by `find` that never stops, in the order of
BM25, of the encoder, of both joined, and at random (the expected number). Then `find(recall=0.95)`
that stops by itself, with audits of none, a tenth and a third of the records: what it spent, found and certified. The
scorer looks a record up in labels.tsv and says 1 or 0, so the line is at .5.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import adacur
from adacur import AnchorIndex, Item, Query
from adacur.scorers import MatrixScorer
from adacur.search.finding import finding_rounds, plan_find
from adacur.search.rounds import search

RECALL = 0.95


def read_review(folder: Path) -> tuple[Query, list[Item], np.ndarray]:
    """The question, the records, and who was included."""
    with (folder / "labels.tsv").open() as file:
        rows = csv.DictReader(file, delimiter="\t")
        included = {row["id"]: int(row["included"]) for row in rows}
    items = []
    with gzip.open(folder / "corpus.jsonl.gz", "rt") as file:
        for line in file:
            one = json.loads(line)
            text = " ".join(part for part in (one.get("title"), one.get("text")) if part)
            items.append(Item(one["_id"], text or "no text"))
    labels = np.array([included.get(item.id, 0) for item in items])
    return Query("review", (folder / "question.txt").read_text().strip()), items, labels


def until(order: np.ndarray, labels: np.ndarray) -> int:
    """How many records have to be read in this order for 95 % of the included ones."""
    needed = math.ceil(RECALL * labels.sum() - 1e-9)
    return int(np.flatnonzero(np.cumsum(labels[order]) >= needed)[0]) + 1


def measured(folder: Path, encoder: Any) -> dict[str, Any]:
    """What one review costs."""
    query, items, labels = read_review(folder)
    scorer = MatrixScorer(queries=[query], items=items, scores=labels[None, :].astype(float))
    index = AnchorIndex.from_items(items, scorer=scorer, first=["bm25", "dense"], encoder=encoder, progress=False)
    n, row = len(items), {"review": folder.name, "records": len(items), "included": int(labels.sum())}
    plan = plan_find(index, above=0.5, recall=0.9, budget=n - 1)
    (hits,) = search(replace(plan, stop=None, sizes=finding_rounds), [query], 10)
    row["find"] = until(np.concatenate([one.positions for one in hits.trace.rounds]), labels)
    for first in ("bm25", "dense", "bm25+dense"):
        ranked = index.first_stage(first).search([query], n)[0].positions
        rest = np.setdiff1d(np.arange(n), ranked)
        row[first] = until(np.concatenate([ranked, rest]), labels)
    needed = math.ceil(RECALL * labels.sum() - 1e-9)
    # The expected place of the m-th of r positives in a random order of n.
    row["random"] = round(needed * (n + 1) / (int(labels.sum()) + 1))
    row["finds"] = []
    for audit in (0, n // 10, n // 3):
        hits = index.find(query, above=0.5, recall=RECALL, budget=n - 1, audit=audit)
        certificate = hits.certificate
        assert certificate is not None
        found = {"audit": audit, "calls": hits.trace.calls, "recall": len(hits) / int(labels.sum())}
        found |= {"basis": certificate.basis, "certified": certificate.recall, "says": str(certificate)}
        row["finds"].append(found)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, required=True)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    encoder, rows = adacur.encoder(given.encoder), []
    print(f"{'review':16} records  in | calls to 95 %: find  bm25 dense  both random | find(recall=.95)")
    for folder in sorted(path for path in given.reviews.iterdir() if path.is_dir()):
        row = measured(folder, encoder)
        rows.append(row)
        finds = "; ".join(
            f"audit {one['audit']}: {one['calls']} calls, recall {one['recall']:.2f}, {one['basis']} "
            f"{one['certified']:.2f}"
            for one in row["finds"]
        )
        print(
            f"{row['review']:16} {row['records']:7,} {row['included']:3} | {row['find']:19,} {row['bm25']:5,} "
            f"{row['dense']:5,} {row['bm25+dense']:5,} {row['random']:6,} | {finds}",
            flush=True,
        )
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
