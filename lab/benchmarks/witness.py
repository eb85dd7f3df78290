"""Is the scorer the truth, or one witness? Judged quality of first stages alone, of the scorer's order, and of both.

    python lab/benchmarks/witness.py --scores DIR --data DIR --judged FILE --qrels FILE --json OUT

DIR of --scores holds exact scores (see score_folders.py), DIR of --data the texts. For 0, 50 and 500 anchor queries,
budgets of 20, 50 and 100 calls, and each first stage, queries are searched once, and what was scored is ordered by
z(exact) + weight × z(first stage), on these scales:

- "best 100": mean and standard deviation of the best 100 of each (what the library does, `adacur.search.finish`);
- "scored": of both over the items that were scored;
- "rarity": the exact score as −log of the share of anchor scores above it, needs anchor queries.

Queries "to choose" are judged anchor queries (--judged), searched as if they were new: without anchor queries or with
50, others than these; with 500 each is left out. Queries "to report" are the test queries. A row has nDCG@10 of
the first stage alone (0 calls), and for each weight in "fuse" the paired difference of the order to it, and to the
scorer's own order: mean and 95 % bootstrap interval. Methods: "rerank", "gaussian" in 5 rounds, and "exact", which
scores everything.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from chosen_start import with_texts
from recall_at_budget import numbers, read_judgements
from score_folders import ScoreFolder, read_score_folder

from adacur import BM25, AnchorIndex, Dense, Gaussian, Query
from adacur.first_stages import as_hits
from adacur.model.scale import ScoreScale
from adacur.replay import bootstrap_interval, judged_quality, replay
from adacur.scorers import MatrixScorer
from adacur.search.finish import LISTED, fused
from adacur_lab.known_vectors import KnownVectors

ALL = 1_000_000
K = 10
FIRSTS = ("bm25+dense", "bm25", "dense")
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
MOST_TO_CHOOSE = 150


@dataclass(frozen=True)
class Searched:
    """What was scored for a query, and the first stage's list."""

    positions: np.ndarray
    exact: np.ndarray
    listed: np.ndarray
    listed_scores: np.ndarray


def best_100(one: Searched, weight: float) -> np.ndarray:
    return fused(one.exact, one.positions, weight=weight, listed=one.listed, listed_scores=one.listed_scores)


def over_scored(one: Searched, weight: float) -> np.ndarray:
    known = dict(zip(one.listed.tolist(), one.listed_scores.tolist(), strict=True))
    lowest = min(known.values(), default=0.0)
    return z(one.exact) + weight * z(np.array([known.get(at, lowest) for at in one.positions.tolist()]))


def by_rarity(scale: ScoreScale) -> Callable[[Searched, float], np.ndarray]:
    def values(one: Searched, weight: float) -> np.ndarray:
        flat = Searched(one.positions, np.zeros(len(one.exact)), one.listed, one.listed_scores)
        return scale.rarity(one.exact) + best_100(flat, weight)

    return values


def best_places(values: np.ndarray) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:K]


