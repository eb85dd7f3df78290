"""How often does `adacur try` advise calls that lose against none?

    python lab/benchmarks/try_verdicts.py --scores DIR --data DIR [--calls 4000,8000,20000] [--seeds N] [--json OUT]

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), texts and judgements.
Every trial draws other queries and as many calls as a CPU makes in minutes, from one half of the judged queries; the
truth is nDCG@10 on the other half, which no trial has seen: of the way that is advised, and of the first stages alone,
0 calls. A loss is significant where its paired 95 % interval lies below 0.

--match DIR adds tables to match (left.jsonl.gz, right.jsonl.gz, matches.tsv), judged by their matches: records of the
left table are the queries, the scorer is a function (the cosine of runs of four letters, rare ones counting more), and
BM25 the only first stage. Trials are on matches of the split "train", the truth on those of "test".

The scorer may be spoilt on purpose (--noise S adds normal noise of S standard deviations of its scores, different for
each pair), since whether "use none" is said in time cannot be seen with good scorers alone.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from recall_at_budget import numbers
from rivals import SHARED
from scipy.sparse import csr_array
from try_advice import LookedUp, open_bed, write_folder

from adacur import BM25, Dense, Item, Query
from adacur.data import read_items, read_queries
from adacur.replay import TrialSizes
from adacur.replay.advice import Advice
from adacur.replay.material import read_material
from adacur.replay.measures import bootstrap_interval
from adacur.replay.measuring import Measured, measure, plan_trial
from adacur.replay.searches import Way
from adacur.scorers import MatrixScorer

NAMES = ("scifact", "wikivital", "mondo")
KINDS = ("no", "unproven", "blend", "rerank", "search")


@dataclass(frozen=True)
class Bed:
    """Judged queries with the scores of all items, of which some are tried on and others tell the truth."""

    name: str
    items: Sequence[Item]
    queries: Sequence[Query]
    scores: Any
    qrels: Mapping[str, Mapping[str, int]]
    tried: Sequence[int]
    told: Sequence[int]
    encoder: LookedUp | None = None

    def folder(self, some: Sequence[int], place: Path) -> Path:
        """A collection as a user has it."""
        return write_folder(self, [self.queries[at] for at in some], place / self.name)

    def scorer(self, some: Sequence[int]) -> MatrixScorer:
        return MatrixScorer([self.queries[at] for at in some], self.items, self.scores[list(some)])

    def first(self, items: Sequence[Item]) -> dict[str, Any]:
        stages: dict[str, Any] = {"bm25": BM25.build(items)}
        if self.encoder is not None:
            stages["dense"] = Dense.build(items, encoder=self.encoder, storage="float32")
        return stages


def stored(scores: Path, data: Path, side: str) -> Bed:
    """side="train" knows anchor queries alone, half of them for the truth: rules are chosen there.

    side="test" tries on anchor queries where 60 of them are judged, else on half of the test queries, and has (the
    other half of) the test queries as the truth.
    """
    bed = open_bed(scores, data)
    qrels = bed.qrels or {}
    queries = [*bed.anchor_queries, *bed.test_queries]
    anchors = [at for at in range(len(bed.anchor_queries)) if qrels.get(queries[at].id)]
    tests = [at for at in range(len(bed.anchor_queries), len(queries)) if qrels.get(queries[at].id)]
    tried, told = anchors[::2], anchors[1::2]
    if side == "test":
        tried, told = (anchors, tests) if len(anchors) >= 60 else (tests[::2], tests[1::2])
    known = np.concatenate([bed.anchor_scores, bed.exact_scores])
    return Bed(bed.name, bed.items, queries, known, qrels, tried, told, LookedUp(bed))


def matched(data: Path) -> Bed:
    """Two tables, judged by their matches and scored by a function."""
    queries, items = list(read_queries(data / "left.jsonl.gz")), list(read_items(data / "right.jsonl.gz"))
    rows = [line.split("\t") for line in (data / "matches.tsv").read_text().splitlines()[1:]]
    qrels: dict[str, dict[str, int]] = {}
    for left, right, _ in rows:
        qrels.setdefault(left, {})[right] = 1
    split = {left: of for left, _, of in rows}
    halves = [[at for at, query in enumerate(queries) if split.get(query.id) == of] for of in ("train", "test")]
    places: dict[str, int] = {}
    tables = []
    for records in (items, queries):
        texts = [one.text.lower() for one in records]
        runs = [Counter(text[at : at + 4] for at in range(len(text) - 3)) for text in texts]
        cells = [(row, places.setdefault(run, len(places)), n) for row, of in enumerate(runs) for run, n in of.items()]
        tables.append((len(records), *map(np.array, zip(*cells, strict=True))))
    shape = len(places)
    item_runs, query_runs = (
        csr_array((1 + np.log(n), (row, run)), shape=(size, shape)) for size, row, run, n in tables
    )
    rare = np.log(len(items) / (1 + (item_runs > 0).sum(axis=0)))
    item_runs, query_runs = (one * np.maximum(rare, 0.0) for one in (item_runs, query_runs))
    lengths = [np.sqrt((one * one).sum(axis=1)) + 1e-9 for one in (query_runs, item_runs)]
    scores = (query_runs @ item_runs.T).toarray() / lengths[0][:, None] / lengths[1]
    return Bed(data.name, items, queries, scores.astype(np.float32), qrels, *halves)


def truth(bed: Bed, place: Path) -> Measured:
    """What each way to search does for the queries that no trial sees."""
    material = read_material(bed.folder(bed.told, place), most=len(bed.told))
    n, first = len(material.items), bed.first(list(material.items))
    plan = TrialSizes(
        bed.name, n, n, len(material.queries), len(material.qrels), tuple(first), 10, min(100, n), *[0] * 6
    )
    return measure(material, plan, scorer=bed.scorer(bed.told), first=first, seconds=math.inf)


def spoilt(bed: Bed, noise: float) -> Bed:
    """With noise in its scores, the same in every trial."""
    drawn = np.random.default_rng(0).standard_normal(bed.scores.shape)
    return replace(bed, scores=(bed.scores + noise * np.std(bed.scores) * drawn).astype(np.float32)) if noise else bed


def change(values: Any, against: Any) -> tuple[float, float, float]:
    differences = np.round((values - against)[~np.isnan(values - against)], 9)
    return float(differences.mean()), *bootstrap_interval(differences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--collections", default=",".join(NAMES))
    parser.add_argument("--match", type=Path, nargs="*", default=[])
    parser.add_argument("--side", choices=("train", "test"), default="test")
    parser.add_argument("--calls", type=numbers, default=[4000, 8000, 20000])
    parser.add_argument("--noise", type=float, nargs="*", default=[0.0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    names = [name for name in given.collections.split(",") if name]
    beds = [partial(stored, given.scores / name, given.data / name, given.side) for name in names]
    for make in [*beds, *(partial(matched, folder) for folder in given.match)]:
        plain = make()
        for noise in given.noise:
            some = []
            for row in trials(spoilt(plain, noise), given.calls, given.seeds):
                some.append(row | {"noise": noise})
                if given.json:
                    given.json.write_text(json.dumps([*rows, *some]) + "\n", encoding="utf-8")
            report(some)
            rows += some
    print("\nTogether")
    report(rows)


def trials(bed: Bed, limits: Sequence[int], seeds: int) -> Iterator[dict[str, Any]]:
    """What is said in each trial, and what following it would do to the other queries."""
    with tempfile.TemporaryDirectory() as made:
        whole = truth(bed, Path(made) / "truth")
        tried = bed.folder(bed.tried, Path(made) / "tried")
        alone = {stage: whole.quality(Way("first", stage)) for stage in whole.stages}
        joined = alone[whole.stages[-1]]
        best = max(alone.values(), key=lambda of: float(np.nanmean(of)))
        most = float(np.nanmean(best))
        print(f"\n{bed.name}: {len(bed.tried)} queries to try on, {len(bed.told)} others", flush=True)
        print("  alone:", {stage: round(float(np.nanmean(of)), 3) for stage, of in alone.items()})
        for fuse in (1.0, 0.5, 0.0):
            for n in whole.budgets():
                reached = [float(np.nanmean(whole.quality(Way("rerank", stage, n, fuse)))) for stage in whole.stages]
                most = max(most, *reached)
                by_stage = " / ".join(f"{one:.3f}" for one in reached)
                mean, low, high = change(whole.quality(Way("rerank", whole.stages[-1], n, fuse)), joined)
                print(f"  re-rank {n} fuse {fuse:g}: {by_stage}; joined {mean:+.3f} ({low:+.3f} to {high:+.3f})")
        first = bed.first(list(read_material(tried).items))
        scorer = bed.scorer(bed.tried)
        for calls, seed in product(limits, range(seeds)):
            asked: dict[str, Any] = {"scorer": scorer, "encoder": bed.encoder, "minutes": 1e6, "calls": calls}
            plan, material = plan_trial(read_material(tried, seed=seed), **asked, seed=seed)
            measured = measure(material, plan, scorer=scorer, first=first, seconds=1e9, calls=calls - plan.timed)
            advice = Advice(measured)
            as_advised = whole.quality(advice.way)
            yield {
                "collection": bed.name,
                "calls": calls,
                "seed": seed,
                "queries": [len(measured.queries), len(measured.asked) - len(measured.queries)],
                "choice": advice.choice,
                "way": advice.way._asdict(),
                "told": asdict(advice.gain(advice.way)),
                "gain": change(as_advised, joined),
                "over best alone": change(as_advised, best),
                "to be had": most - float(np.nanmean(as_advised)),
            }


def report(rows: list[dict[str, Any]]) -> None:
    """By limit of calls: what was said, and what following it does to nDCG@10 on queries that no trial has seen."""
    for limit in sorted({row["calls"] for row in rows}):
        some = [row for row in rows if row["calls"] == limit]
        spends = [row for row in some if row["way"]["budget"]]
        none = [row for row in some if not row["way"]["budget"]]
        kinds = Counter(row["choice"] for row in some)
        deep, more = np.mean([row["queries"] for row in some], axis=0)
        said = ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS if kinds[kind])
        lost = [row for row in spends if row["gain"][0] < 0]
        sure = [row for row in spends if row["gain"][2] < 0]
        beaten = [row for row in spends if row["over best alone"][2] < 0]
        right = [row for row in none if row["to be had"] < 0.01]
        print(
            f"  {limit:,} calls, {len(some)} trials of {deep:.0f} + {more:.0f} queries: {said}. Calls advised "
            f"{len(spends)}, lose {len(lost)}, significantly {len(sure)} (against the best single or joined stage "
            f"{len(beaten)}); nDCG@10 as advised {np.mean([row['gain'][0] for row in some]):+.4f}, worst "
            f"{min(row['gain'][0] for row in some):+.3f}; 'none' was right (no gain of .01 to be had by any call) "
            f"{len(right)}/{len(none)}"
        )


if __name__ == "__main__":
    main()
