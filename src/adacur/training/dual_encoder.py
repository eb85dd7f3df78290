"""Dual encoders trained on the judged queries of a collection."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adacur.core.arrays import IntArray
from adacur.core.budget import is_whole
from adacur.core.errors import InputError
from adacur.core.extras import require
from adacur.core.protocols import Items, Retriever
from adacur.data import JudgedCollection
from adacur.scorers.cross_encoders.checkpoints import checkpoint_folder
from adacur.training.candidates import hard_negatives, shown
from adacur.training.fitting import check_device, fit
from adacur.training.judged_queries import JudgedQueries, learning_data, with_equal_texts
from adacur.training.run_folder import RunFolder, facts_of_base, facts_of_first
from adacur.training.settings import TrainingSettings
from adacur.training.token_rows import TokenRows
from adacur.training.tower_options import Pooling, TowerOptions, Towers
from adacur.training.trained import Trained

if TYPE_CHECKING:
    from adacur.training.towers import TowerItems, TowerPair

__all__ = ["train_dual_encoder"]

_DEFAULT_SETTINGS = TrainingSettings(epochs=4, learning_rate=2e-5, batch_queries=32)
_MRR_DEPTH = 10


def train_dual_encoder(
    collection: JudgedCollection,
    folder: str | Path,
    *,
    base: str | Path,
    first: Retriever | None = None,
    towers: Towers = "separate",
    pooling: Pooling | None = None,
    normalise: bool | None = None,
    scale: float | None = None,
    negatives: int = 7,
    depth: int = 100,
    refresh_every: int = 1,
    settings: TrainingSettings = _DEFAULT_SETTINGS,
    held_out: int | None = None,
    max_query_tokens: int | None = None,
    max_item_tokens: int | None = None,
    device: str | None = None,
    progress: bool = False,
) -> Trained:
    """Train a dual encoder on the judged queries of a collection and write it to `folder`; a killed run goes on.

    Each step shows queries with a relevant item and `negatives` hard ones, and the loss is the cross-entropy over all
    items of the step, other relevant ones left out. Hard are the `depth` best that nobody calls relevant: of `first`
    (without one there are none to begin with), and every `refresh_every` epochs of the dual encoder itself. Checks rank
    all items for held-out queries: "mrr@10", which says what is best, and "recall@100", of the best tenth of
    the items where they are fewer than 1,000.

    `base` is an encoder of transformers, or a model of sentence-transformers: what is written here, say. It gives both
    towers their weights; options that are None are as it says, for a plain encoder the first token's vector as it is.
    Texts are cut at 512 tokens, or where it cuts them before that, unless told. `scale` multiplies dot products: 1, or
    20 where vectors are normalised. `SentenceTransformerEncoder` opens the result by its path.
    """
    torch = require("torch", extra="training")
    require("sentence_transformers", extra="training")
    options = TowerOptions(
        towers=towers,
        pooling=pooling,
        normalise=normalise,
        scale=scale,
        max_query_tokens=max_query_tokens,
        max_item_tokens=max_item_tokens,
    )
    _check_negatives(negatives, depth, refresh_every, first=first)
    data = learning_data(collection, held_out=held_out, seed=settings.seed)
    if min(settings.batch_queries, len(data.learnt)) == 1 and first is None:
        raise InputError(
            f"A relevant item is learnt against others: those of the other queries in a step (there is 1 of "
            f"{len(data.learnt)}), or hard ones. Take more queries at a time (batch_queries), or pass a first stage "
            "and negatives."
        )
    check_device(torch, device, settings)
    base_folder = checkpoint_folder(base)
    made_from = {
        "trains": "dual-encoder",
        **facts_of_base(base, base_folder, out=folder),
        "collection": data.name,
        "data": data.fingerprint,
        **facts_of_first(first),
        "negatives": negatives,
        "depth": depth,
        "refresh_every": refresh_every,
        **asdict(options),
        "settings": asdict(settings),
    }
    with RunFolder(folder, made_from) as run:
        if (finished := Trained.read(run)) is not None:
            return finished
        from adacur.training.towers import TowerItems, TowerPair

        # Weights that the base lacks, such as a pooler's, are drawn from it.
        torch.manual_seed(settings.seed)
        model = TowerPair.opened(base_folder, options, half=settings.precision != "float32")
        in_tokens = TowerItems(model, data.items)
        queries = model.tokens("query", [query.text for query in data.learnt.queries])
        judged = with_equal_texts(data.learnt, in_tokens.row_of)
        _check_others(judged, data.items)
        mined = MinedNegatives(
            judged,
            queries,
            model,
            in_tokens,
            items=data.items,
            first=first,
            depth=depth,
            refresh_every=refresh_every,
            seed=settings.seed,
            folder=run.state,
        )
        examples = JudgedExamples(
            judged,
            queries,
            in_tokens,
            items=data.items,
            mined=mined if negatives else None,
            negatives=negatives,
            seed=settings.seed,
        )
        held_out_queries = model.tokens("query", [query.text for query in data.held_out.queries])

        def check() -> Mapping[str, float]:
            k = first_stage_depth(len(data.items))
            vectors = model.vectors("query", held_out_queries)
            found = in_tokens.nearest(vectors, min(len(data.items), max(k, _MRR_DEPTH)))
            return retrieval_quality(found, data.held_out.relevant, k=k)

        fitted = fit(
            model,
            examples,
            settings=settings,
            run=run,
            check=check,
            watched=f"mrr@{_MRR_DEPTH}",
            device=device,
            progress=progress,
        )
        model.publish(run)
        mined.forget()
        return Trained.write(run, fitted)


class JudgedExamples:
    """Per query a relevant item, first, and hard negatives; both are drawn anew for every epoch."""

    def __init__(
        self,
        judged: JudgedQueries,
        queries: TokenRows,
        in_tokens: TowerItems,
        *,
        items: Items,
        mined: MinedNegatives | None,
        negatives: int,
        seed: int,
    ) -> None:
        self._judged, self._queries, self._in_tokens, self._items = judged, queries, in_tokens, items
        self._mined, self._negatives, self._seed = mined, negatives, seed
        self._epoch = 0
        self._pools: Sequence[IntArray] | None = None

    def __len__(self) -> int:
        return len(self._judged)

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._pools = None if self._mined is None else self._mined.pools(epoch)

    def __getitem__(self, place: int) -> tuple[int, IntArray]:
        query, relevant = self._judged.queries[place], self._judged.relevant[place]
        return place, shown(
            relevant,
            None if self._pools is None else self._pools[place],
            negatives=self._negatives,
            items=self._items,
            seed=self._seed,
            epoch=self._epoch,
            query=query,
        )

    def collate(self, examples: list[tuple[int, IntArray]]) -> dict[str, Any]:
        places, positions = [place for place, _ in examples], [own for _, own in examples]
        return self._in_tokens.step(
            self._queries,
            places,
            positions,
            [np.eye(1, len(own), dtype=np.float32)[0] for own in positions],
            not_against=[self._in_tokens.row_of[self._judged.relevant[place]] for place in places],
        )


class MinedNegatives:
    """Per query, the best items that are not relevant, found anew every few epochs and kept in a file.

    So a killed run that goes on in the middle of an epoch reads what it was mined by the weights at its beginning.
    Without a `first` there are none in the first epochs, unless they are to be mined `at_once`.
    """

    def __init__(
        self,
        judged: JudgedQueries,
        queries: TokenRows,
        towers: TowerPair,
        in_tokens: TowerItems,
        *,
        items: Items,
        first: Retriever | None,
        depth: int,
        refresh_every: int,
        seed: int,
        folder: Path,
        at_once: bool = False,
    ) -> None:
        self._judged, self._queries, self._towers, self._in_tokens = judged, queries, towers, in_tokens
        self._items, self._first = items, first
        self._depth, self._every, self._seed, self._folder = depth, refresh_every, seed, folder
        self._at_once = at_once

    def pools(self, epoch: int) -> Sequence[IntArray] | None:
        """Positions of shape (queries, depth or all that are not relevant); None while nothing was mined."""
        since = epoch - epoch % self._every
        if since == 0 and self._first is None and not self._at_once:
            return None
        file = self._folder / f"negatives-{since}.npz"
        if not file.exists():
            found = np.stack(self._by_first(self._first) if since == 0 and self._first else self._by_towers())
            self.forget()
            partial = file.with_suffix(".partial")
            with partial.open("wb") as opened:
                np.savez(opened, positions=found.astype(np.int32))
            partial.replace(file)
        with np.load(file) as stored:
            return list(stored["positions"].astype(np.intp))

    def forget(self) -> None:
        """Remove the files: those of earlier epochs are never read again."""
        for file in self._folder.glob("negatives-*.npz"):
            file.unlink()

    def _by_first(self, first: Retriever) -> list[IntArray]:
        return hard_negatives(first, self._judged, self._items, depth=self._depth, seed=self._seed)

    def _by_towers(self) -> list[IntArray]:
        most_relevant = max(map(len, self._judged.relevant))
        depth = min(self._depth, len(self._items) - most_relevant)
        vectors = self._towers.vectors("query", self._queries)
        found = self._in_tokens.nearest(vectors, depth + most_relevant)
        return [
            row[~np.isin(row, relevant)][:depth] for row, relevant in zip(found, self._judged.relevant, strict=True)
        ]


def first_stage_depth(n_items: int) -> int:
    """How many of a dual encoder's best items a check looks at: 100, or a tenth of a small collection."""
    return min(100, math.ceil(n_items / 10))


