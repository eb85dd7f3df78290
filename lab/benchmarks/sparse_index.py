"""How much of an index has to be paid for? Recall against index calls, and what past searches add.

    python lab/benchmarks/sparse_index.py --scores DIR [--scores DIR …] [--queries 100] [--held-out] [--keep FILE]

500 anchor queries. "5 %" scores each against a twentieth of the items (nine in ten of them its dense best, the rest at
random) and predicts the others; "none" has no anchor scores. All searches start from the dense first stage and take 5
rounds; the Gaussian adds the first stage's log rank with weight .25 for every k. Then: 50 anchor queries with all their
scores, and the searches of others as further ones. With `--held-out` the last anchor queries take the place of the test
queries, which are not looked at then. ± is the half width of a 95 % interval of the mean over the queries.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from score_folders import ScoreFolder, read_score_folder

from adacur import AdaCUR, AnchorIndex, Query
from adacur.approximation import EmbeddingRegression, GaussianModel, PseudoInverse
from adacur.approximation.acquisition import best_positions
from adacur.approximation.completion import Completion, ScoredItems
from adacur.core.seeds import stream_key, uniform
from adacur.evaluation import top_k_recall
from adacur.first_stages import Matrix
from adacur.scorers import MatrixScorer
from adacur.search.refresh import complete_searches

KS = (1, 10, 100)
ROUNDS = 5
FIRST_WEIGHT = 0.25
FEW_ANCHORS = 50
Recalls = dict[tuple[int, int], np.ndarray]
"""Recall of every query by (budget, k)."""
# Of past searches: how many, and how many calls each.
PAST = ((100, 100), (450, 100), (450, 500))


def completed(folder: ScoreFolder, *, share: float, n_anchors: int, random_share: float = 0.1) -> np.ndarray:
    """Anchor scores of which only a share was looked up, shape (anchors, items)."""
    anchors, n_items = folder.anchors[:n_anchors], len(folder.items)
    index = AnchorIndex.from_items(folder.items)
    per_query = round(share * n_items)
    n_random = max(1, round(random_share * per_query))
    n_best = per_query - n_random
    scored = []
    for row, query in enumerate(anchors):
        near = folder.item_embeddings @ folder.anchor_embeddings[row]
        best = best_positions(near, n_best, keys=index.items.keys)
        draws = uniform(stream_key(0, "sparse", query.id), index.items.keys)
        draws[best] = -np.inf
        positions = np.concatenate([best, best_positions(draws, n_random, keys=index.items.keys)])
        weights = np.ones(per_query)
        weights[n_best:] = (n_items - n_best) / n_random
        scored.append(ScoredItems(positions, folder.anchor_scores[row, positions].astype(np.float64), weights))
    completion = Completion(
        scored, embeddings=folder.item_embeddings, query_vectors=folder.anchor_embeddings[: len(anchors)]
    )
    return np.ascontiguousarray(completion[0:n_items].T)


def recalls(
    folder: ScoreFolder, index: AnchorIndex, *, approximator: Any, budgets: Sequence[int], first_weight: float
) -> Recalls:
    """What is found for the test queries."""
    found = {}
    for calls in budgets:
        hits = AnchorIndex(index, scorer=folder.scorer).search(
            folder.test,
            min(max(KS), calls),
            budget=calls,
            method=AdaCUR(rounds=ROUNDS, approximator=approximator, first_weight=first_weight),
            first=folder.dense,
        )
        found |= {(calls, k): top_k_recall(hits, folder.test_scores, k=k) for k in KS}
    return found


def with_past_searches(folder: ScoreFolder, gaussian: GaussianModel, *, n_past: int, calls: int) -> AnchorIndex:
    """A few anchor queries with all their scores, and searches for the others as further rows."""
    few, past = folder.anchors[:FEW_ANCHORS], folder.anchors[FEW_ANCHORS : FEW_ANCHORS + n_past]
    rows = slice(FEW_ANCHORS, FEW_ANCHORS + len(past))
    scores = folder.anchor_scores[:FEW_ANCHORS]
    index = AnchorIndex.from_arrays(items=folder.items, anchor_queries=few, scores=scores)
    exact = folder.anchor_scores[rows]
    near = folder.anchor_embeddings[rows] @ folder.item_embeddings.T
    hits = AnchorIndex(index, scorer=MatrixScorer(queries=past, items=folder.items, scores=exact)).search(
        past,
        10,
        budget=calls,
        method=AdaCUR(rounds=ROUNDS, approximator=gaussian, first_weight=FIRST_WEIGHT),
        first=Matrix(queries=past, items=folder.items, scores=near),
    )
    positions = [np.concatenate([one.positions for one in own.trace.rounds]) for own in hits]
    told = [np.concatenate([one.exact for one in own.trace.rounds]) for own in hits]
    known = AnchorIndex(index, first={"dense": folder.dense}).snapshot
    predicted, _ = complete_searches(known, past, positions, told)
    return AnchorIndex.from_arrays(
        items=folder.items, anchor_queries=[*few, *past], scores=np.concatenate([scores, predicted])
    )


def shown(values: np.ndarray) -> str:
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f}±{half:.3f}".replace("0.", ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", action="append", required=True)
    parser.add_argument("--budgets", default="50,100,200,500")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--keep", help="a file of what was measured, so that it need not be again")
    arguments = parser.parse_args()
    budgets = [int(part) for part in arguments.budgets.split(",")]
    columns = [(calls, k) for calls in budgets for k in KS]
    kind = "held-out anchor" if arguments.held_out else "test"
    missed: dict[str, dict[str, float]] = {}
    for where in arguments.scores:
        folder = read_score_folder(where, n_anchors=500, n_queries=arguments.queries, held_out=arguments.held_out)
        domain = folder.domain
        sizes = f"{len(folder.items):,} items, {len(folder.anchors)} anchor queries, {len(folder.test)} {kind} queries"
        print(f"{domain}: {sizes}")
        print(f"  {'Top-k-Recall, k/B':34} " + " ".join(f"{f'{k}/{calls}':>10}" for calls, k in columns) + "  mean 1−r")
        measured = {}
        for name, way in ways(folder, budgets).items():
            found = measured[name] = kept(arguments.keep, f"{domain} {kind} {arguments.queries} {budgets} {name}", way)
            mean = float(np.mean([1 - found[column].mean() for column in columns]))
            missed.setdefault(name, {})[domain] = mean
            cells = " ".join(f"{shown(found[column]):>10}" for column in columns)
            print(f"  {name:34} {cells}  {mean:.4f}", flush=True)
        base = measured["all pairs, ADACUR"]
        for name in ("20 %", "5 %", "1 %"):
            gains = [measured[name][column].mean() - base[column].mean() for column in columns]
            above = sum(gain >= 0 for gain in gains)
            cells = f"{above} of {len(columns)} cells, least {min(gains):+.3f}"
            print(f"  {name}: not below ADACUR with all pairs in {cells}")
        print(flush=True)
    print("mean of 1 − recall over B and k")
    for name, by_domain in missed.items():
        cells = "  ".join(f"{domain} {value:.4f}" for domain, value in by_domain.items())
        print(f"  {name:34} {cells}  mean {np.mean(list(by_domain.values())):.4f}")


def kept(file: str | None, key: str, way: Callable[[], Recalls]) -> Recalls:
    """What was measured before, or is now."""
    stored = json.loads(Path(file).read_text()) if file and Path(file).exists() else {}
    if key not in stored:
        found = way()
        # Others may have written meanwhile.
        stored = json.loads(Path(file).read_text()) if file and Path(file).exists() else {}
        stored[key] = [[*column, *values.tolist()] for column, values in found.items()]
        if file:
            Path(file).write_text(json.dumps(stored))
    return {(calls, k): np.array(values) for calls, k, *values in stored[key]}


def ways(folder: ScoreFolder, budgets: Sequence[int]) -> dict[str, Callable[[], Recalls]]:
    """The ways of indexing, and how to measure each."""
    n_anchors = len(folder.anchors)
    n_past = n_anchors - FEW_ANCHORS

    def index_of(scores: np.ndarray) -> AnchorIndex:
        anchors: list[Query] = folder.anchors[: len(scores)]
        return AnchorIndex.from_arrays(items=folder.items, anchor_queries=anchors, scores=scores)

    def gaussian() -> GaussianModel:
        return GaussianModel(embeddings=folder.item_embeddings, embed_queries=folder.embed_queries)

    def searched(index: AnchorIndex) -> Recalls:
        return recalls(folder, index, approximator=gaussian(), budgets=budgets, first_weight=FIRST_WEIGHT)

    def sparse(share: float) -> Recalls:
        return searched(index_of(completed(folder, share=share, n_anchors=n_anchors)))

    def axn() -> Recalls:
        regression = EmbeddingRegression(folder.item_embeddings, embed_queries=folder.embed_queries)
        bare = AnchorIndex.from_items(folder.items)
        return recalls(folder, bare, approximator=regression, budgets=budgets, first_weight=0.0)

    def adacur() -> Recalls:
        index = index_of(folder.anchor_scores)
        return recalls(folder, index, approximator=PseudoInverse(), budgets=budgets, first_weight=0.0)

    def refreshed(n: int, calls: int) -> Recalls:
        return searched(with_past_searches(folder, gaussian(), n_past=n, calls=calls))

    return {
        "all pairs, Gaussian": lambda: searched(index_of(folder.anchor_scores)),
        "20 %": partial(sparse, 0.2),
        "5 %": partial(sparse, 0.05),
        "1 %": partial(sparse, 0.01),
        "5 % as complete rows": lambda: searched(index_of(folder.anchor_scores[: max(1, round(0.05 * n_anchors))])),
        "none, AXN": axn,
        "none, Gaussian": lambda: searched(AnchorIndex.from_items(folder.items)),
        "all pairs, ADACUR": adacur,
        f"{FEW_ANCHORS} anchor queries": lambda: searched(index_of(folder.anchor_scores[:FEW_ANCHORS])),
        **{
            f"{FEW_ANCHORS} + {min(n, n_past)} searches of {calls}": partial(refreshed, min(n, n_past), calls)
            for n, calls in PAST
        },
    }


if __name__ == "__main__":
    main()
