"""All items above a line: what recall costs how many calls, and how often a promise is kept.

    python lab/benchmarks/finding.py record --scores DIR --out FOLDER [--anchors 300] [--calls 1000]
    python lab/benchmarks/finding.py tables --out FOLDER [--json FILE]

`record` searches for the anchor queries of a folder of exact scores, each left out, and for its test queries, once, and
notes after each round what a search for each of six lines knows and has found. Lines are scores that .05 to 10 % of the
pairs of anchor queries and items reach. Searches do not depend on the line, so one serves all.

`tables` calibrates stops as `adacur.replay.certificates` does, on anchor queries, and reports test queries: calls, mean
recall, and the share of queries below the target. Then, of 200 random calibration sets that are drawn from anchor and
test queries together, the share after which the mean recall of the others lies below the promise, and the mean calls of
the others; a set that can promise nothing breaks no promise. The same calibration chooses a fixed number of calls of
the same searches, and a fixed depth of the dense order; scoring everything takes as many calls as there are items.
Without anchor queries a search ends by what its model expects, and promises nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur.records import Query
from adacur.replay.certificates import LIMITS, Courses, is_below
from adacur.replay.searches import KnownScores, leaving_out
from adacur.search.finding import expected_above, finding_rounds
from adacur.search.plan import Plan
from adacur.search.planning import plan_search
from adacur.search.rounds import search
from adacur.search.stopping import Standing

SELECTIVITIES = (0.0005, 0.001, 0.003, 0.01, 0.03, 0.1)
TARGETS = (0.8, 0.9, 0.95)
SPLITS, DOUBT = 200, 0.1
_TOGETHER = 50


@dataclass(frozen=True, slots=True)
class NotingLines:
    """Never ends a search, and notes for each line what the next call is worth and the expected recall."""

    lines: tuple[float, ...]

    def after(self, now: Standing) -> tuple[Any, bool]:
        return np.array([expected_above(now, line) for line in self.lines]), False

    def settings(self) -> Mapping[str, Any]:
        return {}


def lines_of(folder: ScoreFolder) -> tuple[float, ...]:
    """The scores that these shares of the pairs reach."""
    scores = np.asarray(folder.anchor_scores, np.float32)
    return tuple(float(np.quantile(scores, 1 - share)) for share in SELECTIVITIES)


def recorded(plan: Plan, queries: Sequence[Query], scores: np.ndarray, lines: tuple[float, ...]) -> dict[str, Any]:
    """Calls (queries, rounds), and found, worth and expected recall (queries, rounds, lines) of searches to the end."""
    plan = replace(plan, sizes=finding_rounds, stop=NotingLines(lines), finish=())
    rows: dict[str, list[np.ndarray]] = {"calls": [], "found": [], "worth": [], "expected": []}
    for start in range(0, len(queries), _TOGETHER):
        for hits in search(plan, queries[start : start + _TOGETHER], 10):
            rounds = hits.trace.rounds
            found = [[np.count_nonzero(one.exact >= line) for line in lines] for one in rounds]
            blank = np.full((len(lines), 2), np.nan)
            noted = np.array([blank if one.expected_recall is None else one.expected_recall for one in rounds])
            rows["calls"].append(np.cumsum([len(one.exact) for one in rounds]))
            rows["found"].append(np.cumsum(found, axis=0))
            rows["expected"].append(noted[:, :, 0])
            rows["worth"].append(noted[:, :, 1])
    totals = np.array([[np.count_nonzero(row >= line) for line in lines] for row in scores])
    return {name: np.stack(values) for name, values in rows.items()} | {"totals": totals}


def dense_depths(folder: ScoreFolder, vectors: np.ndarray, scores: np.ndarray, lines: Sequence[float]) -> np.ndarray:
    """Of each query and line, the depths of the dense order at which .00 to .99 of the items above it are found."""
    order = np.argsort(-(vectors @ folder.item_embeddings.T), axis=1, kind="stable")
    depths = np.full((len(scores), len(lines), 100), np.nan)
    for row, (ranked, own) in enumerate(zip(order, scores, strict=True)):
        for column, line in enumerate(lines):
            places = np.flatnonzero(own[ranked] >= line) + 1
            if len(places):
                at = np.minimum((np.arange(100) / 100 * len(places)).astype(int), len(places) - 1)
                depths[row, column] = places[at]
    return depths


def record(scores: Path, out: Path, *, anchors: int, calls: int, n_test: int, n_replayed: int) -> None:
    """One file of a folder's searches with so many anchor queries in the index."""
    folder = read_score_folder(scores, n_anchors=500, n_queries=n_test)
    lines = lines_of(folder)
    few = replace(
        folder,
        anchors=folder.anchors[:anchors],
        anchor_scores=folder.anchor_scores[:anchors],
        anchor_embeddings=folder.anchor_embeddings[:anchors],
    )
    started = time.time()
    plan = plan_search(few.index, 10, budget=calls, first="dense", fuse=0)
    kept = {f"test_{name}": values for name, values in recorded(plan, few.test, few.test_scores, lines).items()}
    kept["test_depths"] = dense_depths(few, few.query_embeddings, few.test_scores, lines)
    if anchors:
        known = KnownScores.of(few.index.anchors)
        replaying = replace(leaving_out(plan, known), scorer=known)
        own = few.anchor_scores[:n_replayed]
        replays = recorded(replaying, few.anchors[:n_replayed], own, lines)
        kept |= {f"anchor_{name}": values for name, values in replays.items()}
        kept["anchor_depths"] = dense_depths(few, few.anchor_embeddings[:n_replayed], own, lines)
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out / f"{few.domain}-{anchors}.npz", lines=lines, n_items=len(few.items), **kept)
    print(f"{few.domain}, {anchors} anchor queries: {time.time() - started:.0f} s", flush=True)