def z(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / (values.std() or 1.0)


class Domain:
    """Indexes of a folder by the number of anchor queries; BM25 and vectors are made once."""

    def __init__(self, folder: ScoreFolder) -> None:
        self.folder = folder
        self.ids = [item.id for item in folder.items]
        vectors = np.concatenate([folder.anchor_embeddings, folder.query_embeddings])
        encoder = KnownVectors([*folder.anchors, *folder.test], vectors)
        dense = Dense.from_embeddings(self.ids, folder.item_embeddings, encoder=encoder)
        self.first = {"bm25": BM25.build(folder.items), "dense": dense}
        self.scorer = MatrixScorer(
            queries=[*folder.anchors, *folder.test],
            items=folder.items,
            scores=np.concatenate([folder.anchor_scores, folder.test_scores]),
        )
        self.scores = dict(zip([q.id for q in folder.anchors], folder.anchor_scores, strict=True))
        self.scores |= dict(zip([q.id for q in folder.test], folder.test_scores, strict=True))

    def index(self, n_anchors: int) -> AnchorIndex:
        if not n_anchors:
            return AnchorIndex.from_items(self.folder.items, scorer=self.scorer, first=self.first)
        return AnchorIndex.from_arrays(
            items=self.folder.items,
            anchor_queries=self.folder.anchors[:n_anchors],
            scores=self.folder.anchor_scores[:n_anchors],
            scorer=self.scorer,
            first=self.first,
        )

    def searched(
        self, index: AnchorIndex, queries: Sequence[Query], *, first: str, method: str, budget: int
    ) -> list[Searched]:
        stage = index.first_stage(first)
        lists = stage.search(queries, LISTED)
        if method == "exact":
            every = np.arange(len(self.ids))
            return [Searched(every, self.scores[q.id], *one) for q, one in zip(queries, lists, strict=True)]
        options: dict[str, Any] = {"budget": budget, "first": first, "fuse": 0.0}
        options["method"] = Gaussian(rounds=5) if method == "gaussian" else method
        known = {query.id for query in index.anchor_queries}
        search = replay if queries[0].id in known else AnchorIndex.search
        return [
            Searched(
                np.concatenate([one.positions for one in hits.trace.rounds]),
                np.concatenate([one.exact for one in hits.trace.rounds]),
                *ranking,
            )
            for hits, ranking in zip(search(index, queries, K, **options), lists, strict=True)
        ]


class Judges:
    """nDCG@10 as trec_eval has it: the same as `adacur.replay.judged_quality`, for many orders at once."""

    def __init__(self, queries: Sequence[Query], ids: Sequence[str], qrels: Any) -> None:
        place = {id_: at for at, id_ in enumerate(ids)}
        self.grades = [
            {place[id_]: grade for id_, grade in qrels[query.id].items() if id_ in place and grade > 0}
            for query in queries
        ]
        ideal = [sorted((grade for grade in qrels[query.id].values() if grade > 0), reverse=True) for query in queries]
        self.ideal = np.array([gain(grades) for grades in ideal])

    def __call__(self, best: Sequence[np.ndarray]) -> np.ndarray:
        found = [[grades.get(at, 0) for at in some.tolist()] for grades, some in zip(self.grades, best, strict=True)]
        return np.array([gain(grades) for grades in found]) / self.ideal


def gain(grades: Sequence[int]) -> float:
    return sum(grade / np.log2(rank + 2) for rank, grade in enumerate(grades[:K]))


def paired(differences: np.ndarray) -> list[float]:
    """The mean, and its interval."""
    return [round(value, 4) for value in (float(differences.mean()), *bootstrap_interval(differences))]


def measure(
    domain: Domain, queries: Sequence[Query], qrels: Any, *, kind: str, anchors: Sequence[int], budgets: Sequence[int]
) -> list[dict[str, Any]]:
    rows, judge = [], Judges(queries, domain.ids, qrels)
    for n_anchors in anchors:
        index = domain.index(n_anchors)
        scales: dict[str, Any] = {"best 100": best_100, "scored": over_scored}
        if n_anchors:
            scales["rarity"] = by_rarity(ScoreScale.of(domain.folder.anchor_scores[:n_anchors], rarest=1e-6))
        # One first stage alone is a user's who has no vectors, or no words: without anchor queries, in the report.
        for first in FIRSTS if kind == "to report" and not n_anchors else FIRSTS[:1]:
            lists = index.first_stage(first).search(queries, K)
            alone = judge([positions for positions, _ in lists])
            library = judged_quality(as_hits(queries, lists, domain.ids), qrels, measures=["nDCG@10"])["nDCG@10"]
            assert np.allclose(alone, library)
            cells = [("gaussian", budget) for budget in budgets]
            if not n_anchors:
                cells += [("rerank", budget) for budget in budgets] + [("exact", len(domain.ids))]
            for method, budget in cells:
                searched = domain.searched(index, queries, first=first, method=method, budget=budget)

                def of(weight: float, scale: Any, searched: list[Searched] = searched) -> np.ndarray:
                    return judge([one.positions[best_places(scale(one, weight))] for one in searched])

                own = of(0.0, best_100)
                told = {"domain": domain.folder.domain, "queries": kind, "n": len(queries), "anchors": n_anchors}
                told |= {"first": first, "method": method, "budget": budget, "alone": round(float(alone.mean()), 4)}
                for name, scale in scales.items():
                    orders = {weight: of(weight, scale) for weight in WEIGHTS}
                    row = told | {"scale": name, "fuse": list(WEIGHTS)}
                    row["against alone"] = [paired(values - alone) for values in orders.values()]
                    row["against own"] = [paired(values - own) for values in orders.values()]
                    rows.append(row)
                print(f"{domain.folder.domain} {kind} {n_anchors} {first} {method} {budget}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--judged", help="judgements of anchor queries, to choose by; files, commas between")
    parser.add_argument("--qrels", required=True, help="judgements of test queries; files, commas between")
    parser.add_argument("--anchors", type=numbers, default=[0, 50, 500])
    parser.add_argument("--budgets", type=numbers, default=[20, 50, 100])
    parser.add_argument("--json", type=Path, required=True, help="rows are added to those of other domains")
    given = parser.parse_args()
    folder = with_texts(read_score_folder(given.scores, n_anchors=ALL, n_queries=ALL), given.data)
    domain = Domain(folder)
    rows: list[dict[str, Any]] = []
    options: dict[str, Any] = {"anchors": given.anchors, "budgets": given.budgets}
    for kind, files, queries in (
        ("to choose", given.judged, folder.anchors[::-1]),
        ("to report", given.qrels, folder.test),
    ):
        qrels = read_judgements(files) if files else {}
        judged = [query for query in queries if any(grade > 0 for grade in qrels.get(query.id, {}).values())]
        if kind == "to choose":
            judged = judged[:MOST_TO_CHOOSE]
        if judged:
            rows += measure(domain, judged, qrels, kind=kind, **options)
    others = json.loads(given.json.read_text()) if given.json.exists() else []
    others = [row for row in others if row["domain"] != folder.domain]
    lines = ",\n".join(json.dumps(row) for row in [*others, *rows])
    given.json.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