def retrieval_quality(found: IntArray, relevant: Sequence[IntArray], *, k: int) -> dict[str, float]:
    """Means over queries of positions found, best first: the share of the relevant that is among the best k, and one
    over the rank of the first relevant, 0 beyond the tenth."""
    hits = [np.isin(row, wanted) for row, wanted in zip(found, relevant, strict=True)]
    recall = [hit[:k].sum() / len(wanted) for hit, wanted in zip(hits, relevant, strict=True)]
    top = [hit[:_MRR_DEPTH] for hit in hits]
    return {
        f"recall@{k}": float(np.mean(recall)),
        f"mrr@{_MRR_DEPTH}": float(np.mean([1 / (1 + int(hit.argmax())) if hit.any() else 0.0 for hit in top])),
    }


def _check_negatives(negatives: int, depth: int, refresh_every: int, *, first: Retriever | None) -> None:
    if not (is_whole(negatives) and is_whole(depth) and is_whole(refresh_every)) or negatives < 0 or refresh_every < 1:
        raise InputError(
            "negatives is a whole number from 0, depth and refresh_every from 1; "
            f"got {negatives!r}, {depth!r} and {refresh_every!r}."
        )
    if negatives and depth < negatives:
        raise InputError(f"Negatives are drawn from the depth best, so at least as many; got {negatives} and {depth}.")
    if not negatives and first is not None:
        raise InputError("Without negatives the first stage has no part in training. Leave one of the two out.")


def _check_others(judged: JudgedQueries, items: Items) -> None:
    for query, relevant in zip(judged.queries, judged.relevant, strict=True):
        if len(relevant) == len(items):
            raise InputError(
                f"Learning needs an item that is not relevant; all {len(items)} items are relevant to {query.id!r}."
            )
