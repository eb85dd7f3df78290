"""Trains, on one collection, all that the paper's experiments with an [EMB] cross-encoder need. Wants a GPU.

    python lab/reproduction/emb-cross-encoder/train.py DATA SPLIT OUT --cross-base CHECKPOINT --dual-base FOLDER

DATA is a BEIR folder; SPLIT the meta.json of a score folder, whose anchor and test queries are kept out of training,
and so is every other query about their relevant items. CHECKPOINT is what `adacur_lab.dequantise` writes, FOLDER
all-MiniLM-L6-v2. OUT gets the models, OUT/scores-emb and OUT/scores-cls (folders of exact scores with the dual
encoders' embeddings, as `adacur_lab reproduce` reads them) and OUT/quality.json. What is there is not made again.

`--stages` runs some of it, in the order given. With OUT/scores-emb from an earlier run, the dual encoders alone are
`--stages dual,distill,embed,dual_quality`; the [CLS] head and its scores `--stages dual,cls,score`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from adacur import AnchorIndex, Dense, Item, Query
from adacur.data import JudgedCollection, read_beir, split_queries
from adacur.extras.train import (
    TrainingSettings,
    export_onnx,
    make_emb_cross_encoder,
    save_emb_cross_encoder,
    train_cross_encoder,
)
from adacur.extras.train.checking import ranking_quality
from adacur.first_stages.encoders import SentenceTransformerEncoder
from adacur.scorers import OnnxCrossEncoder, TorchCrossEncoder
from adacur_lab.distillation import distill
from adacur_lab.dual_encoder import train_dual_encoder
from adacur_lab.experiments import Testbed

SHORTLIST = 64
QUERIES_AT_ONCE = 100
STAGES = ("dual", "emb", "cls", "score", "distill", "embed", "dual_quality", "cross_quality", "onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("split", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cross-base", required=True, type=Path)
    parser.add_argument("--dual-base", required=True, type=Path)
    parser.add_argument("--train-queries", type=int, default=10_000)
    parser.add_argument("--negatives", type=int, default=31)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-queries", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--max-item-tokens", type=int, default=160)
    parser.add_argument("--stages", default=",".join(STAGES), help=f"of {', '.join(STAGES)}")
    asked = parser.parse_args()
    if unknown := set(asked.stages.split(",")) - set(STAGES):
        parser.error(f"there are no stages {', '.join(sorted(unknown))}")
    work = Work(asked)
    for stage in asked.stages.split(","):
        started = time.monotonic()
        getattr(work, stage)()
        print(f"{asked.data.name} {stage}: {time.monotonic() - started:.1f} s", flush=True)


class Work:
    """One collection's models; every stage finds what the stages before it left in the folder."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked, self.out = asked, asked.out
        collection = read_beir(asked.data)
        meta = json.loads(asked.split.read_text(encoding="utf-8"))
        by_id = {query.id: query for query in collection.queries}
        items = {item.id: item for item in collection.items}
        # In the order of the score folder, so that all folders of a collection have the same rows.
        self.items = [items[id_] for id_ in meta["item_ids"]]
        self.anchors = [by_id[id_] for id_ in meta["anchor_query_ids"]]
        self.test = [by_id[id_] for id_ in meta["test_query_ids"]]
        self.qrels = collection.qrels
        self.learning = unseen(collection, self.items, [*self.anchors, *self.test], n=asked.train_queries, seed=0)
        print(f"{asked.data.name}: {len(self.items)} items, {len(self.learning.queries)} queries to learn from")

    def dual(self) -> None:
        """DE_base."""
        settings = TrainingSettings(epochs=3, learning_rate=2e-5, batch_queries=128)
        trained = train_dual_encoder(
            self.learning,
            self.out / "de-base",
            base=self.asked.dual_base,
            first=self.dense(self.asked.dual_base),
            negatives=3,
            settings=settings,
            max_item_tokens=self.asked.max_item_tokens,
        )
        self.tell("de-base", trained)

    def emb(self) -> None:
        self.cross_encoder("emb")

    def cls(self) -> None:
        self.cross_encoder("cls")

    def cross_encoder(self, head: str) -> None:
        settings = TrainingSettings(
            epochs=self.asked.epochs,
            learning_rate=self.asked.learning_rate,
            batch_queries=self.asked.batch_queries,
            warmup=0.1,
        )
        trained = train_cross_encoder(
            self.learning,
            self.out / head,
            base=self.asked.cross_base,
            first=self.dense(self.out / "de-base"),
            head=head,
            negatives=self.asked.negatives,
            depth=max(SHORTLIST, self.asked.negatives),
            settings=settings,
            max_item_tokens=self.asked.max_item_tokens,
        )
        pairs = trained.queries * (1 + self.asked.negatives)
        print(f"{head}: {pairs} pairs, {pairs / trained.seconds:.0f} a second, checks included")
        self.tell(head, trained)

    def score(self) -> None:
        """Exact scores of every item for anchor and test queries, by both heads."""
        queries = [*self.anchors, *self.test]
        for head in ("emb", "cls"):
            folder = self.out / f"scores-{head}"
            if (folder / "meta.json").exists() or not (self.out / head).exists():
                continue
            started = time.monotonic()
            with TorchCrossEncoder(self.out / head, max_item_tokens=self.asked.max_item_tokens, name=head) as scorer:
                card = dataclasses.replace(scorer.card, source=None)
                scores = np.concatenate(
                    [
                        scorer.score_grid(queries[start : start + QUERIES_AT_ONCE], self.items)
                        for start in range(0, len(queries), QUERIES_AT_ONCE)
                    ]
                )
            print(f"{head}: {scores.size / (time.monotonic() - started):.0f} pairs a second")
            folder.mkdir(exist_ok=True)
            low, high = float(scores.min()), float(scores.max())
            steps = 65_535 / (high - low)
            np.savez_compressed(folder / "scores.npz", scores=np.round((scores - low) * steps).astype(np.uint16))
            sign = "+" if low >= 0 else "-"
            meta = {
                "domain": f"{self.asked.data.name}-{head}",
                "texts": self.asked.data.name,
                "decode": f"logit = value / {steps:.6f} {sign} {abs(low):.6f}",
                "n_anchor_queries": len(self.anchors),
                "anchor_query_ids": [query.id for query in self.anchors],
                "test_query_ids": [query.id for query in self.test],
                "item_ids": [item.id for item in self.items],
                "scorer": str(card),
            }
            (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")

    def distill(self) -> None:
        """DE^CE_BERT and DE^CE_base: from what the cross-encoder said of all items to the anchor queries."""
        queries = [*self.anchors, *self.test]
        scored = Testbed.from_score_folder(self.out / "scores-emb", items=self.items, queries=queries)
        index = AnchorIndex.from_arrays(
            items=scored.items, anchor_queries=scored.anchor_queries, scores=scored.anchor_scores
        )
        for name, base in (("de-ce-bert", self.asked.dual_base), ("de-ce-base", self.out / "de-base")):
            settings = TrainingSettings(epochs=10, learning_rate=5e-5, batch_queries=8, patience=None)
            trained = distill(
                index,
                self.out / name,
                base=base,
                settings=settings,
                max_item_tokens=self.asked.max_item_tokens,
            )
            self.tell(name, trained)

    def embed(self) -> None:
        """The dual encoders' vectors of all items and queries, beside the scores of both heads; DE_base is "dense"."""
        for name, own in self.dual_encoders().items():
            prefix = "dense" if name == "de-base" else f"dense-{name}"
            encoder = SentenceTransformerEncoder(own)
            vectors = {
                "items": encoder.encode_items([item.text for item in self.items]),
                "queries": encoder.encode_queries([query.text for query in (*self.anchors, *self.test)]),
            }
            for head in ("emb", "cls"):
                folder = self.out / f"scores-{head}"
                for kind, rows in vectors.items():
                    if folder.exists():
                        np.save(folder / f"{prefix}_{kind}.npy", rows.astype(np.float16))

    def dual_quality(self) -> None:
        """How much of what is judged relevant to the test queries, which nothing was chosen by, is found."""
        judged, relevant = self.judged_tests()
        measured: dict[str, Mapping[str, float]] = {}
        for name, folder in self.dual_encoders().items():
            dense = self.dense(folder)
            found = [ranking.positions for ranking in dense.search(judged, 100)]
            hit = [np.isin(wanted, own).mean() for own, wanted in zip(found, relevant, strict=True)]
            measured[name] = {"recall@100": float(np.mean(hit))}
        self.add_quality(measured)

    def cross_quality(self) -> None:
        """How the cross-encoders rank DE_base's shortlists for the test queries."""
        judged, relevant = self.judged_tests()
        measured: dict[str, Mapping[str, float]] = {}
        shortlists = [ranking.positions for ranking in self.dense(self.out / "de-base").search(judged, SHORTLIST)]
        pairs = [(query, self.items[place]) for query, own in zip(judged, shortlists, strict=True) for place in own]
        untrained = self.out / "emb-untrained"
        if not untrained.exists():
            tokenizer, module = make_emb_cross_encoder(self.asked.cross_base)
            save_emb_cross_encoder(module, tokenizer, untrained)
        for name, folder in {
            "emb": self.out / "emb",
            "cls": self.out / "cls",
            "emb, untrained": untrained,
            "cls, not trained on this collection": self.asked.cross_base,
        }.items():
            if not folder.exists():
                continue
            with TorchCrossEncoder(folder, max_item_tokens=self.asked.max_item_tokens) as scorer:
                scores = np.split(scorer.score(pairs), np.cumsum([len(own) for own in shortlists])[:-1])
            measured[name] = ranking_quality(scores, shortlists, relevant)
        self.add_quality(measured)

    def judged_tests(self) -> tuple[list[Query], list[np.ndarray]]:
        judged = [query for query in self.test if self.qrels.get(query.id)]
        places = {item.id: place for place, item in enumerate(self.items)}
        return judged, [
            np.array([places[id_] for id_, grade in self.qrels[query.id].items() if grade > 0 and id_ in places])
            for query in judged
        ]

    def add_quality(self, measured: Mapping[str, Mapping[str, float]]) -> None:
        file = self.out / "quality.json"
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(known | dict(measured), indent=1) + "\n", encoding="utf-8")
        for name, values in measured.items():
            print(f"{name}: " + ", ".join(f"{what} {value:.3f}" for what, value in values.items()))

    def onnx(self) -> None:
        """The trained [EMB] cross-encoder as an ONNX graph, against torch in fp32 on 200 pairs."""
        target = self.out / "emb-onnx"
        if not target.exists():
            export_onnx(self.out / "emb", target)
        rng = np.random.default_rng(0)
        places = rng.integers(len(self.items), size=200)
        pairs = [(self.test[number % len(self.test)], self.items[place]) for number, place in enumerate(places)]
        cut = self.asked.max_item_tokens
        with (
            TorchCrossEncoder(self.out / "emb", device="cpu", dtype="float32", max_item_tokens=cut) as torch_scorer,
            OnnxCrossEncoder(target, max_item_tokens=cut) as onnx_scorer,
        ):
            exact, exported = torch_scorer.score(pairs), onnx_scorer.score(pairs)
        furthest = float(np.abs(exact - exported).max())
        between = f"scores {exact.min():.1f} to {exact.max():.1f}"
        print(f"ONNX against torch fp32, 200 pairs, {between}: {furthest:.1e} at most")

    def dual_encoders(self) -> dict[str, Path]:
        trained = {name: self.out / name for name in ("de-base", "de-ce-bert", "de-ce-base")}
        return {"minilm": self.asked.dual_base} | {name: own for name, own in trained.items() if own.exists()}

    def dense(self, folder: Path) -> Dense:
        return Dense.build(self.items, encoder=SentenceTransformerEncoder(folder))

    def tell(self, name: str, trained: object) -> None:
        print(f"{name}: {trained.fitted}", flush=True)  # type: ignore[attr-defined]


def unseen(
    collection: JudgedCollection, items: Sequence[Item], kept: Sequence[Query], *, n: int, seed: int
) -> JudgedCollection:
    """So many judged queries at random that share neither text nor relevant item with those that are kept out."""
    texts = {" ".join(query.text.casefold().split()) for query in kept}
    targets = {id_ for query in kept for id_ in collection.qrels.get(query.id, ())}
    free = [
        query
        for query in collection.judged
        if " ".join(query.text.casefold().split()) not in texts and targets.isdisjoint(collection.qrels[query.id])
    ]
    chosen = split_queries(free, anchors=min(n, len(free)), seed=seed).anchors
    return JudgedCollection(collection.name, items, chosen, {query.id: collection.qrels[query.id] for query in chosen})


if __name__ == "__main__":
    main()