def courses_of(kept: Any, who: str, line: int) -> tuple[Courses, np.ndarray]:
    """The courses of the queries with items above a line, and which these are."""
    totals = kept[f"{who}_totals"][:, line]
    some = totals > 0
    worth = kept[f"{who}_worth"][some][:, :, line].astype(float)
    worth[:, -1] = -math.inf
    misses = 1 - kept[f"{who}_found"][some][:, :, line] / totals[some, None]
    calls = kept[f"{who}_calls"][some].astype(float)
    expected = np.nan_to_num(kept[f"{who}_expected"][some][:, :, line].astype(float), nan=1.0)
    return Courses(calls, misses, expected, worth), some


def at_each(courses: Courses) -> tuple[np.ndarray, np.ndarray]:
    """Misses and calls, shape (limits, queries)."""
    both = [courses.at(limit) for limit in LIMITS]
    return np.array([one.misses for one in both]), np.array([one.calls for one in both])


def at_fixed(courses: Courses) -> tuple[np.ndarray, np.ndarray]:
    """Misses and calls of searches that all end after the same round, from the last down: shape (rounds, queries)."""
    return courses.misses.T[::-1], courses.calls.T[::-1]


def dense_at_each(depths: np.ndarray, n_items: int) -> tuple[np.ndarray, np.ndarray]:
    """Misses and calls of fixed depths, from every item down: shape (depths, queries)."""
    tried = np.unique(np.geomspace(5, n_items, 120).round())[::-1]
    found = (depths[None] <= tried[:, None, None]).sum(axis=2) / 100
    return 1 - found, np.repeat(tried[:, None], depths.shape[0], axis=1)


def chosen(misses: np.ndarray, recall: float) -> int | None:
    """The last row, from the safest on, up to which every test passes; None if the first fails."""
    passes = 0
    while passes < len(misses) and is_below(misses[passes], 1 - recall, doubt=DOUBT):
        passes += 1
    return passes - 1 if passes else None


