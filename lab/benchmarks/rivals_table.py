"""The tables of lab/benchmarks/rivals.py in Markdown, from its stored results.

    python lab/benchmarks/rivals_table.py lab/benchmarks/results/rivals.json [--write README.md docs/rivals.md]

Prints every table. With --write, each replaces what stands between its marks, `<!-- rivals: NAME -->` and
`<!-- end of rivals: NAME -->`, in the files given; NAME is summary, short, means or cells. The summary reads two more
results: what first stages find alone, which is what re-ranking finds with as many calls as hits are wanted
(`rivals.py --methods rerank --budgets 10 --json lab/benchmarks/results/first_stages_alone.json`), and judged quality
with the scorer as one witness (`witness.json`, by witness.py).
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from adacur_lab.rivals import METHODS

COLLECTIONS = ("scifact", "wikivital", "mondo")
FIRST = {"dense": "dense first", "bm25": "BM25 first", "bm25+dense": "both first"}
BUDGETS = (50, 100, 200, 500)
KS = ("1", "10", "100")
RESULTS = Path(__file__).parent / "results"
SHORT = 100

Rows = dict[tuple[str, str, str, int], dict[str, Any]]


def rows_of(stored: dict[str, Any]) -> Rows:
    return {
        (row["collection"], row["method"], row["first"], row["budget"]): row
        for row in stored["rows"]
        if row["method"] != "exact"
    }


def number(value: float, *, sign: bool = False) -> str:
    text = f"{value:+.3f}" if sign else f"{value:.3f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def across(rows: Rows, method: str, first: str, measure: str) -> str:
    """A measure at 100 calls on the three collections, with slashes between."""
    found = [rows.get((collection, method, first, SHORT)) for collection in COLLECTIONS]
    return " / ".join("–" if row is None else number(row[measure][0]) for row in found)


def summary(stored: dict[str, Any]) -> str:
    """From both first stages joined: what no call finds, re-ranking, the best rival, and the default."""
    rows, alone = rows_of(stored), rows_of(json.loads((RESULTS / "first_stages_alone.json").read_text()))
    witness = json.loads((RESULTS / "witness.json").read_text())
    joined = "bm25+dense"

    def recall(name: str) -> str:
        return " / ".join(number(rows[collection, name, joined, SHORT]["10"][0]) for collection in COLLECTIONS)

    def judged(method: str, anchors: int) -> str:
        wanted = {"queries": "to report", "first": joined, "method": method, "budget": SHORT, "anchors": anchors}
        found = [one for one in witness if wanted.items() <= one.items() and one["scale"] == "best 100"]
        of = {one["domain"]: one["alone"] + one["against alone"][one["fuse"].index(1.0)][0] for one in found}
        return " / ".join(number(of[collection]) for collection in COLLECTIONS)

    def mean(name: str) -> float:
        return sum(rows[collection, name, joined, SHORT]["10"][0] for collection in COLLECTIONS)

    rival = max((name for name in METHODS if name != "rerank" and not name.startswith("default")), key=mean)
    first = " / ".join(number(alone[collection, "rerank", joined, 10]["10"][0]) for collection in COLLECTIONS)
    reported = [one for one in witness if one["queries"] == "to report" and one["first"] == joined]
    unasked = {one["domain"]: one["alone"] for one in reported}
    header = ["", "scorer calls", "recall of the scorer's top 10", "nDCG@10, scorer as one witness"]
    body = [
        ["the first stages alone", "0", first, " / ".join(number(unasked[collection]) for collection in COLLECTIONS)],
        ["re-ranking", str(SHORT), recall("rerank"), judged("rerank", 0)],
        [f"the best rival ({METHODS[rival].title})", str(SHORT), recall(rival), "–"],
        ["**adacur**, no anchors", str(SHORT), recall("default-0"), judged("gaussian", 0)],
        ["**adacur**, 500 anchors", f"{SHORT}, and 500 an item once", recall("default-500"), judged("gaussian", 500)],
    ]
    return table(header, body)


def short(stored: dict[str, Any]) -> str:
    """Recall of the top 10 from each start, and nDCG@10 from both first stages joined."""
    rows = rows_of(stored)
    exact = {row["collection"]: number(row["ndcg"][0]) for row in stored["rows"] if row["method"] == "exact"}
    body = [
        [
            f"**{contestant.title}**" if name.startswith("default") else contestant.title,
            contestant.paid,
            *(across(rows, name, first, "10") for first in FIRST),
            across(rows, name, "bm25+dense", "ndcg"),
        ]
        for name, contestant in METHODS.items()
    ]
    judged = " / ".join(exact.get(collection, "–") for collection in COLLECTIONS)
    body.append(["exact search", "nothing; every item is a call", *("1" for _ in FIRST), judged])
    header = ["", "paid beforehand", *(f"recall, {title}" for title in FIRST.values()), "nDCG@10, both first"]
    return table(header, body)


def measured(rows: Rows, first: str) -> list[int]:
    """The budgets at which every method was measured from this start."""
    return [
        budget
        for budget in BUDGETS
        if all((collection, name, first, budget) in rows for collection in COLLECTIONS for name in METHODS)
    ]


def means(stored: dict[str, Any]) -> str:
    """The share of the top k that is missed, over all collections, k and budgets."""
    rows = rows_of(stored)
    budgets = {first: own for first in FIRST if (own := measured(rows, first))}

    def mean(name: str, first: str) -> str:
        cells = [rows[collection, name, first, budget] for collection in COLLECTIONS for budget in budgets[first]]
        return number(sum(1 - row[k][0] for row in cells for k in KS) / (len(cells) * len(KS)))

    body = [
        [contestant.title, contestant.code, contestant.paid, *(mean(name, first) for first in budgets)]
        for name, contestant in METHODS.items()
    ]
    missed = [f"missed at {', '.join(map(str, own))} calls, {FIRST[first]}" for first, own in budgets.items()]
    header = ["", "code", "paid beforehand", *missed]
    return table(header, body)


def cells(stored: dict[str, Any]) -> str:
    """The cells at 100 calls, and their paired differences from re-ranking."""
    rows = rows_of(stored)

    def cell(row: dict[str, Any]) -> str:
        return " / ".join(number(row[k][0]) for k in KS)

    def difference(row: dict[str, Any], measure: str) -> str:
        value, low, high = (number(found, sign=True) for found in row["over"]["rerank"][measure])
        return f"{value} [{low}, {high}]"

    parts = []
    for first, title in FIRST.items():
        if SHORT not in measured(rows, first):
            continue
        found = {name: [rows[collection, name, first, SHORT] for collection in COLLECTIONS] for name in METHODS}
        parts.append(f"### {title}, {SHORT} calls\n\nRecall of the scorer's top 1 / 10 / 100:")
        body = [[METHODS[name].title, *map(cell, own)] for name, own in found.items()]
        parts.append(table(["", *COLLECTIONS], body))
        parts.append("Top-10-recall and nDCG@10, minus re-ranking's:")
        body = [
            [METHODS[name].title, *(difference(row, measure) for measure in ("10", "ndcg") for row in own)]
            for name, own in found.items()
            if name != "rerank"
        ]
        header = [*COLLECTIONS, *(f"nDCG@10, {collection}" for collection in COLLECTIONS)]
        parts.append(table(["", *header], body))
    return "\n\n".join(parts)


TABLES = {"summary": summary, "short": short, "means": means, "cells": cells}


def write(file: Path, stored: dict[str, Any]) -> None:
    """Put each table between its marks; a file without any is an error."""
    text = before = file.read_text()
    marked = False
    for name, make in TABLES.items():
        marks = f"<!-- rivals: {name} -->", f"<!-- end of rivals: {name} -->"
        between = re.compile(f"({re.escape(marks[0])}).*?({re.escape(marks[1])})", re.DOTALL)
        marked |= bool(between.search(text))
        made = make(stored)
        text = between.sub(lambda found, made=made: f"{found[1]}\n\n{made}\n\n{found[2]}", text)
    if not marked:
        raise SystemExit(f"{file} must have a mark such as '<!-- rivals: short -->'; it has none.")
    if text != before:
        file.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the file that lab/benchmarks/rivals.py wrote")
    parser.add_argument("--write", type=Path, nargs="+", default=[], help="files with marks to write between")
    given = parser.parse_args()
    stored = json.loads(given.results.read_text())
    if not any(measured(rows_of(stored), first) for first in FIRST):
        raise SystemExit(
            f"{given.results} must hold a budget that every method was measured at, on {', '.join(COLLECTIONS)} "
            "and from both first stages; it holds none."
        )
    for file in given.write:
        write(file, stored)
    if not given.write:
        print("\n\n".join(make(stored) for make in TABLES.values()))


if __name__ == "__main__":
    main()
