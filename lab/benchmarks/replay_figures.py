"""The figures of tune, try and evaluate on collections with stored scores, for comparing two versions of the code.

    python lab/benchmarks/replay_figures.py --scores DIR --data DIR > before.txt

Reads NAME/ of both folders for each collection: exact scores and embeddings (see lab/README.md), texts and judgements.
Few queries and small budgets: the figures say nothing of the methods, only whether a change moved any.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rivals import SHARED
from try_advice import LookedUp, open_bed, write_folder

from adacur import BM25, AnchorIndex, Dense
from adacur.replay import compare, evaluate, try_collection, tune
from adacur.replay.comparison import verdict
from adacur.scorers import MatrixScorer

NAMES = ("scifact", "wikivital", "mondo")
N_ANCHORS, N_JUDGED = 60, 40


def plain(value: Any) -> Any:
    """Numbers to six digits, whatever holds them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        # When a run was made is no figure.
        return {str(key): plain(of) for key, of in value.items() if key != "at"}
    if isinstance(value, tuple | list | np.ndarray):
        return [plain(one) for one in value]
    return round(float(value), 6) if isinstance(value, float | np.floating) else value


def show(what: str, value: Any) -> None:
    print(what, json.dumps(plain(value), default=str), flush=True)


class Vectors(LookedUp):
    """The stored vectors, of items as queries too: by them near misses are told from phantom hits."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        return np.stack([self._queries.get(text, self._items.get(text)) for text in texts]).astype(np.float32)


def tuned(bed: Any, encoder: LookedUp) -> None:
    items = list(bed.items)
    stages = {"bm25": BM25.build(items), "dense": Dense.build(items, encoder=encoder, storage="float32")}
    given: dict[str, Any] = {"anchor_queries": bed.anchor_queries[:N_ANCHORS], "scores": bed.anchor_scores[:N_ANCHORS]}
    scorer = MatrixScorer(bed.test_queries, bed.items, bed.exact_scores)
    index = AnchorIndex.from_arrays(items=items, scorer=scorer, first=stages, **given)
    show("tuning", tune(index, k=10, budget=40, queries=30))
    judged = [query for query in bed.test_queries if query.id in bed.qrels][:N_JUDGED]
    show("judged", tune(index, k=10, budget=40, queries=judged, qrels=bed.qrels, quick=True))
    show("relevance", index.snapshot.relevance())


def tried(bed: Any, encoder: LookedUp, folder: Path) -> None:
    scorer = MatrixScorer(bed.anchor_queries, bed.items, bed.anchor_scores)
    place = write_folder(bed, bed.anchor_queries, folder / "tried" / bed.name)
    options: dict[str, Any] = {"kept": folder / "kept", "progress": False, "minutes": 1e6}
    for calls, seed in ((4000, 0), (12000, 1), (8000, 2)):
        if seed == 2:
            (place / "qrels.tsv").unlink(missing_ok=True)
        trial = try_collection(place, scorer=scorer, encoder=encoder, calls=calls, seed=seed, **options)
        for answer in trial.answers:
            show(f"try {calls} {answer.question}", [answer.choice, answer.mean])
        show(f"try {calls} figures", [trial.n_queries, trial.figures])
        show(f"try {calls} words", [[answer.words for answer in trial.answers], trial.commands[0].split(" --first")[1]])


def evaluated(bed: Any, encoder: LookedUp, folder: Path) -> None:
    queries = [*bed.anchor_queries[:100], *bed.test_queries[:100]]
    place = write_folder(bed, queries, folder / "evaluated" / bed.name)
    (place / "qrels").mkdir()
    (place / "qrels.tsv").rename(place / "qrels" / "test.tsv")
    scores = np.concatenate([bed.anchor_scores[:100], bed.exact_scores[:100]])
    options: dict[str, Any] = {"anchors": 40, "queries": 30, "budgets": (20, 40), "ks": (1, 10), "progress": False}
    # Where all items are not scored, quality by depth goes beyond the sample.
    options |= {"first": ("bm25", "dense"), "items": 3000 if bed.name == "mondo" else None}
    done = evaluate(place, scorer=MatrixScorer(queries, bed.items, scores), encoder=encoder, output=folder, **options)
    for run in done.runs:
        show(f"evaluate {dict(run.settings)}", {name: values.tolist() for name, values in run.measures.items()})
    show("compared", [verdict(done.runs), compare(done.runs), compare(done.runs, rival="first")])
    show("failed", done.failed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", type=Path, default=SHARED / "scores")
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--collections", default=",".join(NAMES))
    parser.add_argument("--parts", default="tune,try,evaluate")
    given = parser.parse_args()
    for name in given.collections.split(","):
        bed = open_bed(given.scores / name, given.data / name)
        encoder = Vectors(bed)
        print(f"\n{name}")
        with tempfile.TemporaryDirectory() as made:
            for part in given.parts.split(","):
                match part:
                    case "tune":
                        tuned(bed, encoder)
                    case "try":
                        tried(bed, encoder, Path(made))
                    case "evaluate":
                        evaluated(bed, encoder, Path(made))


if __name__ == "__main__":
    main()