def over_splits(misses: np.ndarray, calls: np.ndarray, recall: float, *, n: int, seed: int = 0) -> dict[str, float]:
    """Of random calibration sets of n queries: the share that promises, that after which the others' mean recall is
    below the promise, and the others' mean calls where it was made."""
    random, below, spent = np.random.default_rng(seed), 0, []
    for _ in range(SPLITS):
        order = random.permutation(misses.shape[1])
        if (row := chosen(misses[:, order[:n]], recall)) is not None:
            spent.append(calls[row, order[n:]].mean())
            below += misses[row, order[n:]].mean() > 1 - recall
    if not spent:
        return {"splits_promised": 0.0}
    return {"splits_promised": len(spent) / SPLITS, "splits_below": below / SPLITS, "splits_calls": np.mean(spent)}


def tables(out: Path) -> list[dict[str, Any]]:
    """A row for each recorded file, line and target."""
    rows = []
    for file in sorted(out.glob("*-*.npz")):
        domain, anchors = file.stem.rsplit("-", 1)
        kept = np.load(file)
        n_items = int(kept["n_items"])
        for line, share in enumerate(SELECTIVITIES):
            test, some = courses_of(kept, "test", line)
            test_misses, test_calls = at_each(test)
            of_test = dense_at_each(kept["test_depths"][some, line], n_items)
            for recall in TARGETS:
                row: dict[str, Any] = {"collection": domain, "anchors": int(anchors), "selectivity": share}
                row |= {"target": recall, "queries": int(some.sum()), "items": n_items}
                row["positives"] = float(np.median(kept["test_totals"][some, line]))
                if int(anchors):
                    own, usable = courses_of(kept, "anchor", line)
                    misses, _ = at_each(own)
                    n = min(200, int(0.6 * (misses.shape[1] + test_misses.shape[1])), misses.shape[1])
                    dense = dense_at_each(kept["anchor_depths"][usable, line], n_items)
                    ways = {"ours": (at_each(own), (test_misses, test_calls))}
                    ways |= {"fixed": (at_fixed(own), at_fixed(test)), "depth": (dense, of_test)}
                    for way, (calibrating, tested) in ways.items():
                        both = [np.hstack(pair) for pair in zip(calibrating, tested, strict=True)]
                        splits = over_splits(*both, recall, n=n)
                        row[way] = (reached(*tested, chosen(calibrating[0], recall), recall) or {}) | splits
                    row["calibrated_on"] = misses.shape[1]
                else:
                    row["ours"] = estimated(test, recall)
                rows.append(row)
    return rows


def reached(misses: np.ndarray, calls: np.ndarray, row: int | None, recall: float) -> dict[str, float] | None:
    """What searches of the test queries come to."""
    if row is None:
        return None
    own = misses[row]
    return {
        "calls": float(calls[row].mean()),
        "recall": float(1 - own.mean()),
        "queries_below": float((1 - own < recall - 1e-9).mean()),
    }


def estimated(courses: Courses, recall: float) -> dict[str, float]:
    """Searches that end once their model expects this recall."""
    ended = courses.expecting(recall)
    own = reached(ended.misses[None], ended.calls[None], 0, recall)
    assert own is not None
    return own


def said(row: dict[str, Any]) -> str:
    """A row of the table."""

    def cell(which: str) -> str:
        one = row.get(which, {})
        if "calls" not in one:
            return "     –      –     –     –      –"
        splits = f"{one['splits_below']:5.2f} {one['splits_calls']:6,.0f}" if "splits_below" in one else " " * 12
        return f"{one['calls']:6,.0f} {one['recall']:6.3f} {one['queries_below']:5.2f} {splits}"

    return (
        f"{row['collection']:10} {row['anchors']:4} {row['selectivity']:7.2%} {row['positives']:6.0f} "
        f"{row['target']:5.2f} | {cell('ours')} | {cell('fixed')} | {cell('depth')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("record", "tables"))
    parser.add_argument("--scores", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--anchors", type=int, default=300)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--replayed", type=int, default=300)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.command == "record":
        if given.scores is None:
            parser.error("record needs --scores")
        sizes = {"anchors": given.anchors, "calls": given.calls, "n_test": given.queries}
        record(given.scores, given.out, **sizes, n_replayed=given.replayed)
        return
    rows = tables(given.out)
    print(
        "collection anch  select  pos.  target | ours: calls recall queries below, splits below, their calls | as many "
        "for every query | dense depth"
    )
    for row in rows:
        print(said(row))
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
