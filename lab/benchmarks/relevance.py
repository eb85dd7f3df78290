"""Is relevance what it says? Calibration on held-out judgements, and verdicts on questions whose answer was removed.

    python lab/benchmarks/relevance.py --shared DIR [--domains scifact,mondo,medquad] --json OUT [--plot PNG]
    python lab/benchmarks/relevance.py --add OUT --plot PNG

DIR holds data/ and scores/ (see score_folders.py). scifact and mondo are replayed: searches of 100 calls from BM25 and
the dual encoder together; their judged anchor queries fit, their test queries (at most 200, with something relevant in
the collection) are reported on. wikivital's anchor queries are not judged: its relevance goes by anchor scores.
medquad has no stored scores: ms-marco-MiniLM-L-12-v2 (int8) re-ranks BM25's best 10 for 200 questions, answers cut to
100 words; half of the questions fit, the other half is reported on. The same questions are then asked of the collection
without all items that are relevant to any of them. ECE: ten bins of equal width, all ten hits of every question; of the
best hit alone, beside it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from chosen_start import index_of, texts, with_texts
from recall_at_budget import read_judgements
from score_folders import ScoreFolder, read_score_folder

import adacur
from adacur import AnchorIndex, Hits, Item, Query
from adacur.model.scale import ScoreScale
from adacur.replay.judged_tuning import JudgedSearches, calibration_error, judged_queries, judged_relevance
from adacur.replay.searches import Way
from adacur.search.relevance import Relevance
from adacur.search.tuned import default_settings

K, BUDGET, MOST = 10, 100, 200
QRELS = {"scifact": "qrels.train.tsv,qrels.test.tsv", "mondo": "qrels.tsv", "medquad": "qrels.tsv"}
QRELS |= {"wikivital": "qrels.answer_title.tsv"}
MEDQUAD_CALLS, MEDQUAD_WORDS = 10, 100
Qrels = dict[str, dict[str, int]]


def replayed(shared: Path, domain: str) -> dict[str, Any]:
    data = shared / "data" / domain
    scores = read_score_folder(shared / "scores" / domain, n_anchors=500, n_queries=10_000)
    folder = with_texts(scores, data)
    qrels = judgements(data, domain, {item.id for item in folder.items})
    index = index_of(folder)
    relevance = index.snapshot.relevance()
    assert relevance is not None
    row: dict[str, Any] = {"domain": domain, "scored": "replayed"}
    if judged := [query for query in folder.anchors if query.id in qrels]:
        among = judged_queries(index, qrels, judged)
        searches, settings = JudgedSearches(index, among, k=K, largest=BUDGET, seed=0), default_settings(K)
        answers = searches.hits(Way(settings, index.snapshot.default_first, BUDGET), settings)
        by_anchors, relevance = (
            relevance,
            judged_relevance(answers, among.qrels, anchors=index.anchors),
        )
        row |= {"by_anchors": [by_anchors.nothing, by_anchors.answered]}
    test = [query for query in folder.test if query.id in qrels][:MOST]
    gone = {id_ for query in test for id_, grade in qrels[query.id].items() if grade > 0}
    present = searched(index, test, relevance)
    removed = searched(index_of(without(folder, gone)), test, relevance)
    return row | measured(present, removed, qrels, relevance)


def searched(index: AnchorIndex, queries: list[Query], relevance: Relevance) -> list[Hits]:
    index.snapshot.set_relevance(relevance)
    return index.search(queries, K, budget=BUDGET)


def without(folder: ScoreFolder, gone: set[str]) -> ScoreFolder:
    from dataclasses import replace

    left = np.array([item.id not in gone for item in folder.items])
    return replace(
        folder,
        items=[item for item, stays in zip(folder.items, left, strict=True) if stays],
        anchor_scores=folder.anchor_scores[:, left],
        test_scores=folder.test_scores[:, left],
        dense_scores=folder.dense_scores[:, left],
        item_embeddings=folder.item_embeddings[left],
    )


def live(shared: Path) -> dict[str, Any]:
    data = shared / "data" / "medquad"
    long = texts(data / "corpus.jsonl.gz")
    items = [Item(id_, " ".join(text.split()[:MEDQUAD_WORDS])) for id_, text in long.items()]
    qrels = judgements(data, "medquad", {item.id for item in items})
    asked = {id_: text for id_, text in texts(data / "queries.jsonl.gz").items() if id_ in qrels}
    draw = np.random.default_rng(0).permutation(sorted(asked))[:200]
    queries = [Query(id_, asked[id_]) for id_ in draw.tolist()]
    scorer = adacur.scorer("ms-marco-MiniLM-L-12-v2")
    index = AnchorIndex.from_items(items, scorer=scorer, first="bm25", progress=False)
    options = {"budget": MEDQUAD_CALLS, "method": "rerank"}
    fit, test = queries[:100], queries[100:]
    answers = index.search(fit, K, **options)  # type: ignore[call-overload]
    scored = np.concatenate([round_.exact for hits in answers for round_ in hits.trace.rounds])
    relevance = judged_relevance(answers, qrels, items=index.items, scale=ScoreScale.of(scored))
    gone = {id_ for query in test for id_, grade in qrels[query.id].items() if grade > 0}
    index.snapshot.set_relevance(relevance)
    present = index.search(test, K, **options)  # type: ignore[call-overload]
    rest = AnchorIndex.from_items([i for i in items if i.id not in gone], scorer=scorer, first="bm25", progress=False)
    rest.snapshot.set_relevance(relevance)
    removed = rest.search(test, K, **options)  # type: ignore[call-overload]
    return {"domain": "medquad", "scored": "re-ranked"} | measured(present, removed, qrels, relevance)


def judgements(data: Path, domain: str, ids: set[str]) -> Qrels:
    every = read_judgements(",".join(str(data / name) for name in QRELS[domain].split(",")))
    kept = {query: {id_: grade for id_, grade in own.items() if id_ in ids} for query, own in every.items()}
    return {query: own for query, own in kept.items() if any(grade > 0 for grade in own.values())}


def measured(present: list[Hits], removed: list[Hits], qrels: Qrels, relevance: Relevance) -> dict[str, Any]:
    stated = np.array([hits.relevance for hits in present], dtype=float)
    came = np.array([[qrels[hits.query.id].get(id_, 0) > 0 for id_ in hits.ids] for hits in present])
    bins = np.minimum((stated * 10).astype(int), 9)
    calibration = relevance.calibration
    return {
        "by": relevance.source,
        "fitted_to": calibration.queries if calibration else 0,
        "questions": len(present),
        "nothing_below": relevance.nothing,
        "answered_from": relevance.answered,
        "ece": calibration_error(stated.ravel(), came.ravel()),
        "ece_best": calibration_error(stated[:, 0], came[:, 0]),
        "ece_expected": calibration.error if calibration else None,
        "best_is_relevant": float(came[:, 0].mean()),
        "bins": [
            {
                "n": int((bins == at).sum()),
                "stated": float(stated[bins == at].mean()),
                "came": float(came[bins == at].mean()),
            }
            for at in range(10)
            if (bins == at).any()
        ],
        "verdicts": {
            name: {verdict: float(np.mean([hits.verdict == verdict for hits in answers])) for verdict in VERDICTS}
            for name, answers in (("present", present), ("removed", removed))
        },
    }


VERDICTS = ("answered", "doubtful", "nothing found")


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    from matplotlib.figure import Figure

    rows = [row for row in rows if row["by"] == "judgements"]
    figure = Figure(figsize=(3.3 * len(rows) + 3.6, 3.5), layout="constrained")
    axes = figure.subplots(1, len(rows) + 1, width_ratios=[*(1 for _ in rows), 1.15])
    for axis, row in zip(axes, rows, strict=False):
        axis.plot([0, 1], [0, 1], color="grey", lw=0.8)
        axis.plot([one["stated"] for one in row["bins"]], [one["came"] for one in row["bins"]], lw=1, color="C0")
        for one in row["bins"]:
            axis.scatter(
                one["stated"], one["came"], s=8 + 60 * (one["n"] / max(b["n"] for b in row["bins"])) ** 0.5, color="C0"
            )
        axis.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal", xlabel="relevance stated")
        axis.set_title(f"{row['domain']}: ECE {row['ece']:.3f} (best hit {row['ece_best']:.3f})", fontsize=9)
    axes[0].set_ylabel("share judged relevant")
    labels, bottoms = [], np.zeros(2 * len(rows))
    for row in rows:
        labels += [f"{row['domain']}\nas it is", f"{row['domain']}\nremoved"]
    colours = {"answered": "C0", "doubtful": "0.75", "nothing found": "C1"}
    for verdict in VERDICTS:
        values = np.array([row["verdicts"][name][verdict] for row in rows for name in ("present", "removed")])
        axes[-1].barh(np.arange(len(values)), values, left=bottoms, color=colours[verdict], label=verdict, height=0.75)
        bottoms += values
    axes[-1].set_yticks(np.arange(len(labels)), labels, fontsize=7)
    axes[-1].invert_yaxis()
    axes[-1].set(xlim=(0, 1), xlabel="share of questions")
    axes[-1].set_title("verdicts", fontsize=9)
    axes[-1].legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=3, frameon=False, fontsize=7)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=150, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--domains", default="scifact,medquad,mondo,wikivital")
    parser.add_argument("--add", type=Path, action="append", default=[], help="what --json wrote; may be repeated")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    rows = [row for file in arguments.add for row in json.loads(file.read_text())]
    for domain in arguments.domains.split(",") if arguments.shared else ():
        rows.append(live(arguments.shared) if domain == "medquad" else replayed(arguments.shared, domain))
        print(json.dumps(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    if arguments.plot:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
